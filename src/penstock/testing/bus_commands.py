"""The bus suite: commands, their one handler, their result, and a timeout that is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.errors import (
    DeadlineExceeded,
    DuplicateHandler,
    HandlerFailed,
    InvalidOption,
    NoHandler,
    PenstockError,
    RateLimited,
)
from penstock.messages import Code, Command, Envelope
from penstock.testing.bus_fixtures import Ask, Boom, BusFixtures, Gate, Table

Next = Callable[[Envelope], Awaitable[Any]]


class CommandConformance(BusFixtures):
    """What who executes a command can rely on."""

    @pytest.mark.parametrize("waits", [False, True])
    async def test_a_command_returns_what_its_handler_returns(
        self, table: Table, *, waits: bool
    ) -> None:
        async with table.bus() as bus:

            @bus.handles(Ask)
            async def answer(command: Ask) -> int:
                if waits:
                    await table.idle()
                return command.number + 1

            result = await bus.execute(Ask(41))
            assert (result.success, result.code, result.result) == (True, Code.OK, 42)
            assert result.error is None
            assert result.unwrap() == 42
            assert "answer" in result.metadata["handler"]
            assert await bus.send(Ask(1)) == 2
        assert bus.statistics().commands_succeeded == 2

    async def test_sync_handlers_and_results_of_none(self, table: Table) -> None:
        class Silent(Command[None]):
            pass

        async with table.bus() as bus:
            bus.handle(Ask, lambda command: 7)
            bus.handle(Silent, lambda command: None)
            assert await bus.send(Ask()) == 7
            result = await bus.execute(Silent())
            assert (result.success, result.result) == (True, None)

    @pytest.mark.acceptance(150)
    async def test_no_handler(self, table: Table) -> None:
        async with table.bus() as bus:
            result = await bus.execute(Ask())
            assert (result.success, result.code) == (False, Code.NO_HANDLER)
            assert isinstance(result.error, NoHandler)
            with pytest.raises(NoHandler, match="Ask"):
                await bus.send(Ask())
        assert bus.statistics().commands_failed == 2

    async def test_a_second_handler_is_refused(self, table: Table) -> None:
        async with table.bus() as bus:
            first = bus.handle(Ask, lambda command: 1)
            with pytest.raises(DuplicateHandler, match="Ask"):
                bus.handle(Ask, lambda command: 2)
            assert await bus.send(Ask()) == 1
            first.close()
            bus.handle(Ask, lambda command: 2)
            assert await bus.send(Ask()) == 2

    @pytest.mark.acceptance(150)
    @pytest.mark.parametrize("waits", [False, True])
    async def test_a_handler_that_raises(self, table: Table, *, waits: bool) -> None:
        async def fail(command: Ask) -> int:
            if waits:
                await table.idle()
            raise Boom("no")

        async with table.bus() as bus:
            bus.handle(Ask, fail)
            result = await table.until(bus.execute(Ask()))
            assert (result.success, result.code) == (False, Code.HANDLER_ERROR)
            assert isinstance(result.error, Boom)
            with pytest.raises(Boom):
                result.unwrap()
        async with table.bus() as bus:
            bus.handle(Ask, fail)
            with pytest.raises(HandlerFailed, match="fail") as caught:
                await table.until(bus.send(Ask()))
        assert isinstance(caught.value.__cause__, Boom)

    @pytest.mark.acceptance(150)
    @pytest.mark.parametrize("error", [RateLimited("x"), DeadlineExceeded("x"), NoHandler("x")])
    async def test_errors_of_the_bus_are_told_apart_from_the_same_of_a_handler(
        self, table: Table, error: PenstockError
    ) -> None:
        async with table.bus() as bus:

            @bus.handles(Ask)
            async def fail(command: Ask) -> int:
                raise error

            result = await table.until(bus.execute(Ask()))
        assert result.code is Code.HANDLER_ERROR

    @pytest.mark.acceptance(150)
    async def test_a_rate_limit_in_front_has_its_code(self, table: Table) -> None:
        async def limit(envelope: Envelope, following: Next) -> Any:
            raise RateLimited("too many", retry_after=1.0)

        async with table.bus() as bus:
            bus.handle(Ask, lambda command: 1)
            bus.use(limit, events=False)
            assert (await bus.execute(Ask())).code is Code.RATE_LIMITED
            with pytest.raises(RateLimited):
                await bus.send(Ask())

    @pytest.mark.acceptance(150)
    async def test_the_timeout_is_kept_and_cancels_the_handler(self, table: Table) -> None:
        gate = Gate()
        async with table.bus() as bus:
            ended: list[str] = []

            @bus.handles(Ask)
            async def slow(command: Ask) -> int:
                try:
                    await gate.wait()
                except asyncio.CancelledError:
                    ended.append("cancelled")
                    raise
                return 1

            began = table.clock.monotonic()
            result = await table.until(bus.execute(Ask(), timeout=2.5))
            assert table.clock.monotonic() - began == 2.5
            assert (result.code, ended) == (Code.TIMEOUT, ["cancelled"])
            assert isinstance(result.error, DeadlineExceeded)
            with pytest.raises(DeadlineExceeded):
                await table.until(bus.send(Ask(), timeout=0.0))
        assert bus.statistics().commands_failed == 2

    async def test_a_timeout_that_makes_no_sense_is_refused(self, table: Table) -> None:
        async with table.bus() as bus:
            bus.handle(Ask, lambda command: 1)
            for wrong in (-1.0, float("nan")):
                with pytest.raises(InvalidOption):
                    (await bus.execute(Ask(), timeout=wrong)).unwrap()

    async def test_cancelling_the_caller_cancels_the_handler(self, table: Table) -> None:
        gate = Gate()
        async with table.bus() as bus:
            ended: list[str] = []

            @bus.handles(Ask)
            async def slow(command: Ask) -> int:
                try:
                    await gate.wait()
                finally:
                    ended.append("ended")
                return 1

            task = asyncio.ensure_future(bus.execute(Ask()))
            await table.idle()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert ended == ["ended"]
            gate.open()
            assert await bus.send(Ask()) == 1
        figures = bus.statistics()
        assert (figures.commands_executed, figures.commands_succeeded, figures.commands_failed) == (
            2,
            1,
            1,
        )

    async def test_a_handler_that_raises_cancelled_error(self, table: Table) -> None:
        async with table.bus() as bus:

            @bus.handles(Ask)
            async def fail(command: Ask) -> int:
                await table.idle()
                raise asyncio.CancelledError

            result = await table.until(bus.execute(Ask()))
        assert result.code is Code.HANDLER_ERROR
        assert isinstance(result.error, asyncio.CancelledError)

    async def test_commands_run_side_by_side(self, table: Table) -> None:
        gate = Gate()
        async with table.bus() as bus:

            @bus.handles(Ask)
            async def answer(command: Ask) -> int:
                await gate.wait()
                return command.number

            asked = [asyncio.ensure_future(bus.send(Ask(number))) for number in range(10)]
            await table.idle()
            assert gate.arrived == 10
            gate.open()
            assert await asyncio.gather(*asked) == list(range(10))

    async def test_commands_need_no_started_bus(self, table: Table) -> None:
        bus = table.bus()
        bus.handle(Ask, lambda command: 3)
        assert await bus.send(Ask()) == 3
        await bus.stop()
