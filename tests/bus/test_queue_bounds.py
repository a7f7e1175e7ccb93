"""The bounds of a lane's queue: what makes room is counted and told, and the marks are apart."""

import pytest

from penstock.bus.bus import MessageBus
from penstock.bus.intake import QueueOptions
from penstock.bus.queue import CAPACITY_MAX, BoundedEventQueue, Overflow
from penstock.errors import InvalidOption
from penstock.messages import Envelope, Event, Priority


class Ping(Event):
    pass


def event(number: int, priority: Priority = Priority.NORMAL) -> Envelope:
    return Envelope(f"event {number}", number, 0, "test", priority=priority)


def test_an_event_that_makes_room_is_counted_and_told():
    told: list[Envelope] = []
    queue = BoundedEventQueue(2, overflow=Overflow.DROP_OLDEST, on_drop=told.append)
    assert all(queue.offer(event(number)) for number in range(4))
    assert [one.message for one in told] == ["event 0", "event 1"]
    assert queue.statistics().dropped == 2
    assert [one.message for one in queue.drain()] == ["event 2", "event 3"]


def test_an_event_that_is_refused_is_counted_and_not_kept():
    queue = BoundedEventQueue(1, overflow=Overflow.REJECT_NEW)
    assert queue.offer(event(0))
    assert not queue.offer(event(1))
    assert (queue.statistics().rejected, len(queue)) == (1, 1)


def test_pressure_ends_at_the_low_mark_and_not_before():
    changes: list[bool] = []
    queue = BoundedEventQueue(10, on_pressure=changes.append)
    for number in range(8):
        queue.offer(event(number))
    assert changes == [True]
    while queue.depth > 6:
        queue.take()
    assert changes == [True]
    queue.take()
    assert changes == [True, False]


@pytest.mark.parametrize("high_mark", [0.8, 1.0])
async def test_a_queue_may_be_larger_than_the_memory(high_mark):
    async with MessageBus(queue=QueueOptions(CAPACITY_MAX, high_mark=high_mark)) as bus:
        bus.subscribe(Ping, lambda _: None)
        await bus.publish(Ping())
        await bus.settle()
    assert bus.statistics().events_processed == 1


@pytest.mark.parametrize("capacity", [0, CAPACITY_MAX + 1, 10**30])
def test_a_queue_that_cannot_be_is_refused_where_it_is_asked_for(capacity):
    with pytest.raises(InvalidOption, match="use 1 to"):
        QueueOptions(capacity)
