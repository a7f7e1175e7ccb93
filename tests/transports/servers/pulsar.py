"""A Pulsar of the tests' own: broker and bookie in one process, on loopback, in a temporary directory."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.java import CACHE, quick_options
from tests.stopping import send
from tests.transports.servers.ports import free_ports

VERSION = "4.0.7"
JARS = CACHE / f"pulsar-{VERSION}"
MISSING = (
    f"Pulsar {VERSION} is not in {JARS}, or there is no java: make services"
    if not (JARS / ".complete").exists() or shutil.which("java") is None
    else None
)
START_SECONDS = 200.0
OPENED = [
    "java.base/java.io", "java.base/java.lang", "java.base/java.nio", "java.base/java.util.zip",
    "java.base/jdk.internal.loader", "java.base/jdk.internal.misc", "java.base/jdk.internal.platform",
    "java.base/sun.net", "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
]  # fmt: skip
JAVA = [
    "java", "-Xmx384m", "-XX:MaxDirectMemorySize=384m",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dpulsar.allocator.exit_on_oom=false",
    *(word for name in OPENED for word in ("--add-opens", f"{name}=ALL-UNNAMED")),
]  # fmt: skip
INTERCEPT = "org.apache.pulsar.common.intercept."
NUMBERED = {
    "brokerEntryMetadataInterceptors": (
        f"{INTERCEPT}AppendBrokerTimestampMetadataInterceptor,"
        f"{INTERCEPT}AppendIndexMetadataInterceptor"
    )
}
ADMIN = "admin"
"""The role that may do everything."""
PLAIN = "public/plain"
SIGNING_KEY = bytes(range(32))


def token_of(role: str) -> str:
    """A token that the broker takes for this role."""

    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).decode().rstrip("=")

    head = (
        part(json.dumps({"alg": "HS256"}).encode()) + "." + part(json.dumps({"sub": role}).encode())
    )
    return f"{head}.{part(hmac.digest(SIGNING_KEY, head.encode(), hashlib.sha256))}"


SETTINGS = {
    "bindAddress": "127.0.0.1",
    "advertisedAddress": "127.0.0.1",
    "clusterName": "standalone",
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    "managedLedgerCacheSizeMB": "16",
    # There is one bookie. One that stood still for a while must not be left out for half an hour.
    "bookkeeperClientHealthCheckEnabled": "false",
    "loadBalancerEnabled": "false",
    "loadBalancerOverrideBrokerNicSpeedGbps": "1",
    "transactionCoordinatorEnabled": "false",
    "systemTopicEnabled": "false",
    "topicLevelPoliciesEnabled": "false",
    "webSocketServiceEnabled": "false",
    "functionsWorkerEnabled": "false",
    "defaultNumberOfNamespaceBundles": "1",
    "numHttpServerThreads": "8",
    "webServiceTlsProvider": "",
    # As the bookies of a cluster have it.
    "journalSyncData": "true",
    "journalMaxGroupWaitMSec": "1",
    "dbStorage_writeCacheMaxSizeMb": "16",
    "dbStorage_readAheadCacheMaxSizeMb": "16",
    "dbStorage_rocksDB_blockCacheSize": "8388608",
    "authenticationEnabled": "true",
    "authenticationProviders": (
        "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"
    ),
    "tokenSecretKey": f"data:;base64,{base64.b64encode(SIGNING_KEY).decode()}",
    "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
    "brokerClientAuthenticationParameters": f"token:{token_of(ADMIN)}",
    "authorizationEnabled": "true",
    "superUserRoles": ADMIN,
    **NUMBERED,
}
LOGGING = """<Configuration status="ERROR"><Appenders><Console name="C">
<PatternLayout pattern="%d %-5p %c{1} %.600m%n"/></Console></Appenders>
<Loggers><Root level="WARN"><AppenderRef ref="C"/></Root></Loggers></Configuration>
"""


class PulsarServer:
    """A broker that can be stopped, killed and started again on the same ports and data.

    Clients that ask for the listener ``proxy`` are told to use ``proxy_port``, where a proxy may stand.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        java: Sequence[str] | None = None,
    ) -> None:
        self.folder = folder
        self._java = quick_options("pulsar", JARS) if java is None else java
        # All at once, so that they differ.
        ports = iter(free_ports(6))
        self.port, self.http_port, self.proxy_port = next(ports), next(ports), next(ports)
        self.tls_port, self.https_port, self._bookie_port = ports
        self.certificate = folder / "cert.pem"
        self._settings = dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return self.url_of("public/default")

    def url_of(self, namespace: str) -> str:
        """The URL of a namespace."""
        return f"pulsar://127.0.0.1:{self.port}/{namespace}?admin_url={self.http}"

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start, and return when it answers."""
        if not self.certificate.exists():
            self._make_certificate()
        self._write_settings()
        command = [
            *JAVA, *self._java, f"-Dlog4j.configurationFile={self.folder / 'log4j2.xml'}", "-cp", f"{JARS}/*",
            "org.apache.pulsar.PulsarStandaloneStarter", "--config", str(self._file()), "-nss", "-nfw",
            "--num-bookies", "1", "--bookkeeper-port", str(self._bookie_port),
            "--metadata-dir", str(self.folder / "metadata"), "--bookkeeper-dir", str(self.folder / "bk"),
        ]  # fmt: skip
        with self._log().open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        self._wait()

    def kill(self) -> None:
        """End it as it stands."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it, letting it close its files."""
        self._end(signal.SIGTERM)

    def send(self, what: signal.Signals) -> None:
        """Stop it for a while, let it go on."""
        send(self.pid, what)

    def call(self, method: str, path: str, body: object = None) -> bytes:
        """What the broker's HTTP answers; asked again while it has lost its storage, as after a stop."""
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                return self._call(method, path, body)
            except urllib.error.HTTPError as refused:
                if "bookies" not in str(refused) or time.monotonic() > until:
                    raise
            assert self._process is not None
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.2)

    def _call(self, method: str, path: str, body: object) -> bytes:
        request = urllib.request.Request(
            f"{self.http}/admin/v2/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Content-Type": "application/json",
                "Authorization": f"Bearer {token_of(ADMIN)}",
            },
            method=method,
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return bytes(answer.read())

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(how)
            self._process.wait(START_SECONDS)
            self._process = None

    def _file(self) -> Path:
        return self.folder / "standalone.conf"

    def _log(self) -> Path:
        return self.folder / "server.log"

    def _make_certificate(self) -> None:
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
        names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
        files = ["-keyout", str(self.folder / "key.pem"), "-out", str(self.certificate)]
        subprocess.run([*command, *names, *files], check=True, capture_output=True)

    def _write_settings(self) -> None:
        listeners = {"plain": self.port, "proxy": self.proxy_port}
        settings = {
            **SETTINGS,
            "brokerServicePort": str(self.port),
            "webServicePort": str(self.http_port),
            "brokerServicePortTls": str(self.tls_port),
            "webServicePortTls": str(self.https_port),
            "tlsCertificateFilePath": str(self.certificate),
            "tlsKeyFilePath": str(self.folder / "key.pem"),
            "advertisedListeners": ",".join(
                [
                    *(f"{name}:pulsar://127.0.0.1:{port}" for name, port in listeners.items()),
                    f"plain:pulsar+ssl://127.0.0.1:{self.tls_port}",
                ]
            ),
            "internalListenerName": "plain",
            **self._settings,
        }
        self._file().write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        (self.folder / "log4j2.xml").write_text(LOGGING)

    def _wait(self) -> None:
        """Return when the namespace is there: the ports answer before that."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            assert self._process is not None
            assert self._process.poll() is None, self._log().read_text()[-4000:]
            try:
                self.call("GET", "namespaces/public/default/deduplication")
            except OSError:
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(0.1)
            else:
                return
        raise AssertionError(f"Pulsar did not start: {self._log().read_text()[-4000:]}")


@contextmanager
def pulsar_server(settings: Mapping[str, str] | None = None) -> Iterator[PulsarServer]:
    """A broker that runs, until the end of the block. Skips when there is none to be had.

    Who comes needs a token; the environment of the tests has that of the administrator meanwhile.
    The namespace ``public/default`` removes duplicates, ``public/plain`` does not.
    """
    if MISSING is not None:
        pytest.skip(MISSING)
    folder = Path(tempfile.mkdtemp(prefix="penstock-pulsar-"))
    server = PulsarServer(folder, settings)
    try:
        server.start()
        server.call("POST", "namespaces/public/default/deduplication", True)
        server.call("PUT", f"namespaces/{PLAIN}", {})
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PENSTOCK_PULSAR_TOKEN", token_of(ADMIN))
            yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)
