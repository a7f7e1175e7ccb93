"""The bus suite: events, who gets them, in which order, and what filters keep away."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidOption, UsageError
from penstock.messages import Envelope, Event, Priority, topic
from penstock.testing.bus_fixtures import Boom, BusFixtures, Gate, Ping, Pong, Table

OVERTAKES = 16


class EventConformance(BusFixtures):
    """What publishers and handlers of events can rely on."""

    async def test_sync_and_async_handlers_get_every_event(self, table: Table) -> None:
        async with table.bus() as bus:
            sync_seen: list[int] = []
            async_seen: list[int] = []

            @bus.on(Ping)
            def note(event: Ping) -> None:
                sync_seen.append(event.number)

            @bus.on(Ping)
            async def note_later(event: Ping, envelope: Envelope) -> None:
                await table.idle()
                assert envelope.message is event
                async_seen.append(event.number)

            for number in range(5):
                await bus.publish(Ping(number))
            await bus.settle()
        assert sync_seen == async_seen == [0, 1, 2, 3, 4]
        assert bus.statistics().events_processed == 5

    @pytest.mark.parametrize("waits", [False, True])
    @pytest.mark.parametrize("waits_for_outcome", [False, True])
    async def test_a_failing_handler_stops_nobody(
        self, table: Table, *, waits: bool, waits_for_outcome: bool
    ) -> None:
        async with table.bus() as bus:
            seen: list[str] = []

            async def fail(event: Ping) -> None:
                if waits:
                    await table.idle()
                raise Boom

            bus.subscribe(Ping, lambda event: seen.append("first"), priority=Priority.HIGH)
            bus.subscribe(Ping, fail)
            bus.subscribe(Ping, lambda event: seen.append("beside"))
            bus.subscribe(Ping, lambda event: seen.append("after"), priority=Priority.LOW)
            if waits_for_outcome:
                outcome = await table.until(bus.publish_and_wait(Ping()))
                assert (outcome.success, outcome.handled) == (False, 3)
                assert [type(failure.error) for failure in outcome.failures] == [Boom]
            else:
                await bus.publish(Ping())
                await table.until(bus.settle())
        assert sorted(seen) == ["after", "beside", "first"]
        assert bus.statistics().events_failed == 1

    async def test_errors_are_told_with_handler_and_envelope(self, table: Table) -> None:
        async with table.bus() as bus:
            told: list[tuple[str, str, BaseException]] = []

            def broken(*arguments: Any) -> None:
                raise Boom

            bus.on_error(broken)
            bus.on_error(
                lambda handler, envelope, error: told.append((handler.name, envelope.id, error))
            )

            def fail(event: Ping) -> None:
                raise Boom(event.number)

            bus.subscribe(Ping, fail, name="failing")
            await table.until(bus.publish_and_wait(Ping(3)))
        assert {(name, error.args) for name, _, error in told} == {("failing", (3,))}
        assert len({envelope_id for _, envelope_id, _ in told}) == 1

    async def test_an_event_that_nobody_wants_is_counted(self, table: Table) -> None:
        async with table.bus() as bus:
            await bus.publish(Ping())
            outcome = await bus.publish_and_wait(Ping())
            await bus.settle()
        assert (outcome.handled, outcome.success) == (0, True)
        assert bus.statistics().events_unhandled == 2

    @pytest.mark.parametrize("wrong", [None, 1, "text", Ping, {"a": 1}, [Ping()]])
    async def test_what_is_not_a_message_is_refused(self, table: Table, wrong: object) -> None:
        async with table.bus() as bus:
            with pytest.raises(UsageError):
                await bus.publish(wrong)
            with pytest.raises(UsageError):
                bus.publish_nowait(wrong)
            with pytest.raises(UsageError):
                await bus.publish_and_wait(wrong)

    # Waiting for the outcome

    @pytest.mark.acceptance(151)
    async def test_publish_and_wait_returns_when_all_handlers_are_done(self, table: Table) -> None:
        gate = Gate()
        async with table.bus() as bus:
            done: list[str] = []

            @bus.on(Ping)
            async def slow(event: Ping) -> None:
                await gate.wait()
                done.append("slow")

            bus.subscribe(Ping, lambda event: done.append("quick"), priority=Priority.LAST)
            waiting = table.until(bus.publish_and_wait(Ping(), timeout=1e6))
            gate.let_in()
            outcome = await waiting
            assert done == ["slow", "quick"]
        assert outcome.handled == 2
        outcome.unwrap()

    async def test_publish_and_wait_behind_others_keeps_the_order(self, table: Table) -> None:
        gate = Gate()
        async with table.bus() as bus:
            seen: list[int] = []

            @bus.on(Ping)
            async def handle(event: Ping) -> None:
                await gate.wait()
                seen.append(event.number)

            for number in range(3):
                await bus.publish(Ping(number))
            gate.open()
            await bus.publish_and_wait(Ping(3))
        assert seen == [0, 1, 2, 3]

    # Order

    @pytest.mark.acceptance(120)
    async def test_events_of_high_priority_overtake(self, table: Table) -> None:
        gate = Gate()
        seen: list[int] = []
        async with table.bus() as bus:

            @bus.on(Ping)
            async def handle(event: Ping) -> None:
                await gate.wait()
                seen.append(event.number)

            await bus.publish(Ping(-1))
            await table.idle()  # it is in work: nothing overtakes it
            for level in sorted(Priority, reverse=True):
                await bus.publish(Ping(level), priority=level)
            gate.open()
            await bus.settle()
        assert seen == [-1, 0, 10, 50, 90, 100]

    @pytest.mark.acceptance(120)
    async def test_overtaking_starves_nobody(self, table: Table) -> None:
        """A waiting event has its turn after a bounded number, though high ones never end."""
        seen: list[str] = []
        async with table.bus() as bus:

            @bus.on(Ping)
            async def handle(event: Ping, envelope: Envelope) -> None:
                seen.append("high" if envelope.priority == Priority.HIGH else "low")
                if seen.count("low") < 3:
                    bus.publish_nowait(Ping(), priority=Priority.HIGH)

            for _ in range(3):
                await bus.publish(Ping(), priority=Priority.LAST)
            await bus.publish(Ping(), priority=Priority.HIGH)
            await bus.settle()
        places = [place for place, what in enumerate(seen) if what == "low"]
        assert len(places) == 3
        gaps = [after - before for before, after in zip([-1, *places], places, strict=False)]
        assert max(gaps) <= OVERTAKES + 1

    async def test_a_priority_that_does_not_exist_is_refused(self, table: Table) -> None:
        async with table.bus() as bus:
            with pytest.raises(InvalidOption, match="NORMAL"):
                await bus.publish(Ping(), priority=51)

    # Who gets what

    @pytest.mark.acceptance(149)
    async def test_a_handler_of_a_base_class_gets_subclasses_when_asked(self, table: Table) -> None:
        class Special(Ping):
            pass

        async with table.bus() as bus:
            seen: list[str] = []
            bus.subscribe(Ping, lambda event: seen.append("exact"))
            bus.subscribe(Ping, lambda event: seen.append("family"), subclasses=True)
            bus.subscribe(Event, lambda event: seen.append("all"), subclasses=True)
            await bus.publish_and_wait(Special())
            assert seen == ["family", "all"]
            seen.clear()
            await bus.publish_and_wait(Ping())
            assert seen == ["exact", "family", "all"]

    @pytest.mark.acceptance(151)
    async def test_globs_match_topics(self, table: Table) -> None:
        @topic("storage.disk.full")
        class DiskFull(Event):
            pass

        @topic("network.down")
        class NetworkDown(Event):
            pass

        async with table.bus() as bus:
            seen: list[str] = []

            @bus.on("storage.*")
            def note(event: Event, envelope: Envelope) -> None:
                seen.append(envelope.topic)

            await bus.publish_and_wait(DiskFull())
            await bus.publish_and_wait(NetworkDown())
            assert bus.topics() == ["storage.*"]
        assert seen == ["storage.disk.full"]

    @pytest.mark.acceptance(151)
    async def test_who_unsubscribes_is_called_no_more(self, table: Table) -> None:
        async with table.bus() as bus:
            seen: list[int] = []
            for target in (Ping, "*"):
                handler = bus.subscribe(target, lambda event: seen.append(event.number))
                await bus.publish_and_wait(Ping(1))
                handler.close()
                handler.close()
                await bus.publish_and_wait(Ping(2))
            family = bus.subscribe(Event, lambda event: seen.append(9), subclasses=True)
            family.close()
            await bus.publish_and_wait(Ping(2))
            assert bus.topics() == []
        assert seen == [1, 1]

    @pytest.mark.acceptance(151)
    async def test_ten_thousand_topics_stay_subscribed(self, table: Table) -> None:
        async with table.bus() as bus:
            seen: list[int] = []
            kinds = [
                topic(f"many.{number}")(type(f"Many{number}", (Ping,), {}))
                for number in range(10_000)
            ]
            for kind in kinds:
                bus.subscribe(kind, lambda event: seen.append(event.number))
            assert len(bus.topics()) == 10_000
            for number, kind in enumerate(kinds):
                await bus.publish(kind(number))
            await table.until(bus.settle())
        assert sorted(seen) == list(range(10_000))

    # Filters

    @pytest.mark.acceptance(136)
    async def test_a_filter_of_a_handler_concerns_that_handler_alone(self, table: Table) -> None:
        async with table.bus() as bus:
            even: list[int] = []
            all_of_them: list[int] = []
            bus.subscribe(
                Ping,
                lambda event: even.append(event.number),
                where=lambda envelope: envelope.message.number % 2 == 0,
            )
            for number in range(4):
                await bus.publish(Ping(number))
            await bus.settle()
            assert bus.statistics().events_filtered == 2
            bus.subscribe(Ping, lambda event: all_of_them.append(event.number))
            for number in range(4):
                await bus.publish(Ping(number))
            await bus.settle()
        assert even == [0, 2, 0, 2]
        assert all_of_them == [0, 1, 2, 3]
        assert bus.statistics().events_filtered == 2

    @pytest.mark.acceptance(136)
    @pytest.mark.parametrize("waits", [False, True])
    async def test_a_filter_of_the_bus_keeps_events_out(self, table: Table, *, waits: bool) -> None:
        async with table.bus() as bus:
            seen: list[int] = []
            bus.subscribe(Ping, lambda event: seen.append(event.number))
            bus.add_filter(lambda envelope: envelope.message.number != 1)
            for number in range(3):
                if waits:
                    outcome = await bus.publish_and_wait(Ping(number))
                    assert outcome.filtered is (number == 1)
                else:
                    await bus.publish(Ping(number))
            await bus.settle()
        assert seen == [0, 2]
        assert bus.statistics().events_filtered == 1

    @pytest.mark.acceptance(136)
    async def test_a_filter_that_raises_is_a_failure_of_its_handler(self, table: Table) -> None:
        def broken(envelope: Envelope) -> bool:
            raise Boom

        async with table.bus() as bus:
            seen: list[int] = []
            bus.subscribe(Ping, lambda event: seen.append(-1), where=broken)
            bus.subscribe(Ping, lambda event: seen.append(event.number))
            await bus.publish(Ping(7))
            await table.until(bus.settle())
        assert 7 in seen
        assert bus.statistics().events_unsettled == 0

    async def test_different_classes_have_lanes_of_their_own(self, table: Table) -> None:
        gate = Gate()
        async with table.bus() as bus:
            seen: list[str] = []

            @bus.on(Ping)
            async def slow(event: Ping) -> None:
                await gate.wait()
                seen.append("ping")

            bus.subscribe(Pong, lambda event: seen.append("pong"))
            await bus.publish(Ping())
            await bus.publish(Pong())
            await table.idle()
            assert seen == ["pong"]
            gate.open()
            await bus.settle()
        assert seen == ["pong", "ping"]
