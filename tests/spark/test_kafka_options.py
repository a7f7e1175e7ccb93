"""From a Kafka URL to the options of Spark's connector, and the jars of the connector. No Spark runs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import DamagedFile, InvalidOption, NotSupported

pytest.importorskip("pyspark", reason="Spark needs: pip install 'penstock[spark]'")
pytest.importorskip("confluent_kafka", reason="Kafka needs: pip install 'penstock[kafka]'")

from penstock.spark import kafka_connector
from penstock.spark.kafka_connector import (
    CONNECTOR,
    HASHES,
    KNOWN_TO_WORK,
    PROVIDER,
    WANTED,
    kafka_jars,
)
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


BYTES = b"what was published"
SHA = hashlib.sha256(BYTES).hexdigest()


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """Hashes of jars with BYTES in them, and a cache of the test's own."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    pairs = [("4.9.9", "4.9.9"), ("4.2.0", "4.2.0"), ("4.2.0", "4.0.0")]
    hashes = {
        f"{name.partition(':')[2]}-{one}.jar": SHA
        for pair in pairs
        for name, one in zip((CONNECTOR, PROVIDER), pair, strict=True)
    }
    monkeypatch.setattr(kafka_connector, "HASHES", hashes)
    monkeypatch.setattr(kafka_connector, "KNOWN_TO_WORK", tuple(pairs[1:]))
    return hashes


def fetching(name: str, content: bytes = BYTES) -> Callable[[str, str], str | None]:
    def fetch(project: str, folder: str) -> str | None:
        Path(folder).mkdir()
        (Path(folder) / name).write_bytes(content)
        return None

    return fetch


NAME = "spark-sql-kafka-0-10_2.13-4.9.9.jar"


def test_jars_are_fetched_once_and_the_best_version_that_can_be_had(
    known: dict[str, str], tmp_path: Path
) -> None:
    asked = []
    get = fetching(NAME)

    def fetch(project: str, folder: str) -> str | None:
        asked.append(Path(project).read_text())
        return "no such thing" if len(asked) < 3 else get(project, folder)

    wanted = [str(tmp_path / "spark-kafka-4.9.9" / NAME)]
    assert kafka_jars(fetch, spark_version="4.9.9") == wanted
    assert kafka_jars(fetch, spark_version="4.9.9") == wanted
    versions = [("4.9.9", "4.9.9"), ("4.2.0", "4.2.0"), ("4.2.0", "4.0.0")]
    assert len(asked) == len(versions)
    for project, (connector, provider) in zip(asked, versions, strict=True):
        assert f"<version>{connector}</version>" in project
        assert f"<version>{provider}</version>" in project


def test_a_version_without_hashes_is_not_fetched(known: dict[str, str], tmp_path: Path) -> None:
    asked = []

    def fetch(project: str, folder: str) -> str | None:
        asked.append(Path(project).read_text())
        return "no such thing"

    with pytest.raises(NotSupported):
        kafka_jars(fetch, spark_version="5.0.0")
    assert len(asked) == 2
    assert not any("5.0.0" in one for one in asked)


@pytest.mark.parametrize(
    ("name", "content"),
    [(NAME, b"something else"), (NAME, b""), (NAME, BYTES + b"x"), ("stranger-1.jar", BYTES)],
)
def test_a_jar_that_is_another_one_is_refused_and_not_kept(
    known: dict[str, str], tmp_path: Path, name: str, content: bytes
) -> None:
    with pytest.raises(DamagedFile, match=r"settings\.xml") as told:
        kafka_jars(fetching(name, content), spark_version="4.9.9")
    assert hashlib.sha256(content).hexdigest() in str(told.value)
    assert list(tmp_path.glob("spark-kafka-4*")) == []
    assert kafka_jars(fetching(NAME), spark_version="4.9.9")


def test_a_jar_that_changed_in_the_cache_is_refused(known: dict[str, str], tmp_path: Path) -> None:
    (jar,) = kafka_jars(fetching(NAME), spark_version="4.9.9")
    Path(jar).write_bytes(b"changed")
    with pytest.raises(DamagedFile, match="is not run"):
        kafka_jars(spark_version="4.9.9")


def test_jars_of_the_users_own_may_be_put_there(known: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "spark-kafka-4.9.9"
    folder.mkdir()
    (folder / "connector-of-the-house.jar").write_bytes(b"own")
    assert kafka_jars(spark_version="4.9.9") == [str(folder / "connector-of-the-house.jar")]


def test_each_version_that_is_known_to_work_has_hashes() -> None:
    for pair in KNOWN_TO_WORK:
        assert pair in kafka_connector._candidates("0.0.0")
    assert all(re.fullmatch("[0-9a-f]{64}", one) for one in HASHES.values())
    for name in WANTED:
        assert any(one.startswith(name.partition(":")[2]) for one in HASHES), name


def test_jars_that_cannot_be_had_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotSupported, match="there is no Maven") as told:
        kafka_jars(spark_version="4.9.9")
    assert "spark-sql-kafka-0-10_2.13" in str(told.value)
    assert str(tmp_path / "spark-kafka-4.9.9") in str(told.value)
    assert told.value.needed == "org.apache.spark:spark-sql-kafka-0-10_2.13:4.9.9"
