"""A Redis server for tests: on loopback, a port and a folder of its own."""

import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.stopping import send
from tests.transports.servers.ports import free_port

READY_SECONDS = 60.0
DURABLE = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")


def binary() -> str:
    """The server; skips the test when there is none."""
    return shutil.which("redis-server") or pytest.skip("no redis-server here: make services")


class RedisServer:
    """A server that can be stopped, killed and started again on the same port and folder."""

    def __init__(self, folder: Path, settings: Sequence[str] = DURABLE, tls: bool = False) -> None:
        self.folder = folder
        self.port = free_port()
        self.settings = settings
        self.tls = tls
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{'rediss' if self.tls else 'redis'}://{self.address}/0"

    def start(self) -> None:
        ports = ["--port", "0", "--tls-port"] if self.tls else ["--port"]
        command = [binary(), "--bind", "127.0.0.1", "--dir", str(self.folder), *ports]
        with (self.folder / "output").open("ab") as output:
            self.process = subprocess.Popen(
                [*command, str(self.port), *self.settings], stdout=output, stderr=output
            )
        self._wait(self.process)

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        """Return when it answers, and has loaded its data."""
        until = time.monotonic() + READY_SECONDS
        while time.monotonic() < until:
            if self._answers():
                return
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.01)
                break
        raise AssertionError((self.folder / "output").read_text())

    def _answers(self) -> bool:
        try:
            with self._connected() as one:
                one.sendall(b"PING\r\n")
                return one.recv(100).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def _connected(self) -> socket.socket:
        plain = socket.create_connection(("127.0.0.1", self.port), 1.0)
        if not self.tls:
            return plain
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context.wrap_socket(plain)

    def send(self, what: signal.Signals) -> None:
        """A signal to the server alone."""
        assert self.process is not None
        send(self.process.pid, what)

    def kill(self) -> None:
        """SIGKILL: it has no time to write anything."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Stop it, stopped by a signal or not."""
        process = self.process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            process.wait(READY_SECONDS)


@contextmanager
def redis_server(settings: Sequence[str] = DURABLE, tls: bool = False) -> Iterator[RedisServer]:
    """A server that runs, until the end of the block."""
    binary()
    folder = Path(tempfile.mkdtemp(prefix="penstock-redis-"))
    server = RedisServer(folder, settings, tls)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
