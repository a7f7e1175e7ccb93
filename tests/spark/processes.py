"""The processes below one of ours, by what Linux tells in /proc."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

JAVA = "java"
WORKER = "worker"
"""A Python that runs tasks, and the commits of sinks."""
EXECUTOR = "executor"
"""A Java that runs tasks, of a cluster."""
READER = "reader"
"""The Python of a streaming source; each query has one."""
READER_NAME = "python_streamin"
"""What is left of it in the fifteen letters that a process can be called by."""


def below(root: int) -> dict[int, str]:
    """All descendants of a process: their command lines, and what they call themselves."""
    parents, commands = {}, {}
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            number = int(folder.name)
            status = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[number] = int(status[1])
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            commands[number] = f"{command} {(folder / 'comm').read_text()}"
    found: dict[int, str] = {}
    waiting = [root]
    while waiting:
        above = waiting.pop()
        children = [one for one, parent in parents.items() if parent == above]
        found |= {one: commands.get(one, "") for one in children}
        waiting += children
    return found


def of_kind(processes: dict[int, str], kind: str) -> list[int]:
    """Those of one kind, the oldest first."""
    return sorted(number for number, command in processes.items() if _kind(command) == kind)


def _kind(command: str) -> str | None:
    if "fork_client" in command:
        return None  # it stands for another one
    if "pyspark.daemon" in command or "pyspark/daemon" in command:
        return WORKER
    if READER_NAME in command:
        return READER
    if "CoarseGrainedExecutorBackend" in command:
        return EXECUTOR
    return JAVA if command.split(" ", maxsplit=1)[0].endswith("java") else None


def kill(numbers: list[int]) -> int:
    """End them at once, if they are still there; how many were."""
    killed = 0
    for number in numbers:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
            killed += 1
    return killed
