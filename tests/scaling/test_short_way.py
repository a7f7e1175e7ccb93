"""The function that publishes into rings: compiled or not, it passes on what it is told, and notices closed ways."""

from typing import Any, cast

import pytest

from penstock import Event, MessageBus, ScalableMessageBus, hot_path
from penstock.bus.handlers import Handler
from penstock.bus.registry import Registry
from penstock.scaling import short_way
from penstock.scaling.hot_ring import HotRing
from penstock.scaling.short_way import ShortWay, make_publish_nowait
from penstock.speedups import compiled

BOTH = [
    pytest.param(False, id="python"),
    pytest.param(
        True,
        id="compiled",
        marks=pytest.mark.skipif(compiled is None, reason="penstock._speedups was not built"),
    ),
]


@hot_path
class First(Event, frozen=True):
    number: int


@hot_path
class Second(Event, frozen=True):
    number: int


class Way:
    """What the function knows of a bus."""

    publish: Any

    def __init__(self) -> None:
        self.rings: dict[type, HotRing] = {}
        self.asked: list[Any] = []
        self.long: list[tuple[Any, dict[str, Any]]] = []

    def put(self, event):
        self.asked.append(event)
        return type(event) in self.rings

    def go_long(self, event, options):
        self.long.append((event, options))


@pytest.fixture(params=BOTH)
def way(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(short_way, "compiled", None)
    way = Way()
    way.publish = make_publish_nowait(cast("ShortWay", way), way.go_long)
    return way


def open_ring(way, kind, count=100):
    way.rings[kind] = ring = HotRing(128)
    ring.open_for(count)
    return ring


def test_options_come_as_they_were_said(way):
    open_ring(way, First)
    way.publish(First(0), session="s", priority=0, headers=None, correlation_id="")
    way.publish(First(1), priority=2)
    assert way.long == [
        (First(0), {"session": "s", "priority": 0, "headers": None, "correlation_id": ""}),
        (First(1), {"priority": 2}),
    ]
    assert way.asked == []


def test_what_has_no_ring_goes_the_long_way(way):
    way.publish(First(0))
    assert way.asked == [First(0)]
    assert way.long == [(First(0), {})]


def test_an_open_ring_is_written_until_it_closes(way):
    ring = open_ring(way, First, count=3)
    for number in range(3):
        way.publish(First(number))
    assert ring.value + len(way.asked) == 3
    ring.close_way()
    way.publish(First(3))
    assert way.asked[-1] == First(3)


def test_each_class_has_its_own_ring(way):
    first, second = open_ring(way, First), open_ring(way, Second)
    for number in range(10):
        way.publish(First(number))
        way.publish(Second(number))
        way.publish(Second(-number))
    asked = [type(one) for one in way.asked]
    assert first.value + asked.count(First) == 10
    assert second.value + asked.count(Second) == 20


def test_a_ring_that_was_replaced_is_not_written(way):
    old = open_ring(way, First)
    way.publish(First(0))
    way.publish(First(1))
    old.close_way()
    written = old.value
    new = open_ring(way, First)
    for number in range(2, 10):
        way.publish(First(number))
    assert old.value == written
    assert new.value + len(way.asked) + written == 10
    assert new.value > 5


def test_a_way_that_another_thread_opened_is_not_taken(way):
    ring = open_ring(way, First)
    way.publish(First(0))
    before = ring.value
    ring.thread += 1
    way.publish(First(1))
    assert ring.value == before
    assert way.asked[-1] == First(1)


async def test_a_handler_that_joins_meanwhile_gets_what_follows():
    """The rest of a turn is handled by both: the loop notices the change after the message."""
    got: list[int] = []
    late: list[int] = []

    def handle(event: First) -> None:
        got.append(event.number)
        if event.number == 3:
            bus.subscribe(First, lambda event: late.append(event.number))

    async with ScalableMessageBus(MessageBus()) as bus:
        bus.subscribe(First, handle)
        for number in range(10):
            bus.publish_nowait(First(number))
        await bus.settle()
    assert got == list(range(10))
    assert late == list(range(4, 10))


@pytest.mark.skipif(compiled is None, reason="penstock._speedups was not built")
def test_the_twin_is_told_of_every_change_of_handlers():
    """If it were not, it would end its turn after each message."""
    registry: Any = Registry()
    handlers = [Handler(print, First), Handler(print, First)]
    for handler in handlers:
        registry.add(handler)
        assert registry.changes.value == registry.version > 0
    registry.remove(handlers[0])
    assert registry.changes.value == registry.version == 3


async def test_an_unknown_option_is_refused():
    async with ScalableMessageBus(MessageBus()) as bus:
        with pytest.raises(TypeError, match="sesion"):
            bus.publish_nowait(First(1), sesion="s")
