"""Durable topics where it is hard: groups that leave, failing commits, stops, sessions, patterns."""

import asyncio
import logging

import pytest

from penstock import ResilientMessageBus, ScalableMessageBus
from penstock.bus.bus import MessageBus
from penstock.errors import BufferFull, WouldDeadlock
from penstock.messages import Priority
from penstock.scaling import log_publisher
from tests.scaling.durable_events import Base, Cancelled, Derived, Ordered, make, numbers, reached

# ------------------------------------------------------------------------------------ who listens


async def test_handlers_without_a_group_each_get_every_event(queue):
    async with make(queue) as bus:
        first: list[int] = []
        second: list[int] = []
        bus.subscribe(Ordered, numbers(first))
        bus.subscribe(Ordered, numbers(second))
        bus.subscribe(Ordered, lambda event: None, group="others")
        for number in range(20):
            await bus.publish(Ordered("ada", number))
        await bus.settle()
        assert first == second == list(range(20))


async def test_patterns_and_base_classes_hear_of_durable_events_once(queue):
    async with make(queue) as bus:
        by_pattern: list[int] = []
        by_base: list[int] = []
        bus.subscribe("durable.*", numbers(by_pattern))
        bus.subscribe(Base, numbers(by_base), subclasses=True)
        bus.subscribe(Derived, lambda event: None, group="a")
        bus.subscribe(Derived, lambda event: None, group="b")
        for number in range(5):
            await bus.publish(Derived(number))
        await bus.settle()
        assert by_pattern == by_base == list(range(5))


async def test_two_classes_on_one_topic_share_the_reader_of_a_group(queue):
    async with make(queue) as bus:
        ordered: list[int] = []
        cancelled: list[int] = []
        bus.subscribe(Ordered, numbers(ordered), group="billing")
        bus.subscribe(Cancelled, numbers(cancelled), group="billing")
        await bus.publish(Ordered("ada", 1))
        await bus.publish(Cancelled("ada", 2))
        await bus.settle()
        assert (ordered, cancelled) == ([1], [2])


async def test_a_session_publishes_into_the_log_too(queue):
    async with make(queue) as bus, bus.session("cart") as session:
        seen: list[int] = []
        session.subscribe(Ordered, numbers(seen))
        await session.publish(Ordered("ada", 1))
        await bus.publish(Ordered("ada", 2))
        await bus.settle()
        assert seen == [1]
        assert len([record async for record in queue.replay("durable.orders")]) == 2


@pytest.mark.acceptance(26)
@pytest.mark.parametrize("inner", [MessageBus, ResilientMessageBus])
async def test_what_nobody_in_the_group_could_handle_waits_for_the_next_member(queue, inner):
    async with make(queue, inner) as bus:
        seen: list[int] = []
        others: list[int] = []
        gate = asyncio.Event()

        async def first(event):
            seen.append(event.number)
            await gate.wait()

        bus.subscribe(Ordered, numbers(others), group="others")
        member = bus.subscribe(Ordered, first, group="billing")
        for number in range(50):
            await bus.publish(Ordered("ada", number))
        await reached(lambda: seen == [0])
        member.close()
        gate.set()
        for number in range(50, 60):
            await bus.publish(Ordered("ada", number))
        await bus.settle()
        assert others == list(range(60))
        assert seen == [0]
        bus.subscribe(Ordered, numbers(seen), group="billing")
        await bus.settle()
        assert seen in ([0, *range(1, 60)], [0, *range(60)])
    async with make(queue) as bus:
        bus.subscribe(Ordered, numbers(seen), group="billing")
        before = list(seen)
        await bus.settle()
        assert seen == before


async def test_a_member_that_is_replaced_at_once_leaves_no_gap(queue):
    async with make(queue) as bus:
        seen: list[int] = []
        for turn in range(5):
            member = bus.subscribe(Ordered, numbers(seen), group="billing")
            for number in range(turn * 20, turn * 20 + 20):
                await bus.publish(Ordered("ada", number))
            member.close()
        bus.subscribe(Ordered, numbers(seen), group="billing")
        await bus.settle()
        assert list(dict.fromkeys(seen)) == list(range(100))


# -------------------------------------------------------------------------------------- publishing


async def test_publish_and_wait_writes_and_tells_what_became_of_it(queue):
    async with make(queue) as bus:
        bus.on_error(lambda *_: None)
        bus.subscribe(Ordered, lambda event: None, group="billing")
        bus.subscribe(Ordered, lambda event: 1 / event.number, group="maths", retry=None)
        assert (await bus.publish_and_wait(Ordered("ada", 1))).handled == 2
        outcome = await bus.publish_and_wait(Ordered("ada", 0))
        assert (outcome.handled, len(outcome.failures)) == (1, 1)
        assert len([record async for record in queue.replay("durable.orders")]) == 2


@pytest.mark.acceptance(147)
async def test_a_handler_waits_for_the_next_event_of_its_own_topic(queue):
    async with make(queue) as bus:
        seen: list[tuple[str, int]] = []

        async def handle(event):
            if event.number < 3:
                assert (await bus.publish_and_wait(Ordered("ada", event.number + 1))).handled == 2
            seen.append(("first", event.number))

        bus.subscribe(Ordered, handle, group="first")
        bus.subscribe(Ordered, lambda event: seen.append(("second", event.number)), group="second")
        await bus.publish_and_wait(Ordered("ada", 0))
        await bus.settle()
        assert sorted(seen) == [(who, number) for who in ("first", "second") for number in range(4)]
        assert len([record async for record in queue.replay("durable.orders")]) == 4
    async with make(queue) as bus:
        bus.subscribe(Ordered, lambda event: seen.append(("again", event.number)), group="first")
        await bus.settle()
        assert len(seen) == 8


async def test_what_a_handler_waits_for_comes_again_when_it_was_not_finished(queue):
    bus = make(queue)
    hanging = asyncio.Event()

    @bus.on(Ordered, group="first")
    async def handle(event):
        if event.number == 0:
            await bus.publish_and_wait(Ordered("ada", 1))
        hanging.set()
        await asyncio.Event().wait()

    await bus.start()
    await bus.publish(Ordered("ada", 0))
    await hanging.wait()
    await bus.stop(drain=False)
    assert len(bus.dead_letters) == 0
    seen: list[int] = []
    async with make(queue) as bus:
        bus.subscribe(Ordered, numbers(seen), group="first")
        await bus.settle()
        assert seen == [0, 1]


async def test_publish_nowait_opens_the_topic_and_keeps_the_order(queue):
    async with make(queue) as bus:
        seen: list[int] = []
        for number in range(100):
            bus.publish_nowait(Ordered("ada", number))
        await bus.publish(Ordered("ada", 100))
        bus.publish_nowait(Ordered("ada", 101))
        bus.subscribe(Ordered, numbers(seen))
        await bus.settle()
        assert seen == list(range(102))


async def test_what_was_published_before_the_start_is_in_the_log(queue):
    bus = make(queue)
    await asyncio.to_thread(bus.publish_nowait, Ordered("ada", 0))
    seen: list[int] = []
    bus.subscribe(Ordered, numbers(seen))
    async with bus:
        await asyncio.to_thread(bus.publish_nowait, Ordered("ada", 1))
        await bus.settle()
    assert seen == [0, 1]


async def test_what_waits_for_its_topic_is_bounded(queue, monkeypatch):
    monkeypatch.setattr(log_publisher, "EARLY_MAX", 3)
    async with make(queue) as bus:
        for number in range(3):
            bus.publish_nowait(Ordered("ada", number))
        with pytest.raises(BufferFull):
            bus.publish_nowait(Ordered("ada", 3))
        seen: list[int] = []
        bus.subscribe(Ordered, numbers(seen))
        await bus.settle()
        bus.publish_nowait(Ordered("ada", 4))
        await bus.settle()
        assert seen == [0, 1, 2, 4]


async def test_what_could_not_be_written_is_reported(queue, monkeypatch, caplog):
    async def fail(topic):
        raise OSError("no space left")

    monkeypatch.setattr(queue, "create_topic", fail)
    bus = make(queue)
    await bus.start()
    with caplog.at_level(logging.CRITICAL + 1, "penstock.scaling"):
        for number in range(3):
            bus.publish_nowait(Ordered("ada", number))
        await asyncio.sleep(0.01)
        report = await bus.stop()
    assert [envelope.message.number for envelope in report.undrained] == [0, 1, 2]


async def test_filters_and_priorities_count_for_durable_events(queue):
    async with make(queue) as bus:
        seen: list[tuple[int, int]] = []
        bus.add_filter(lambda envelope: envelope.message.number != 13)
        bus.subscribe(
            Ordered, lambda event, envelope: seen.append((event.number, envelope.priority))
        )
        await bus.publish(Ordered("ada", 13))
        await bus.publish(Ordered("ada", 1), priority=Priority.HIGH)
        await bus.settle()
        assert seen == [(1, Priority.HIGH)]
        assert len([record async for record in queue.replay("durable.orders")]) == 1
        assert bus.statistics().events_filtered == 1


# ------------------------------------------------------------------------------------------- life


@pytest.mark.acceptance(146)
async def test_a_stop_that_is_cancelled_still_commits_and_frees_the_names(queue):
    bus = make(queue)
    gate = asyncio.Event()
    seen: list[int] = []

    @bus.on(Ordered, group="billing")
    async def handle(event):
        await gate.wait()
        seen.append(event.number)

    await bus.start()
    for number in range(5):
        await bus.publish(Ordered("ada", number))
    await reached(lambda: bus.statistics().events_unsettled == 5)
    stopping = asyncio.ensure_future(bus.stop())
    await asyncio.sleep(0.01)
    stopping.cancel()
    await asyncio.gather(stopping, return_exceptions=True)
    gate.set()
    await bus.stop()
    assert seen == list(range(5))
    async with make(queue) as bus:
        bus.subscribe(Ordered, numbers(seen), group="billing")
        await bus.settle()
        assert seen == list(range(5))


async def test_a_handler_that_stops_its_bus_is_refused_and_the_bus_goes_on(queue):
    async with make(queue) as bus:
        errors: list[BaseException] = []
        seen: list[int] = []

        @bus.on(Ordered, group="billing")
        async def handle(event):
            if event.number == 0:
                try:
                    await bus.stop()
                except WouldDeadlock as error:
                    errors.append(error)
            seen.append(event.number)

        for number in range(5):
            await bus.publish(Ordered("ada", number))
            await bus.settle()
        assert seen == list(range(5))
        assert len(errors) == 1


async def test_a_commit_that_fails_is_made_up_for(queue, caplog):
    async with make(queue) as bus:
        seen: list[int] = []
        bus.subscribe(Ordered, numbers(seen), group="billing")
        await bus.publish(Ordered("ada", 0))
        await bus.settle()
        [consumer] = bus._durable.consumers()
        await reached(lambda: consumer._committing is None)
        subscription = consumer._subscription
        commit, failed = subscription.commit, []

        async def fail(record=None):
            failed.append(record)
            raise OSError("no space left")

        subscription.commit = fail
        with caplog.at_level(logging.CRITICAL, "penstock.scaling"):
            await bus.publish(Ordered("ada", 1))
            await bus.settle()
            await reached(lambda: failed and consumer._committing is None)
        subscription.commit = commit
    async with make(queue) as bus:
        bus.subscribe(Ordered, numbers(seen), group="billing")
        await bus.settle()
        assert seen == [0, 1]


async def test_reading_goes_on_after_an_error_of_the_log(queue, caplog):
    async with make(queue) as bus:
        seen: list[int] = []
        bus.subscribe(Ordered, numbers(seen), group="billing")
        await bus.publish(Ordered("ada", 0))
        await bus.settle()
        [consumer] = bus._durable.consumers()
        subscription = consumer._subscription
        fetch = subscription.next_batch
        failed: list[int] = []

        async def fail_once(timeout=None, records_max=1):
            if failed:
                return await fetch(timeout, records_max)
            failed.append(1)
            raise OSError("cannot read")

        subscription.next_batch = fail_once
        with caplog.at_level(logging.CRITICAL, "penstock.scaling"):
            for number in range(1, 4):
                await bus.publish(Ordered("ada", number))
            await bus.settle()
        assert seen == [0, 1, 2, 3]


async def test_a_second_bus_waits_until_the_first_has_left_the_group(queue, caplog):
    seen: list[int] = []
    second: list[int] = []
    first = make(queue)
    first.subscribe(Ordered, numbers(seen), group="billing")
    await first.start()
    await first.publish(Ordered("ada", 0))
    await first.settle()
    with caplog.at_level(logging.CRITICAL, "penstock.scaling"):
        async with make(queue) as bus:
            bus.subscribe(Ordered, numbers(second), group="billing")
            await asyncio.sleep(0.05)
            await first.stop()
            await bus.publish(Ordered("ada", 1))
            await bus.settle()
    assert (seen, second) == ([0], [1])


@pytest.mark.parametrize("capacity", [3, 10_000])
async def test_more_events_than_fit_are_read_bit_by_bit(queue, capacity):
    from penstock.bus.intake import QueueOptions

    inner = ResilientMessageBus(queue=QueueOptions(capacity=capacity))
    async with ScalableMessageBus(inner, log=queue, backpressure=False) as bus:
        for number in range(2_500):
            await queue.create_topic("durable.orders")
            bus.publish_nowait(Ordered(f"c{number % 3}", number))
        seen: dict[str, list[int]] = {}
        bus.subscribe(
            Ordered, lambda event: seen.setdefault(event.customer, []).append(event.number)
        )
        await bus.settle()
        assert sum(map(len, seen.values())) == 2_500
        assert all(numbers == sorted(numbers) for numbers in seen.values())
