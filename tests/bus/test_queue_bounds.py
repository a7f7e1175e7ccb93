"""The bounds of a lane's queue: what makes room is counted and told, and the marks are apart."""

from penstock.bus.queue import BoundedEventQueue, Overflow
from penstock.messages import Envelope, Priority


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
