"""The bus suite: handlers that publish, wait and execute inside themselves. Nothing deadlocks."""

from __future__ import annotations

import asyncio

import pytest

from penstock.bus.intake import QueueOptions
from penstock.errors import BufferFull, WouldDeadlock
from penstock.testing.bus_fixtures import Ask, BusFixtures, Gate, Keyed, Ping, Pong, Table

ONE = QueueOptions(capacity=1)


class NestingConformance(BusFixtures):
    """What a handler that uses the bus can rely on. No time passes in any of these."""

    @pytest.mark.acceptance(147)
    @pytest.mark.parametrize("filtered", [False, True])
    @pytest.mark.parametrize("waits", [False, True])
    @pytest.mark.parametrize("start", ["publish", "publish_and_wait", "execute"])
    async def test_publish_and_wait_for_the_same_class(
        self, table: Table, start: str, *, waits: bool, filtered: bool
    ) -> None:
        async with table.bus(queue=ONE) as bus:
            seen: list[int] = []
            if filtered:
                bus.add_filter(lambda envelope: envelope.message.number != 3)

            @bus.on(Ping)
            async def handle(event: Ping) -> None:
                if waits:
                    await table.idle()
                if event.number:
                    outcome = await bus.publish_and_wait(Ping(event.number - 1))
                    assert outcome.filtered is (filtered and event.number == 4)
                seen.append(event.number)

            bus.handle(Ask, lambda command: bus.publish_and_wait(Ping(command.number)))
            if start == "publish":
                await bus.publish(Ping(5))
            elif start == "publish_and_wait":
                await bus.publish_and_wait(Ping(5))
            else:
                assert (await bus.execute(Ask(5))).success
            await bus.settle()
        assert seen == ([4, 5] if filtered else [0, 1, 2, 3, 4, 5])
        assert table.clock.monotonic() == 0.0

    @pytest.mark.acceptance(147)
    @pytest.mark.parametrize("waits", [False, True])
    async def test_cycles_of_classes(self, table: Table, *, waits: bool) -> None:
        async with table.bus(queue=ONE) as bus:
            seen: list[str] = []

            @bus.on(Ping)
            async def ping(event: Ping) -> None:
                if waits:
                    await table.idle()
                if event.number:
                    await bus.publish_and_wait(Pong(event.number - 1))
                seen.append(f"ping {event.number}")

            @bus.on(Pong)
            async def pong(event: Pong) -> None:
                if event.number:
                    await bus.publish_and_wait(Ping(event.number - 1))
                seen.append(f"pong {event.number}")

            await bus.publish(Ping(3))
            await bus.publish(Pong(1))
            await bus.settle()
        assert sorted(seen) == ["ping 0", "ping 1", "ping 3", "pong 0", "pong 1", "pong 2"]
        assert table.clock.monotonic() == 0.0

    @pytest.mark.acceptance(147)
    async def test_commands_and_events_inside_each_other(self, table: Table) -> None:
        async with table.bus(queue=ONE) as bus:

            @bus.handles(Ask)
            async def answer(command: Ask) -> int:
                if command.number == 0:
                    return 1
                totals: list[int] = []
                handler = bus.subscribe(
                    Pong, lambda event: totals.append(event.number), name=f"h{command.number}"
                )
                await bus.publish_and_wait(Ping(command.number - 1))
                handler.close()
                return sum(totals)

            @bus.on(Ping)
            async def ping(event: Ping) -> None:
                below = await bus.send(Ask(event.number))
                await bus.publish_and_wait(Pong(below + 1))

            assert await bus.send(Ask(3)) >= 1
            await bus.publish(Ping(2))
            await bus.settle()
        assert table.clock.monotonic() == 0.0

    @pytest.mark.acceptance(147)
    @pytest.mark.parametrize("way", ["publish", "publish_nowait", "atomic"])
    async def test_publishing_into_a_full_queue_of_its_own_does_not_wait(
        self, table: Table, way: str
    ) -> None:
        async with table.bus(queue=QueueOptions(capacity=4)) as bus:
            seen: list[int] = []

            @bus.on(Ping)
            async def handle(event: Ping) -> None:
                await table.idle()
                if event.number < 4:
                    following = Ping(event.number + 10)
                    if way == "publish":
                        await bus.publish(following)
                    elif way == "publish_nowait":
                        bus.publish_nowait(following)
                    else:
                        async with bus.atomic() as group:
                            group.publish(following)
                seen.append(event.number)

            for number in range(4):
                await bus.publish(Ping(number))
            await bus.settle()
        assert seen == [0, 1, 2, 3, 10, 11, 12, 13]
        assert table.clock.monotonic() == 0.0

    @pytest.mark.acceptance(147)
    async def test_an_avalanche_is_bounded(self, table: Table) -> None:
        """A handler that publishes without end is told so, at twice the bound."""
        async with table.bus(queue=QueueOptions(capacity=5)) as bus:
            published = 0
            refused: list[BufferFull] = []

            @bus.on(Ping)
            async def handle(event: Ping) -> None:
                nonlocal published
                if event.number:
                    return
                try:
                    for _ in range(100):
                        await bus.publish(Ping(1))
                        published += 1
                except BufferFull as error:
                    refused.append(error)

            await bus.publish(Ping(0))
            await bus.settle()
        assert (published, len(refused)) == (10, 1)

    @pytest.mark.acceptance(147)
    async def test_waiting_inside_tasks_of_a_handler(self, table: Table) -> None:
        async with table.bus(queue=ONE) as bus:
            seen: list[int] = []

            @bus.on(Ping)
            async def handle(event: Ping) -> None:
                if event.number < 3:
                    async with asyncio.TaskGroup() as group:
                        for _ in range(2):
                            group.create_task(bus.publish_and_wait(Ping(event.number + 1)))
                seen.append(event.number)

            await bus.publish(Ping(0))
            await bus.settle()
        assert sorted(seen) == [0, *[1] * 2, *[2] * 4, *[3] * 8]

    async def test_a_handler_cannot_wait_for_the_bus_to_settle(self, table: Table) -> None:
        async with table.bus() as bus:
            caught: list[Exception] = []

            async def handle(message: object) -> None:
                try:
                    await bus.settle()
                except WouldDeadlock as error:
                    caught.append(error)

            bus.subscribe(Ping, handle)
            bus.subscribe(Pong, handle, batch=2)
            bus.handle(Ask, handle)
            await bus.publish(Ping())
            await bus.publish(Pong())
            await bus.settle()
            await bus.execute(Ask())
        assert len(caught) == 3

    @pytest.mark.acceptance(147)
    async def test_with_keys_and_concurrency(self, table: Table) -> None:
        async with table.bus(queue=QueueOptions(capacity=2)) as bus:
            seen: list[int] = []

            @bus.on(Keyed, concurrency=2)
            async def handle(event: Keyed) -> None:
                await table.idle()
                if event.number:
                    await bus.publish_and_wait(Keyed(event.key, event.number - 1))
                seen.append(event.number)

            for key in "ab":
                await bus.publish(Keyed(key, 3))
            await bus.settle()
        assert sorted(seen) == [0, 0, 1, 1, 2, 2, 3, 3]

    # Slow classes

    @pytest.mark.acceptance(148)
    async def test_a_slow_class_delays_no_other(self, table: Table) -> None:
        gate = Gate()
        async with table.bus() as bus:
            seen: list[int] = []

            @bus.on(Ping)
            async def slow(event: Ping) -> None:
                await gate.wait()

            @bus.on(Pong)
            async def quick(event: Pong) -> None:
                seen.append(event.number)

            for number in range(100):
                await bus.publish(Ping(number))
                await bus.publish(Pong(number))
            await table.idle()
            assert (len(seen), gate.arrived) == (100, 1)
            await bus.publish_and_wait(Pong(100))
            gate.open()
            await bus.settle()

    @pytest.mark.acceptance(148)
    async def test_a_busy_class_lets_others_in(self, table: Table) -> None:
        """Handlers that never wait for anything share the loop all the same."""
        async with table.bus() as bus:
            order: list[str] = []
            bus.subscribe(Ping, lambda event: order.append("ping"))
            bus.subscribe(Pong, lambda event: order.append("pong"))
            for number in range(1_000):
                await bus.publish(Ping(number))
            await bus.publish(Pong())
            await bus.settle()
        assert order.index("pong") < 500
