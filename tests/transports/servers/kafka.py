"""A Kafka broker of the tests' own: one node, on loopback, on free ports, in a temporary directory."""

from __future__ import annotations

import base64
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.java import CACHE, quick_options
from tests.stopping import send
from tests.transports.servers.ports import free_ports

VERSION = "4.3.0"
JARS = CACHE / f"kafka-{VERSION}"
MISSING = (
    f"Kafka {VERSION} is not in {JARS}, or there is no java: make services"
    if not (JARS / ".complete").exists() or shutil.which("java") is None
    else None
)
START_SECONDS = 200.0
FORMAT = "kafka.tools.StorageTool"
JAVA = ["java", "-Xmx384m"]

SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "2",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": "2000",
    "auto.create.topics.enable": "false",
    "controlled.shutdown.enable": "false",
    # One that was killed may come back when its session is over: nine seconds, if nothing is said.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "300",
    "controller.quorum.election.timeout.ms": "200",
    "controller.quorum.fetch.timeout.ms": "400",
    "log.cleaner.dedupe.buffer.size": "8000000",
}


class KafkaServer:
    """A broker that can be stopped, killed and started again on the same port and data.

    Clients that come in by ``side_port`` are told to use ``proxy_port``, where a proxy may stand. The
    listener of ``secure_address`` is there when settings say what ``SECURE`` speaks.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        java: Sequence[str] | None = None,
    ) -> None:
        self.folder = folder
        self._java = quick_options("kafka", JARS) if java is None else java
        ports = free_ports(5)
        self.port, self._controller, self.side_port, self.proxy_port, self._secure_port = ports
        self._settings = dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._is_formatted = False

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def secure_address(self) -> str:
        return f"127.0.0.1:{self._secure_port}"

    @property
    def url(self) -> str:
        return f"kafka://{self.address}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start, and return when it answers."""
        self._write_settings()
        if not self._is_formatted:
            self._format()
        with self._log().open("ab") as log:
            self._process = subprocess.Popen(
                [*JAVA, *self._java, "-cp", f"{JARS}/*", "kafka.Kafka", str(self._file())],
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
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

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(how)
            self._process.wait(START_SECONDS)
            self._process = None

    def _file(self) -> Path:
        return self.folder / "server.properties"

    def _log(self) -> Path:
        return self.folder / "server.log"

    def _write_settings(self) -> None:
        listeners = {"PLAINTEXT": self.port, "SIDE": self.side_port, "CONTROLLER": self._controller}
        given = dict(self._settings)
        secure = given.pop("SECURE", None)
        if secure is not None:
            listeners["SECURE"] = self._secure_port
        settings = {
            **SETTINGS,
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller}",
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in listeners.items()),
            "advertised.listeners": (
                f"PLAINTEXT://127.0.0.1:{self.port},SIDE://127.0.0.1:{self.proxy_port}"
                + (f",SECURE://{self.secure_address}" if secure else "")
            ),
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,SIDE:PLAINTEXT,CONTROLLER:PLAINTEXT"
                + (f",SECURE:{secure}" if secure else "")
            ),
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self.folder / "data"),
            **given,
        }
        self._file().write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def _format(self) -> None:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        done = subprocess.run(
            [
                *JAVA,
                *quick_options("kafka", JARS),
                "-cp",
                f"{JARS}/*",
                FORMAT,
                "format",
                f"--cluster-id={cluster}",
                "-c",
                str(self._file()),
            ],
            check=False,
            capture_output=True,
            timeout=START_SECONDS,
            cwd=self.folder,
        )
        assert done.returncode == 0, done.stderr.decode()
        self._is_formatted = True

    def _wait(self) -> None:
        """Return when it has taken up its work: a listener alone is not enough."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        until = time.monotonic() + START_SECONDS
        quiet: dict[str, Any] = {"log_level": 0, "error_cb": lambda _: None}
        client = AdminClient({"bootstrap.servers": self.address, **quiet})
        while time.monotonic() < until:
            assert self._process is not None
            assert self._process.poll() is None, self._log().read_text()[-4000:]
            try:
                if client.list_topics(timeout=1.0).brokers:
                    return
            except KafkaException:
                continue
        raise AssertionError(f"Kafka did not start: {self._log().read_text()[-4000:]}")


@contextmanager
def kafka_server(settings: Mapping[str, str] | None = None) -> Iterator[KafkaServer]:
    """A broker that runs, until the end of the block. Skips when there is none to be had."""
    if MISSING is not None:
        pytest.skip(MISSING)
    folder = Path(tempfile.mkdtemp(prefix="penstock-kafka-"))
    server = KafkaServer(folder, settings)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)
