"""The bus suite: publishing from other threads. Every count is exact."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable

import pytest

from penstock.bus.intake import QueueOptions
from penstock.bus.queue import Overflow
from penstock.errors import BufferFull, Closed, UsageError
from penstock.messages import Envelope
from penstock.testing.bus_fixtures import Boom, BusFixtures, Gate, Ping, Pong, Table

THREADS = 4  # fewer than the pool of a loop has on the smallest machine


async def in_threads(job: Callable[[int], None], count: int = THREADS) -> None:
    """Run a job in threads of its own, all at once."""
    together = threading.Barrier(count)

    def run(number: int) -> None:
        together.wait(30)
        job(number)

    await asyncio.gather(*(asyncio.to_thread(run, number) for number in range(count)))


class ThreadConformance(BusFixtures):
    """What publishers in other threads can rely on."""

    @pytest.mark.acceptance(139)
    async def test_publishing_from_many_threads(self, table: Table) -> None:
        each = 500
        async with table.bus() as bus:
            seen: list[int] = []

            @bus.on(Ping)
            async def handle(event: Ping) -> None:
                seen.append(event.number)

            def publish(thread: int) -> None:
                for number in range(each):
                    bus.publish_nowait(Ping(thread * each + number))

            await in_threads(publish)
            await bus.settle()
        assert sorted(seen) == list(range(THREADS * each))
        for thread in range(THREADS):
            mine = [number for number in seen if number // each == thread]
            assert mine == sorted(mine)
        assert bus.statistics().events_published == THREADS * each

    @pytest.mark.parametrize("overflow", list(Overflow))
    async def test_what_a_thread_was_told_is_true_when_the_queue_is_full(
        self, table: Table, overflow: Overflow
    ) -> None:
        """What was taken is handled or counted as dropped; what was not taken raised BufferFull."""
        gate = Gate()
        async with table.bus(queue=QueueOptions(capacity=10, overflow=overflow)) as bus:
            bus.subscribe(Ping, lambda event: gate.wait())
            told: Counter[bool] = Counter()
            lock = threading.Lock()

            def publish(thread: int) -> None:
                for number in range(50):
                    try:
                        bus.publish_nowait(Ping(number))
                    except BufferFull:
                        taken = False
                    else:
                        taken = True
                    with lock:
                        told[taken] += 1

            for _ in range(4):
                await in_threads(publish)
                gate.let_in(3)
                await table.idle()
            gate.open()
            await bus.settle()
        figures = bus.statistics()
        assert figures.events_published == told[True]
        assert told.total() == 4 * 50 * THREADS
        assert figures.events_processed + figures.events_dropped == told[True]
        assert told[True] >= 10

    async def test_settle_and_stop_know_what_threads_have_published(self, table: Table) -> None:
        """Even when the loop has not looked yet."""
        for stop in (False, True):
            bus = table.bus()
            seen: list[int] = []
            bus.subscribe(Ping, lambda event, seen=seen: seen.append(event.number))
            await bus.start()
            thread = threading.Thread(target=bus.publish_nowait, args=(Ping(1),))
            thread.start()
            thread.join(30)
            if not stop:
                await bus.settle()
                assert seen == [1]
            assert (await bus.stop()).drained
            assert seen == [1]

    async def test_stop_without_draining_reports_what_threads_have_published(
        self, table: Table
    ) -> None:
        bus = table.bus()
        await bus.start()
        thread = threading.Thread(target=bus.publish_nowait, args=(Ping(1),))
        thread.start()
        thread.join(30)
        report = await bus.stop(drain=False)
        assert [one.message for one in report.undrained] == [Ping(1)]

    async def test_threads_hear_that_the_bus_is_stopped(self, table: Table) -> None:
        """Whatever was taken before is handled: nothing falls between."""
        bus = table.bus(queue=QueueOptions(capacity=1_000_000))
        seen: list[int] = []
        bus.subscribe(Ping, lambda event: seen.append(event.number))
        await bus.start()
        taken = [0] * THREADS

        def publish(thread: int) -> None:
            try:
                while True:
                    bus.publish_nowait(Ping(thread))
                    taken[thread] += 1
            except Closed:
                pass

        publishing = asyncio.ensure_future(in_threads(publish))
        while sum(taken) < 1_000:
            await asyncio.sleep(0)
        report = await bus.stop()
        await publishing
        assert len(seen) + len(report.undrained) == sum(taken)
        assert bus.statistics().events_published == sum(taken)

    async def test_threads_may_publish_before_the_start(self, table: Table) -> None:
        bus = table.bus(queue=QueueOptions(capacity=100_000))
        seen: list[int] = []
        bus.subscribe(Ping, lambda event: seen.append(event.number))

        def publish(thread: int) -> None:
            for number in range(1_000):
                bus.publish_nowait(Ping(number))

        await in_threads(publish)
        assert bus.statistics().events_published == 1_000 * THREADS
        async with bus:
            await bus.settle()
        assert len(seen) == 1_000 * THREADS

    async def test_one_wrong_message_of_a_thread_spoils_no_other(self, table: Table) -> None:
        def broken(envelope: Envelope) -> bool:
            if envelope.message.number == 2:
                raise Boom
            return True

        async with table.bus() as bus:
            seen: list[int] = []
            bus.add_filter(broken)
            bus.subscribe(Ping, lambda event: seen.append(event.number))
            refused: list[UsageError] = []

            def publish(thread: int) -> None:
                for message in (Ping(1), None, Ping(2), Ping(3)):
                    try:
                        bus.publish_nowait(message)
                    except UsageError as error:
                        refused.append(error)

            await in_threads(publish, 1)
            await bus.settle()
        assert (seen, len(refused)) == ([1, 3], 1)
        assert bus.statistics().events_failed == 1

    async def test_a_handler_may_publish_from_a_thread(self, table: Table) -> None:
        """Also while the bus drains, as it is part of what was queued."""
        gate = Gate()
        bus = table.bus()
        seen: list[int] = []

        @bus.on(Ping)
        async def handle(event: Ping) -> None:
            await gate.wait()
            await asyncio.to_thread(bus.publish_nowait, Pong(event.number))

        bus.subscribe(Pong, lambda event: seen.append(event.number))
        await bus.start()
        await bus.publish(Ping(1))
        await table.idle()
        stopping = asyncio.ensure_future(bus.stop())
        await table.idle()
        gate.open()
        assert (await stopping).drained
        assert seen == [1]
