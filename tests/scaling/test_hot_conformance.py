"""The suite of buses with every topic hot and a ring of one slot, so that every way is taken.

The ring is full after one event: most go to the queue behind it, and come back in order.
"""

import asyncio
from random import Random
from threading import Thread

import pytest

from penstock.bus.bus import MessageBus
from penstock.bus.intake import QueueOptions
from penstock.bus.queue import Overflow
from penstock.errors import BufferFull, Closed, DeadlineExceeded, LoadShed
from penstock.messages import Envelope, Priority, marks_of, topic
from penstock.pressure.monitor import LOOKS_PER_CAPACITY
from penstock.resilience.bus import ResilientMessageBus
from penstock.scaling.bus import ScalableMessageBus
from penstock.testing import BusConformance
from penstock.testing.bus_fixtures import BusFixtures, Gate, Ping
from penstock.testing.clock import until_idle

TOPIC = marks_of(Ping).topic


class Everything(dict[str, bool]):
    """Each topic is hot of which nothing else was said, also where the class is not marked."""

    def get(self, topic: str, _: bool = False) -> bool:  # type: ignore[override]
        return super().get(topic, True)


class Hot(ScalableMessageBus):
    """Ends with a failing test, whose handlers may wait for ever."""

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop(drain=exc_info[0] is None)


def all_hot(inner, ring_capacity=1):
    bus = Hot(inner, backpressure=False, ring_capacity=ring_capacity)
    bus.lanes._hot_topics = Everything()
    return bus


DIFFERENT = {
    "the ring holds one event more than the bound of the queue that these count on": (
        "test_a_group_without_room_for_one_publishes_none",
        "test_an_avalanche_is_bounded",
        "test_nobody_waits_for_a_bus_that_stopped",
        "test_reject_new",
        "test_waiting_for_room_has_a_deadline",
        "test_what_a_filter_refuses_needs_no_room",
        "test_what_waits_for_the_start_is_bounded",
    ),
    "the marks are those of the queue behind the ring": (
        "test_pressure_begins_at_the_high_mark_and_ends_at_the_low_one",
        "test_the_marks_are_apart_in_queues_of_any_size",
    ),
    "what is in the ring is not dropped: the queue behind it drops its own oldest": (
        "test_drop_oldest",
        "test_drop_oldest_spares_higher_priorities",
    ),
    "the ring keeps the order in which events came, whatever their priority": (
        "test_events_of_high_priority_overtake",
    ),
    "an event goes into the ring as it is, without what it follows from": (
        "test_what_follows_from_a_message_is_linked_to_it",
    ),
}
"""The tests of the suite that do not apply, and why; TestOnTheRing says what holds instead."""


class HotConformance(BusConformance):
    """The suite without what is different on the hot path."""


class RoomyConformance(HotConformance):
    """The suite without what a roomy ring takes that a queue of a few events would not."""


def leave_out(suite, names):
    for name in names:
        assert hasattr(BusConformance, name), name
        setattr(suite, name, None)  # pytest passes it by


for different in DIFFERENT.values():
    leave_out(HotConformance, different)
leave_out(  # the ring of 64 holds more than these count on
    RoomyConformance,
    (
        "test_a_slow_batch_slows_its_publishers",
        "test_adaptive_rate_limit_slows_the_producer_to_the_rate_of_the_consumer",
        "test_publish_waits_for_room_and_keeps_the_order",
    ),
)
# What a handler sets in its context lasts for the messages of a turn.
leave_out(RoomyConformance, ("test_context_does_not_leak_from_one_message_to_the_next",))


@pytest.mark.acceptance(15, 18, 40)
class TestHotMessageBus(HotConformance):
    @pytest.fixture
    def make_bus(self):
        return lambda **options: all_hot(MessageBus(**options))


@pytest.mark.acceptance(15, 18, 40)
class TestHotResilientMessageBus(HotConformance):
    @pytest.fixture
    def make_bus(self):
        return lambda **options: all_hot(ResilientMessageBus(**options))


@pytest.mark.acceptance(15, 18, 40)
class TestRoomyHotMessageBus(RoomyConformance):
    """With a ring that is open most of the time, so that events go straight in."""

    @pytest.fixture
    def make_bus(self):
        return lambda **options: all_hot(MessageBus(**options), ring_capacity=64)


class TestOnTheRing(BusFixtures):
    """What the hot path does where it is different."""

    @pytest.fixture
    def make_bus(self):
        return lambda **options: all_hot(MessageBus(**options))

    async def busy(self, table, **options):
        """A bus whose handler waits at a gate with event 0, and 1 is in the ring."""
        bus, gate, seen = table.bus(queue=QueueOptions(**options)), Gate(), []

        @bus.on(Ping)
        async def handle(event: Ping) -> None:
            await gate.wait()
            seen.append(event.number)

        await bus.start()
        for number in (0, 1):
            bus.publish_nowait(Ping(number))
            await table.idle()
        return bus, gate, seen

    async def test_the_bound_is_that_of_the_ring_and_the_queue(self, table):
        bus, gate, seen = await self.busy(table, capacity=2)
        for number in (2, 3):
            await bus.publish(Ping(number))
        with pytest.raises(BufferFull):
            bus.publish_nowait(Ping(4))
        with pytest.raises(DeadlineExceeded):
            await table.until(bus.publish(Ping(4), timeout=2.0))
        assert bus.statistics().events_published == 4
        gate.open()
        assert (await bus.stop()).drained
        assert seen == [0, 1, 2, 3]

    async def test_what_waits_for_the_start_is_bounded_and_keeps_its_order(self, table):
        bus, seen = table.bus(queue=QueueOptions(capacity=2)), []
        bus.subscribe(Ping, lambda event: seen.append(event.number))
        for number in range(3):
            await bus.publish(Ping(number))
        with pytest.raises(BufferFull):
            bus.publish_nowait(Ping(3))
        waiting = asyncio.ensure_future(bus.publish(Ping(4)))
        await table.idle()
        async with bus:
            await waiting
            await bus.settle()
        assert seen == [0, 1, 2, 4]

    async def test_what_is_beyond_the_bound_is_refused(self, table):
        bus, gate, seen = await self.busy(table, capacity=1, overflow=Overflow.REJECT_NEW)
        await bus.publish(Ping(2))
        with pytest.raises(BufferFull):
            await bus.publish(Ping(3))
        with pytest.raises(BufferFull):
            bus.publish_nowait(Ping(3))
        assert next(iter(bus.statistics().queues.values())).rejected == 2
        gate.open()
        await bus.stop()
        assert seen == [0, 1, 2]

    async def test_the_queue_behind_the_ring_drops_its_oldest(self, table):
        bus, gate, seen = await self.busy(table, capacity=2, overflow=Overflow.DROP_OLDEST)
        for number in range(2, 6):
            await bus.publish(Ping(number), priority=Priority.HIGH if number == 2 else 50)
        assert bus.statistics().events_dropped == 2
        gate.open()
        await bus.stop()
        assert seen == [0, 1, 2, 5]

    async def test_pressure_is_that_of_the_queue_behind(self, table):
        bus, gate, _ = await self.busy(table, capacity=10)
        told: list[tuple[int, bool]] = []
        number = 0
        bus.on_pressure(lambda topic, started: told.append((number, started)))
        for number in range(2, 12):
            await bus.publish(Ping(number))
        assert told == [(9, True)]  # the eighth behind the ring
        gate.open()
        await bus.stop()
        assert told == [(9, True), (11, False)]

    async def test_a_group_finds_room_in_the_ring_and_behind_it_or_none(self, table):
        bus, gate, seen = await self.busy(table, capacity=2)
        await self.refuse(bus, [2, 3, 4])
        assert bus.statistics().events_published == 2
        gate.let_in(2)
        await table.idle()
        await self.publish_together(bus, [2, 3, 4])  # one in the ring, two behind it
        gate.open()
        assert (await bus.stop()).drained
        assert seen == [0, 1, 2, 3, 4]

    async def test_a_group_that_has_to_queue_behind_does_not_count_on_the_ring(self, table):
        bus, gate, seen = await self.busy(table, capacity=2)
        await bus.publish(Ping(2))
        gate.let_in()
        await table.idle()  # 1 has left the ring, and 2 is behind it
        await self.refuse(bus, [3, 4])
        assert bus.statistics().events_published == 3
        gate.open()
        assert (await bus.stop()).drained
        assert seen == [0, 1, 2]

    async def refuse(self, bus, numbers):
        with pytest.raises(BufferFull):
            await self.publish_together(bus, numbers)

    async def publish_together(self, bus, numbers):
        async with bus.atomic() as group:
            for number in numbers:
                group.publish(Ping(number))

    @pytest.mark.parametrize("drain", [True, False])
    async def test_nobody_waits_for_a_stopped_bus_and_the_report_is_in_order(self, table, drain):
        bus, _, _ = await self.busy(table, capacity=1)
        await bus.publish(Ping(2))
        waiting = asyncio.ensure_future(bus.publish(Ping(3), timeout=1e9))
        await table.idle()
        report = await table.until(bus.stop(drain=drain, timeout=2.0))
        with pytest.raises(Closed):
            await waiting
        assert [one.message.number for one in report.undrained] == [0, 1, 2]

    async def test_an_avalanche_is_bounded_by_the_ring_and_twice_the_queue(self, table):
        bus = table.bus(queue=QueueOptions(capacity=5))
        published = []

        @bus.on(Ping)
        def handle(event: Ping) -> None:
            while not event.number:
                bus.publish_nowait(Ping(1))
                published.append(1)

        await bus.start()
        await bus.publish(Ping(0))
        await table.until(bus.settle())
        assert len(published) == 1 + 2 * 5
        assert bus.statistics().events_failed == 1
        await bus.stop()


class TestOldestFirst(BusFixtures):
    """The report of a stop is in the order in which events came, with an envelope or without."""

    @pytest.fixture
    def make_bus(self):
        return lambda **options: all_hot(MessageBus(**options), ring_capacity=4)

    @pytest.mark.parametrize("pattern", ["bbbbbb", "beb", "ebeb", "bbebbe", "eebbbbbb", "bwbbw"])
    async def test_bare_events_and_others(self, table, pattern):
        """``b`` goes in as it is, ``e`` with headers, for ``w`` somebody waits."""
        bus = table.bus()
        bus.subscribe(Ping, lambda event: None)
        waiting = []
        for number, how in enumerate(pattern):
            if how == "w":
                waiting.append(asyncio.ensure_future(bus.publish_and_wait(Ping(number))))
                await table.idle()
            else:
                await bus.publish(Ping(number), **({"headers": {"a": "b"}} if how == "e" else {}))
        report = await bus.stop(drain=False)
        assert [one.message.number for one in report.undrained] == list(range(len(pattern)))
        await asyncio.gather(*waiting, return_exceptions=True)

    async def test_events_of_a_group_come_after_those_in_the_ring(self, table):
        bus = table.bus()
        bus.subscribe(Ping, lambda event: None)
        await bus.publish(Ping(0))
        async with bus.atomic() as group:
            group.publish(Ping(1))
        report = await bus.stop(drain=False)
        assert [one.message.number for one in report.undrained] == [0, 1]

    async def test_events_after_a_change_come_after_those_in_the_ring(self, table):
        bus = table.bus()
        bus.subscribe(Ping, lambda event: None)
        await bus.publish(Ping(0))
        bus.lanes._hot_topics = {}
        bus.lanes._change(Ping, 1)
        await bus.publish(Ping(1))
        report = await bus.stop(drain=False)
        assert [one.message.number for one in report.undrained] == [0, 1]

    async def test_after_many_laps_of_the_ring(self, table):
        bus, gate = table.bus(), Gate()
        seen = []

        @bus.on(Ping)
        async def handle(event: Ping) -> None:
            if event.number >= 100:
                await gate.wait()
            seen.append(event.number)

        await bus.start()
        for number in range(107):
            bus.publish_nowait(Ping(number), **({"headers": {"a": "b"}} if number % 5 == 3 else {}))
            if number < 100 and number % 3 == 0:
                await table.idle()
        await table.idle()
        report = await bus.stop(drain=False)
        assert seen == list(range(100))
        assert [one.message.number for one in report.undrained] == list(range(100, 107))


async def test_events_of_a_ring_do_not_follow_from_each_other():
    """Not from the one that its lane has handled before, nor from the turn that it failed in."""
    inner = MessageBus()
    envelopes: list[Envelope] = []
    inner._dispatch.on_settled = envelopes.append
    async with all_hot(inner) as bus:
        gate = Gate()

        @bus.on(Ping)
        async def handle(event: Ping) -> None:
            await gate.wait()
            if event.number == 0:
                raise ValueError(event)

        for number in (0, 1, 2):  # in work, in the ring, behind it
            bus.publish_nowait(Ping(number))
            await until_idle()
        gate.let_in(2)
        await until_idle()
        bus.publish_nowait(Ping(3))  # in the ring, while 2 is in work
        gate.open()
        await bus.settle()
    assert [one.message.number for one in envelopes] == [0, 2, 3]  # 1 needed no envelope
    assert [one.causation_id for one in envelopes] == [None, None, None]


@pytest.mark.parametrize("ring", [1, 2, 8, 64])
@pytest.mark.parametrize("seed", range(6))
async def test_whatever_happens_each_event_is_handled_once_and_in_order(ring, seed):
    """Bursts and pauses, headers, failures, handlers that come and go, a thread, moves of the topic."""
    random = Random(seed)
    seen: list[int] = []
    inner = MessageBus(queue=QueueOptions(capacity=20))
    async with ScalableMessageBus(
        inner, hot_topics=[TOPIC], ring_capacity=ring, backpressure=False
    ) as bus:

        def handle(event: Ping) -> object:
            seen.append(event.number)
            if event.number % 7 == 3:
                raise ValueError(event)
            return asyncio.sleep(0) if event.number % 5 == 2 else None

        handler = bus.subscribe(Ping, handle)
        for number in range(600):
            await one_more(bus, number, random)
            if random.random() < 0.02:
                bus.subscribe(Ping, lambda event: None, where=lambda envelope: False).close()
            if random.random() < 0.02:
                handler.close()
                handler = bus.subscribe(Ping, handle, concurrency=1)
            if random.random() < 0.01:
                bus.set_hot(Ping, hot=random.random() < 0.7)
        await bus.settle()
        figures = bus.statistics()
    assert seen == list(range(600))
    assert (figures.events_published, figures.events_unsettled) == (600, 0)
    failed = sum(number % 7 == 3 for number in range(600))
    assert (figures.events_failed, figures.events_processed) == (failed, 600 - failed)


async def one_more(bus, number, random):
    way = random.random()
    if way < 0.1:
        await bus.publish(Ping(number), headers={"a": "b"})
    elif way < 0.12:
        await bus.settle()  # so that what the thread publishes is in its place
        await asyncio.to_thread(bus.publish_nowait, Ping(number))
        await bus.settle()
    elif way < 0.15:
        await bus.publish_and_wait(Ping(number))
    elif way < 0.2:
        await asyncio.sleep(0)
        await bus.publish(Ping(number))
    else:
        try:
            bus.publish_nowait(Ping(number))
        except BufferFull:
            await bus.settle()
            bus.publish_nowait(Ping(number))


@pytest.mark.parametrize("classes", [1, 3])
async def test_the_pressure_is_seen_in_time_though_the_ring_is_open(classes):
    kinds = [
        topic(f"open.{number}")(type(f"Open{number}", (Ping,), {})) for number in range(classes)
    ]
    inner = MessageBus(queue=QueueOptions(capacity=96))
    bus = ScalableMessageBus(
        inner, hot_topics=[f"open.{number}" for number in range(classes)], ring_capacity=4_000
    )
    async with bus:
        for kind in kinds:
            bus.subscribe(kind, lambda event: None)
        published = publish_until_refused(bus, kinds)
        room = classes * (4_096 + 96)
        assert 0.95 * room <= published <= 0.95 * room + 2 * room / LOOKS_PER_CAPACITY
        await bus.settle()
        assert bus.statistics().events_processed == published


def publish_until_refused(bus, kinds):
    for published in range(1 << 20):
        try:
            bus.publish_nowait(kinds[published % len(kinds)](published))
        except LoadShed:
            return published
    return -1


async def test_a_thread_does_not_write_into_an_open_ring():
    """It goes through the inbox, which knows how to wake the loop."""
    async with ScalableMessageBus(MessageBus(), hot_topics=[TOPIC], backpressure=False) as bus:
        seen: list[int] = []
        gate = Gate()

        @bus.on(Ping)
        async def handle(event: Ping) -> None:
            seen.append(event.number)
            await gate.wait()

        for number in range(3):
            bus.publish_nowait(Ping(number))
        ring = bus.lanes.hot[Ping].ring
        assert ring.value < ring.open_to
        position = ring.value
        thread = Thread(target=bus.publish_nowait, args=(Ping(3),))
        thread.start()
        thread.join(30)
        assert ring.value == position
        gate.open()
        await until_idle()
        await bus.settle()
    assert seen == [0, 1, 2, 3]


async def test_a_ring_that_nobody_looks_into_is_closed():
    async with ScalableMessageBus(MessageBus(), hot_topics=[TOPIC]) as bus:
        seen: list[int] = []
        bus.subscribe(Ping, lambda event: seen.append(event.number))
        for number in range(5):
            bus.publish_nowait(Ping(number))
            await bus.settle()
            assert bus.lanes.hot[Ping].ring.open_to == 0
    assert seen == [0, 1, 2, 3, 4]
