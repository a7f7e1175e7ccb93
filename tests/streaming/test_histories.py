"""Producers and members of groups, killed and paused at random: their histories have no anomaly."""

import asyncio
import time
from pathlib import Path

import pytest

from penstock.testing import HistoryReport, check_history, read_history
from tests.crash.kill_rig import processes
from tests.crash.rigs import seed_of
from tests.scoreboard import Scores, amount, short_amount
from tests.streaming import history_programs as programs
from tests.streaming.havoc import Havoc

ROLES = ["producer", "producer", "teller", "teller", *["billing"] * 3, *["audit"] * 2]
GROUPS = ["audit", "billing"]
PARTS = 5
BYTES_EACH = 26
"""What a record takes in the files, each time it is sent or read, at the least."""

processes.set_forkserver_preload([programs.__name__])


class Histories:
    """Havoc over processes that write down what they do, and what the checker says of it."""

    def __init__(self, folder: Path, seed: int, bug: str = "") -> None:
        self._bug = bug
        self._log, self._files = folder / "log", folder / "histories"
        self._files.mkdir()
        # A pause may be long enough for a group to go on without the member.
        self.havoc = Havoc(
            seed,
            ROLES,
            lambda *words: (programs.run, (self._orders(*words),)),
            3 * programs.LEASE_SECONDS,
        )

    def _orders(self, role: str, number: int, seed: int) -> programs.Orders:
        return programs.Orders(number, role, str(self._log), str(self._files), seed, bug=self._bug)

    def run(self, records_min: int, rounds: int = 15) -> HistoryReport:
        """Havoc until so many records were sent and read; then each group reads what is left."""
        self.havoc.run(rounds, lambda: self._have(records_min))
        for group in GROUPS:
            asyncio.run(programs.drain(self._orders(group, self.havoc.number(), 0)))
        report = check_history(read_history(sorted(self._files.iterdir())))
        print(f"{self.havoc.kills} kills, {self.havoc.pauses} pauses\n{report}")
        return report

    def _have(self, records: int) -> bool:
        size = sum(file.stat().st_size for file in self._files.iterdir())
        return size > records * BYTES_EACH

    def check(self, records_min: int, scored: Scores, seed: int) -> None:
        """An operation is a call: it sends or reads up to thousands of records, commits, or is assigned."""
        began = time.monotonic()
        report = self.run(records_min)
        assert report.acknowledged > records_min / 10, "there was something to lose"
        assert report.sent + report.read >= records_min
        records = report.sent + report.read
        scored(
            12,
            tried=records,
            bad=sum(report.counts.values()),
            seed=seed,
            operations_in_all=report.operations,
            records_per_second=records / (time.monotonic() - began),
        )


@pytest.mark.acceptance(76, 77)
def test_killed_and_paused_processes_leave_no_anomaly(request, folder, scored):
    seed = seed_of(request)
    Histories(folder, seed).check(short_amount(12), scored, seed)


@pytest.mark.parametrize(
    ("bug", "anomaly"),
    [
        ("aborted transactions happen", "aborted read"),
        ("records are lost", "stale"),
    ],
)
def test_a_seeded_bug_shows(request, folder, bug, anomaly):
    """The rig finds what it is there to find. Few records may be all of a kind that has no bug."""
    seed = seed_of(request)
    told: list[str] = []
    for records_min in (20_000, 60_000, 180_000):
        part = folder / str(records_min)
        part.mkdir()
        report = Histories(part, seed, bug).run(records_min, rounds=5)
        told.append(str(report))
        if report.counts.get(anomaly):
            return
    raise AssertionError("\n".join(told))


@pytest.mark.torture
@pytest.mark.acceptance(76, 77)
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_long_havoc_leaves_no_anomaly(request, folder, scored, part):
    seed = seed_of(request)
    Histories(folder, seed + part).check(amount(12) // PARTS + 1, scored, seed)
