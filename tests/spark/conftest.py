"""One Spark for all tests of a process, and logs to read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.java import quick_pythons, quick_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK = quick_spark()


@pytest.fixture(scope="session")
def spark(forks: str) -> Iterator[SparkSession]:
    """The Spark of this test process; skips, saying why, where there is none."""
    from penstock.errors import MissingExtra, NotSupported
    from penstock.spark import spark_session
    from penstock.spark.session import JAVA_OPTIONS

    os.environ.update(quick_pythons())
    try:
        session = spark_session("tests", master="local[2]", config={JAVA_OPTIONS: QUICK})
    except (MissingExtra, NotSupported) as missing:
        pytest.skip(str(missing))
    yield session
    session.stop()


@pytest.fixture
def log(tmp_path):
    """An empty log."""
    pytest.importorskip("pyspark", reason="Spark needs: pip install 'penstock[spark]'")
    from tests.spark.spark_world import LogWorld

    (tmp_path / "log").mkdir()
    return LogWorld(tmp_path / "log")
