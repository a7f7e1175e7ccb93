"""The source over Spark Connect, in a process of its own: a process has one Spark."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import NotSupported
from penstock.spark.java import find_java
from penstock.spark.open_log import open_log

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.timeout(300)
def test_a_topic_is_read_over_spark_connect(log, tmp_path):
    pytest.importorskip("grpc", reason="Spark Connect needs: pip install 'pyspark[connect]'")
    try:
        find_java()
    except NotSupported as missing:
        pytest.skip(str(missing))
    log.create("orders")
    log.numbers("orders", 0, 10)
    command = [sys.executable, "-m", "tests.spark.connect_program", log.path, str(tmp_path)]
    finished = subprocess.run(
        command, capture_output=True, text=True, timeout=280, check=False, cwd=ROOT
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    found = json.loads(finished.stdout.splitlines()[-1])
    assert found.pop("class").startswith("pyspark.sql.connect")
    assert found == {"table": 10, "view": 7, "stream": 10}
    state = open_log(log.path).topic("orders")
    assert state is not None
    assert "remote" in state.subscribers
