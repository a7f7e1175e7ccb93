"""The queue of a lane: who overtakes whom, and how often."""

import pytest

from penstock.bus.queue import OVERTAKES_MAX, BoundedEventQueue
from penstock.messages import Envelope, Priority


@pytest.mark.acceptance(120)
def test_after_so_many_overtakings_one_has_its_turn_and_the_count_begins_anew():
    queue = BoundedEventQueue()
    for number in range(3):
        queue.offer(Envelope("low", number, 0, "test", priority=Priority.LOW))
    for number in range(3, 53):
        queue.offer(Envelope("high", number, 0, "test", priority=Priority.HIGH))
    taken = [envelope.message for envelope in queue.drain()]
    turns = [place for place, message in enumerate(taken) if message == "low"]
    assert turns == [OVERTAKES_MAX, 2 * OVERTAKES_MAX + 1, 3 * OVERTAKES_MAX + 2]
