"""The bus suite: code around every event and every command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest

from penstock.bus.intake import QueueOptions
from penstock.errors import HandlerFailed
from penstock.messages import Code, Envelope
from penstock.testing.bus_fixtures import Ask, Boom, BusFixtures, Gate, Ping, Pong, Table

Next = Callable[[Envelope], Awaitable[Any]]
TRACE: ContextVar[str] = ContextVar("TRACE", default="none")


def named(name: str, log: list[str]) -> Callable[[Envelope, Next], Awaitable[Any]]:
    """A middleware that notes when it is entered and left."""

    async def middleware(envelope: Envelope, following: Next) -> Any:
        log.append(f"> {name}")
        try:
            return await following(envelope)
        finally:
            log.append(f"< {name}")

    return middleware


@pytest.mark.acceptance(135)
class MiddlewareConformance(BusFixtures):
    """What a middleware can rely on."""

    async def test_the_first_is_outermost(self, table: Table) -> None:
        async with table.bus() as bus:
            log: list[str] = []
            bus.use(named("both", log))
            bus.use(named("events", log), commands=False)
            bus.use(named("commands", log), events=False)
            bus.subscribe(Ping, lambda event: log.append("event"))
            bus.handle(Ask, lambda command: log.append("command"))
            await bus.publish(Ping())
            await bus.settle()
            assert log == ["> both", "> events", "event", "< events", "< both"]
            log.clear()
            await bus.execute(Ask())
        assert log == ["> both", "> commands", "command", "< commands", "< both"]

    async def test_it_may_stop_a_message(self, table: Table) -> None:
        async def stop(envelope: Envelope, following: Next) -> Any:
            return 5

        async with table.bus() as bus:
            seen: list[Any] = []
            bus.use(stop)
            bus.subscribe(Ping, seen.append)
            bus.handle(Ask, seen.append)
            await bus.publish(Ping())
            outcome = await bus.publish_and_wait(Ping())
            await bus.settle()
            assert (await bus.execute(Ask())).result == 5
        assert seen == []
        assert outcome.filtered
        assert bus.statistics().events_filtered == 2

    async def test_it_may_change_a_message(self, table: Table) -> None:
        async def double(envelope: Envelope, following: Next) -> Any:
            changed = type(envelope.message)(envelope.message.number * 2)
            return await following(envelope.with_message(changed))

        async with table.bus() as bus:
            seen: list[int] = []
            bus.use(double)
            bus.subscribe(Ping, lambda event: seen.append(event.number))
            bus.subscribe(Ping, lambda events: seen.append(events[0].number), batch=3)
            bus.handle(Ask, lambda command: command.number)
            await bus.publish(Ping(4))
            await bus.settle()
            outcome = await bus.publish_and_wait(Ping(5))
            assert await bus.send(Ask(6)) == 12
        assert (seen, outcome.handled) == ([8, 8, 10, 10], 2)
        assert bus.statistics().events_processed == 2

    async def test_an_error_of_a_middleware_fails_the_message(self, table: Table) -> None:
        async def fail(envelope: Envelope, following: Next) -> Any:
            await following(envelope)
            if envelope.message.number:
                raise Boom
            return 1

        async with table.bus() as bus:
            bus.use(fail)
            bus.subscribe(Ping, lambda event: None)
            bus.handle(Ask, lambda command: 1)
            outcome = await bus.publish_and_wait(Ping(1))
            assert isinstance(outcome.failures[0].error, Boom)
            assert (await bus.publish_and_wait(Ping(0))).success
            result = await bus.execute(Ask(1))
            assert result.code is Code.HANDLER_ERROR
            assert isinstance(result.error, Boom)
        figures = bus.statistics()
        assert (figures.events_failed, figures.events_processed) == (1, 1)

    async def test_it_sees_that_handlers_failed(self, table: Table) -> None:
        seen: list[type[BaseException]] = []

        async def watch(envelope: Envelope, following: Next) -> Any:
            try:
                return await following(envelope)
            except HandlerFailed as error:
                assert error.__cause__ is not None
                seen.append(type(error.__cause__))
                raise

        def fail(event: Ping) -> None:
            raise Boom

        async with table.bus() as bus:
            bus.use(watch, commands=False)
            bus.subscribe(Ping, fail)
            await bus.publish(Ping())
            await table.until(bus.settle())
        assert bus.statistics().events_failed == 1
        assert seen in ([Boom], [])  # a bus that calls the handler again later has nothing to tell

    async def test_a_middleware_that_raises_cancelled_error(self, table: Table) -> None:
        async def cancelled(envelope: Envelope, following: Next) -> Any:
            if envelope.message.number:
                raise asyncio.CancelledError
            return await following(envelope)

        async with table.bus() as bus:
            seen: list[int] = []
            bus.use(cancelled, commands=False)
            bus.subscribe(Ping, lambda event: seen.append(event.number))
            await bus.publish(Ping(1))
            await bus.publish(Ping(0))
            await bus.settle()
            assert not (await bus.publish_and_wait(Ping(1))).success
        assert seen == [0]
        assert bus.statistics().events_failed == 2

    async def test_what_it_sets_in_the_context_ends_with_the_message(self, table: Table) -> None:
        async def trace(envelope: Envelope, following: Next) -> Any:
            assert TRACE.get() == "none"
            TRACE.set(envelope.id)
            return await following(envelope)

        async with table.bus() as bus:
            seen: list[str] = []

            async def handle(message: Any, envelope: Envelope) -> None:
                await table.idle()
                assert TRACE.get() == envelope.id
                seen.append(TRACE.get())

            bus.use(trace)
            bus.subscribe(Ping, handle)
            bus.handle(Ask, handle)
            await bus.publish(Ping())
            await bus.publish(Ping())
            await bus.settle()
            await bus.publish_and_wait(Ping())
            await bus.execute(Ask())
            assert TRACE.get() == "none"
        assert len(set(seen)) == 4

    async def test_it_may_publish_to_a_full_queue_of_its_own_class(self, table: Table) -> None:
        async def echo(envelope: Envelope, following: Next) -> Any:
            if envelope.message.number < 3:
                await bus.publish(Ping(envelope.message.number + 3))
            return await following(envelope)

        async with table.bus(queue=QueueOptions(capacity=3)) as bus:
            seen: list[int] = []
            bus.use(echo)
            bus.subscribe(Ping, lambda event: seen.append(event.number))
            for number in range(3):
                await bus.publish(Ping(number))
            await bus.settle()
        assert seen == [0, 1, 2, 3, 4, 5]

    @pytest.mark.parametrize("where", ["before", "inside", "after"])
    async def test_cancelled_at_any_place_the_event_is_settled_once(
        self, table: Table, where: str
    ) -> None:
        """The caller leaves while the event is before, at or behind the handler."""
        gate = Gate()

        async def slow(envelope: Envelope, following: Next) -> Any:
            if where == "before":
                await gate.wait()
            await following(envelope)
            if where == "after":
                await gate.wait()

        async with table.bus() as bus:
            seen: list[int] = []
            bus.use(slow)

            @bus.on(Ping)
            async def handle(event: Ping) -> None:
                if where == "inside":
                    await gate.wait()
                seen.append(event.number)

            task = asyncio.ensure_future(bus.publish_and_wait(Ping(1)))
            await table.idle()
            task.cancel()
            await asyncio.wait([task])
            gate.open()
            await bus.publish(Ping(2))
            await bus.settle()
        assert seen == [1, 2]
        assert bus.statistics().events_processed == 2

    async def test_one_that_comes_while_a_lane_is_busy_sees_all_that_begins_from_then_on(
        self, table: Table
    ) -> None:
        async def note(envelope: Envelope, following: Next) -> Any:
            seen.append(envelope.message.number)
            return await following(envelope)

        gate = Gate()
        handled: list[int] = []
        seen: list[int] = []
        async with table.bus() as bus:

            @bus.on(Ping)
            async def handle(event: Ping) -> None:
                handled.append(event.number)
                await gate.wait()

            for number in range(4):
                await bus.publish(Ping(number))
            await table.idle()
            bus.use(note)
            for number in range(4, 8):
                await bus.publish(Ping(number))
            gate.open()
            await bus.settle()
        assert (handled, seen) == (list(range(8)), list(range(1, 8)))

    async def test_a_slow_one_delays_no_other_class(self, table: Table) -> None:
        gate = Gate()

        async def slow(envelope: Envelope, following: Next) -> Any:
            if isinstance(envelope.message, Ping):
                await gate.wait()
            return await following(envelope)

        async with table.bus() as bus:
            seen: list[str] = []
            bus.use(slow)
            bus.subscribe(Ping, lambda event: seen.append("ping"))
            bus.subscribe(Pong, lambda event: seen.append("pong"))
            await bus.publish(Ping())
            await bus.publish(Pong())
            await table.idle()
            assert seen == ["pong"]
            gate.open()
            await bus.settle()
