"""Stopping processes, and knowing that they are stopped.

A process that is stopped while it holds the lock of a group holds up the others until it goes on. A
member takes that lock with every heartbeat. So a test that stops one, and has others take over, looks
whether it holds a lock, and lets it go on for a moment if so.
"""

import os
import select
import signal
import time
from pathlib import Path

from penstock.testing.transport_processes import holds_a_lock

WAIT_SECONDS = 120.0
PAUSE_SECONDS = 0.003


def send(pid: int, what: signal.Signals) -> None:
    """Send a signal; with SIGSTOP, return when all threads are stopped: one may still answer before."""
    os.kill(pid, what)
    until = time.monotonic() + WAIT_SECONDS
    while what == signal.SIGSTOP and not _is_all_stopped(pid):
        assert time.monotonic() < until, "it does not stop"
        select.select([], [], [], PAUSE_SECONDS)


def _is_all_stopped(pid: int) -> bool:
    threads = Path(f"/proc/{pid}/task").iterdir()
    return all(_state(one) == "T" for one in threads)


def stop_between_calls(pid: int) -> None:
    """Return when the process is stopped, and holds no lock of a file."""
    until = time.monotonic() + WAIT_SECONDS
    os.kill(pid, signal.SIGSTOP)
    while not _is_stopped(pid) or holds_a_lock(pid):
        assert time.monotonic() < until, "it does not stop, or holds a lock all the time"
        if _is_stopped(pid):
            os.kill(pid, signal.SIGCONT)
            select.select([], [], [], PAUSE_SECONDS)
            os.kill(pid, signal.SIGSTOP)
        select.select([], [], [], PAUSE_SECONDS)


def _is_stopped(pid: int) -> bool:
    return _state(Path(f"/proc/{pid}")) == "T"


def _state(process: Path) -> str:
    return (process / "stat").read_text(encoding="utf-8").rpartition(") ")[2][0]
