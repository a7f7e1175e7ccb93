"""Secrets for Kafka in what Spark tells and keeps: plans, errors, checkpoints. No broker is needed."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

import pytest

from penstock.errors import NotSupported

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="Spark needs: pip install 'penstock[spark]'")
pytest.importorskip("confluent_kafka", reason="Kafka needs: pip install 'penstock[kafka]'")

from penstock.spark.kafka_connector import PRIVATE, REDACTED, add_connector
from penstock.spark.kafka_options import connection

CANARY = "canaryzqjw"
LOGIN = "kafka://ada@127.0.0.1:1?security.protocol=SASL_PLAINTEXT&sasl.mechanisms=PLAIN"
KEY = "kafka://127.0.0.1:1?security.protocol=SSL"
QUICK = {
    "kafka.request.timeout.ms": "300",
    "kafka.default.api.timeout.ms": "600",
    "kafka.socket.connection.setup.timeout.ms": "200",
    "fetchOffset.numRetries": "1",
    "fetchOffset.retryIntervalMs": "1",
}


@pytest.fixture
def kafka(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    monkeypatch.setenv("PENSTOCK_KAFKA_PASSWORD", CANARY)
    monkeypatch.setenv("PENSTOCK_KAFKA_KEY_PASSWORD", CANARY)
    monkeypatch.setenv("PENSTOCK_KAFKA_KEY", f"-----BEGIN PRIVATE KEY-----{CANARY}")
    try:
        add_connector(spark)
    except NotSupported as missing:
        pytest.skip(str(missing))
    return spark


@pytest.mark.parametrize("url", [LOGIN, KEY], ids=["password", "key"])
def test_no_plan_error_or_checkpoint_holds_a_secret(
    kafka: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    options = connection(url)
    assert CANARY in "".join(options.values()), "nothing is tried"
    frame = kafka.readStream.format("kafka").options(**options, **QUICK, subscribe="x").load()
    frame.explain(extended=True)
    plan = capsys.readouterr().out
    assert CANARY not in plan
    assert "redacted" in plan
    place = str(tmp_path / "checkpoint")
    writer = frame.writeStream.format("noop").option("checkpointLocation", place)
    with pytest.raises(Exception) as told:  # Java's, of any kind
        writer.start().awaitTermination(60)
    assert CANARY not in "".join(traceback.format_exception(told.value))
    kept = [one for one in tmp_path.rglob("*") if one.is_file()]
    assert kept
    assert not [one for one in kept if CANARY.encode() in one.read_bytes()]


def test_what_the_user_hides_stays_hidden(kafka: SparkSession) -> None:
    """The pattern of the session is added to, once."""
    before = kafka.conf.get(REDACTED)
    assert before is not None
    try:
        kafka.conf.set(REDACTED, "mine")
        for _ in range(2):
            add_connector(kafka)
        assert kafka.conf.get(REDACTED) == f"(?:mine)|{PRIVATE}"
    finally:
        kafka.conf.set(REDACTED, before)
