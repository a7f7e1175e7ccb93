"""A RabbitMQ node of the tests' own: on loopback, with ports, a folder and an epmd of its own."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.stopping import send
from tests.transports.servers.ports import free_ports

SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
MISSING = (
    "RabbitMQ or Erlang is not installed: make services"
    if not SCRIPT.exists() or shutil.which("epmd") is None
    else None
)
START_SECONDS = 200.0
STOP_SECONDS = 20.0
STREAMS = "rabbit_stream_coordinator"
"""What looks after the streams; it is there when the first one was made."""
USER, PASSWORD = "ann", "canary-of-the-tests"
LOGIN = f"{USER}:{PASSWORD}"
PLUGINS = "[rabbitmq_stream].\n"
CERTIFICATE = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
SUBJECT = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]


class RabbitServer:
    """A node that can be stopped, killed and started again on the same ports and data.

    It knows the user ann alone. It listens with TLS too, on ``tls_port`` (streams) and ``amqps_port``;
    its certificate is in the file ``certificate``.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.port, self.amqp_port, self.tls_port, self.amqps_port, *others = free_ports(6)
        self._epmd_port, self._dist_port = others
        self._settings = dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None
        self.certificate = folder / "certificate.pem"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"rabbitmq://{LOGIN}@{self.address}"

    @property
    def quorum_url(self) -> str:
        return f"rabbitmq://{LOGIN}@127.0.0.1:{self.amqp_port}?mode=quorum"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start, and return when both listeners answer."""
        self._write_settings()
        if self._epmd is None:
            self._epmd = subprocess.Popen(
                ["epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        with self._log().open("ab") as log:
            self._process = subprocess.Popen(
                [SCRIPT],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=self._environment(),
            )
        self._wait()

    def settle(self, *names: str) -> None:
        """Wait until the server has written down these names.

        It notes the names of new quorum queues, and of what looks after its streams, half a second
        later and without telling anybody: when it is killed before that, it does not find them.
        """
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            files = list((self.folder / "data").rglob("names.dets"))
            written = b"".join(one.read_bytes() for one in files)
            if all(name.encode() in written for name in names):
                return
            self._pause()
        raise AssertionError(f"RabbitMQ did not write down {names}")

    def _pause(self) -> None:
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0.05)

    def kill(self) -> None:
        """SIGKILL: it has no time to write anything."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it, letting it close its files, and its epmd."""
        self._end(signal.SIGTERM)
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()
            self._epmd = None

    def send(self, what: signal.Signals) -> None:
        """Stop it for a while, let it go on."""
        send(self.pid, what)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)
        process.send_signal(how)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _log(self) -> Path:
        return self.folder / "server.log"

    def _environment(self) -> dict[str, str]:
        ours = {
            "HOME": str(self.folder),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"penstock{self._dist_port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_LOGS": "-",
            # The script becomes the node itself then, so that its id is the node's.
            "RABBITMQ_ALLOW_INPUT": "1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput +sbwt none +sbwtdcpu none +sbwtdio none",
        }
        kept = {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin", "LANG": "C.UTF-8"}
        return kept | ours

    def _write_settings(self) -> None:
        if not self.certificate.exists():
            files = ["-keyout", str(self.folder / "key.pem"), "-out", str(self.certificate)]
            subprocess.run([*CERTIFICATE, *SUBJECT, *files], check=True, capture_output=True)
        settings = {
            "listeners.tcp.1": f"127.0.0.1:{self.amqp_port}",
            "listeners.ssl.1": f"127.0.0.1:{self.amqps_port}",
            "stream.listeners.tcp.1": f"127.0.0.1:{self.port}",
            "stream.listeners.ssl.1": f"127.0.0.1:{self.tls_port}",
            "ssl_options.certfile": str(self.certificate),
            "ssl_options.keyfile": str(self.folder / "key.pem"),
            "ssl_options.verify": "verify_none",
            "default_user": USER,
            "default_pass": PASSWORD,
            "log.console.level": "warning",
            **self._settings,
        }
        text = "".join(f"{name} = {value}\n" for name, value in settings.items())
        (self.folder / "rabbitmq.conf").write_text(text)
        (self.folder / "plugins").write_text(PLUGINS)

    def _wait(self) -> None:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            assert self._process is not None
            assert self._process.poll() is None, self._log().read_text()[-4000:]
            # The listener of the streams is the last that is opened.
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            self._pause()
        raise AssertionError(f"RabbitMQ did not start: {self._log().read_text()[-4000:]}")


@contextmanager
def rabbit_server(settings: Mapping[str, str] | None = None) -> Iterator[RabbitServer]:
    """A node that runs, until the end of the block. Skips when there is none to be had."""
    if MISSING is not None:
        pytest.skip(MISSING)
    folder = Path(tempfile.mkdtemp(prefix="penstock-rabbitmq-"))
    server = RabbitServer(folder, settings)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
