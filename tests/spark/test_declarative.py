"""Topics as source and sink of a Spark Declarative Pipeline: the file of the page is run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import NotSupported
from penstock.spark.java import find_java
from tests.java import quick_pythons
from tests.running import run_program
from tests.snippets import blocks_of
from tests.spark.conftest import QUICK
from tests.spark.connect_port import connect_port

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "pipelines.md"
SPEC = """
name: shop
storage: file://{folder}/storage
libraries:
  - glob:
      include: transformations/**
"""
RUN_SECONDS = 600


def declaration(log: str) -> str:
    """The file that the page shows, for a log of ours."""
    (block,) = (
        one
        for one in blocks_of(PAGE.read_text(encoding="utf-8"))
        if "spark-pipelines" in (one.skipped_because or "")
    )
    assert '"/srv/data"' in block.code
    return block.code.replace('"/srv/data"', repr(log))


def run(folder: Path) -> None:
    """One run of the pipeline, with a catalog that the next run finds again."""
    settings = {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.ui.enabled": "false",
    }
    arguments = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    program = Path(sys.executable).with_name("spark-pipelines")
    with connect_port():
        finished = run_program(
            program,
            "run",
            *arguments,
            folder=folder,
            environment={
                "JAVA_HOME": find_java().home,
                "JDK_JAVA_OPTIONS": QUICK,
                "SPARK_LOCAL_IP": "127.0.0.1",
                **quick_pythons(),
            },
            seconds=RUN_SECONDS,
        )
    assert finished.returncode == 0, finished.stdout[-6000:]


def make(log: Any, folder: Path) -> None:
    (folder / "transformations").mkdir(parents=True)
    (folder / "spark-pipeline.yml").write_text(SPEC.format(folder=folder), encoding="utf-8")
    text = declaration(log.path)
    (folder / "transformations" / "shop.py").write_text(text, encoding="utf-8")
    log.create("orders", partitions=2)


@pytest.fixture
def folder(tmp_path: Path, forks: str) -> Path:
    pytest.importorskip("grpc", reason="needs: pip install 'pyspark[pipelines]'")
    try:
        find_java()
    except NotSupported as missing:
        pytest.skip(str(missing))
    return tmp_path / "shop"


def values(log: Any) -> list[int]:
    return sorted(int(row["value"]) for row in log.rows(subscribe="large-orders"))


@pytest.mark.timeout(900)
def test_a_declarative_pipeline_reads_a_topic_and_writes_one(log: Any, folder: Path) -> None:
    make(log, folder)
    log.numbers("orders", 0, 30)
    run(folder)
    assert values(log) == list(range(30))


@pytest.mark.torture
def test_the_next_run_takes_what_is_new(log: Any, folder: Path) -> None:
    make(log, folder)
    for first in (0, 30, 60):
        log.numbers("orders", first, 30)
        run(folder)
        assert values(log) == list(range(first + 30))
