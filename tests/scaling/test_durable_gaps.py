"""Durable topics: partitions that are held up, replays, schedules, pressure, figures and limits."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest

from penstock import (
    BusLimits,
    MessageBus,
    ResilientMessageBus,
    ScalableMessageBus,
    TopicConfig,
    WalMessageQueue,
)
from penstock.errors import LimitReached, LoadShed
from penstock.messages import Event
from penstock.pressure.states import BackpressureState
from penstock.resilience.dead_letters import DeadLetterFilter
from penstock.scaling import group_consumer
from penstock.system import System
from penstock.testing import VirtualClock
from tests.scaling.durable_events import Cancelled, Ordered, reached


class Fleeting(Event):
    number: int = 0


@pytest.fixture
async def queue(tmp_path):
    async with WalMessageQueue(tmp_path, defaults=TopicConfig(partitions=4)) as queue:
        yield queue


def make(queue, inner=ResilientMessageBus, system=None, **options):
    bus = inner(log=queue, system=system)
    return ScalableMessageBus(bus, log=queue, durable=["durable.*"], **options)


async def records(queue):
    return [record async for record in queue.replay("durable.orders")]


# ------------------------------------------------------------------------- partitions held up


@pytest.mark.acceptance(26)
@pytest.mark.parametrize("queue_size", [5, 10_000])
async def test_a_partition_that_is_held_up_holds_up_no_other(queue, monkeypatch, queue_size):
    monkeypatch.setattr(group_consumer, "PARTITION_MAX", 20)
    monkeypatch.setattr(group_consumer, "READ_MAX", 5)
    limits = BusLimits(max_message_queue_size=queue_size)
    partitions = {"durable.orders": 64}
    bus = make(queue, limits=limits, partitions=partitions, backpressure=False)
    gate = asyncio.Event()
    seen: dict[str, list[int]] = {}

    @bus.on(Ordered, group="billing")
    async def handle(event):
        if event.customer == "stuck":
            await gate.wait()
        seen.setdefault(event.customer, []).append(event.number)

    async with bus:
        for number in range(100):
            await bus.publish(Ordered("stuck", number))
        places = {record.partition for record in await records(queue)}
        names = [f"c{number}" for number in range(8)]
        for number in range(30):
            for name in names:
                await bus.publish(Ordered(name, number))
        others = {
            bytes(record.key or b"")
            for record in await records(queue)
            if record.partition not in places
        }
        free = [name for name in names if name.encode() in others]
        assert free
        await reached(lambda: all(len(seen.get(name, ())) == 30 for name in free))
        [consumer] = bus._durable.consumers()
        assert max(len(one.open) for one in consumer._partitions.values()) <= 20
        gate.set()
        await bus.settle()
    assert seen["stuck"] == list(range(100))
    assert all(seen[name] == list(range(30)) for name in names)


async def test_what_a_group_has_read_is_bounded(queue, monkeypatch):
    monkeypatch.setattr(group_consumer, "GROUP_MAX", 30)
    monkeypatch.setattr(group_consumer, "READ_MAX", 5)
    async with make(queue, backpressure=False) as bus:
        gate = asyncio.Event()
        seen: list[int] = []

        @bus.on(Ordered, group="billing")
        async def handle(event):
            await gate.wait()
            seen.append(event.number)

        for number in range(200):
            await bus.publish(Ordered(f"c{number}", number))
        [consumer] = bus._durable.consumers()
        await reached(lambda: consumer.in_work > 25)
        assert consumer.in_work <= 30
        gate.set()
        await bus.settle()
        assert sorted(seen) == list(range(200))


# ------------------------------------------------------------------------------- dead letters


@pytest.mark.acceptance(111)
async def test_a_replayed_letter_goes_to_its_handler_though_the_owner_has_changed(queue):
    async with make(queue) as bus:
        bus.on_error(lambda *_: None)
        broken = True
        seen: list[str] = []

        def handler(name):
            def handle(event):
                if broken:
                    raise RuntimeError("down")
                seen.append(name)

            return handle

        bus.subscribe(Ordered, handler("first"), group="billing", name="first", retry=None)
        bus.subscribe(Ordered, lambda event: seen.append("audit"), group="audit")
        for number in range(4):
            await bus.publish(Ordered(f"c{number}", number))
        await reached(lambda: len(bus.dead_letters) == 4)
        await bus.settle()
        seen.clear()
        broken = False
        for number in range(3):  # now others own most of the keys
            bus.subscribe(Ordered, handler(f"other {number}"), group="billing", name=f"o{number}")
        assert (await bus.dead_letters.replay(DeadLetterFilter())).replayed == 4
        await bus.settle()
        await reached(lambda: len(bus.dead_letters) == 0)
        assert seen == ["first"] * 4


async def test_a_letter_whose_handler_is_gone_goes_to_its_group_alone(queue):
    async with make(queue) as bus:
        bus.on_error(lambda *_: None)
        seen: list[str] = []
        failing = bus.subscribe(
            Ordered, lambda event: 1 / 0, group="billing", name="failing", retry=None
        )
        bus.subscribe(Ordered, lambda event: seen.append("audit"), group="audit")
        await bus.publish(Ordered("ada", 1))
        await reached(lambda: len(bus.dead_letters) == 1)
        [letter] = bus.dead_letters.list()
        assert letter.group == "billing"
        failing.close()
        await bus.settle()
        bus.subscribe(Ordered, lambda event: seen.append("billing"), group="billing", name="good")
        await bus.settle()
        seen.clear()
        await bus.dead_letters.replay(letter.id)
        await bus.settle()
        assert seen == ["billing"]


async def test_a_letter_stays_until_its_handler_is_done_with_the_replay(queue):
    bus = make(queue)
    bus.on_error(lambda *_: None)
    state = "broken"
    called = asyncio.Event()

    @bus.on(Ordered, group="billing", name="billing", retry=None)
    async def handle(event):
        if state == "broken":
            raise RuntimeError("down")
        called.set()
        if state == "hanging":
            await asyncio.Event().wait()

    await bus.start()
    await bus.publish(Ordered("ada", 1))
    await reached(lambda: len(bus.dead_letters) == 1)
    await bus.settle()
    state = "hanging"
    await bus.dead_letters.replay(DeadLetterFilter())
    await called.wait()
    assert len(bus.dead_letters) == 1
    assert not (await bus.dead_letters.replay(DeadLetterFilter())).replayed
    await bus.stop(drain=False)  # as good as a crash
    async with make(queue) as bus:
        state = "good"
        called.clear()
        bus.subscribe(Ordered, handle, group="billing", name="billing")
        assert len(bus.dead_letters) == 1
        await bus.dead_letters.replay(DeadLetterFilter())
        await called.wait()
        await reached(lambda: len(bus.dead_letters) == 0)
    async with make(queue) as bus:
        assert len(bus.dead_letters) == 0


# ---------------------------------------------------------------------------------- schedules


@pytest.mark.parametrize("inner", [MessageBus, ResilientMessageBus])
async def test_a_scheduled_event_is_in_the_log_and_comes_from_there(queue, inner):
    clock = VirtualClock()
    async with make(queue, inner, System(clock=clock)) as bus:
        seen: list[tuple[str, int, int | None]] = []
        for group in ("billing", "audit"):
            bus.subscribe(
                Ordered,
                lambda event, envelope, group=group: seen.append(
                    (group, event.number, envelope.offset)
                ),
                group=group,
            )
        fleeting: list[int] = []
        bus.subscribe(Fleeting, lambda event: fleeting.append(event.number))
        due = datetime.fromtimestamp(clock.time_ms() / 1000, UTC) + timedelta(seconds=5)
        await bus.schedule.at(Ordered("ada", 7), due)
        await bus.schedule.every(Ordered("ada", 8), 4.0)
        await bus.schedule.after(Fleeting(9), 1.0)
        clock.advance(5.0)
        await bus.settle()
        assert [number for _, number, _ in sorted(seen)] == [7, 8, 7, 8]
        assert all(offset is not None for _, _, offset in seen)
        clock.advance(4.0)
        await bus.settle()
        assert len(await records(queue)) == 3
        assert bus.schedule.statistics().fired == 4
        assert fleeting == [9]


async def test_a_scheduled_event_that_cannot_be_written_is_written_later(
    queue, monkeypatch, caplog
):
    clock = VirtualClock()
    async with make(queue, system=System(clock=clock)) as bus:
        seen: list[int] = []
        bus.subscribe(Ordered, lambda event: seen.append(event.number), group="billing")
        await bus.settle()
        publish = queue.publish
        failed: list[int] = []

        async def fail_once(*arguments, **options):
            if not failed:
                failed.append(1)
                raise OSError("no space left")
            return await publish(*arguments, **options)

        monkeypatch.setattr(queue, "publish", fail_once)
        await bus.schedule.after(Ordered("ada", 7), 1.0)
        with caplog.at_level("CRITICAL", "penstock.scaling"):
            clock.advance(1.0)
            await reached(lambda: failed)
            await asyncio.sleep(0.01)
            assert seen == []
            clock.advance(1.0)
            await reached(lambda: seen == [7])
        await bus.settle()


# ------------------------------------------------------------------- pressure, figures, limits


async def test_what_cannot_wait_is_shed_too(queue):
    async with make(queue, lag_max=10) as bus:
        gate = asyncio.Event()

        @bus.on(Ordered, group="billing")
        async def slow(event):
            await gate.wait()

        for number in range(8):
            bus.publish_nowait(Ordered("ada", number))
        await queue.publish_many("durable.orders", [b'{"customer":"eve"}'] * 10)
        await reached(lambda: bus.current_backpressure_state == BackpressureState.SHEDDING)
        with pytest.raises(LoadShed):
            bus.publish_nowait(Ordered("ada", 100))
        gate.set()
        await bus.settle()


async def test_the_rate_counts_publishes_and_not_the_groups_that_read(queue):
    clock = VirtualClock()
    async with make(queue, system=System(clock=clock), backpressure=False) as bus:
        for name in ("a", "b", "c"):
            bus.subscribe(Ordered, lambda event: None, group=name)
        bus.subscribe(Fleeting, lambda event: None)
        for number in range(10):
            await bus.publish(Ordered("ada", number))
            bus.publish_nowait(Ordered("ada", number))
            await bus.publish(Fleeting(number))
        async with bus.atomic() as group:
            group.publish(Ordered("ada", 1))
        await bus.settle()
        clock.advance(1.0)
        bus.get_scaling_metrics()
        assert bus.get_scaling_metrics()["messages_per_second"] == pytest.approx(31.0)
        assert bus.statistics().events_published == 3 * 21 + 10


async def test_the_limit_of_topics_counts_topics_and_not_classes():
    async with ScalableMessageBus(MessageBus(), limits=BusLimits(max_topics=1)) as bus:
        bus.subscribe(Ordered, lambda event: None)
        bus.subscribe(Cancelled, lambda event: None)
        with pytest.raises(LimitReached):
            bus.subscribe(Fleeting, lambda event: None)


# --------------------------------------------------------------------------------------- stop


async def test_stop_without_draining_reports_what_a_thread_has_just_published(queue):
    seen: list[int] = []
    for _ in range(20):
        bus = make(queue)
        bus.subscribe(Fleeting, lambda event: seen.append(event.number))
        await bus.start()
        thread = threading.Thread(target=bus.publish_nowait, args=(Fleeting(1),))
        thread.start()
        thread.join(30)
        report = await bus.stop(drain=False)
        assert [one.message for one in report.undrained] == [Fleeting(1)]
    assert seen == []
