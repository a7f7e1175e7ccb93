"""The bus suite: handlers that take lists."""

from __future__ import annotations

import asyncio

import pytest

from penstock.bus.batching import BatchFailed, Batching
from penstock.bus.intake import QueueOptions
from penstock.errors import InvalidOption
from penstock.messages import Envelope
from penstock.testing.bus_fixtures import Boom, BusFixtures, Gate, Ping, Pong, Table


@pytest.mark.acceptance(137)
class BatchConformance(BusFixtures):
    """What a handler of batches can rely on."""

    async def test_a_batch_is_full_or_handed_over_when_nothing_more_waits(
        self, table: Table
    ) -> None:
        async with table.bus() as bus:
            batches: list[list[int]] = []

            @bus.on(Ping, batch=4)
            async def handle(events: list[Ping]) -> None:
                batches.append([event.number for event in events])

            for number in range(10):
                await bus.publish(Ping(number))
            await bus.settle()  # no time passes here: nobody waits for company
            assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
            await bus.publish_and_wait(Ping(10))
        assert batches[3:] == [[10]]
        assert bus.statistics().events_processed == 11
        assert table.clock.monotonic() == 0.0

    async def test_the_timeout_hands_over_what_waits_behind_a_slow_neighbour(
        self, table: Table
    ) -> None:
        gate = Gate()
        async with table.bus() as bus:
            batches: list[list[int]] = []

            @bus.on(Ping, batch=Batching(size=10, timeout=5.0))
            def handle(events: list[Ping]) -> None:
                batches.append([event.number for event in events])

            @bus.on(Ping)
            async def slow(event: Ping) -> None:
                await gate.wait()

            await bus.publish(Ping(1))
            await bus.publish(Ping(2))
            await table.idle()
            assert batches == []
            table.clock.advance(5.0)
            await table.idle()
            assert batches == [[1]]
            gate.open()
            await bus.settle()
        assert batches == [[1], [2]]

    async def test_a_failing_event_is_isolated(self, table: Table) -> None:
        async with table.bus() as bus:
            good: list[int] = []

            @bus.on(Ping, batch=3)
            async def handle(events: list[Ping]) -> None:
                await table.idle()
                if any(event.number == 1 for event in events):
                    raise Boom
                good.extend(event.number for event in events)

            for number in range(4):
                await bus.publish(Ping(number))
            await table.until(bus.settle())
        assert sorted(good) == [0, 2, 3]
        figures = bus.statistics()
        assert (figures.events_processed, figures.events_failed) == (3, 1)

    async def test_a_handler_may_say_which_failed(self, table: Table) -> None:
        async with table.bus() as bus:
            good: set[int] = set()

            @bus.on(Ping, batch=3)
            def handle(events: list[Ping]) -> None:
                bad = {at: Boom() for at, event in enumerate(events) if event.number == 1}
                good.update(event.number for event in events if event.number != 1)
                if bad:
                    raise BatchFailed("some", failed=bad)

            for number in range(3):
                await bus.publish(Ping(number))
            await table.until(bus.settle())
        assert good == {0, 2}
        figures = bus.statistics()
        assert (figures.events_processed, figures.events_failed) == (2, 1)

    async def test_who_fails_without_saying_which_has_failed_on_all(self, table: Table) -> None:
        async with table.bus() as bus:

            @bus.on(Ping, batch=2)
            def handle(events: list[Ping]) -> None:
                raise BatchFailed("all of them")

            await bus.publish(Ping())
            await bus.publish(Ping())
            await table.until(bus.settle())
        assert bus.statistics().events_failed == 2

    async def test_a_handler_may_take_the_envelopes_too(self, table: Table) -> None:
        async with table.bus() as bus:
            seen: list[tuple[int, str]] = []

            @bus.on(Ping, batch=2)
            def handle(events: list[Ping], envelopes: list[Envelope]) -> None:
                for event, envelope in zip(events, envelopes, strict=True):
                    seen.append((event.number, envelope.headers["n"]))

            await bus.publish(Ping(1), headers={"n": "one"})
            await bus.publish(Ping(2), headers={"n": "two"})
            await bus.settle()
        assert seen == [(1, "one"), (2, "two")]

    async def test_stop_hands_over_what_is_there(self, table: Table) -> None:
        bus = table.bus()
        batches: list[int] = []
        bus.subscribe(Ping, lambda events: batches.append(len(events)), batch=100)
        await bus.start()
        for number in range(7):
            await bus.publish(Ping(number))
        report = await bus.stop()
        assert (batches, report.drained) == ([7], True)

    async def test_a_batch_that_is_interrupted_is_reported_whole(self, table: Table) -> None:
        gate = Gate()
        bus = table.bus()

        @bus.on(Ping, batch=5)
        async def handle(events: list[Ping]) -> None:
            await gate.wait()

        await bus.start()
        for number in range(7):
            await bus.publish(Ping(number))
        await table.idle()
        report = await table.until(bus.stop(timeout=1))
        assert [one.message.number for one in report.undrained] == list(range(7))

    async def test_a_slow_batch_delays_no_other_class(self, table: Table) -> None:
        gate = Gate()
        async with table.bus() as bus:
            seen: list[int] = []

            @bus.on(Ping, batch=10)
            async def slow(events: list[Ping]) -> None:
                await gate.wait()

            bus.subscribe(Pong, lambda event: seen.append(event.number))
            for number in range(3):
                await bus.publish(Ping(number))
                await bus.publish(Pong(number))
                await table.idle()
            assert seen == [0, 1, 2]
            gate.open()
            await bus.settle()

    async def test_a_slow_batch_slows_its_publishers(self, table: Table) -> None:
        """What waits in batches is bounded by the batch, what waits for them by the queue."""
        gate = Gate()
        async with table.bus(queue=QueueOptions(capacity=4)) as bus:

            @bus.on(Ping, batch=Batching(size=2, timeout=1.0))
            async def slow(events: list[Ping]) -> None:
                await gate.wait()

            await bus.publish(Ping())
            await table.idle()
            published = 0

            async def produce() -> None:
                nonlocal published
                for number in range(50):
                    await bus.publish(Ping(number), timeout=1e6)
                    published += 1

            task = asyncio.ensure_future(produce())
            for _ in range(5):
                table.clock.advance(1.0)
                await table.idle()
            assert published <= 10
            gate.open()
            await task
            await bus.settle()
        assert bus.statistics().events_processed == 51

    @pytest.mark.acceptance(147)
    @pytest.mark.parametrize("size", [1, 2, 5])
    async def test_a_batch_handler_may_wait_for_an_event_of_its_own(
        self, table: Table, size: int
    ) -> None:
        async with table.bus() as bus:
            seen: list[int] = []

            @bus.on(Ping, batch=size)
            async def handle(events: list[Ping]) -> None:
                for event in events:
                    if event.number < 3:
                        await bus.publish_and_wait(Ping(event.number + 1))
                    seen.append(event.number)

            await bus.publish(Ping(0))
            await bus.settle()
        assert seen == [3, 2, 1, 0]

    async def test_who_waits_for_a_batch_may_leave(self, table: Table) -> None:
        gate = Gate()
        async with table.bus() as bus:
            seen: list[int] = []

            @bus.on(Ping, batch=2)
            async def handle(events: list[Ping]) -> None:
                await gate.wait()
                seen.extend(event.number for event in events)

            tasks = [asyncio.ensure_future(bus.publish_and_wait(Ping(n))) for n in range(3)]
            await table.idle()
            tasks[0].cancel()
            await table.idle()
            tasks[1].cancel()
            await table.idle()
            gate.open()
            await table.until(bus.settle())
            await asyncio.wait(tasks)
        assert sorted(seen) == [0, 1, 2]
        assert bus.statistics().events_processed == 3

    async def test_sizes_that_make_no_sense_are_refused(self, table: Table) -> None:
        async with table.bus() as bus:
            with pytest.raises(InvalidOption):
                bus.subscribe(Ping, print, batch=0)
            with pytest.raises(InvalidOption):
                bus.subscribe(Ping, print, batch=Batching(timeout=-1))
