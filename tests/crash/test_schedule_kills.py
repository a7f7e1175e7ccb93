"""SIGKILL at any moment: a scheduled event is not lost, and no time fires twice."""

import asyncio
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest

from penstock.log.queue import WalMessageQueue
from tests.crash import scheduler
from tests.crash.kill_rig import KillRig, processes
from tests.crash.rigs import seed_of
from tests.crash.scheduler import FIRED, JOURNAL, RECURRING, Fired, event_of

processes.set_forkserver_preload([scheduler.__name__])


class Killing(KillRig):
    """Starts schedulers on one log and kills them, again and again, and keeps their promises."""

    program = scheduler
    numbers_each = 1_000
    patience_max = 150

    def __init__(self, path: Path, seed: int) -> None:
        super().__init__(path, seed)
        self.tried: set[int] = set()
        self.scheduled: dict[str, int] = {}
        self.cancelled: set[str] = set()
        self.cancelling: set[str] = set()

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
def test_killed_schedulers_lose_no_event_and_fire_none_twice(request, folder):
    Killing(folder, seed_of(request)).run(25)


@pytest.mark.torture
@pytest.mark.acceptance(141)
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(10))
def test_thousands_of_killed_schedulers_lose_no_event(request, folder, part):
    Killing(folder, seed_of(request)).run(200)
