"""A Redis server of the tests' own: on loopback, on a free port, in a temporary directory."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

BINARY = shutil.which("redis-server")
MISSING = "redis-server is not installed: make services"
START_SECONDS = 20.0
DURABLE = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class RedisServer:
    """A server that can be stopped, killed and started again on the same port and data."""

    def __init__(
        self, folder: Path, options: Sequence[str] = DURABLE, tls: Sequence[str] = ()
    ) -> None:
        self.folder = folder
        self.port = free_port()
        self._options = options
        self._tls = tls
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"{'rediss' if self._tls else 'redis'}://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        assert BINARY is not None
        ports = (
            ["--port", "0", "--tls-port", str(self.port)]
            if self._tls
            else ["--port", str(self.port)]
        )
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    BINARY,
                    "--bind",
                    "127.0.0.1",
                    "--dir",
                    str(self.folder),
                    *ports,
                    *self._tls,
                    *self._options,
                ],
                stdout=log,
                stderr=log,
            )
        self._wait()

    def kill(self) -> None:
        """As a power cut of the process: nothing more is written."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def send(self, what: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(what)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(START_SECONDS)
            self._process = None

    def _wait(self) -> None:
        """Return when it answers, and has loaded its data."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            assert self._process is not None
            assert self._process.poll() is None, (self.folder / "server.log").read_text()
            if self._tls or self._answers():
                if self._tls:
                    time.sleep(0.5)
                return
            time.sleep(0.01)
        raise AssertionError(
            f"the server did not start: {(self.folder / 'server.log').read_text()}"
        )

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1.0) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(100).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False
