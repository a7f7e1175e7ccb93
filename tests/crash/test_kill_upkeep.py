"""SIGKILL in the middle of key compaction, tiering and retention: what must stay is there."""

import asyncio
import copy
import itertools
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock import VerifyReport, verify
from penstock.log.queue import WalMessageQueue
from penstock.stores.directory import TEMPORARY
from penstock.system import System
from tests.crash.file_layers import AheadClock
from tests.crash.ledger import Score
from tests.crash.rigs import Child, Nursery, scoring, seed_of
from tests.crash.said import Spec
from tests.crash.test_kill import Killing
from tests.crash.upkeep import TOMBSTONE_HOURS, UpkeepLedger
from tests.scoreboard import amount

FOR_EVER = {"age_ms_max": None, "bytes_max": None}
CASES: dict[str, dict[str, Any]] = {
    "compaction": {"compact_keys": True, "retention": FOR_EVER},
    "compaction and tiering": {"compact_keys": True, "retention": FOR_EVER, "partitions": 2},
    "retention": {"retention": {**FOR_EVER, "acknowledged": True}},
    "all of it": {"compact_keys": True, "retention": {**FOR_EVER, "acknowledged": True}},
}
WITH_TIER = {"compaction and tiering", "all of it"}
SUBSCRIBERS = ["reader", "lagging"]
KILLS_OF_A_LOG = 25


class KillingUpkeep(Killing):
    """Kills writers that append and do upkeep all the time, and looks at a copy of what they leave.

    The next writer finds the log as the dead one left it. The copy is checked, opened, tended to
    its end, and checked again.
    """

    checks = 1.0
    patience = 120

    def __init__(self, nursery: Nursery, folder: Path, case: str, seed: int, writers: int) -> None:
        config = {"segment_bytes_max": 6_000, **CASES[case]}
        super().__init__(nursery, folder / "live" / "log", config, seed, writers)
        self.ledger: UpkeepLedger = UpkeepLedger(
            self.ledger.path,
            "orders",
            self.config,
            varied=True,
            tier=str(folder / "live" / "tier") if case in WITH_TIER else "",
        )
        self.folder = folder
        self.hours = 0
        self.unfinished = 0
        """Files that were found half written, superseded, or here and in the tier."""
        asyncio.run(self.register())

    async def register(self) -> None:
        """From the first record on there are subscribers that need it."""
        ledger = self.ledger
        async with WalMessageQueue(ledger.path, tier=ledger.tier or None) as queue:
            await ledger.check(queue)
            for name in SUBSCRIBERS:
                await ledger.check_subscriber(queue, name)
        ledger.names |= {*SUBSCRIBERS}

    def start(self, place: int) -> Child:
        self.numbers += 1
        spec = Spec(
            path=str(self.ledger.path),
            topic="orders",
            writer=self.numbers,
            seed=self.random.getrandbits(32),
            config=self.config,
            # A name can be taken by one process at a time.
            subscriber=SUBSCRIBERS[0] if place == 0 else "",
            lagging=SUBSCRIBERS[1] if place == 0 else "",
            # Without any, work gathers for the next one, tombstones and what they hide among it.
            upkeep="beside" if self.random.random() < 0.7 else "",
            tier=self.ledger.tier,
            varied=True,
            hours=self.hours,
            **self.own_death(),
        )
        return self.nursery.start(spec)

    def own_death(self) -> dict[str, Any]:
        """Half of the writers die at a call that puts a file in its place or removes one.

        Appending makes few of these. The others are killed at any time.
        """
        if self.random.random() < 0.5:
            return {}
        return {
            "fault": self.random.choice(["before", "after"]),
            "fault_at": self.random.randint(1, 30),
            "fault_calls": ["rename", "unlink"],
        }

    def round(self) -> None:
        super().round()
        self.hours += TOMBSTONE_HOURS

    def check(self, *, again: bool) -> None:
        ledger, copied = self.ledger, self.folder / "copy"
        path, tier = ledger.path, ledger.tier
        shutil.rmtree(copied, ignore_errors=True)
        shutil.copytree(self.folder / "live", copied)
        ledger.path, ledger.tier = copied / "log", tier and str(copied / "tier")
        try:
            self.check_copy()
        finally:
            ledger.path, ledger.tier = path, tier

    def check_copy(self) -> None:
        ledger = self.ledger
        report = verify(ledger.path, tier=ledger.tier or None)
        assert report.sound, report.problems
        assert not report.lost
        self.unfinished += count_unfinished(report, ledger.path.parent)
        asyncio.run(self.check_opened())
        report = verify(ledger.path, tier=ledger.tier or None)
        assert report.clean, report.problems

    def has_done_its_work(self) -> bool:
        """Whether upkeep did all that the settings ask of it."""
        ledger = self.ledger
        return (
            (not ledger.compacts or all(ledger.gone))
            and (not ledger.retains or min(ledger.earliest) > 0)
            and (not ledger.tier or any(Path(ledger.tier).rglob("*.log")))
        )

    async def check_opened(self) -> None:
        ledger = self.ledger
        system = System(clock=AheadClock(self.hours + TOMBSTONE_HOURS))
        async with WalMessageQueue(
            ledger.path, tier=ledger.tier or None, system=system, maintenance_interval=None
        ) as queue:
            await ledger.check(queue)
            for name in SUBSCRIBERS:
                await ledger.check_subscriber(queue, name)
            ledger.count_recovered()
            # What happens to the copy from here on is not what happens to the log.
            later = copy.deepcopy(ledger)
            later.hours += TOMBSTONE_HOURS
            reports = await queue.maintain()
            assert not [report.error for report in reports if report.error is not None]
            await later.check(queue)
            for name in SUBSCRIBERS:
                await later.check_subscriber(queue, name)
            await later._go_on(queue)


def count_unfinished(report: VerifyReport, folder: Path) -> int:
    """What a death in the middle of upkeep left."""
    files = Counter(path.name for path in folder.rglob("*.log"))
    return (
        sum(problem.kind == "leftover" for problem in report.problems)
        + len([*folder.rglob(f"*{TEMPORARY}")])
        + sum(files.values())
        - len(files)
    )


def kill(nursery, request, scored, folder, case, writers, crashes):
    """Kill so many writers, on one log after the other; a log that is short is read quickly."""
    seed = seed_of(request)
    score, unfinished = Score(), 0
    with scoring(scored, 1, seed) as tried:
        for number in itertools.count():
            place = folder / str(number)
            killing = KillingUpkeep(nursery, place, case, seed + number, writers)
            killing.ledger.score = score
            killing.run(min(crashes, score.crashes + KILLS_OF_A_LOG))
            tried.count = score.crashes
            unfinished += killing.unfinished
            shutil.rmtree(place)
            if score.crashes >= crashes:
                break
    print(f"{request.node.name}: {score}, {unfinished} files of unfinished upkeep")
    assert score.acknowledged > crashes
    return unfinished


@pytest.mark.acceptance(11, 17, 46)
@pytest.mark.parametrize("case", CASES)
def test_a_kill_during_upkeep_loses_nothing_that_must_stay(nursery, request, scored, folder, case):
    kill(nursery, request, scored, folder, case, 1, 6)


@pytest.mark.torture
@pytest.mark.acceptance(11, 17, 46)
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("writers", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_hundreds_of_kills_during_upkeep_lose_nothing_that_must_stay(
    nursery, request, scored, folder, case, writers
):
    unfinished = kill(nursery, request, scored, folder, case, writers, max(8, amount(1) // 500))
    # Where two are at work, the one that lives may finish what the dead one began. Retention only
    # removes whole files.
    few = amount(1) < 50_000
    assert unfinished > 0 or writers > 1 or case == "retention" or few
