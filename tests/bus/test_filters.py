from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from penstock.bus.bus import MessageBus
from penstock.bus.filters import (
    Filter,
    all_of,
    any_of,
    debug,
    in_session,
    matching,
    not_,
    of_type,
    rate,
    where,
    with_header,
    with_priority,
)
from penstock.errors import InvalidOption, UsageError
from penstock.messages import Envelope, Event, Priority, topic
from penstock.resilience.bus import ResilientMessageBus
from penstock.system import System
from penstock.testing.clock import VirtualClock


@topic("storage.added")
class Added(Event):
    size: int


class AddedTwice(Added):
    pass


@topic("billing.paid")
class Paid(Event):
    amount: int


def around(message: Any, **fields: Any) -> Envelope:
    return Envelope(message, 1, 0, "a", **fields)


SMALL, LARGE, TWICE, PAID = Added(1), Added(9), AddedTwice(5), Paid(7)
EVENTS = [SMALL, LARGE, TWICE, PAID]
Published = list[tuple[Any, dict[str, Any]]]

EVERY: list[tuple[str, Callable[[], Filter], list[Event]]] = [
    ("type", lambda: of_type(Added), [SMALL, LARGE, TWICE]),
    ("types", lambda: of_type(AddedTwice, Paid), [TWICE, PAID]),
    ("session", lambda: in_session("eu"), [LARGE]),
    ("no session", in_session, [SMALL, TWICE, PAID]),
    ("pattern", lambda: matching("storage.*"), [SMALL, LARGE]),
    ("custom", lambda: where(lambda event: getattr(event, "size", 0) > 4), [LARGE, TWICE]),
    ("envelope", lambda: Filter(lambda envelope: envelope.sequence > 2), [TWICE, PAID]),
    ("header", lambda: with_header("tenant"), [TWICE, PAID]),
    ("header value", lambda: with_header("tenant", "b"), [PAID]),
    ("priority", lambda: with_priority(Priority.HIGH), [SMALL]),
    ("rate", lambda: rate(3, 60, clock=VirtualClock()), [SMALL, LARGE, TWICE]),
    ("debug", debug, EVENTS),
    ("and", lambda: of_type(Added) & in_session("eu"), [LARGE]),
    ("or", lambda: in_session("eu") | of_type(Paid), [LARGE, PAID]),
    ("not", lambda: ~of_type(Added), [PAID]),
    ("composite", lambda: ~(of_type(Paid) | in_session("eu")) & matching("*added"), [SMALL]),
    ("all of", lambda: all_of(of_type(Added), where(lambda added: added.size > 4)), [LARGE, TWICE]),
    ("any of", lambda: any_of(of_type(Paid), of_type(AddedTwice)), [TWICE, PAID]),
    ("not_", lambda: not_(with_header("tenant")), [SMALL, LARGE]),
]


async def publish_all(bus: MessageBus) -> None:
    await bus.publish(SMALL, priority=Priority.HIGH)
    await bus.publish(LARGE, session="eu")
    await bus.publish(TWICE, headers={"tenant": "a"})
    await bus.publish(PAID, headers={"tenant": "b"})
    await bus.settle()


@pytest.fixture(params=[MessageBus, ResilientMessageBus])
async def bus(request):
    async with request.param(system=System(clock=VirtualClock())) as made:
        yield made


@pytest.mark.acceptance(136)
@pytest.mark.parametrize(
    ("make", "passed"), [one[1:] for one in EVERY], ids=[one[0] for one in EVERY]
)
async def test_every_filter_works_for_one_subscriber(bus, make, passed):
    seen: list[Event] = []
    everything: list[Event] = []
    bus.subscribe(Event, seen.append, subclasses=True, where=make())
    bus.subscribe(Event, everything.append, subclasses=True)
    await publish_all(bus)
    assert sorted(seen, key=EVENTS.index) == passed
    assert len(everything) == 4  # another subscriber's filter is none of its business
    assert bus.statistics().events_processed == 4


@pytest.mark.acceptance(136)
@pytest.mark.parametrize(
    ("make", "passed"), [one[1:] for one in EVERY], ids=[one[0] for one in EVERY]
)
async def test_every_filter_works_for_the_bus(bus, make, passed):
    seen: list[Event] = []
    bus.subscribe(Event, seen.append, subclasses=True)
    bus.add_filter(make())
    await publish_all(bus)
    assert sorted(seen, key=EVENTS.index) == passed
    figures = bus.statistics()
    assert figures.events_processed == len(passed)
    assert figures.events_filtered == 4 - len(passed)


async def test_what_all_subscribers_filter_counts_as_filtered(bus):
    handler = bus.subscribe(Added, lambda event: None, where=where(lambda added: added.size > 4))
    await bus.publish(SMALL)
    await bus.settle()
    assert (handler.filtered, handler.handled) == (1, 0)
    assert bus.statistics().events_filtered == 1


def test_rate_slides(monkeypatch):
    clock = VirtualClock()
    passes = rate(2, 1.0, clock=clock)
    assert [passes(around(SMALL)) for _ in range(3)] == [True, True, False]
    clock.advance(0.999)
    assert not passes(around(SMALL))
    clock.advance(0.001)
    assert [passes(around(SMALL)) for _ in range(3)] == [True, True, False]


def test_no_window_has_more_than_the_limit():
    clock = VirtualClock()
    passes = rate(10, 1.0, clock=clock)
    moments = []
    for _ in range(500):
        clock.advance(0.013)
        if passes(around(SMALL)):
            moments.append(clock.monotonic())
    assert len(moments) > 50
    assert all(late - early >= 1.0 for early, late in zip(moments, moments[10:], strict=False))


def test_the_right_side_is_asked_only_when_needed():
    calls: list[int] = []

    def note(envelope: Envelope) -> bool:
        calls.append(1)
        return True

    count = Filter(note)
    assert not (of_type(Paid) & count)(around(SMALL))
    assert (of_type(Added) | count)(around(SMALL))
    assert not calls
    assert (of_type(Added) & count)(around(SMALL))
    assert len(calls) == 1


def test_plain_functions_combine_with_filters():
    def large(envelope: Envelope) -> bool:
        return bool(envelope.message.size > 4)

    assert (large & of_type(Added))(around(LARGE))
    assert (of_type(Added) & large)(around(LARGE))
    assert (large | of_type(Added))(around(SMALL))
    assert repr(large & ~of_type(Paid)) == "(large & ~of_type(Paid))"


@pytest.mark.parametrize("bits", range(8))
def test_combinations_obey_the_laws_of_logic(bits):
    def constant(at: int) -> Filter:
        return Filter(lambda envelope: bits >> at & 1)

    a, b, c = map(constant, range(3))
    event = around(SMALL)
    assert (~(a & b))(event) == (~a | ~b)(event)
    assert (~(a | b))(event) == (~a & ~b)(event)
    assert (a & (b | c))(event) == ((a & b) | (a & c))(event)
    assert (~~a)(event) == a(event)
    assert all_of()(event)
    assert not any_of()(event)


def test_debug_logs_and_passes(caplog):
    caplog.set_level(logging.INFO, "shop")
    assert debug(logging.getLogger("shop"), level=logging.INFO, label="seen")(around(PAID))
    assert caplog.messages == ["seen billing.paid a-1 in BUS"]


def test_wrong_filters_are_refused():
    with pytest.raises(UsageError):
        of_type()
    for wrong in (lambda: rate(0), lambda: rate(1, 0), lambda: rate(10**9), lambda: matching("")):
        with pytest.raises(InvalidOption):
            wrong()
