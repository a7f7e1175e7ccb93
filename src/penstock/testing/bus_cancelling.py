"""The bus suite: callers that are cancelled at every point. Nothing is lost, nothing counted twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.bus.intake import QueueOptions
from penstock.errors import DeadlineExceeded
from penstock.messages import Priority
from penstock.testing.bus_fixtures import (
    Ask,
    BusFixtures,
    Gate,
    Keyed,
    Ping,
    Pong,
    Table,
    check_books,
)

STEPS = 12


async def cancel_after(steps: int, awaitable: Awaitable[Any]) -> bool:
    """Cancel after so many turns of the loop; whether it was still on its way."""
    task = asyncio.ensure_future(awaitable)
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()
    return task.cancelled()


class CancellingConformance(BusFixtures):
    """What who is cancelled can rely on, and who comes after."""

    @pytest.mark.parametrize("steps", range(STEPS))
    async def test_publish_cancelled_at_any_point_queues_one_or_none(
        self, table: Table, steps: int
    ) -> None:
        async with table.bus(queue=QueueOptions(capacity=1)) as bus:
            seen: list[int] = []

            @bus.on(Ping)
            async def handle(event: Ping) -> None:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                seen.append(event.number)

            await bus.publish(Ping(0))
            others = [asyncio.ensure_future(bus.publish(Ping(number))) for number in (1, 2)]
            cancelled = await cancel_after(steps, bus.publish(Ping(9)))
            await bus.publish(Ping(3))
            await asyncio.gather(*others)
            await bus.settle()
        assert sorted(seen) == ([0, 1, 2, 3] if cancelled else [0, 1, 2, 3, 9])

    @pytest.mark.parametrize("steps", range(STEPS))
    @pytest.mark.parametrize("queued", [False, True])
    async def test_publish_and_wait_cancelled_at_any_point_loses_nothing(
        self, table: Table, steps: int, *, queued: bool
    ) -> None:
        """The event stays published; a handler that was interrupted is called again, others not."""
        async with table.bus() as bus:
            done: dict[str, list[int]] = {"first": [], "slow": [], "beside": [], "last": []}

            async def step(name: str, event: Ping) -> None:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                done[name].append(event.number)

            def handler(name: str) -> Callable[[Ping], Awaitable[None]]:
                return lambda event: step(name, event)

            bus.subscribe(Ping, lambda event: done["first"].append(event.number), priority=0)
            bus.subscribe(Ping, handler("slow"))
            bus.subscribe(Ping, handler("beside"))
            bus.subscribe(Ping, handler("last"), priority=Priority.LAST)
            if queued:
                await bus.publish(Ping(0))
            await cancel_after(steps, bus.publish_and_wait(Ping(1)))
            check_books(bus)
            await bus.publish(Ping(2))
            await bus.settle()
        numbers = [0, 1, 2] if queued else [1, 2]
        if not steps:
            numbers.remove(1)  # cancelled before its first line
        assert all(seen == numbers for seen in done.values()), done

    @pytest.mark.parametrize("steps", range(STEPS))
    async def test_the_order_of_a_key_survives_a_caller_who_leaves(
        self, table: Table, steps: int
    ) -> None:
        async with table.bus() as bus:
            seen: list[int] = []

            @bus.on(Keyed, concurrency=3)
            async def handle(event: Keyed) -> None:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                seen.append(event.number)

            first = asyncio.ensure_future(bus.publish_and_wait(Keyed("k", 0)))
            await asyncio.sleep(0)
            for number in range(1, 5):
                await bus.publish(Keyed("k", number))
            await cancel_after(steps, first)
            await bus.settle()
        assert seen == [0, 1, 2, 3, 4]

    async def test_a_timeout_ends_handlers_that_run_side_by_side(self, table: Table) -> None:
        """And they are called again, as the event stays published."""
        gate = Gate()
        async with table.bus() as bus:
            for _ in range(3):
                bus.subscribe(Ping, lambda event: gate.wait())
            with pytest.raises(DeadlineExceeded):
                await table.until(bus.publish_and_wait(Ping(), timeout=2.0))
            assert table.clock.monotonic() == 2.0
            await table.idle()
            assert (gate.arrived, gate.passed) == (6, 0)
            gate.open()
            await bus.settle()
        assert gate.passed == 3
        assert bus.statistics().events_processed == 1

    async def test_a_handler_that_failed_is_not_called_again_for_an_interrupted_neighbour(
        self, table: Table
    ) -> None:
        gate = Gate()
        async with table.bus() as bus:
            told: list[str] = []
            bus.on_error(lambda handler, envelope, error: told.append(handler.name))

            def fail(event: Ping) -> None:
                raise LookupError

            bus.subscribe(Ping, fail, name="fail", priority=Priority.FIRST)
            bus.subscribe(Ping, lambda event: gate.wait())
            task = asyncio.ensure_future(bus.publish_and_wait(Ping()))
            await table.idle()
            before = len(told)
            task.cancel()
            await asyncio.wait([task])
            gate.open()
            await table.idle()
            assert len(told) == before == 1
            await table.until(bus.settle())
        assert bus.statistics().events_failed == 1

    @pytest.mark.parametrize("steps", range(STEPS))
    async def test_execute_cancelled_at_any_point(self, table: Table, steps: int) -> None:
        async with table.bus() as bus:

            @bus.handles(Ask)
            async def answer(command: Ask) -> int:
                await asyncio.sleep(0)
                await bus.publish_and_wait(Ping(command.number))
                return command.number

            @bus.on(Ping)
            async def handle(event: Ping) -> None:
                await asyncio.sleep(0)
                await asyncio.sleep(0)

            await cancel_after(steps, bus.execute(Ask(1)))
            assert await bus.send(Ask(2)) == 2
            await bus.settle()
        figures = bus.statistics()
        assert figures.commands_executed == figures.commands_succeeded + figures.commands_failed
        assert figures.timers == 0

    @pytest.mark.parametrize("steps", range(STEPS))
    async def test_settle_and_stop_cancelled_at_any_point(self, table: Table, steps: int) -> None:
        bus = table.bus()
        seen: list[int] = []

        @bus.on(Ping)
        async def handle(event: Ping) -> None:
            await asyncio.sleep(0)
            seen.append(event.number)

        await bus.start()
        for number in range(3):
            await bus.publish(Ping(number))
        await cancel_after(steps, bus.settle())
        await bus.publish(Ping(3))
        await cancel_after(steps, bus.stop())
        assert (await bus.stop()).drained
        assert seen == [0, 1, 2, 3]

    @pytest.mark.parametrize("steps", range(STEPS))
    async def test_nested_work_cancelled_at_any_point(self, table: Table, steps: int) -> None:
        async with table.bus(queue=QueueOptions(capacity=2)) as bus:
            done: list[str] = []

            @bus.on(Ping)
            async def ping(event: Ping) -> None:
                await asyncio.sleep(0)
                await bus.publish_and_wait(Pong(event.number))
                done.append("ping")

            @bus.on(Pong)
            async def pong(event: Pong) -> None:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                done.append("pong")

            cancelled = await cancel_after(steps, bus.publish_and_wait(Ping()))
            await bus.publish(Ping())
            await bus.settle()
        assert done.count("ping") == (2 if steps else 1)
        assert done.count("pong") >= done.count("ping")
        assert bus.statistics().events_unsettled == 0
        assert cancelled or done.count("pong") == 2

    @pytest.mark.parametrize("steps", range(STEPS))
    async def test_stopped_at_any_point_every_event_is_done_or_reported(
        self, table: Table, steps: int
    ) -> None:
        bus = table.bus(queue=QueueOptions(capacity=8))
        done: list[int] = []

        @bus.on(Keyed, concurrency=3)
        async def handle(event: Keyed) -> None:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            done.append(event.number)

        @bus.on(Keyed, batch=2)
        async def batch(events: list[Keyed]) -> None:
            await asyncio.sleep(0)

        await bus.start()
        for number in range(8):
            await bus.publish(Keyed("ab"[number % 2], number))
        for _ in range(steps):
            await asyncio.sleep(0)
        report = await bus.stop(drain=False)
        figures = bus.statistics()
        reported = [one.message.number for one in report.undrained]
        assert reported == sorted(set(reported))
        assert figures.events_unsettled == len(reported)
        assert figures.events_processed + len(reported) == 8
        assert set(done) | set(reported) == set(range(8))
