"""The event log of a bus: what is kept, what publish waits for, what replay gives, whose a log is."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any

import pytest

from penstock.bus.bus import MessageBus
from penstock.bus.encoding import MessageCodec
from penstock.bus.history import REPLAY_HEADER
from penstock.bus.intake import QueueOptions
from penstock.bus.queue import Overflow
from penstock.errors import (
    BufferFull,
    Closed,
    InvalidMessage,
    InvalidOption,
    RecordTooLarge,
    SubscriberBusy,
    UsageError,
)
from penstock.log.topic import TopicConfig
from penstock.messages import Envelope, Event
from penstock.system import System
from penstock.testing.clock import VirtualClock
from tests.bus.kept_events import Odd, Order, Paid, figures_of, kept, until

# ------------------------------------------------------------------------------------- keeping


@pytest.mark.acceptance(143)
async def test_every_event_is_kept_in_the_order_of_publishing(make):
    async with make() as bus:
        bus.subscribe(Order, lambda event: None)
        await bus.publish(Order(1), headers={"a": "b"}, session="s", correlation_id="c")
        bus.publish_nowait(Paid(2))
        await bus.publish_and_wait(Order(3))
        async with bus.atomic() as group:
            group.publish(Paid(4))
            group.publish(Order(5))
        await asyncio.to_thread(bus.publish_nowait, Order(6))
        await bus.settle()
        envelopes = [envelope async for envelope in bus.history.replay()]
    assert [one.message.number for one in envelopes] == [1, 2, 3, 4, 5, 6]
    first = envelopes[0]
    assert (first.headers, first.session, first.correlation) == ({"a": "b"}, "s", "c")
    figures = figures_of(bus)
    assert (figures.logged, figures.lost, figures.pending, figures.unsettled) == (6, 0, 0, 0)
    assert figures.handled_position == figures.end_position == 6


async def test_what_follows_from_an_event_says_so(make):
    async with make() as bus:

        async def pay(order: Order) -> None:
            await bus.publish(Paid(order.number))

        bus.subscribe(Order, pay)
        await bus.publish(Order(1))
        await bus.settle()
        order, paid = [envelope async for envelope in bus.history.replay()]
    assert paid.causation_id == order.id
    assert paid.correlation == order.id


async def test_what_is_published_before_the_start_is_kept(make):
    bus = make()
    seen: list[int] = []
    bus.subscribe(Order, lambda event: seen.append(event.number))
    await bus.publish(Order(1))
    async with bus:
        await bus.publish(Order(2))
        await bus.settle()
        assert [event.number for event in await kept(bus)] == seen == [1, 2]


async def test_what_filters_refuse_is_not_kept(make):
    async with make() as bus:
        bus.add_filter(lambda envelope: envelope.message.number % 2 == 0)
        for number in range(4):
            await bus.publish(Order(number))
        await bus.publish(Order(5), durable=True)
        async with bus.atomic(durable=True) as group:
            group.publish(Order(6))
            group.publish(Order(7))
        await bus.settle()
        assert [event.number for event in await kept(bus)] == [0, 2, 6]


async def test_a_message_pack_log_is_read_by_a_json_bus(queue):
    async with MessageBus(log=queue, event_log=True, codec=MessageCodec("messagepack")) as bus:
        await bus.publish(Order(1))
    async with MessageBus(log=queue, event_log=True) as bus:
        await bus.publish(Order(2))
        bus._codec.register(Order)
        assert await kept(bus) == [Order(1), Order(2)]


async def test_many_events_ride_on_few_writes(queue):
    async with MessageBus(log=queue, event_log=True) as bus:
        for number in range(5_000):
            await bus.publish(Order(number))
        await bus.settle()
        await bus.history.flush()
        commits = queue.statistics().topics["bus.bus.events"].commits
        assert commits < 100
        assert len(await kept(bus)) == 5_000


# ------------------------------------------------------------------------------- durable publish


@pytest.mark.acceptance(152)
async def test_a_durable_event_is_on_disk_before_it_is_handled(make, queue):
    seen: list[int] = []
    async with make() as bus:

        def handle(event: Order) -> None:
            assert queue.durable_offset("bus.bus.events") > event.number
            seen.append(event.number)

        bus.subscribe(Order, handle)
        for number in range(5):
            await bus.publish(Order(number), durable=True)
            assert queue.durable_offset("bus.bus.events") == number + 1
        await bus.settle()
    assert seen == [0, 1, 2, 3, 4]
    assert bus.statistics().events_published == bus.statistics().events_processed == 5


async def test_a_handler_may_publish_durably(make):
    seen: list[int] = []
    async with make(queue=QueueOptions(capacity=1)) as bus:

        async def more(event: Order) -> None:
            seen.append(event.number)
            if event.number < 5:
                await bus.publish(Order(event.number + 1), durable=True)

        bus.subscribe(Order, more)
        await bus.publish(Order(0), durable=True)
        await bus.settle()
    assert seen == [0, 1, 2, 3, 4, 5]


async def test_durable_publishers_wait_for_room(make):
    gate = asyncio.Event()
    async with make(queue=QueueOptions(capacity=2)) as bus:
        bus.subscribe(Order, lambda event: gate.wait())
        tasks = [asyncio.ensure_future(bus.publish(Order(n), durable=True)) for n in range(5)]
        await until(lambda: sum(task.done() for task in tasks) >= 3)
        waiting = asyncio.ensure_future(bus.publish(Order(9), durable=True))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        gate.set()
        await asyncio.gather(*tasks, waiting)
        await bus.settle()
        assert bus.statistics().events_processed == 6


async def test_a_full_queue_that_rejects_writes_nothing(make):
    gate = asyncio.Event()
    options = QueueOptions(capacity=1, overflow=Overflow.REJECT_NEW)
    async with make(queue=options) as bus:
        bus.subscribe(Order, lambda event: gate.wait())
        await bus.publish(Order(1), durable=True)
        await until(lambda: not len(bus._intake.lane(Order).queue))
        await bus.publish(Order(2), durable=True)
        with pytest.raises(BufferFull):
            await bus.publish(Order(3), durable=True)
        gate.set()
        await bus.settle()
        assert [event.number for event in await kept(bus)] == [1, 2]


async def test_who_cancels_a_durable_publish_may_have_published(make):
    seen: list[int] = []
    async with make() as bus:
        bus.subscribe(Order, lambda event: seen.append(event.number))
        task = asyncio.ensure_future(bus.publish(Order(1), durable=True))
        await until(lambda: figures_of(bus).pending)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await bus.history.flush()
        await bus.settle()
        assert [event.number for event in await kept(bus)] == seen


async def test_durable_needs_an_event_log(queue):
    for options in ({}, {"log": queue}):
        async with MessageBus(**options) as bus:
            with pytest.raises(UsageError, match="event_log=True"):
                await bus.publish(Order(1), durable=True)
            with pytest.raises(UsageError, match="event_log=True"):
                await kept(bus)
            assert bus.history.statistics() is None
    with pytest.raises(UsageError, match="log"):
        MessageBus(event_log=True)


async def test_what_does_not_encode_is_refused_durably_and_counted_otherwise(make, caplog):
    seen: list[Any] = []
    async with make() as bus:
        bus.subscribe(Odd, seen.append)
        with pytest.raises(InvalidMessage):
            await bus.publish(Odd(object()), durable=True)
        assert bus.statistics().events_published == 0
        for _ in range(3):
            await bus.publish(Odd(object()))
        await bus.publish(Odd(1))
        await bus.settle()
        assert len(seen) == 4
        figures = figures_of(bus)
        assert (figures.lost, figures.unsettled) == (3, 0)
        assert len([one for one in caplog.records if "not kept" in one.message]) == 1
        assert await kept(bus) == [Odd(1)]


# ------------------------------------------------------------------------------------- groups


@pytest.mark.acceptance(152)
async def test_a_group_is_one_batch_all_or_none(make):
    async with make() as bus:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with bus.atomic(durable=True) as group:
                group.publish(Order(1))
                raise ZeroDivisionError
        async with bus.atomic(durable=True) as group:
            group.publish(Order(2))
            group.publish(Paid(3))
        async with bus.atomic() as group:
            group.publish(Order(4))
            group.publish(Odd(object()))  # keeps the whole group out of the log
        with pytest.raises(InvalidMessage):  # noqa: PT012
            async with bus.atomic(durable=True) as group:
                group.publish(Order(6))
                group.publish(Odd(object()))
        async with bus.atomic(durable=True):
            pass
        await bus.settle()
        assert await kept(bus) == [Order(2), Paid(3)]
        assert figures_of(bus).lost == 2
        assert bus.statistics().events_published == 4


async def test_a_group_that_is_too_large_is_refused_as_a_whole(make):
    async with make() as bus:
        with pytest.raises(RecordTooLarge):  # noqa: PT012
            async with bus.atomic(durable=True) as group:
                for _ in range(3):
                    group.publish(Odd("x" * (6 * 1024 * 1024)))
        await bus.publish(Odd("x" * (6 * 1024 * 1024)), durable=True)
        assert len(await kept(bus)) == 1


# --------------------------------------------------------------------------------------- replay


@pytest.mark.acceptance(143)
async def test_replay_selects_by_time_and_type(queue):
    clock = VirtualClock()
    start = dt.datetime.fromtimestamp(clock.time_ms() / 1000, dt.UTC)
    async with MessageBus(log=queue, event_log=True, system=System(clock=clock)) as bus:
        for number in range(6):
            await bus.publish(Order(number) if number % 2 else Paid(number))
            clock.advance(1.0)
        second = dt.timedelta(seconds=1)
        assert await kept(bus, types=[Order]) == [Order(1), Order(3), Order(5)]
        assert await kept(bus, types=[Event], since=start + 4 * second) == [Paid(4), Order(5)]
        assert await kept(bus, until=start + 2 * second) == [Paid(0), Order(1)]
        assert await kept(bus, since=start + second, until=start + 2 * second) == [Order(1)]
        with pytest.raises(InvalidOption, match="time zone"):
            await kept(bus, since=dt.datetime(2026, 1, 1))  # noqa: DTZ001
        assert bus.statistics().events_published == 6  # looking publishes nothing


@pytest.mark.acceptance(143)
async def test_replay_into_a_bus_says_so_to_handlers(make):
    seen: list[tuple[int, str | None]] = []
    async with make() as bus:

        def handle(event: Order, envelope: Envelope) -> None:
            seen.append((event.number, envelope.headers.get(REPLAY_HEADER)))

        bus.subscribe(Order, handle)
        for number in range(3):
            await bus.publish(Order(number))
        await bus.settle()
        ids = [envelope.id async for envelope in bus.history.replay()]
        seen.clear()
        assert await bus.history.replay_into(bus, types=[Order]) == 3
        await bus.settle()
        assert seen == list(zip(range(3), ids, strict=True))
        # What a replay published is kept, but not replayed again.
        assert await bus.history.replay_into(bus) == 3
        assert len(await kept(bus, replays=True)) == 9


async def test_replay_into_another_bus_or_a_function(queue):
    async with MessageBus(log=queue, event_log=True) as bus, MessageBus() as other:
        seen: list[int] = []
        other.subscribe(Order, lambda event: seen.append(event.number))
        for number in range(250):
            await bus.publish(Order(number))
        assert await bus.history.replay_into(other) == 250
        await other.settle()
        assert seen == list(range(250))

        async def collect(envelope: Envelope) -> None:
            seen.append(envelope.message.number)

        seen.clear()
        assert await bus.history.replay_into(collect) == 250
        assert await bus.history.replay_into(lambda envelope: seen.append(0)) == 250
        assert len(seen) == 500


# ----------------------------------------------------------------------------------- the owner


async def test_two_live_buses_cannot_share_a_name(queue):
    async with MessageBus(log=queue, event_log=True) as bus:
        second = MessageBus(log=queue, event_log=True)
        await second.publish(Order(2))
        with pytest.raises(SubscriberBusy):
            await second.start()
        await bus.publish(Order(1))
        async with MessageBus(log=queue, event_log=True, name="other") as other:
            assert await kept(other) == []
    async with second:  # it may be started when the other one is gone
        second._codec.register(Order)
        assert await kept(second) == [Order(1), Order(2)]


async def test_a_topic_with_other_settings_is_refused(queue):
    await queue.create_topic("bus.bus.events", TopicConfig(partitions=2))
    with pytest.raises(InvalidOption, match="another name"):
        await MessageBus(log=queue, event_log=True).start()


async def test_a_stopped_bus_refuses_to_publish_durably(make):
    bus = make()
    await bus.start()
    await bus.stop()
    with pytest.raises(Closed):
        await bus.publish(Order(1), durable=True)


async def test_stop_ends_a_durable_publish_before_the_start(make):
    bus = make()
    waiting = asyncio.ensure_future(bus.publish(Order(1), durable=True))
    await asyncio.sleep(0)
    await bus.stop()
    with pytest.raises(Closed):
        await waiting
