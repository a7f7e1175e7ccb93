"""Several processes on one log, killed and paused at random, and started again."""

import os
import random
import signal
import threading
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from typing import Any

from tests.crash.kill_rig import processes

PAUSED_MAX = 3


class Havoc:
    """Does to processes what machines do. ``target(role, number, seed)`` makes what one is to run."""

    def __init__(
        self,
        seed: int,
        roles: Sequence[str],
        target: Callable[[str, int, int], tuple[Callable[..., None], tuple[Any, ...]]],
        pause_seconds_max: float,
        kill_share: float = 0.5,
    ) -> None:
        self.random = random.Random(seed)
        self.kills = self.pauses = self.started = 0
        self._roles = roles
        self._target = target
        self._pause_seconds_max = pause_seconds_max
        self._kill_share = kill_share
        self._children: dict[int, tuple[str, BaseProcess]] = {}
        self._wake_at: list[tuple[float, int]] = []
        self._time = 0.0

    def run(self, rounds: int, enough: Callable[[], bool] = lambda: True) -> None:
        """Start one process for each role, do harm so many times and until enough, kill them all."""
        try:
            for role in self._roles:
                self._start(role)
            self._wait(1.0)
            for _ in range(rounds):
                self._round()
            while not enough():
                self._round()
        finally:
            # All of them first: who lives on in a folder that is gone hides what went wrong.
            for _, child in self._children.values():
                child.kill()
            for pid in list(self._children):
                self._kill(pid)

    def number(self) -> int:
        """A number that no other process has."""
        self.started += 1
        return self.started

    def _round(self) -> None:
        paused = {pid for _, pid in self._wake_at}
        pid = self.random.choice(sorted(self._children))
        if self.random.random() < self._kill_share:
            self._start(self._kill(pid))
            self.kills += 1
        elif pid not in paused and len(paused) < PAUSED_MAX:
            self._pause(pid)
        self._wait(self.random.uniform(0.05, 0.4))

    def _start(self, role: str) -> None:
        run, arguments = self._target(role, self.number(), self.random.getrandbits(32))
        child = processes.Process(target=run, args=arguments, daemon=True)
        child.start()
        assert child.pid is not None
        self._children[child.pid] = role, child

    def _kill(self, pid: int) -> str:
        role, child = self._children.pop(pid)
        self._wake_at = [(at, paused) for at, paused in self._wake_at if paused != pid]
        child.kill()
        child.join()
        assert child.exitcode == -signal.SIGKILL, f"a {role} ended by itself"
        return role

    def _pause(self, pid: int) -> None:
        role, child = self._children[pid]
        assert child.is_alive(), f"a {role} ended by itself"
        os.kill(pid, signal.SIGSTOP)
        self.pauses += 1
        seconds = self.random.choice([0.05, self.random.uniform(0, self._pause_seconds_max)])
        self._wake_at.append((self._time + seconds, pid))

    def _wait(self, seconds: float) -> None:
        """Let some time pass; those whose pause is over go on."""
        self._time += seconds
        threading.Event().wait(seconds)
        for at, pid in list(self._wake_at):
            if at <= self._time:
                self._wake_at.remove((at, pid))
                os.kill(pid, signal.SIGCONT)
