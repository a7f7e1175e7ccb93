"""SIGKILL at any moment: a scheduled event is not lost, and no time fires twice."""

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
from tests.crash import scheduler
from tests.crash.rigs import seed_of
from tests.crash.scheduler import FIRED, JOURNAL, RECURRING, Fired, Orders, event_of

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload([scheduler.__name__])


class Killing:
    """Starts schedulers on one log and kills them, again and again, and keeps their promises."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.random = random.Random(seed)
        self.runs = self.kills = 0
        self.tried: set[int] = set()
        self.scheduled: dict[str, int] = {}
        self.cancelled: set[str] = set()
        self.cancelling: set[str] = set()

    def orders(self, *, finish: bool = False) -> Orders:
        self.runs += 1
        orders = Orders(
            str(self.path), self.random.getrandbits(32), self.runs * 1_000, finish=finish
        )
        if not finish and self.random.random() < 0.5:
            orders.dies = self.random.choice(["before", "middle", "after"])
            orders.dies_at = self.random.randint(1, 300)
        return orders

    def round(self) -> None:
        """Let a scheduler work for a moment and kill it, or let it die at a call to the disk."""
        orders = self.orders()
        ours, theirs = processes.Pipe(duplex=False)
        child = processes.Process(target=scheduler.run, args=(orders, theirs), daemon=True)
        child.start()
        theirs.close()
        patience = self.random.randint(1, 150)
        while patience > 0 and self.hear(ours, 5.0):
            patience -= not orders.dies
        if self.random.random() < 0.3:
            ours.poll(self.random.uniform(0, 0.02))
        if not orders.dies:
            child.kill()
        child.join()
        assert child.exitcode == -signal.SIGKILL, "the scheduler ended by itself"
        self.kills += 1
        while self.hear(ours, 0):
            pass
        ours.close()

    def hear(self, link: Connection, seconds: float) -> bool:
        """Take in one thing that the scheduler says; False when it says no more."""
        try:
            if not link.poll(seconds):
                return False
            self.note(*msgspec.json.decode(link.recv_bytes()))
        except (EOFError, OSError):
            return False
        return True

    def note(self, said, *words) -> None:
        if said == "trying":
            self.tried.add(words[0])
        elif said == "scheduled":
            self.scheduled[words[1]] = words[0]
        elif said == "cancelling":
            self.cancelling.add(words[0])
        elif said == "cancelled" and words[1]:
            self.cancelled.add(words[0])

    def finish(self) -> None:
        """One more start, which nobody kills: all that was promised must have happened now."""
        asyncio.run(scheduler.work(self.orders(finish=True), lambda *_: None))
        fired = asyncio.run(self.read())
        by_id = {one.id: one for one in fired}
        self.check_once(by_id)
        self.check_cancelled(by_id)
        self.check_fields(by_id)
        repeated = len(fired) - len(by_id)
        print(f"{self.kills} kills, {len(by_id)} firings, {repeated} handled again by their id")

    async def read(self) -> list[Fired]:
        async with WalMessageQueue(self.path) as queue:
            records = [record async for record in queue.replay(FIRED)]
            journal = queue.journal("bus.schedule")
            held = await journal.open()
            assert held == {}, "everything is handled, so nothing is kept"
            assert JOURNAL in await queue.topics()
        return [msgspec.json.decode(record.value or b"", type=Fired) for record in records]

    def check_once(self, by_id: dict[str, Fired]) -> None:
        firings = defaultdict(set)
        for name in by_id:
            schedule, _, count = name.rpartition("-")
            firings[schedule].add(int(count))
        for schedule, number in self.scheduled.items():
            if number < RECURRING and schedule not in self.cancelling:
                assert firings[schedule] == {1}, f"event {number} was promised"
        for schedule, counts in firings.items():
            assert counts == set(range(1, len(counts) + 1)), f"{schedule} has a gap: {counts}"
        numbers = [one.number for one in by_id.values() if one.number < RECURRING]
        assert len(numbers) == len(set(numbers)), "a time has fired twice"
        assert {number % RECURRING for number in numbers} <= self.tried

    def check_cancelled(self, by_id: dict[str, Fired]) -> None:
        for schedule in self.cancelled:
            if self.scheduled[schedule] < RECURRING:
                assert f"{schedule}-1" not in by_id, "it was cancelled"

    def check_fields(self, by_id: dict[str, Fired]) -> None:
        for one in by_id.values():
            event = event_of(one.number)
            fields = msgspec.structs.asdict(event)
            expected = Fired(id=one.id, kind=type(event).__name__, **fields)
            assert one == expected, "the class and the fields are kept"

    def run(self, kills: int) -> None:
        while self.kills < kills:
            self.round()
        self.finish()
        assert len(self.scheduled) > kills, "there was something to lose"


@pytest.mark.acceptance(141)
@pytest.mark.timeout(120)
def test_killed_schedulers_lose_no_event_and_fire_none_twice(request, folder):
    Killing(folder, seed_of(request)).run(25)


@pytest.mark.torture
@pytest.mark.acceptance(141)
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(10))
def test_thousands_of_killed_schedulers_lose_no_event(request, folder, part):
    Killing(folder, seed_of(request)).run(200)
