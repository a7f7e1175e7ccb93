"""The dashboard beside the tour: a process that shows one log after the other, at one address."""

from __future__ import annotations

import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

PROGRAM = (
    "import sys; from penstock.dashboard import serve; serve(sys.argv[1], port=int(sys.argv[2]))"
)
USUAL_PORT = 8420
STOP_SECONDS = 10.0


def is_installed() -> bool:
    return find_spec("nicegui") is not None


def free_port() -> int:
    """The usual one, or any other when somebody has that."""
    for port in (USUAL_PORT, 0):
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(trial.getsockname()[1])
    raise OSError("no port is free")


class Board:
    """Serves the log of the part that runs. It needs a few seconds to start, which nobody waits for."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def show(self, log: Path) -> None:
        """Show this log from now on."""
        self.stop()
        log.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-c", PROGRAM, f"log:{log}", str(self._port)]
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)

    @property
    def is_up(self) -> bool:
        """Whether it answers."""
        try:
            socket.create_connection(("127.0.0.1", self._port), 1).close()
        except OSError:
            return False
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
