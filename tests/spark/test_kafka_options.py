"""From a Kafka URL to the options of Spark's connector, and the jars of the connector. No Spark runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import InvalidOption, NotSupported

pytest.importorskip("pyspark", reason="Spark needs: pip install 'penstock[spark]'")
pytest.importorskip("confluent_kafka", reason="Kafka needs: pip install 'penstock[kafka]'")

from penstock.spark.kafka_connector import KNOWN_TO_WORK, kafka_jars
from penstock.spark.kafka_options import connection, source_options
from penstock.spark.kafka_topics import path_of
from penstock.spark.options import read_options
from penstock.spark.pipeline import Pipeline
from penstock.spark.sink_options import read_sink_options


def test_brokers_and_native_options_are_passed_on() -> None:
    found = connection("kafka://one,two:9093?acks=all&linger.ms=5&partitioner=native")
    assert found == {
        "kafka.bootstrap.servers": "one:9092,two:9093",
        "kafka.isolation.level": "read_committed",
        "kafka.acks": "all",
        "kafka.linger.ms": "5",
    }


def test_tls_and_a_login_are_said_in_the_words_of_java(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PENSTOCK_KAFKA_PASSWORD", 'pass"word')
    monkeypatch.setenv("PENSTOCK_KAFKA_KEY", "the key")
    (tmp_path / "data.pem").write_text("my certificate")
    (tmp_path / "me.pem").symlink_to("data.pem")  # as Kubernetes mounts them
    found = connection(
        "kafka://ada@host?security.protocol=SASL_SSL&sasl.mechanisms=SCRAM-SHA-512&ssl.ca.location=/ca.pem"
        f"&ssl.certificate.location={tmp_path}/me.pem"
    )
    assert found["kafka.security.protocol"] == "SASL_SSL"
    assert found["kafka.sasl.mechanism"] == "SCRAM-SHA-512"
    assert found["kafka.sasl.jaas.config"] == (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="ada" password="pass\\"word";'
    )
    assert found["kafka.ssl.truststore.type"] == found["kafka.ssl.keystore.type"] == "PEM"
    assert found["kafka.ssl.truststore.location"] == "/ca.pem"
    assert found["kafka.ssl.keystore.certificate.chain"] == "my certificate"
    assert found["kafka.ssl.keystore.key"] == "the key"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("kafka://host?queue.buffering.max.ms=5", "kafka.<name>"),
        ("kafka://host?ssl.endpoint.identification.algorithm=none", "always checked"),
        ("kafka://host?partitoner=native", "did you mean 'partitioner'"),
        ("kafka://host?ssl.key.location=/no/such/file", "cannot be read"),
        ("kafka://ada@host?sasl.mechanism=OAUTHBEARER", "kafka.sasl.jaas.config"),
        ("kafka://ada:secret@host", "PENSTOCK_KAFKA_PASSWORD"),
    ],
)
def test_what_java_does_not_have_is_told(url: str, message: str) -> None:
    with pytest.raises(InvalidOption, match=message) as told:
        connection(url)
    assert "secret" not in str(told.value)


def test_options_of_the_source_are_checked_as_those_of_a_log() -> None:
    given = {"subscribe": "orders", "maxOffsetsPerTrigger": "10", "kafka.fetch.min.bytes": "5"}
    assert source_options(given, stream=True) == given
    with pytest.raises(InvalidOption, match="Did you mean startingOffsets"):
        source_options({"subscribe": "orders", "startingOfsets": "earliest"}, stream=True)
    with pytest.raises(InvalidOption, match="maxBytesPerTrigger is one of a log"):
        source_options({"subscribe": "orders", "maxBytesPerTrigger": "10"}, stream=True)
    with pytest.raises(InvalidOption, match="follow"):
        source_options({"subscribe": "orders", "groupId": "me"}, stream=True)


def test_the_format_of_a_log_says_what_to_use_for_brokers() -> None:
    with pytest.raises(InvalidOption, match=r"read_topics\(spark, url"):
        read_options({"path": "kafka://host", "subscribe": "orders"}, stream=True)
    with pytest.raises(InvalidOption, match=r"write_topics\(frame, url"):
        read_sink_options({"path": "kafka://host", "topic": "orders"})
    with pytest.raises(InvalidOption, match="open_transport"):
        read_options({"path": "nats://host", "subscribe": "orders"}, stream=False)


def test_a_pipeline_knows_where_its_state_is(tmp_path: Path) -> None:
    on_log = Pipeline("shop", log=f"log:{tmp_path}", folder="w")
    assert (on_log.log, on_log.state) == (str(tmp_path), str(tmp_path))
    assert path_of("log://data") == "data"
    on_kafka = Pipeline("shop", log="kafka://host", folder=str(tmp_path / "w"))
    assert on_kafka.state == f"{tmp_path}/w/state"
    on_kafka.open_state()
    assert (tmp_path / "w" / "state").is_dir()
    with pytest.raises(InvalidOption, match="not nats:"):
        Pipeline("shop", log="nats://host", folder="w")
    with pytest.raises(InvalidOption, match="pipelines on Kafka"):
        Pipeline("shop", log=str(tmp_path), folder="w", state="elsewhere")


# The jars


def test_jars_are_fetched_once_and_the_best_version_that_can_be_had(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    asked = []

    def fetch(project: str, folder: str) -> str | None:
        asked.append(Path(project).read_text())
        if len(asked) < 3:
            return "no such thing"
        Path(folder).mkdir()
        (Path(folder) / "connector.jar").touch()
        return None

    wanted = [str(tmp_path / "spark-kafka-4.9.9" / "connector.jar")]
    assert kafka_jars(fetch, spark_version="4.9.9") == wanted
    assert kafka_jars(fetch, spark_version="4.9.9") == wanted
    versions = [("4.9.9", "4.9.9"), *KNOWN_TO_WORK]
    assert len(asked) == len(versions)
    for project, (connector, provider) in zip(asked, versions, strict=True):
        assert f"<version>{connector}</version>" in project
        assert f"<version>{provider}</version>" in project


def test_jars_that_cannot_be_had_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotSupported, match="there is no Maven") as told:
        kafka_jars(spark_version="4.9.9")
    assert "spark-sql-kafka-0-10_2.13" in str(told.value)
    assert str(tmp_path / "spark-kafka-4.9.9") in str(told.value)
    assert told.value.needed == "org.apache.spark:spark-sql-kafka-0-10_2.13:4.9.9"
