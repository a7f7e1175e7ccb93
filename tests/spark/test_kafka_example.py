"""The shipped pipeline on Kafka: the same program, another URL."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import NotSupported
from tests.transports.servers.kafka import kafka_server

pytest.importorskip("pyspark", reason="Spark needs: pip install 'penstock[spark]'")
pytest.importorskip("confluent_kafka", reason="Kafka needs: pip install 'penstock[kafka]'")
from penstock.spark.kafka_connector import kafka_jars

MAIN = Path(__file__).parents[2] / "examples" / "shop_pipeline" / "main.py"


@pytest.mark.torture
@pytest.mark.timeout(900)
def test_the_shop_counts_the_same_on_kafka(tmp_path: Path) -> None:
    try:
        kafka_jars()
    except NotSupported as missing:
        pytest.skip(str(missing))
    with kafka_server() as server:
        finished = subprocess.run(
            [sys.executable, "-W", "error", str(MAIN), "--url", server.url],
            cwd=tmp_path,
            env={**os.environ, "PENSTOCK_EXAMPLE_FAST": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=800,
            check=False,
        )
    assert finished.returncode == 0, finished.stdout[-4000:]
    assert "PASS: " in finished.stdout
