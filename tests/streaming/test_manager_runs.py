"""Runs: consumers as tasks, that come and go, fail, and start again."""

import asyncio
from collections import Counter
from itertools import pairwise

import pytest

from penstock.errors import Closed, InvalidName, InvalidOption, NotSupported, UsageError
from penstock.streaming import StreamingScalingManager
from tests.streaming import worker_handlers
from tests.streaming.manager_world import take, turns, until, values, virtual

MANY = [b"%d" % number for number in range(40)]


class Recorder:
    """A handler that notes what it got."""

    def __init__(self):
        self.events: list = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.running = self.most = 0

    async def __call__(self, event):
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.gate.wait()
            self.events.append(event)
        finally:
            self.running -= 1

    async def handle(self, event):
        await self(event)

    @property
    def values(self):
        return [event.value for event in self.events]


@pytest.fixture
async def streams():
    async with StreamingScalingManager(look_seconds=1_000) as streams:
        await streams.create_topic("orders", partitions=4)
        yield streams


async def committed(streams, group="billing"):
    return sum(one.committed for one in await streams.transport().lag("orders", group))


async def test_a_handler_gets_every_event_once_and_all_is_committed(streams):
    recorder = Recorder()
    async with streams.run("orders", "billing", recorder.handle) as run:
        await streams.publish_many("orders", MANY, keys=MANY)
        await until(lambda: len(recorder.events) == 40)
        assert recorder.most == 1, "one at a time"
        assert run.statistics().handled == 40
    assert Counter(recorder.values) == Counter(MANY)
    assert await committed(streams) == 40
    assert {event.group for event in recorder.events} == {"billing"}


async def test_plain_functions_are_called_in_threads(streams):
    seen: list = []
    loop = asyncio.get_running_loop()

    def handle(event):
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        loop.call_soon_threadsafe(seen.append, event.value)

    async with streams.run("orders", "billing", handle):
        await streams.publish_many("orders", MANY)
        await until(lambda: len(seen) == 40)
    assert await committed(streams) == 40


async def test_many_in_flight_keep_the_order_of_a_key(streams):
    recorder = Recorder()
    recorder.gate.clear()
    async with streams.run("orders", "billing", recorder.handle, in_flight_max=10):
        await streams.publish_many("orders", MANY, keys=[b"%d" % (n % 10) for n in range(40)])
        await until(lambda: recorder.running == 10)
        recorder.gate.set()
        await until(lambda: len(recorder.events) == 40)
    for key in range(10):
        mine = [int(one.value) for one in recorder.events if one.key == b"%d" % key]
        assert mine == sorted(mine)
        assert len(mine) == 4


@pytest.mark.acceptance(73, 81)
async def test_consumers_share_the_partitions_and_a_rebalance_moves_them(streams):
    recorder = Recorder()
    async with streams.run("orders", "billing", recorder.handle) as run:
        await streams.publish_many("orders", MANY, keys=MANY)
        await until(lambda: len(recorder.events) == 40)
        for count, shares in ((2, [2, 2]), (4, [1, 1, 1, 1]), (1, [4])):
            await run.scale_to(count)
            before = len(recorder.events)
            await streams.publish_many("orders", MANY, keys=MANY)
            await until(lambda before=before: len(recorder.events) == before + 40)
            for _ in range(3):  # those that are new show their partitions once they have records
                await streams.publish_many("orders", MANY, keys=MANY)
            await until(lambda before=before: len(recorder.events) >= before + 160)
            await until(
                lambda shares=shares: (
                    sorted(map(len, run.statistics().assignment.values())) == shares
                )
            )
            parts = [one for several in run.statistics().assignment.values() for one in several]
            assert sorted(parts) == [0, 1, 2, 3], "disjoint, and complete"
    assert Counter(recorder.values) == Counter(MANY * 13), "none twice, none lost"


async def test_a_stop_finishes_what_has_begun_and_leaves_the_rest(streams):
    recorder = Recorder()
    recorder.gate.clear()
    run = streams.run("orders", "billing", recorder.handle)
    await run.start()
    await streams.publish_many("orders", MANY, keys=[b"one"] * 40)
    await until(lambda: recorder.running == 1)
    stopping = asyncio.ensure_future(run.stop())
    await turns()
    assert not stopping.done()
    recorder.gate.set()
    await stopping
    assert recorder.values == [b"0"]
    assert await committed(streams) == 1
    with pytest.raises(Closed):
        await run.start()
    with pytest.raises(UsageError):
        await run.scale_to(2)


async def test_a_stop_has_a_deadline():
    streams, clock = virtual()
    async with streams:
        recorder = Recorder()
        recorder.gate.clear()
        run = streams.run("orders", "billing", recorder.handle, stop_seconds=3)
        await run.start()
        await streams.publish_many("orders", MANY)
        await until(lambda: recorder.running == 1)
        stopping = asyncio.ensure_future(run.stop())
        await turns()
        clock.advance(3.1)
        await asyncio.wait_for(stopping, 30)
        assert recorder.running == 0
        assert await committed(streams) == 0, "it was not handled, and comes again"


async def test_what_fails_is_tried_again_and_then_goes_to_the_dead_letters(streams):
    attempts: Counter = Counter()

    async def handle(event):
        attempts[event.value] += 1
        if event.value == b"3" or (event.value == b"5" and attempts[b"5"] == 1):
            raise ValueError("no")

    options = {"attempts": 2, "retry_delay": 0.001, "dead_letter_topic": "orders.dead"}
    async with streams.run("orders", "billing", handle, **options) as run:
        await streams.publish_many("orders", MANY, keys=MANY)
        await until(lambda: len(attempts) == 40 and run.statistics().dead_letters == 1)
    assert attempts[b"3"] == attempts[b"5"] == 2
    assert await committed(streams) == 40
    async with streams.subscribe("orders.dead", "people") as events:
        [letter] = await take(events, 1)
    assert (letter.key, letter.value) == (b"3", b"3")
    assert letter.headers["penstock-dead-topic"] == b"orders"
    assert letter.headers["penstock-dead-error"] == b"ValueError: no"


async def test_without_dead_letters_what_fails_is_parked_and_comes_again(streams):
    async def handle(event):
        if event.value == b"3":
            raise ValueError("no")

    async with streams.run("orders", "billing", handle, attempts=1) as run:
        await streams.publish_many("orders", MANY, keys=[b"one"] * 40)
        await until(lambda: run.statistics().handled == 39)
        assert run.statistics().parked == 1
    recorder = Recorder()
    async with streams.run("orders", "billing", recorder.handle):
        await until(lambda: recorder.events)
        await turns()
    assert recorder.values == [b"3"], "what was handled beyond it is in the checkpoint"
    assert await committed(streams) == 40


async def test_a_consumer_that_dies_is_started_again_after_a_while_that_grows():
    streams, clock = virtual()
    async with streams:
        await streams.create_topic("orders")
        transport = streams.transport()
        opened: list[float] = []
        subscribe = transport.subscribe

        def break_three_times(*arguments, **options):
            consumer = subscribe(*arguments, **options)
            if len(opened) < 3:

                async def fail():
                    raise OSError("broken")

                consumer.open = fail
            opened.append(clock.monotonic())
            return consumer

        transport.subscribe = break_three_times
        recorder = Recorder()
        async with streams.run("orders", "billing", recorder.handle) as run:
            await streams.publish("orders", b"at last")
            await clock.run_until(until(lambda: recorder.events), patience=0.02)
            figures = run.statistics()
        gaps = [round(later - sooner, 3) for sooner, later in pairwise(opened)]
        assert gaps[:3] == [0.1, 0.2, 0.4]
        assert figures.restarts == 3
        assert figures.last_error == "broken"


async def test_wrong_runs_are_refused_at_once(streams, tmp_path):
    recorder = Recorder()
    for wrong, kind in (
        ({"executor": "thread"}, InvalidOption),
        ({"consumers": 0}, InvalidOption),
        ({"in_flight_max": 0}, InvalidOption),
        ({"auto_commit": 0}, InvalidOption),
        ({"no_such_option": 1}, InvalidOption),
        ({"executor": "process"}, NotSupported),
    ):
        with pytest.raises(kind):
            streams.run("orders", "billing", recorder.handle, **wrong)
    with pytest.raises(InvalidName):
        streams.run("orders", "", recorder.handle)
    async with StreamingScalingManager(f"log:{tmp_path}") as disk:
        for handler in (recorder.handle, lambda event: None, "no.such:thing", "os:sep"):
            with pytest.raises(InvalidOption):
                disk.run("orders", "billing", handler, executor="process")
        with pytest.raises(InvalidOption, match="on_poison"):
            disk.run(
                "orders",
                "billing",
                worker_handlers.write_down,
                executor="process",
                on_poison=recorder.handle,  # type: ignore[arg-type]
            )


async def test_a_handler_by_name_and_its_way_to_a_message(streams, tmp_path):
    name = "tests.streaming.worker_handlers.write_down"
    async with streams.run("orders", "billing", name) as run:
        await streams.publish("orders", b"1", headers={"folder": str(tmp_path)})
        await until(lambda: run.statistics().handled == 1)
    assert [one.read_text() for one in tmp_path.iterdir()] == [" 1\n"]


async def test_closing_the_manager_stops_its_runs():
    recorder = Recorder()
    async with StreamingScalingManager() as streams:
        run = streams.run("orders", "billing", recorder.handle, consumers=2)
        await run.start()
        await streams.publish_many("orders", MANY)
        await until(lambda: len(recorder.events) == 40)
    assert run.statistics().assignment == {}
    assert values(recorder.events) == MANY
