"""Jobs in processes of their own.

A job is a function of a workload. It says that it is warm by calling :func:`gate`, waits there for
the start, measures, and returns its result. The processes come from a server that has imported
everything already, so that starting one costs little.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

SECONDS_MAX = 300
READY, GO, DONE, FAILED = "ready", "go", "done", "failed"

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [f"benchmarks.{name}" for name in ("workloads", "bus", "scale", "streaming", "growth")]
)
_parent: Connection | None = None


class Child:
    """A running job, seen from the benchmark."""

    seconds_max = SECONDS_MAX
    """How long it may take to answer."""

    def __init__(self, job: Callable[..., Any], **arguments: Any) -> None:
        self._pipe, theirs = _context.Pipe()
        self._process = _context.Process(target=_work, args=(theirs, job, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def wait_ready(self) -> None:
        """Return when the job is warm."""
        self._receive(READY)

    def go(self) -> None:
        """Let it measure."""
        self._pipe.send(GO)

    def result(self) -> Any:
        """What it found."""
        found = self._receive(DONE)
        self._process.join(self.seconds_max)
        self._pipe.close()
        return found

    def _receive(self, expected: str) -> Any:
        if not self._pipe.poll(self.seconds_max):
            self._process.kill()
            raise RuntimeError(f"the child process did not answer for {self.seconds_max} s")
        kind, found = self._pipe.recv()
        if kind != expected:
            raise RuntimeError(f"the child process says {kind}: {found}")
        return found


def gate() -> None:
    """In the job: say that it is warm, wait for the start."""
    assert _parent is not None, "only a job waits at the gate"
    _parent.send((READY, None))
    _parent.recv()


def _work(parent: Connection, job: Callable[..., Any], arguments: dict[str, Any]) -> None:
    global _parent
    _parent = parent
    try:
        parent.send((DONE, job(**arguments)))
    except BaseException as error:
        parent.send((FAILED, f"{type(error).__name__}: {error}"))
