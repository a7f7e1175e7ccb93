"""The bus suite: two scopes, and several buses that know nothing of each other."""

from __future__ import annotations

import asyncio
import threading

import pytest

from penstock.errors import Closed, UsageError
from penstock.messages import DEFAULT_SESSION, Envelope
from penstock.testing.bus_fixtures import (
    Ask,
    Boom,
    BusFixtures,
    Gate,
    MakeBus,
    Ping,
    Table,
    check_books,
)


class SessionConformance(BusFixtures):
    """What sessions and neighbours can rely on."""

    @pytest.mark.acceptance(133)
    async def test_handlers_of_a_session_see_what_is_published_in_it(self, table: Table) -> None:
        async with table.bus() as bus:
            seen: list[tuple[str, int]] = []

            @bus.on(Ping)
            def everything(event: Ping, envelope: Envelope) -> None:
                seen.append((envelope.session, event.number))

            async with bus.session("a") as a, bus.session("b") as b:
                a.subscribe(Ping, lambda event: seen.append(("only a", event.number)))
                b.subscribe(Ping, lambda event: seen.append(("only b", event.number)))
                await a.publish_and_wait(Ping(1))
                await b.publish_and_wait(Ping(2))
                await bus.publish_and_wait(Ping(3))
                await a.publish(Ping(4))
                a.publish_nowait(Ping(5))
                await bus.settle()
        assert seen == [
            ("a", 1),
            ("only a", 1),
            ("b", 2),
            ("only b", 2),
            (DEFAULT_SESSION, 3),
            ("a", 4),
            ("only a", 4),
            ("a", 5),
            ("only a", 5),
        ]
        assert DEFAULT_SESSION == "BUS"

    @pytest.mark.acceptance(133)
    async def test_handlers_vanish_with_their_session_also_on_error(self, table: Table) -> None:
        async with table.bus() as bus:
            seen: list[str] = []
            with pytest.raises(Boom):
                async with bus.session("a") as session:
                    session.subscribe(Ping, lambda event: seen.append("event"))
                    session.on("*")(lambda event: seen.append("glob"))
                    session.handles(Ask)(lambda command: 1)
                    assert bus.statistics().active_sessions == 1
                    await session.publish_and_wait(Ping())
                    raise Boom
            assert seen == ["event", "glob"]
            assert bus.topics() == []
            assert bus.statistics().active_sessions == 0
            await bus.publish_and_wait(Ping(), session="a")
            assert seen == ["event", "glob"]
            assert not (await bus.execute(Ask(), session="a")).success

    @pytest.mark.acceptance(133)
    async def test_a_closed_session_says_so(self, table: Table) -> None:
        async with table.bus() as bus:
            async with bus.session("a") as session:
                pass
            session.close()
            with pytest.raises(Closed, match="'a'"):
                await session.publish(Ping())
            with pytest.raises(Closed):
                session.subscribe(Ping, print)
            async with bus.session("a"):
                pass

    @pytest.mark.acceptance(133)
    async def test_names_of_sessions(self, table: Table) -> None:
        async with table.bus() as bus, bus.session("a"):
            for wrong in ("", "BUS", "a"):
                with pytest.raises(UsageError):
                    bus.session(wrong)

    @pytest.mark.acceptance(133)
    async def test_a_session_is_bound_to_its_bus(self, table: Table) -> None:
        async with table.bus(name="one") as one, table.bus(name="two") as two:
            seen: list[str] = []
            one.subscribe(Ping, lambda event: seen.append("one"))
            two.subscribe(Ping, lambda event: seen.append("two"))
            async with one.session("s") as of_one, two.session("s") as of_two:
                of_one.subscribe(Ping, lambda event: seen.append("session of one"))
                await of_two.publish_and_wait(Ping())
                assert seen == ["two"]
                await of_one.publish_and_wait(Ping())
            assert seen == ["two", "one", "session of one"]

    @pytest.mark.acceptance(133)
    async def test_a_command_is_handled_by_its_session_first(self, table: Table) -> None:
        async with table.bus() as bus:
            bus.handle(Ask, lambda command: 1)
            async with bus.session("a") as session:
                assert await session.send(Ask()) == 1
                session.handles(Ask)(lambda command: 2)
                assert await session.send(Ask()) == 2
                assert (await session.execute(Ask())).result == 2
                assert await bus.send(Ask()) == 1
            assert await bus.send(Ask(), session="a") == 1

    async def test_what_a_session_has_begun_is_finished(self, table: Table) -> None:
        gate = Gate()
        async with table.bus() as bus:
            done: list[int] = []

            async def handle(event: Ping) -> None:
                await gate.wait()
                done.append(event.number)

            async with bus.session("a") as session:
                session.subscribe(Ping, handle)
                await session.publish(Ping(1))
                await session.publish(Ping(2))
                await table.idle()
            gate.open()
            await bus.settle()
        assert done == [1]
        assert bus.statistics().events_unhandled == 1

    # Neighbours

    @pytest.mark.acceptance(139)
    async def test_two_buses_in_one_loop(self, table: Table) -> None:
        async with table.bus(name="one") as one, table.bus(name="two") as two:
            seen: list[tuple[str, int]] = []
            one.subscribe(Ping, lambda event: seen.append(("one", event.number)))
            two.subscribe(Ping, lambda event: seen.append(("two", event.number)))
            two.handle(Ask, lambda command: 2)
            await one.publish_and_wait(Ping(1))
            await two.publish_and_wait(Ping(2))
            assert not (await one.execute(Ask())).success
            assert await two.send(Ask()) == 2
            await one.stop()
            await two.publish_and_wait(Ping(3))
        assert seen == [("one", 1), ("two", 2), ("two", 3)]
        assert one.statistics().events_published == 1
        assert two.statistics().events_published == 2

    @pytest.mark.acceptance(139)
    async def test_a_handler_of_one_bus_may_wait_for_another(self, table: Table) -> None:
        async with table.bus(name="one") as one, table.bus(name="two") as two:
            seen: list[str] = []

            @one.on(Ping)
            async def forward(event: Ping) -> None:
                await two.publish_and_wait(event)
                await two.settle()
                seen.append("one")

            @two.on(Ping)
            async def handle(event: Ping) -> None:
                await table.idle()
                seen.append("two")

            await one.publish(Ping())
            await one.settle()
        assert seen == ["two", "one"]

    @pytest.mark.acceptance(139)
    async def test_buses_in_different_threads_and_loops(self, make_bus: MakeBus) -> None:
        """Each of them publishes to the others' as well, from outside of their loops."""
        count = 200
        ready = threading.Barrier(3)
        published = threading.Barrier(3)
        buses = [make_bus(name=f"bus-{number}") for number in range(3)]
        seen: list[list[tuple[int, int]]] = [[], [], []]

        async def live(mine: int) -> None:
            async with buses[mine] as bus:
                bus.subscribe(Ping, lambda event: seen[mine].append(divmod(event.number, count)))
                await asyncio.to_thread(ready.wait, 30)
                for number in range(count):
                    for other in buses:
                        other.publish_nowait(Ping(mine * count + number))
                await asyncio.to_thread(published.wait, 30)
                await bus.settle()

        await asyncio.gather(*(asyncio.to_thread(asyncio.run, live(number)) for number in range(3)))
        for bus, mine in zip(buses, seen, strict=True):
            check_books(bus)
            assert len(mine) == 3 * count
            for publisher in range(3):
                numbers = [number for who, number in mine if who == publisher]
                assert numbers == list(range(count))
