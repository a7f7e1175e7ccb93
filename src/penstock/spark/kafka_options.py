"""From a ``kafka://`` URL to the options of Spark's connector, which talks to Kafka in Java.

The client of the transport and that of Spark name some things differently. What has no counterpart is an
error that says so; ``kafka.…`` options reach Java's client as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock.errors import InvalidOption, MissingExtra
from penstock.spark.options import OPTIONS, read_options
from penstock.system import OsFiles
from penstock.transports.options import check_options

SCHEME = "kafka:"
BOTH_HAVE = frozenset(
    {
        "acks", "batch.size", "check.crcs", "client.dns.lookup", "client.id", "compression.type",
        "fetch.max.bytes", "fetch.min.bytes", "isolation.level", "linger.ms",
        "max.partition.fetch.bytes", "metadata.max.age.ms", "reconnect.backoff.max.ms",
        "reconnect.backoff.ms", "request.timeout.ms", "retries", "sasl.kerberos.service.name",
        "security.protocol", "ssl.key.password",
    }
)  # fmt: skip
RENAMED = {
    "sasl.mechanism": "sasl.mechanism",
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
}
FROM_FILES = {
    "ssl.certificate.location": "ssl.keystore.certificate.chain",
    "ssl.key.location": "ssl.keystore.key",
}
"""Java's client wants them in one file; so they are read here."""
LOGIN = {"sasl.username", "sasl.password"}
LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
OWN = frozenset({"auto_create", "connect_seconds", "partitioner"})
PEM_BYTES_MAX = 1024 * 1024


def is_kafka(url: str) -> bool:
    """Whether a URL means Kafka."""
    return url.startswith(SCHEME)


def connection(url: str) -> dict[str, str]:
    """How to reach Kafka, as options of Spark. Secrets come from the environment, as for the transport."""
    address, native, _ = parsed(url)
    found = {"bootstrap.servers": address, "isolation.level": "read_committed"}
    for name, value in native.items():
        found |= _translated(name, value)
    found |= _login(native) | _pem(found)
    return {f"kafka.{name}": value for name, value in found.items()}


def parsed(url: str) -> tuple[str, dict[str, str], dict[str, str]]:
    """The brokers, the options of the client, and those of Penstock."""
    try:
        from penstock.transports.kafka_settings import KafkaSettings
    except ImportError as cause:
        raise MissingExtra("Kafka needs: pip install 'penstock[kafka]'", extra="kafka") from cause
    settings, own = KafkaSettings.of(url, {})
    check_options("a Kafka URL", own, OWN)
    native = {name: str(value) for name, value in settings.given().items()}
    return settings.address, native, own


def source_options(given: Mapping[str, str], *, stream: bool) -> dict[str, str]:
    """Options of the source in the words of Spark's connector, checked as those of a log are."""
    native = {name: value for name, value in given.items() if name.lower().startswith("kafka.")}
    plain = {name: value for name, value in given.items() if name not in native}
    read_options({"path": ".", **plain}, stream=stream)
    by_name = {option.name.lower(): option for option in OPTIONS}
    for name in plain:
        option = by_name[name.lower()]
        if option.kafka is not None:
            raise InvalidOption(_no_counterpart(option.name), option=option.name)
    return {**plain, **native}


def _no_counterpart(name: str) -> str:
    if name == "groupId":
        return (
            "option groupId: Spark's connector commits no offsets. Let those of a group follow the query: "
            "penstock.spark.follow(query, path=url, group=name)"
        )
    return f"option {name} is one of a log; Spark's connector for Kafka has none like it"


def _translated(name: str, value: str) -> dict[str, str]:
    if name in BOTH_HAVE:
        return {name: value}
    if name in RENAMED:
        return {RENAMED[name]: value}
    if name in FROM_FILES:
        return {FROM_FILES[name]: _text_of(value, name)}
    if name in LOGIN:
        return {}
    raise InvalidOption(
        f"{name!r} in the URL is an option of librdkafka that Java's client of Kafka does not have. Leave it "
        "out, or give Spark the like as an option kafka.<name>",
        option=name,
    )


def _login(native: Mapping[str, str]) -> dict[str, str]:
    user, password = native.get("sasl.username"), native.get("sasl.password")
    if not user:
        return {}
    mechanism = native.get("sasl.mechanism") or native.get("sasl.mechanisms") or "GSSAPI"
    module = LOGIN_MODULES.get(mechanism)
    if module is None:
        raise InvalidOption(
            f"sasl.mechanism {mechanism!r} with a user: Spark gets {', '.join(LOGIN_MODULES)} from the URL. For "
            "another one leave the user out and give Spark the option kafka.sasl.jaas.config",
            option="sasl.mechanism",
        )
    return {
        "sasl.jaas.config": f"{module} required username={_quoted(user)} "
        f"password={_quoted(password or '')};"
    }


def _pem(found: Mapping[str, str]) -> dict[str, str]:
    stores = {
        name.rpartition("store.")[0] + "store.type": "PEM"
        for name in found
        if name.startswith(("ssl.truststore.", "ssl.keystore."))
    }
    return stores


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _text_of(path: str, option: str) -> str:
    files = OsFiles()
    try:
        # Kubernetes mounts certificates as links: what the user names is followed.
        descriptor = files.open(str(Path(path).resolve()), write=False)
    except OSError as cause:
        raise InvalidOption(f"{option}: {path} cannot be read: {cause}", option=option) from cause
    try:
        return files.read(descriptor, PEM_BYTES_MAX, 0).decode()
    finally:
        files.close(descriptor)
