"""The bus suite: before the start, settling, and the stop."""

from __future__ import annotations

import asyncio

import pytest

from penstock.bus.intake import QueueOptions
from penstock.bus.statistics import StopReport
from penstock.errors import BufferFull, Closed, DeadlineExceeded
from penstock.messages import Code, Event
from penstock.testing.bus_fixtures import Ask, BusFixtures, Gate, Keyed, Ping, Pong, Table


class BusLifeConformance(BusFixtures):
    """What who starts and stops a bus can rely on."""

    @pytest.mark.acceptance(145)
    async def test_events_wait_for_the_start(self, table: Table) -> None:
        bus = table.bus()
        seen: list[int] = []
        bus.publish_nowait(Ping(0))
        await bus.publish(Ping(1))
        waiting = asyncio.ensure_future(bus.publish_and_wait(Ping(2)))
        await table.idle()
        bus.subscribe(Ping, lambda event: seen.append(event.number))
        assert (seen, bus.statistics().events_unsettled) == ([], 3)
        async with bus:
            await bus.settle()
            assert (await waiting).success
            await bus.start()
        assert seen == [0, 1, 2]

    @pytest.mark.acceptance(145)
    async def test_what_waits_for_the_start_is_bounded(self, table: Table) -> None:
        bus = table.bus(queue=QueueOptions(capacity=3))
        seen: list[int] = []
        bus.subscribe(Ping, lambda event: seen.append(event.number))
        for number in range(3):
            await bus.publish(Ping(number))
        with pytest.raises(BufferFull):
            bus.publish_nowait(Ping(3))
        with pytest.raises(DeadlineExceeded):
            await table.until(bus.publish(Ping(3), timeout=1.0))
        waiting = asyncio.ensure_future(bus.publish(Ping(4)))
        await table.idle()
        async with bus:
            await waiting
            await bus.settle()
        assert seen == [0, 1, 2, 4]

    async def test_settle_waits_for_what_follows_too(self, table: Table) -> None:
        async with table.bus() as bus:
            await bus.settle()
            seen: list[int] = []

            @bus.on(Ping)
            async def count_down(event: Ping) -> None:
                await table.idle()
                seen.append(event.number)
                if event.number:
                    await bus.publish(Ping(event.number - 1))

            await bus.publish(Ping(5))
            await bus.settle()
        assert seen == [5, 4, 3, 2, 1, 0]

    async def test_settle_keeps_its_timeout(self, table: Table) -> None:
        gate = Gate()
        async with table.bus() as bus:
            bus.subscribe(Ping, lambda event: gate.wait())
            await bus.publish(Ping())
            with pytest.raises(DeadlineExceeded):
                await table.until(bus.settle(timeout=3.0))
            gate.open()
            await bus.settle()

    async def test_many_may_settle_and_leave(self, table: Table) -> None:
        gate = Gate()
        async with table.bus() as bus:
            bus.subscribe(Ping, lambda event: gate.wait())
            await bus.publish(Ping())
            tasks = [asyncio.ensure_future(bus.settle()) for _ in range(5)]
            await table.idle()
            tasks[1].cancel()
            gate.open()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(one) for one in ended] == [
            type(None),
            asyncio.CancelledError,
            *[type(None)] * 3,
        ]

    # Stop

    @pytest.mark.acceptance(146)
    async def test_stop_handles_all_that_is_queued(self, table: Table) -> None:
        async with table.bus() as bus:
            seen: list[int] = []

            @bus.on(Ping)
            async def handle(event: Ping) -> None:
                await table.idle()
                seen.append(event.number)

            for number in range(50):
                await bus.publish(Ping(number))
            report = await bus.stop()
            assert await bus.stop() == report
        assert seen == list(range(50))
        assert (report.drained, report.undrained) == (True, ())

    @pytest.mark.acceptance(146)
    async def test_the_deadline_is_kept_and_the_rest_is_reported(self, table: Table) -> None:
        gate = Gate()
        ended: list[str] = []
        bus = table.bus()

        @bus.on(Ping)
        async def handle(event: Ping) -> None:
            try:
                await gate.wait()
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        await bus.start()
        for number in range(4):
            await bus.publish(Ping(number))
        while bus.statistics().events_unsettled < 4:
            await asyncio.sleep(0)  # a durable bus reads them from its log first
        gate.let_in()
        began = table.clock.monotonic()
        report = await table.until(bus.stop(timeout=7.0))
        assert table.clock.monotonic() - began == 7.0
        assert [one.message.number for one in report.undrained] == [1, 2, 3]
        assert (report.drained, ended) == (False, ["cancelled"])
        figures = bus.statistics()
        assert (figures.events_processed, figures.events_unsettled) == (1, 3)
        assert figures.timers == 0

    @pytest.mark.acceptance(146)
    async def test_stop_without_draining_reports_everything(self, table: Table) -> None:
        bus = table.bus()
        bus.subscribe(Ping, lambda event: None)
        for number in range(3):
            bus.publish_nowait(Ping(number))
        await bus.publish(Pong(3))
        report = await bus.stop(drain=False)
        assert [one.message.number for one in report.undrained] == [0, 1, 2, 3]

    @pytest.mark.acceptance(146)
    async def test_events_behind_a_key_are_reported_too(self, table: Table) -> None:
        gate = Gate()
        bus = table.bus()
        bus.subscribe(Keyed, lambda event: gate.wait(), concurrency=4)
        await bus.start()
        for number in range(9):
            await bus.publish(Keyed("ab"[number % 2], number))
        await table.idle()
        report = await bus.stop(drain=False)
        assert [one.message.number for one in report.undrained] == list(range(9))

    @pytest.mark.acceptance(146)
    async def test_a_stopped_bus_takes_nothing(self, table: Table) -> None:
        async with table.bus(name="orders") as bus:
            bus.handle(Ask, lambda command: 1)
        with pytest.raises(Closed, match="orders"):
            await bus.publish(Ping())
        with pytest.raises(Closed):
            bus.publish_nowait(Ping())
        with pytest.raises(Closed):
            await bus.publish_and_wait(Ping())
        with pytest.raises(Closed):
            await bus.execute(Ask())
        with pytest.raises(Closed):
            async with bus.atomic() as group:
                group.publish(Ping())
        with pytest.raises(Closed):
            await bus.start()
        assert bus.statistics().events_published == 0

    @pytest.mark.acceptance(146)
    async def test_what_follows_from_queued_events_is_handled_while_it_drains(
        self, table: Table
    ) -> None:
        """Also in a class of which nobody has published before, and awaited."""

        class Late(Event):
            pass

        gate = Gate()
        bus = table.bus()
        seen: list[str] = []

        @bus.on(Ping)
        async def handle(event: Ping) -> None:
            await gate.wait()
            await bus.publish(Late())
            if event.number:
                await bus.publish_and_wait(Ping(event.number - 1))
            assert await bus.send(Ask()) == 1
            seen.append("ping")

        bus.subscribe(Late, lambda event: seen.append("late"))
        bus.handle(Ask, lambda command: 1)
        await bus.start()
        await bus.publish(Ping(1))
        await table.idle()
        stopping = asyncio.ensure_future(bus.stop(timeout=5.0))
        await table.idle()
        with pytest.raises(Closed):
            await bus.publish(Ping())
        gate.open()
        assert (await stopping).drained
        assert sorted(seen) == ["late", "late", "ping", "ping"]
        assert table.clock.monotonic() == 0.0

    @pytest.mark.acceptance(146)
    @pytest.mark.parametrize("drain", [True, False])
    async def test_nobody_waits_for_a_bus_that_stopped(self, table: Table, *, drain: bool) -> None:
        gate = Gate()
        bus = table.bus(queue=QueueOptions(capacity=1))
        bus.subscribe(Ping, lambda event: gate.wait())
        bus.handle(Ask, lambda command: gate.wait())
        await bus.start()
        waiting = [
            asyncio.ensure_future(bus.publish_and_wait(Ping(1), timeout=1e9)),
            asyncio.ensure_future(bus.publish_and_wait(Ping(2), timeout=1e9)),
            asyncio.ensure_future(bus.publish(Ping(3), timeout=1e9)),
            asyncio.ensure_future(bus.settle(timeout=1e9)),
        ]
        asking = asyncio.ensure_future(bus.execute(Ask(), timeout=1e9))
        await table.idle()
        report = await table.until(bus.stop(drain=drain, timeout=2.0))
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(one) for one in ended] == [Closed] * 4
        assert isinstance((await asking).error, Closed)
        assert [one.message.number for one in report.undrained] == [1, 2]

    async def test_commands_are_finished_before_the_stop(self, table: Table) -> None:
        gate = Gate()
        bus = table.bus()

        async def answer(command: Ask) -> int:
            await gate.wait()
            return 1

        bus.handle(Ask, answer)
        await bus.start()
        asking = asyncio.ensure_future(bus.execute(Ask()))
        await table.idle()
        stopping = asyncio.ensure_future(bus.stop())
        await table.idle()
        assert not stopping.done()
        gate.open()
        await stopping
        assert (await asking).code is Code.OK

    async def test_who_leaves_the_stop_does_not_stop_it(self, table: Table) -> None:
        gate = Gate()
        bus = table.bus()
        bus.subscribe(Ping, lambda event: gate.wait())
        await bus.start()
        await bus.publish(Ping())
        stopping = asyncio.ensure_future(bus.stop())
        await table.idle()
        stopping.cancel()
        await asyncio.wait([stopping])
        gate.open()
        assert await bus.stop() == StopReport()
        assert bus.statistics().events_processed == 1

    async def test_a_handler_that_goes_on_after_its_cancellation_is_the_last(
        self, table: Table
    ) -> None:
        gate = Gate()
        bus = table.bus()
        calls: list[int] = []

        @bus.on(Ping)
        async def stubborn(event: Ping) -> None:
            calls.append(event.number)
            try:
                await gate.wait()
            except asyncio.CancelledError:
                await table.idle()

        await bus.start()
        for number in range(3):
            await bus.publish(Ping(number))
        await table.idle()
        report = await bus.stop(drain=False)
        assert calls == [0]
        assert [one.message.number for one in report.undrained] == [1, 2]
        assert bus.statistics().events_processed == 1

    async def test_a_task_that_a_handler_left_behind_cannot_use_a_stopped_bus(
        self, table: Table
    ) -> None:
        gate = Gate()
        late = Gate()
        tasks: list[asyncio.Task[None]] = []
        bus = table.bus()

        async def publish_late() -> None:
            await late.wait()
            await bus.publish(Pong())

        async def handle(message: object) -> None:
            tasks.append(asyncio.create_task(publish_late()))
            await gate.wait()

        bus.subscribe(Ping, handle)
        bus.handle(Ask, handle)
        await bus.start()
        await bus.publish(Ping())
        asking = asyncio.ensure_future(bus.execute(Ask()))
        await table.idle()
        await bus.stop(drain=False)
        late.open()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(one) for one in ended] == [Closed, Closed]
        await asking
