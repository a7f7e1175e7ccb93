"""SIGKILL at any moment: what was confirmed is handled, in order, and a group as a whole."""

import asyncio
import multiprocessing
import random
import signal
from collections import defaultdict
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import pytest

from penstock.log.queue import WalMessageQueue
from tests.crash import event_keeper
from tests.crash.event_keeper import HANDLED, Handled, Orders
from tests.crash.rigs import seed_of

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload([event_keeper.__name__])


class Killing:
    """Starts publishers on one log and kills them, again and again, and keeps their promises."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.random = random.Random(seed)
        self.runs = self.kills = 0
        self.tried: set[tuple[str, int]] = set()
        self.confirmed: set[tuple[str, int]] = set()
        self.grouping: dict[int, int] = {}
        self.grouped: set[int] = set()
        self.refused: set[int] = set()

    def orders(self, *, finish: bool = False) -> Orders:
        self.runs += 1
        orders = Orders(
            str(self.path), self.random.getrandbits(32), self.runs * 100_000, finish=finish
        )
        if not finish and self.random.random() < 0.5:
            orders.dies = self.random.choice(["before", "middle", "after"])
            orders.dies_at = self.random.randint(1, 300)
        return orders

    def round(self) -> None:
        """Let a publisher work for a moment and kill it, or let it die at a call to the disk."""
        orders = self.orders()
        ours, theirs = processes.Pipe(duplex=False)
        child = processes.Process(target=event_keeper.run, args=(orders, theirs), daemon=True)
        child.start()
        theirs.close()
        patience = self.random.randint(1, 300)
        while patience > 0 and self.hear(ours, 5.0):
            patience -= not orders.dies
        if not orders.dies:
            child.kill()
        child.join()
        assert child.exitcode == -signal.SIGKILL, "the publisher ended by itself"
        self.kills += 1
        while self.hear(ours, 0):
            pass
        ours.close()

    def hear(self, link: Connection, seconds: float) -> bool:
        """Take in one thing that the publisher says; False when it says no more."""
        try:
            if not link.poll(seconds):
                return False
            self.note(*msgspec.json.decode(link.recv_bytes()))
        except (EOFError, OSError):
            return False
        return True

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


@pytest.mark.acceptance(152)
@pytest.mark.timeout(120)
def test_killed_publishers_lose_no_confirmed_event(request, folder):
    Killing(folder, seed_of(request)).run(20)


@pytest.mark.torture
@pytest.mark.acceptance(152)
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(5))
def test_thousands_of_killed_publishers_lose_no_confirmed_event(request, folder, part):
    Killing(folder, seed_of(request)).run(200)
