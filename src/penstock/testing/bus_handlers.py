"""The bus suite: what handlers may do inside, and in which order they are called."""

from __future__ import annotations

import asyncio
import functools
from contextvars import ContextVar
from typing import Any

import pytest

from penstock.bus.drive import current_envelope
from penstock.errors import InvalidOption, UsageError
from penstock.messages import Envelope, Event, Priority
from penstock.testing.bus_fixtures import BusFixtures, Gate, Keyed, Ping, Pong, Table

WHO: ContextVar[str] = ContextVar("WHO", default="nobody")


class HandlerConformance(BusFixtures):
    """What a handler can rely on."""

    @pytest.mark.acceptance(121)
    @pytest.mark.parametrize("waits", [False, True])
    async def test_handlers_are_called_group_by_group(self, table: Table, *, waits: bool) -> None:
        """All of one priority have ended before the first of the next one begins."""
        async with table.bus() as bus:
            log: list[tuple[str, int]] = []

            async def handle(event: Ping, level: int) -> None:
                log.append(("begin", level))
                if waits:
                    await table.idle()
                log.append(("end", level))

            for level in sorted(Priority, reverse=True) * 2:
                bus.subscribe(Ping, functools.partial(handle, level=int(level)), priority=level)
            await bus.publish(Ping())
            await bus.settle()
        levels = [level for _, level in log]
        assert levels == sorted(levels)
        assert levels.count(0) == levels.count(100) == 4
        if waits:  # those of one priority run side by side
            assert [what for what, _ in log[:4]] == ["begin", "begin", "end", "end"]

    async def test_any_callable_can_handle(self, table: Table) -> None:
        class Recorder:
            def __init__(self) -> None:
                self.seen: list[Any] = []

            async def __call__(self, event: Event) -> None:
                self.seen.append(event)

            def method(self, event: Event) -> None:
                self.seen.append(event)

            def optional(self, event: Event, limit: int = 3) -> None:
                self.seen.append(limit)

        async with table.bus() as bus:
            recorder = Recorder()
            appended: list[Event] = []
            for function in (recorder, recorder.method, recorder.optional, appended.append):
                bus.subscribe(Ping, function)
            await bus.publish_and_wait(Ping(1))
        assert recorder.seen == [Ping(1), Ping(1), 3]
        assert appended == [Ping(1)]

    async def test_what_cannot_handle_is_refused(self, table: Table) -> None:
        async def generator(event: Ping) -> Any:
            yield event

        async with table.bus() as bus:
            with pytest.raises(UsageError):
                bus.subscribe(Ping, lambda: None)
            with pytest.raises(UsageError):
                bus.subscribe(Ping, generator)
            with pytest.raises(UsageError):
                bus.subscribe(17, print)  # type: ignore[arg-type]
            with pytest.raises(InvalidOption):
                bus.subscribe(Ping, print, concurrency=0)
            with pytest.raises(UsageError):
                bus.subscribe(Ping, print, no_such_option=1)
            assert bus.topics() == []

    # Context

    async def test_context_does_not_leak_from_one_message_to_the_next(self, table: Table) -> None:
        async with table.bus() as bus:
            seen: list[str] = []

            @bus.on(Ping)
            async def handle(event: Ping) -> None:
                seen.append(WHO.get())
                WHO.set(f"handler of {event.number}")
                if event.number % 2:
                    await table.idle()
                seen.append(WHO.get())

            for number in range(3):
                await bus.publish(Ping(number))
            await bus.settle()
            await bus.publish_and_wait(Ping(3))
            assert WHO.get() == "nobody"
        expected = [f"handler of {number}" for number in range(4)]
        assert seen == [word for mine in expected for word in ("nobody", mine)]

    async def test_context_of_a_publisher_does_not_leak_to_the_events_of_others(
        self, table: Table
    ) -> None:
        """A pump outlives the message that woke it, and must not keep its context."""
        gate = Gate()
        async with table.bus() as bus:
            seen: dict[int, str] = {}

            @bus.on(Ping)
            async def wake(event: Ping) -> None:
                WHO.set("alice")
                await bus.publish(Pong(1))

            @bus.on(Pong)
            async def handle(event: Pong) -> None:
                await gate.wait()
                seen[event.number] = WHO.get()

            await bus.publish(Ping())
            await table.idle()
            await bus.publish(Pong(2))
            gate.open()
            await bus.settle()
        assert seen[2] == "nobody"

    async def test_what_follows_from_a_message_is_linked_to_it(self, table: Table) -> None:
        async with table.bus() as bus:
            envelopes: dict[str, Envelope] = {}

            @bus.on(Ping)
            async def first(event: Ping, envelope: Envelope) -> None:
                envelopes["ping"] = envelope
                assert current_envelope() is envelope
                await bus.publish(Pong())

            @bus.on(Pong)
            def second(event: Pong, envelope: Envelope) -> None:
                envelopes["pong"] = envelope

            await bus.publish(Ping(), headers={"tenant": "a"}, correlation_id="c-1")
            await bus.settle()
            assert current_envelope() is None
        ping, pong = envelopes["ping"], envelopes["pong"]
        assert (ping.correlation, pong.correlation) == ("c-1", "c-1")
        assert (ping.causation_id, pong.causation_id) == (None, ping.id)
        assert dict(ping.headers) == {"tenant": "a"}

    # asyncio inside

    async def test_a_handler_may_use_timeouts(self, table: Table) -> None:
        async with table.bus() as bus:
            seen: list[str] = []

            @bus.on(Ping)
            async def handle(event: Ping) -> None:
                try:
                    async with asyncio.timeout(0):
                        await asyncio.get_running_loop().create_future()
                except TimeoutError:
                    seen.append("timeout")
                async with asyncio.timeout(60):
                    await table.idle()
                seen.append("in time")

            await bus.publish(Ping())
            await bus.publish(Ping())
            await bus.settle()
            await bus.publish_and_wait(Ping())
        assert seen == ["timeout", "in time"] * 3
        assert bus.statistics().events_processed == 3

    async def test_a_handler_may_use_task_groups(self, table: Table) -> None:
        async with table.bus() as bus:
            seen: list[str] = []

            async def child(name: str) -> None:
                await asyncio.sleep(0)
                seen.append(name)

            async def failing() -> None:
                raise ValueError

            @bus.on(Ping)
            async def handle(event: Ping) -> None:
                async with asyncio.TaskGroup() as group:
                    group.create_task(child("a"))
                    group.create_task(child("b"))
                try:
                    async with asyncio.TaskGroup() as group:
                        group.create_task(failing())
                        group.create_task(asyncio.Event().wait())
                except* ValueError:
                    seen.append("failed")

            await bus.publish(Ping())
            await bus.settle()
            outcome = await bus.publish_and_wait(Ping())
        assert seen == ["a", "b", "failed"] * 2
        assert outcome.success

    @pytest.mark.parametrize("waits", [False, True])
    @pytest.mark.parametrize("batch", [None, 2])
    async def test_a_handler_that_raises_cancelled_error_fails(
        self, table: Table, *, waits: bool, batch: int | None
    ) -> None:
        async with table.bus() as bus:
            others: list[int] = []

            @bus.on(Ping, batch=batch)
            async def handle(event: Any) -> None:
                if waits:
                    await table.idle()
                raise asyncio.CancelledError

            bus.subscribe(Ping, lambda event: others.append(event.number))
            await bus.publish(Ping(1))
            await bus.publish(Ping(2))
            await table.until(bus.settle())
            outcome = await table.until(bus.publish_and_wait(Ping(3)))
        assert others == [1, 2, 3]
        assert not outcome.success
        assert bus.statistics().events_failed == 3

    async def test_a_handler_that_cancels_its_own_task_fails_in_the_end(self, table: Table) -> None:
        """It looks like a cancellation from outside, after which the event comes again."""
        async with table.bus() as bus:
            calls = 0

            @bus.on(Ping)
            async def handle(event: Ping) -> None:
                nonlocal calls
                calls += 1
                if event.number == 0:
                    task = asyncio.current_task()
                    assert task is not None
                    task.cancel()
                    await table.idle()

            await bus.publish(Ping(0))
            await bus.publish(Ping(1))
            await table.until(bus.settle())
        assert (bus.statistics().events_failed, bus.statistics().events_processed) == (1, 1)
        assert calls < 100

    async def test_tasks_of_a_handler_go_on_without_it(self, table: Table) -> None:
        gate = Gate()
        tasks: list[asyncio.Task[None]] = []
        async with table.bus() as bus:
            seen: list[int] = []

            async def later() -> None:
                await gate.wait()
                await bus.publish_and_wait(Pong(1))
                await bus.settle()  # the handler is done: this is no part of its work

            bus.subscribe(Pong, lambda event: seen.append(event.number))
            bus.subscribe(Ping, lambda event: tasks.append(asyncio.create_task(later())))
            await bus.publish(Ping())
            await bus.settle()
            gate.open()
            await asyncio.gather(*tasks)
        assert seen == [1]

    # Concurrency

    @pytest.mark.acceptance(148)
    async def test_concurrency_lets_events_of_a_class_run_side_by_side(self, table: Table) -> None:
        gate = Gate()
        async with table.bus() as bus:
            inside = most = 0

            @bus.on(Ping, concurrency=3)
            async def handle(event: Ping) -> None:
                nonlocal inside, most
                inside += 1
                most = max(most, inside)
                await gate.wait()
                inside -= 1

            for number in range(10):
                await bus.publish(Ping(number))
            await table.idle()
            assert inside == 3
            gate.open()
            await bus.settle()
        assert most == 3

    @pytest.mark.acceptance(148)
    async def test_concurrency_keeps_the_order_of_each_key(self, table: Table) -> None:
        gate = Gate()
        async with table.bus() as bus:
            begun: dict[str, list[int]] = {}
            inside: set[str] = set()

            @bus.on(Keyed, concurrency=8)
            async def handle(event: Keyed) -> None:
                assert event.key not in inside, "two events of one key at once"
                inside.add(event.key)
                begun.setdefault(event.key, []).append(event.number)
                await gate.wait()
                inside.remove(event.key)

            for number in range(60):
                await bus.publish(Keyed("abc"[number % 3], number))
            for _ in range(60):
                await table.idle()
                assert len(inside) <= 3
                gate.let_in()
            await bus.settle()
        assert begun == {key: list(range(start, 60, 3)) for start, key in enumerate("abc")}
        assert bus.statistics().events_processed == 60

    async def test_keys_need_not_be_hashable(self, table: Table) -> None:
        async with table.bus() as bus:
            seen: list[int] = []

            @bus.on(Keyed, concurrency=4)
            async def handle(event: Keyed) -> None:
                await table.idle()
                seen.append(event.number)

            for number in range(4):
                await bus.publish(Keyed(["a list"], number))  # type: ignore[arg-type]
            await bus.settle()
        assert seen == [0, 1, 2, 3]
