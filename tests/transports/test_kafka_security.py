"""Kafka with TLS and a login, on a listener of the real broker that lets nobody else in."""

import subprocess
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from penstock.testing.transport_fixtures import numbered, take, values_of
from penstock.transports.kafka import KafkaTransport
from tests.transports.patience import cannot_open
from tests.transports.servers.kafka import kafka_server

SECRET = "correct-horse-battery"
MODULES = "org.apache.kafka.common.security"


def make_certificate(folder: Path, name: str) -> Path:
    """A certificate that signs itself, for 127.0.0.1; the key stands before it in ``name.pem``."""
    key, certificate = folder / f"{name}.key", folder / f"{name}.crt"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
            "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
            "-keyout", key, "-out", certificate,
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    (folder / f"{name}.pem").write_text(key.read_text() + certificate.read_text())
    return certificate


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def server(folder):
    make_certificate(folder, "broker")
    make_certificate(folder, "stranger")
    listener = "listener.name.secure"
    settings = {
        "SECURE": "SASL_SSL",
        f"{listener}.ssl.keystore.type": "PEM",
        f"{listener}.ssl.keystore.location": str(folder / "broker.pem"),
        f"{listener}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        f"{listener}.plain.sasl.jaas.config": (
            f'{MODULES}.plain.PlainLoginModule required user_ada="{SECRET}";'
        ),
        f"{listener}.scram-sha-512.sasl.jaas.config": (
            f"{MODULES}.scram.ScramLoginModule required;"
        ),
    }
    with kafka_server(settings) as running:
        admin = AdminClient({"bootstrap.servers": running.address})
        known = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        user = UserScramCredentialUpsertion("ada", known, SECRET.encode())
        for done in admin.alter_user_scram_credentials([user]).values():
            done.result(30)
        yield running


def url_of(server, folder, mechanism, authority="broker"):
    return (
        f"kafka://ada@{server.secure_address}?security.protocol=SASL_SSL"
        f"&sasl.mechanisms={mechanism}&ssl.ca.location={folder}/{authority}.crt"
    )


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_records_go_over_tls_after_a_login(server, folder, mechanism, monkeypatch, caplog):
    monkeypatch.setenv("PENSTOCK_KAFKA_PASSWORD", SECRET)
    topic = f"secure-{mechanism.lower()}"
    async with KafkaTransport(url_of(server, folder, mechanism), connect_seconds=60) as transport:
        await transport.create_topic(topic, partitions=1)
        await transport.produce(topic, numbered(5))
        async with transport.subscribe(topic, "billing") as consumer:
            assert values_of(await take(consumer, 5)) == numbered(5)
            await consumer.commit()
        async with (
            transport.producer("billing-1") as producer,
            producer.transaction() as transaction,
        ):
            await transaction.publish(topic, b"last")
        async with transport.subscribe(topic, "billing") as consumer:
            assert values_of(await take(consumer, 1)) == [b"last"]
        assert SECRET not in f"{transport!r} {transport.statistics()} {caplog.text}"


async def test_a_wrong_password_is_said_to_be_one(server, folder, monkeypatch, caplog):
    monkeypatch.setenv("PENSTOCK_KAFKA_PASSWORD", f"{SECRET}-wrong")
    url = url_of(server, folder, "PLAIN")
    refused = await cannot_open(
        lambda seconds: KafkaTransport(url, connect_seconds=seconds), r"(?i)authentication"
    )
    assert SECRET not in f"{refused} {refused.fields} {KafkaTransport(url)!r} {caplog.text}"


async def test_a_server_with_another_certificate_is_not_trusted(server, folder, monkeypatch):
    monkeypatch.setenv("PENSTOCK_KAFKA_PASSWORD", SECRET)
    url = url_of(server, folder, "PLAIN", "stranger")
    await cannot_open(
        lambda seconds: KafkaTransport(url, connect_seconds=seconds), r"(?i)certificate"
    )
