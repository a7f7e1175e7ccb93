"""A key may be what has no hash, as a list: its events are ordered, blocked and refused as those of any key."""

from typing import Any

import pytest

from penstock import Event, ResilientMessageBus, topic
from penstock.hashing import hashable
from penstock.resilience.breaker import BreakerOptions
from penstock.resilience.letters import DeadLetterFilter
from penstock.resilience.retry import NO_RETRY, Retry
from penstock.testing.bus_fixtures import check_books


@topic("odd", key="parts")
class Odd(Event):
    parts: list[int]
    number: int = 0


def test_what_stands_for_a_key_is_the_same_for_equal_keys():
    assert hashable([1, 2]) == hashable([1, 2]) != hashable([2, 1])
    assert (hashable("a"), hashable(None)) == ("a", None)


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], list[int], int]] = {
    "an open circuit": ({"retry": NO_RETRY, "breaker": BreakerOptions(failures=1)}, {}, [0], 3),
    "a retry": ({"retry": Retry(attempts=2, delay=0)}, {"ordered": True}, [0, 0, 1, 2], 1),
    "a dead letter": ({"retry": NO_RETRY}, {"ordered_dead_letters": True}, [0], 3),
}


@pytest.mark.parametrize("case", list(CASES))
async def test_events_of_a_key_without_a_hash_are_handled_as_others(case):
    options, of_handler, called, letters = CASES[case]
    calls = []

    def handle(event):
        calls.append(event.number)
        if event.number == 0:
            raise ValueError("the first one fails")

    async with ResilientMessageBus(**options) as bus:
        bus.on_error(lambda *_: None)
        bus.subscribe(Odd, handle, **of_handler)
        for number in range(3):
            bus.publish_nowait(Odd([1], number))
        await bus.settle(timeout=5)
        assert (calls, len(bus.dead_letters)) == (called, letters)
    check_books(bus)


async def test_a_key_without_a_hash_is_free_again_when_its_letters_are_gone():
    fails = True
    handled = []

    def handle(event):
        if fails:
            raise ValueError
        handled.append(event.number)

    async with ResilientMessageBus(retry=NO_RETRY) as bus:
        bus.on_error(lambda *_: None)
        bus.subscribe(Odd, handle, ordered_dead_letters=True)
        await bus.publish_and_wait(Odd([1], 0))
        fails = False
        await bus.dead_letters.purge(DeadLetterFilter())
        await bus.publish_and_wait(Odd([1], 1))
        assert handled == [1]
