"""TLS of each transport: a server that nobody vouches for, or another one's certificate, hears no word."""

import contextlib
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import InvalidOption, PenstockError
from penstock.stores import open_store
from penstock.transports import shared_registry

CANARY = "canary-in-the-coal-mine"
SECONDS = 0.7
EXTRAS = {"kafka": "confluent_kafka", "nats": "nats", "rabbitmqs": "rstream", "rediss": "redis", "pulsar+ssl": "pulsar"}  # fmt: skip


def make_certificate(folder: Path, name: str, address: str) -> Path:
    """A certificate that signs itself; the key stands beside it in ``name.key``."""
    certificate = folder / f"{name}.crt"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
            "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName={address}",
            "-keyout", folder / f"{name}.key", "-out", certificate,
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return certificate


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("certificates")
    make_certificate(folder, "right", "IP:127.0.0.1")
    make_certificate(folder, "other", "DNS:somebody.else.example")
    return folder


class Listener:
    """Takes connections with a certificate, and keeps what it was told after the handshake."""

    def __init__(self, certificate: Path, greeting: bytes = b"", first: int = 0) -> None:
        self.heard = b""
        self.tried = 0
        self._greeting = greeting
        self._first = first
        """Bytes that the client says before the greeting."""
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.settimeout(0.1)
        self.port = self._socket.getsockname()[1]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(OSError):
                connection, _ = self._socket.accept()
                self.tried += 1
                self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(SECONDS)
        with connection:
            if self._first:
                connection.recv(self._first)
            connection.sendall(self._greeting)
            with self._context.wrap_socket(connection, server_side=True) as secured:
                self.heard += secured.recv(4_096)


@contextlib.contextmanager
def listening(certificate: Path, greeting: bytes, first: int = 0) -> Iterator[Listener]:
    listener = Listener(certificate, greeting, first)
    try:
        yield listener
    finally:
        listener.close()


INFO = b'INFO {"server_id":"x","version":"2.10.0","proto":1,"max_payload":1048576,"tls_required":true}\r\n'
# The scheme, what the URL says beside the place, how an authority is named, what a server says first.
TRANSPORTS = {
    "kafka": ("kafka", "security.protocol=SSL&connect_seconds=1", "ssl.ca.location", b""),
    "nats": ("nats", "tls=true&connect_seconds=0.5", "tls_ca", INFO),
    "rabbitmq streams": ("rabbitmqs", "connect_seconds=0.5", "tls_ca", b""),
    "rabbitmq queues": ("rabbitmqs", "mode=quorum&connect_seconds=0.5", "tls_ca", b""),
    "redis": ("rediss", "connect_seconds=0.5&answer_seconds=1", "ssl_ca_certs", b""),
    "pulsar": ("pulsar+ssl", "connect_seconds=0.5", "tls_ca", b""),
}
VARIABLES = [
    "PENSTOCK_KAFKA_PASSWORD", "PENSTOCK_NATS_PASSWORD", "PENSTOCK_NATS_TOKEN", "PENSTOCK_PULSAR_TOKEN",
    "PENSTOCK_RABBITMQ_PASSWORD", "PENSTOCK_REDIS_PASSWORD",
]  # fmt: skip


async def knock(name: str, port: int, authority: Path | None) -> str:
    """Open the transport at the listener; what came of it."""
    scheme, query, ca, _ = TRANSPORTS[name]
    options: dict[str, object] = {}
    if scheme == "pulsar+ssl":
        options["admin_url"] = f"https://127.0.0.1:{port}"
    if authority is not None and name == "redis":
        options["options"] = {ca: str(authority)}
    elif authority is not None:
        query = f"{query}&{ca}={authority}"
    transport = shared_registry().make(f"{scheme}://127.0.0.1:{port}?{query}", **options)
    try:
        await transport.open()
        await transport.topics()
    except PenstockError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        await transport.close()
    return "opened"


@pytest.mark.parametrize("name", TRANSPORTS)
async def test_only_the_right_server_is_talked_to(findings, certificates, monkeypatch, name):
    scheme, _, _, greeting = TRANSPORTS[name]
    pytest.importorskip(EXTRAS[scheme], reason=f"needs the client of {name}")
    for variable in VARIABLES:
        monkeypatch.setenv(variable, CANARY)
    right, other = certificates / "right.crt", certificates / "other.crt"
    cases = {
        "nobody vouches for it": (right, None),
        "another authority vouches": (right, other),
        "it is another server's": (other, other),
    }
    for what, (certificate, authority) in cases.items():
        with listening(certificate, greeting) as listener:
            told = await knock(name, listener.port, authority)
        findings.check(listener.tried, f"{name}, {what}: nobody came ({told})")
        findings.check(not listener.heard, f"{name}, {what}: it was told {listener.heard[:60]!r}")
        findings.check(CANARY not in told, f"{name}, {what}: the error tells the secret")
    with listening(right, greeting) as listener:
        told = await knock(name, listener.port, right)
    findings.check(listener.heard, f"{name}: the right server was told nothing ({told})")


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("kafka://h?enable.ssl.certificate.verification=false", {}),
        ("kafka://h?ssl.endpoint.identification.algorithm=none", {}),
        ("kafka://h?plugin.library.paths=/tmp/x.so", {}),
        ("kafka://h?sasl.kerberos.kinit.cmd=id", {}),
        ("kafka://h", {"options": {"enable.ssl.certificate.verification": False}}),
        ("rediss://h", {"options": {"ssl_cert_reqs": "none"}}),
        ("rediss://h", {"options": {"ssl_check_hostname": False}}),
        ("rediss://h?ssl_cert_reqs=none", {}),
        ("pulsar+ssl://h", {"options": {"tls_allow_insecure_connection": True}}),
        ("pulsar+ssl://h", {"options": {"tls_validate_hostname": False}}),
        ("pulsar+ssl://h?tls_allow_insecure_connection=true", {}),
        ("nats://h?tls_verify=false", {}),
        ("rabbitmqs://h?verify=false", {}),
    ],
)
def test_there_is_no_option_that_turns_the_checks_off(findings, url, options):
    pytest.importorskip(EXTRAS[url.partition(":")[0]])
    with pytest.raises(InvalidOption):
        shared_registry().make(url, **options)
    findings.check(True, "")


@pytest.mark.parametrize("url", ["s3://b/p?allow_invalid_certificates=true", "az://b/p?ALLOW_INVALID_CERTIFICATES=1"])  # fmt: skip
def test_object_storage_is_checked_too(findings, url):
    pytest.importorskip("obstore")
    with pytest.raises(InvalidOption, match="always checked"):
        open_store(url)
    findings.check(True, "")


# ---------------------------------------------------------------------------------- PostgreSQL


SSL_REQUEST_BYTES = 8


def ask_postgres(port: int, query: str) -> str:
    """What came of a call to the listener."""
    dsn = f"postgresql://ada:{CANARY}@127.0.0.1:{port}/x?{query}"
    try:
        with open_store(dsn, deadline=SECONDS * 3) as store:
            store.list()
    except PenstockError as error:
        return f"{type(error).__name__}: {error}"
    return "opened"


def test_only_the_right_database_is_talked_to(findings, certificates, monkeypatch):
    """Without a word about TLS in the URL. The listener counts as another machine, though it is here."""
    pytest.importorskip("asyncpg", reason="needs the client of PostgreSQL")
    from penstock.stores import postgres_tls

    monkeypatch.setattr(postgres_tls, "_is_here", lambda _: False)
    monkeypatch.setenv("HOME", str(certificates))
    for variable in ("PGSSLMODE", "PGSSLROOTCERT", "PGSERVICE"):
        monkeypatch.delenv(variable, raising=False)
    right, other = certificates / "right.crt", certificates / "other.crt"
    cases = {
        "nobody vouches for it": (right, ""),
        "another authority vouches": (right, f"sslrootcert={other}"),
        "it is another server's": (other, f"sslrootcert={other}"),
    }
    for what, (certificate, query) in cases.items():
        with listening(certificate, b"S", SSL_REQUEST_BYTES) as listener:
            told = ask_postgres(listener.port, query)
        findings.check(listener.tried, f"{what}: nobody came ({told})")
        findings.check(not listener.heard, f"{what}: it was told {listener.heard[:60]!r}")
        findings.check("sslrootcert=<file>" in told, f"{what}: {told} says not what to do")
        findings.check(CANARY not in told, f"{what}: the error tells the secret")
    with listening(right, b"S", SSL_REQUEST_BYTES) as listener:
        told = ask_postgres(listener.port, f"sslrootcert={right}")
    findings.check(listener.heard, f"the right server was told nothing ({told})")
    with listening(right, b"N", SSL_REQUEST_BYTES) as listener:
        told = ask_postgres(listener.port, "")
    findings.check(listener.tried and not listener.heard, "it went on without TLS")
    findings.check("sslmode=disable" in told, f"{told} says not what to do")


@pytest.mark.parametrize(
    ("dsn", "wanted"),
    [
        ("postgresql://db.example/x", True),
        ("postgresql://ada:p@db.example:5432/x", True),
        ("postgres://10.0.0.1/x", True),
        ("postgresql://[2001:db8::1]:5432/x", True),
        ("postgresql://localhost,db.example/x", True),
        ("postgresql:///x?host=db.example", True),
        ("postgresql://localhost.example/x", True),
        ("postgresql://127.0.0.1.example/x", True),
        ("postgresql:///x?service=shop", True),
        ("postgresql://db.example/x?sslrootcert=/a", "verify-full"),
        ("postgresql:///x", None),
        ("postgresql://localhost/x", None),
        ("postgresql://ada:p@127.0.0.1:5432/x", None),
        ("postgresql://127.1.2.3/x", None),
        ("postgresql://[::1]:5432/x", None),
        ("postgresql:///x?host=/var/run/postgresql", None),
        ("postgresql://%2Fvar%2Frun/x", None),
        ("postgresql://db.example/x?sslmode=disable", None),
        ("postgresql://db.example/x?sslmode=verify-ca", None),
    ],
)
def test_a_database_elsewhere_is_checked_by_default(findings, monkeypatch, tmp_path, dsn, wanted):
    from penstock.stores.postgres_tls import tls_of

    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("PGSSLMODE", "PGSSLROOTCERT", "PGHOST", "PGSERVICE"):
        monkeypatch.delenv(variable, raising=False)
    findings.check(tls_of(dsn).get("ssl") == wanted, f"{dsn}: {tls_of(dsn)}")
    if dsn == "postgresql:///x":
        monkeypatch.setenv("PGHOST", "db.example")
        findings.check(tls_of(dsn), "PGHOST is another machine")
    monkeypatch.setenv("PGSSLMODE", "require")
    findings.check(not tls_of(dsn), "the environment says what to do")
