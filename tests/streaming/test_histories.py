"""Producers and members of groups, killed and paused at random: their histories have no anomaly."""

import asyncio
from pathlib import Path

import pytest

from penstock.testing import HistoryReport, check_history, read_history
from tests.crash.kill_rig import processes
from tests.crash.rigs import seed_of
from tests.streaming import history_programs as programs
from tests.streaming.havoc import Havoc

ROLES = ["producer", "producer", "billing", "billing", "billing", "audit", "audit"]

processes.set_forkserver_preload([programs.__name__])


def run(folder: Path, seed: int, rounds: int) -> HistoryReport:
    """Havoc, then each group reads what is left."""
    log, histories = folder / "log", folder / "histories"
    histories.mkdir()

    def orders(role: str, number: int, seed: int) -> programs.Orders:
        return programs.Orders(number, role, str(log), str(histories), seed)

    # A pause may be long enough for a group to go on without the member.
    havoc = Havoc(
        seed, ROLES, lambda *words: (programs.run, (orders(*words),)), 3 * programs.LEASE_SECONDS
    )
    havoc.run(rounds)
    for group in sorted(set(ROLES) - {"producer"}):
        asyncio.run(programs.drain(orders(group, havoc.number(), 0)))
    report = check_history(read_history(sorted(histories.iterdir())))
    print(f"{havoc.kills} kills, {havoc.pauses} pauses\n{report}")
    return report


def check(report: HistoryReport, least: int) -> None:
    assert report.is_clean, str(report)
    assert report.acknowledged > least, "there was something to lose"
    assert report.read > 2 * least


@pytest.mark.acceptance(76, 77)
@pytest.mark.timeout(120)
def test_killed_and_paused_processes_leave_no_anomaly(request, folder):
    check(run(folder, seed_of(request), 15), 100)


@pytest.mark.torture
@pytest.mark.acceptance(76, 77)
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(5))
def test_long_havoc_leaves_no_anomaly(request, folder, part):
    check(run(folder, seed_of(request), 400), 10_000)
