"""Layers between a writer and its files and clock: they kill it, lie, lag and tell."""

import itertools
import os
import signal
from collections.abc import Sequence
from typing import Any

from penstock.system import Buffer, OsClock, OsFiles
from tests.crash.disks import cut_power
from tests.crash.said import Kind, Out, Spec


class DyingFiles(OsFiles):
    """The process is killed at the n-th call that changes something, or of some such calls.

    ``before`` it, ``after`` it, or (a write) in the ``middle`` of it.
    """

    def __init__(self, when: str, number: int, calls: Sequence[str] = ()) -> None:
        self._when = when
        self._left = number
        self._calls = calls

    def _dies(self, call: str) -> bool:
        if self._calls and call not in self._calls:
            return False
        self._left -= 1
        if self._left == 0 and self._when == "before":
            self.die()
        return self._left == 0

    def die(self) -> Any:
        """The end."""
        die()

    def open(self, path: str, *, create: bool = False, write: bool = True) -> int:
        dies = create and self._dies("open")
        try:
            return super().open(path, create=create, write=write)
        finally:
            if dies:
                self.die()

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
        if self._dies("write"):
            data = b"".join(buffers)
            part = len(data) // 2 if self._when == "middle" else len(data)
            super().write(descriptor, [data[:part]], position)
            self.die()
        super().write(descriptor, buffers, position)

    def try_lock(self, descriptor: int) -> bool:
        dies = self._dies("try_lock")
        taken = super().try_lock(descriptor)
        return self.die() if dies else taken


def _dying(name: str) -> Any:
    def call(self: DyingFiles, *arguments: Any) -> Any:
        dies = self._dies(name)
        try:
            return getattr(super(DyingFiles, self), name)(*arguments)
        finally:
            if dies:
                self.die()

    return call


for _name in ("truncate", "sync", "sync_directory", "rename", "unlink", "make_directory", "unlock"):
    setattr(DyingFiles, _name, _dying(_name))


def die() -> Any:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


class CutFiles(DyingFiles):
    """At the n-th call that changes something, the power of the file system is cut."""

    def __init__(self, when: str, number: int, root: str) -> None:
        super().__init__(when, number)
        self._root = root

    def die(self) -> Any:
        cut_power(self._root)
        die()


class LyingFiles(OsFiles):
    """Says that it has synced, and has not: what the power-cut rig must catch."""

    def sync(self, descriptor: int) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        pass


class LaggingFiles(OsFiles):
    """Says that it has synced when it has done the sync before: an acknowledgement too early."""

    def __init__(self) -> None:
        self._owed: int | None = None

    def sync(self, descriptor: int) -> None:
        owed, self._owed = self._owed, os.dup(descriptor)
        if owed is not None:
            super().sync(owed)
            os.close(owed)


class ToldFiles(OsFiles):
    """Tells when a sync begins and when it is done."""

    def __init__(self, out: Out) -> None:
        self._out = out
        self._numbers = itertools.count(1)

    def sync(self, descriptor: int) -> None:
        number = next(self._numbers)
        self._out.say(Kind.SYNCING, a=number)
        super().sync(descriptor)
        self._out.say(Kind.SYNCED, a=number)


def files_of(spec: Spec, out: Out) -> OsFiles:
    if spec.tells_syncs:
        return ToldFiles(out)
    match spec.fault:
        case "" | "hasty":
            return OsFiles()
        case "before" | "middle" | "after":
            return DyingFiles(spec.fault, spec.fault_at, spec.fault_calls)
        case "lies":
            return LyingFiles()
        case "lags":
            return LaggingFiles()
    raise ValueError(spec.fault)


class AheadClock(OsClock):
    """A clock that is some hours ahead: for its process, yesterday's records are old."""

    def __init__(self, hours: int) -> None:
        self._ahead_ms = hours * 60 * 60 * 1000

    def time_ms(self) -> int:
        return super().time_ms() + self._ahead_ms
