"""SIGKILL at any moment: what was confirmed is handled, in order, and a group as a whole."""

import asyncio
import shutil
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest

from penstock.log.queue import WalMessageQueue
from tests.crash import event_keeper
from tests.crash.event_keeper import HANDLED, Handled
from tests.crash.kill_rig import KillRig, processes
from tests.crash.rigs import scoring, seed_of
from tests.scoreboard import amount

KILLS_OF_A_LOG = 200

processes.set_forkserver_preload([event_keeper.__name__])


class Killing(KillRig):
    """Starts publishers on one log and kills them, again and again, and keeps their promises."""

    program = event_keeper
    numbers_each = 100_000
    patience_max = 300

    def __init__(self, path: Path, seed: int) -> None:
        super().__init__(path, seed)
        self.tried: set[tuple[str, int]] = set()
        self.confirmed: set[tuple[str, int]] = set()
        self.grouping: dict[int, int] = {}
        self.grouped: set[int] = set()
        self.refused: set[int] = set()

    def note(self, said, *words) -> None:
        if said == "trying":
            self.tried.add((words[0], words[1]))
        elif said == "confirmed":
            self.confirmed.add((words[0], words[1]))
        elif said == "grouping":
            self.grouping[words[0]] = words[1]
        elif said == "grouped":
            self.grouped.add(words[0])
        elif said == "refused":
            self.refused.add(words[0])

    def finish(self) -> None:
        """One more start, which nobody kills: all that was promised must have happened now."""
        asyncio.run(event_keeper.work(self.orders(finish=True), lambda *_: None))
        handled = asyncio.run(self.read())
        singles = [one for one in handled if not one.group]
        self.check_confirmed(singles)
        self.check_order(singles)
        self.check_groups([one for one in handled if one.group])
        self.check_ids(handled)
        print(f"{self.kills} kills, {len(self.confirmed)} confirmed, {len(handled)} handled")

    async def read(self) -> list[Handled]:
        async with WalMessageQueue(self.path) as queue:
            records = [record async for record in queue.replay(HANDLED)]
        return [msgspec.json.decode(record.value or b"", type=Handled) for record in records]

    def check_confirmed(self, singles: list[Handled]) -> None:
        handled = {(one.kind, one.number) for one in singles}
        assert not self.confirmed - handled, "a confirmed event was not handled"
        assert not handled - self.tried, "an event was invented"

    def check_order(self, singles: list[Handled]) -> None:
        first: dict[str, dict[int, None]] = defaultdict(dict)
        for one in singles:
            first[one.kind].setdefault(one.number)
        for kind, numbers in first.items():
            assert list(numbers) == sorted(numbers), f"{kind} was handled out of order"

    def check_groups(self, members: list[Handled]) -> None:
        handled: dict[int, set[int]] = defaultdict(set)
        for one in members:
            handled[one.group].add(one.number)
        for group, numbers in handled.items():
            whole = {-(group * 10 + member) for member in range(self.grouping[group])}
            assert numbers == whole, f"group {group} was handled in part"
        assert not self.grouped - handled.keys(), "a confirmed group was not handled"
        assert not self.refused & handled.keys(), "a group that found no room was handled"

    def check_ids(self, handled: list[Handled]) -> None:
        ids: dict[tuple[str, int], set[str]] = defaultdict(set)
        for one in handled:
            ids[one.kind, one.number].add(one.id)
        assert all(len(found) == 1 for found in ids.values()), "an event came again by another id"

    def run(self, kills: int) -> None:
        while self.kills < kills:
            self.round()
        self.finish()
        assert len(self.confirmed) > kills, "there was something to lose"
        assert len(self.grouped) > kills // 2


def kill(request, scored, folder, kills):
    seed = seed_of(request)
    with scoring(scored, 1, seed) as tried:
        for number, done in enumerate(range(0, kills, KILLS_OF_A_LOG)):
            place = folder / str(number)
            killing = Killing(place, seed + number)
            killing.run(min(KILLS_OF_A_LOG, kills - done))
            tried.count += killing.kills
            shutil.rmtree(place)


@pytest.mark.acceptance(152)
def test_killed_publishers_lose_no_confirmed_event(request, scored, folder):
    kill(request, scored, folder, 20)


@pytest.mark.torture
@pytest.mark.acceptance(152)
@pytest.mark.timeout(14_400)
def test_thousands_of_killed_publishers_lose_no_confirmed_event(request, scored, folder):
    kill(request, scored, folder, max(20, amount(1) // 50))
