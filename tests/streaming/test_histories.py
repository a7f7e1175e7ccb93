"""Producers and members of groups, killed and paused at random: their histories have no anomaly."""

import asyncio
import os
import random
import shutil
import signal
import tempfile
import threading
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from penstock.testing import HistoryReport, check_history, read_history
from tests.crash.kill_rig import processes
from tests.crash.rigs import seed_of
from tests.streaming import history_programs as programs

ROLES = ["producer", "producer", "billing", "billing", "billing", "audit", "audit"]
PAUSE_SECONDS_MAX = 3 * programs.LEASE_SECONDS
"""Long enough for a group to go on without a member that is paused."""

processes.set_forkserver_preload([programs.__name__])


@pytest.fixture
def folder():
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    made = Path(tempfile.mkdtemp(prefix="penstock-histories-", dir=parent))
    yield made
    shutil.rmtree(made, ignore_errors=True)


class Havoc:
    """Starts processes on one log, and does to them what machines do."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.log, self.histories = folder / "log", folder / "histories"
        self.histories.mkdir()
        self.started = self.kills = self.pauses = 0
        self.children: dict[int, tuple[str, BaseProcess]] = {}
        self.wake_at: list[tuple[float, int]] = []
        self.time = 0.0

    def orders(self, role: str) -> programs.Orders:
        self.started += 1
        seed = self.random.getrandbits(32)
        return programs.Orders(self.started, role, str(self.log), str(self.histories), seed)

    def start(self, role: str) -> None:
        child = processes.Process(target=programs.run, args=(self.orders(role),), daemon=True)
        child.start()
        assert child.pid is not None
        self.children[child.pid] = role, child

    def kill(self, pid: int) -> str:
        role, child = self.children.pop(pid)
        self.wake_at = [(at, paused) for at, paused in self.wake_at if paused != pid]
        child.kill()
        child.join()
        assert child.exitcode == -signal.SIGKILL, f"a {role} ended by itself"
        return role

    def pause(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        self.pauses += 1
        seconds = self.random.choice([0.05, self.random.uniform(0, PAUSE_SECONDS_MAX)])
        self.wake_at.append((self.time + seconds, pid))

    def wait(self, seconds: float) -> None:
        """Let some time pass; those whose pause is over go on."""
        self.time += seconds
        threading.Event().wait(seconds)
        for at, pid in list(self.wake_at):
            if at <= self.time:
                self.wake_at.remove((at, pid))
                os.kill(pid, signal.SIGCONT)

    def run(self, rounds: int) -> HistoryReport:
        try:
            for role in ROLES:
                self.start(role)
            self.wait(1.0)
            for _ in range(rounds):
                self.round()
        finally:
            for pid in list(self.children):
                self.kill(pid)
        for group in sorted(set(ROLES) - {"producer"}):
            asyncio.run(programs.drain(self.orders(group)))
        report = check_history(read_history(sorted(self.histories.iterdir())))
        print(f"{self.kills} kills, {self.pauses} pauses\n{report}")
        return report

    def round(self) -> None:
        paused = {pid for _, pid in self.wake_at}
        pid = self.random.choice(sorted(self.children))
        if self.random.random() < 0.5:
            self.start(self.kill(pid))
            self.kills += 1
        elif pid not in paused and len(paused) < 3:
            self.pause(pid)
        self.wait(self.random.uniform(0.05, 0.4))


def check(report: HistoryReport, least: int) -> None:
    assert report.is_clean, str(report)
    assert report.acknowledged > least, "there was something to lose"
    assert report.read > 2 * least


@pytest.mark.acceptance(76, 77)
@pytest.mark.timeout(120)
def test_killed_and_paused_processes_leave_no_anomaly(request, folder):
    check(Havoc(folder, seed_of(request)).run(20), 100)


@pytest.mark.torture
@pytest.mark.acceptance(76, 77)
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(5))
def test_long_havoc_leaves_no_anomaly(request, folder, part):
    check(Havoc(folder, seed_of(request)).run(400), 10_000)
