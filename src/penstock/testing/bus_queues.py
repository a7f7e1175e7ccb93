"""The bus suite: full queues, pressure, and groups that are queued whole or not at all."""

from __future__ import annotations

import asyncio

import pytest

from penstock.bus.intake import QueueOptions
from penstock.bus.queue import Overflow
from penstock.errors import BufferFull, DeadlineExceeded, InvalidOption, UsageError
from penstock.messages import Envelope, Priority
from penstock.testing.bus_fixtures import Boom, BusFixtures, Gate, Keyed, Ping, Pong, Table


class EventQueueConformance(BusFixtures):
    """What publishers to a slow handler can rely on."""

    async def test_publish_waits_for_room_and_keeps_the_order(self, table: Table) -> None:
        gate = Gate()
        async with table.bus(queue=QueueOptions(capacity=2)) as bus:
            seen: list[int] = []

            @bus.on(Ping)
            async def handle(event: Ping) -> None:
                await gate.wait()
                seen.append(event.number)

            async def produce(start: int) -> None:
                for number in range(start, start + 20):
                    await bus.publish(Ping(number))

            tasks = [asyncio.ensure_future(produce(start)) for start in (0, 100)]
            await table.idle()
            assert bus.statistics().events_published == 3  # one in work, two in the queue
            with pytest.raises(BufferFull, match="full"):
                bus.publish_nowait(Ping())
            for handled in range(1, 11):
                gate.let_in()
                await table.idle()
                assert bus.statistics().events_published == 3 + handled
            gate.open()
            await asyncio.gather(*tasks)
            await bus.settle()
        assert [number for number in seen if number < 100] == list(range(20))
        assert [number for number in seen if number >= 100] == list(range(100, 120))

    async def test_waiting_for_room_has_a_deadline(self, table: Table) -> None:
        gate = Gate()
        async with table.bus(queue=QueueOptions(capacity=1)) as bus:
            bus.subscribe(Ping, lambda event: gate.wait())
            await bus.publish(Ping())
            await table.idle()
            await bus.publish(Ping())
            for _ in range(3):
                with pytest.raises(DeadlineExceeded):
                    await table.until(bus.publish(Ping(), timeout=2.0))
            with pytest.raises(DeadlineExceeded):
                await table.until(bus.publish_and_wait(Ping(), timeout=2.0))
            assert bus.statistics().events_published == 2
            gate.open()
            await bus.settle()

    # Marks

    @pytest.mark.acceptance(114)
    async def test_pressure_begins_at_the_high_mark_and_ends_at_the_low_one(
        self, table: Table
    ) -> None:
        gate = Gate()
        told: list[tuple[int, bool]] = []
        async with table.bus(queue=QueueOptions(capacity=10)) as bus:
            depth = 0

            def broken(topic: str, started: bool) -> None:
                raise Boom

            def note(topic: str, started: bool) -> None:
                assert topic.endswith("Ping")
                told.append((depth, started))

            bus.on_pressure(broken)
            bus.on_pressure(note)
            bus.subscribe(Ping, lambda event: gate.wait())
            await bus.publish(Ping())
            await table.idle()
            for depth in range(1, 10):
                await bus.publish(Ping())
            assert told == [(8, True)]
            for depth in range(8, 5, -1):
                gate.let_in()
                await table.idle()
            for depth in range(7, 10):
                await bus.publish(Ping())
            assert told == [(8, True)]
            for depth in range(8, 4, -1):
                gate.let_in()
                await table.idle()
            assert told == [(8, True), (5, False)]
            queue = next(iter(bus.statistics().queues.values()))
            assert (queue.under_pressure, queue.pressure_starts, queue.peak_depth) == (False, 1, 9)
            gate.open()
            await bus.settle()

    @pytest.mark.acceptance(114)
    @pytest.mark.parametrize("capacity", range(1, 12))
    async def test_the_marks_are_apart_in_queues_of_any_size(
        self, table: Table, capacity: int
    ) -> None:
        gate = Gate()
        told: list[bool] = []
        async with table.bus(queue=QueueOptions(capacity=capacity)) as bus:
            bus.on_pressure(lambda topic, started: told.append(started))
            bus.subscribe(Ping, lambda event: gate.wait())
            await bus.publish(Ping())
            await table.idle()
            told.clear()  # one event alone fills the smallest of them
            for _ in range(capacity):
                await bus.publish(Ping())
            assert told == [True]
            gate.open()
            await bus.settle()
        assert told == [True, False]

    @pytest.mark.acceptance(114)
    async def test_marks_that_make_no_sense_are_refused(self) -> None:
        for low, high in [(0.8, 0.5), (0.5, 0.5), (-0.1, 0.5), (0.5, 1.1)]:
            with pytest.raises(InvalidOption):
                QueueOptions(low_mark=low, high_mark=high)
        with pytest.raises(InvalidOption):
            QueueOptions(capacity=0)

    # Policies

    @pytest.mark.acceptance(115)
    async def test_drop_oldest(self, table: Table) -> None:
        gate = Gate()
        options = QueueOptions(capacity=3, overflow=Overflow.DROP_OLDEST)
        async with table.bus(queue=options) as bus:
            seen: list[int] = []

            @bus.on(Ping)
            async def handle(event: Ping) -> None:
                await gate.wait()
                seen.append(event.number)

            await bus.publish(Ping(0))
            await table.idle()
            waiting = asyncio.ensure_future(bus.publish_and_wait(Ping(1)))
            await table.idle()
            for number in range(2, 7):
                await bus.publish(Ping(number))
            outcome = await waiting
            assert (outcome.dropped, outcome.success) == (True, False)
            figures = bus.statistics()
            assert figures.events_dropped == 3
            assert next(iter(figures.queues.values())).dropped == 3
            gate.open()
            await bus.settle()
        assert seen == [0, 4, 5, 6]

    @pytest.mark.acceptance(115)
    async def test_drop_oldest_spares_higher_priorities(self, table: Table) -> None:
        gate = Gate()
        options = QueueOptions(capacity=2, overflow=Overflow.DROP_OLDEST)
        async with table.bus(queue=options) as bus:
            seen: list[int] = []

            @bus.on(Ping)
            async def handle(event: Ping) -> None:
                await gate.wait()
                seen.append(event.number)

            await bus.publish(Ping(0))
            await table.idle()
            await bus.publish(Ping(1), priority=Priority.HIGH)
            await bus.publish(Ping(2))
            await bus.publish(Ping(3))
            gate.open()
            await bus.settle()
        assert seen == [0, 1, 3]

    @pytest.mark.acceptance(115)
    async def test_drop_oldest_with_keys_and_concurrency(self, table: Table) -> None:
        gate = Gate()
        options = QueueOptions(capacity=2, overflow=Overflow.DROP_OLDEST)
        async with table.bus(queue=options) as bus:
            bus.subscribe(Keyed, lambda event: gate.wait(), concurrency=3)
            for number in range(10):
                try:
                    await bus.publish(Keyed("same", number))
                except BufferFull:
                    pass  # all that waits has left the queue to wait for its key
                await table.idle()
            gate.open()
            await bus.settle()
        assert bus.statistics().events_unsettled == 0

    @pytest.mark.acceptance(116)
    async def test_reject_new(self, table: Table) -> None:
        gate = Gate()
        options = QueueOptions(capacity=2, overflow=Overflow.REJECT_NEW)
        async with table.bus(queue=options) as bus:
            seen: list[int] = []

            @bus.on(Ping)
            async def handle(event: Ping) -> None:
                await gate.wait()
                seen.append(event.number)

            await bus.publish(Ping(0))
            await table.idle()
            await bus.publish(Ping(1))
            await bus.publish(Ping(2))
            with pytest.raises(BufferFull) as caught:
                await bus.publish(Ping(3))
            assert str(caught.value.topic).endswith("Ping")
            with pytest.raises(BufferFull):
                bus.publish_nowait(Ping(3))
            with pytest.raises(BufferFull):
                await bus.publish_and_wait(Ping(3))
            figures = bus.statistics()
            assert (figures.events_published, figures.events_dropped) == (3, 0)
            assert next(iter(figures.queues.values())).rejected == 3
            gate.open()
            await bus.settle()
        assert seen == [0, 1, 2]

    @pytest.mark.acceptance(117)
    async def test_adaptive_rate_limit_slows_the_producer_to_the_rate_of_the_consumer(
        self, table: Table
    ) -> None:
        """From the high mark on, one event is admitted for each one that is handled."""
        gate = Gate()
        options = QueueOptions(capacity=20, overflow=Overflow.ADAPTIVE_RATE_LIMIT)
        async with table.bus(queue=options) as bus:
            seen: list[int] = []

            @bus.on(Ping)
            async def handle(event: Ping) -> None:
                await gate.wait()
                seen.append(event.number)

            async def produce() -> None:
                for number in range(200):
                    await bus.publish(Ping(number), timeout=1e6)

            task = asyncio.ensure_future(produce())
            await table.idle()
            at_the_mark = bus.statistics().events_published
            assert at_the_mark == 17  # one in work, and 0.8 of 20
            for handled in range(1, 101):
                gate.let_in()
                await table.idle()
                assert bus.statistics().events_published == at_the_mark + handled
            gate.open()
            await task
            await bus.settle()
        assert seen == list(range(200))
        assert bus.statistics().events_dropped == 0

    # Filters and full queues

    async def test_what_a_filter_refuses_needs_no_room(self, table: Table) -> None:
        gate = Gate()
        async with table.bus(queue=QueueOptions(capacity=1)) as bus:
            asked: list[int] = []

            def even(envelope: Envelope) -> bool:
                asked.append(envelope.message.number)
                return bool(envelope.message.number % 2 == 0)

            bus.add_filter(even)
            bus.subscribe(Ping, lambda event: gate.wait())
            await bus.publish(Ping(0))
            await table.idle()
            await bus.publish(Ping(2))
            for number in (1, 3, 5):
                await bus.publish(Ping(number))
            waiting = asyncio.ensure_future(bus.publish(Ping(4)))
            await table.idle()
            assert not waiting.done()
            gate.open()
            await waiting
            await bus.settle()
        assert asked == [0, 2, 1, 3, 5, 4]  # each once
        assert bus.statistics().events_filtered == 3

    # Atomic groups

    @pytest.mark.acceptance(152)
    async def test_a_group_is_published_when_its_block_ends(self, table: Table) -> None:
        async with table.bus() as bus:
            seen: list[object] = []
            bus.subscribe("*", seen.append)
            async with bus.atomic() as group:
                group.publish(Ping(1))
                group.publish(Pong(2))
                await table.idle()
                assert seen == []
            await bus.settle()
            assert sorted(seen, key=repr) == [Ping(1), Pong(2)]
            async with bus.atomic():
                pass

    @pytest.mark.acceptance(152)
    async def test_a_group_whose_block_fails_is_not_published(self, table: Table) -> None:
        async with table.bus() as bus:
            for error in (Boom, asyncio.CancelledError):
                with pytest.raises(error):
                    async with bus.atomic() as group:
                        group.publish(Ping(1))
                        raise error
            with pytest.raises(UsageError):
                async with bus.atomic() as group:
                    group.publish(Ping(1))
                    group.publish(None)
        assert bus.statistics().events_published == 0

    @pytest.mark.acceptance(152)
    async def test_a_group_without_room_for_one_publishes_none(self, table: Table) -> None:
        gate = Gate()
        async with table.bus(queue=QueueOptions(capacity=3)) as bus:
            bus.subscribe(Ping, lambda event: gate.wait())
            await bus.publish(Ping())
            await table.idle()
            await bus.publish(Ping())
            with pytest.raises(BufferFull):
                async with bus.atomic() as group:
                    group.publish(Pong())
                    for _ in range(3):
                        group.publish(Ping())
            assert bus.statistics().events_published == 2
            async with bus.atomic() as group:
                for _ in range(2):
                    group.publish(Ping())
            assert bus.statistics().events_published == 4
            gate.open()
            await bus.settle()

    @pytest.mark.acceptance(152)
    async def test_a_filter_that_raises_lets_none_of_a_group_through(self, table: Table) -> None:
        def broken(envelope: Envelope) -> bool:
            if envelope.message.number == 2:
                raise Boom
            return bool(envelope.message.number != 1)

        async with table.bus() as bus:
            bus.add_filter(broken)
            with pytest.raises(Boom):
                async with bus.atomic() as group:
                    for number in range(3):
                        group.publish(Ping(number))
            assert bus.statistics().events_published == 0
            async with bus.atomic() as group:
                group.publish(Ping(0))
                group.publish(Ping(1))
        figures = bus.statistics()
        assert (figures.events_published, figures.events_filtered) == (2, 1)
