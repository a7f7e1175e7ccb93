"""Offsets are right whoever shares an entry, and in whatever order they are asked for."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.transports.pulsar_index import Position
from penstock.transports.pulsar_places import Places, Run


class _Log:
    """Entries as a broker has them, and how often it was asked."""

    def __init__(self) -> None:
        self.first: dict[Position, int] = {}
        self.asked: list[Position] = []
        self._end = 0

    def store(self, position: Position, messages: int) -> None:
        self.first[position] = self._end
        self._end += messages

    async def first_of(self, position: Position) -> int:
        self.asked.append(position)
        await asyncio.sleep(0)
        return self.first[position]


async def test_an_entry_of_several_calls_is_counted_to_its_end():
    """Also when the first of them is the only one that asks."""
    log = _Log()
    log.store(Position(7, 0), 6)
    log.store(Position(7, 1), 3)
    places = Places(log.first_of)
    one = places.note([Run(Position(7, 0), 0, 3)])
    places.note([Run(Position(7, 0), 3, 3)])
    three = places.note([Run(Position(7, 1), 0, 3)])
    assert await one.offsets() == (0, 3)
    assert await three.offsets() == (6, 9)
    assert log.asked == [Position(7, 0)]


async def test_who_is_cancelled_while_it_asks_leaves_that_to_the_next():
    log = _Log()
    log.store(Position(7, 0), 2)
    places = Places(log.first_of)
    spans = [places.note([Run(Position(7, 0), place, 1)]) for place in (0, 1)]
    first = asyncio.create_task(spans[0].offsets())
    second = asyncio.create_task(spans[1].offsets())
    await asyncio.sleep(0)
    first.cancel()
    assert await second == (1, 2)
    assert first.cancelled()


ENTRIES = st.lists(
    st.tuples(st.booleans(), st.integers(1, 5), st.sampled_from(["next", "ledger", "forgotten"])),
    min_size=1,
    max_size=12,
).filter(lambda entries: any(mine for mine, _, _ in entries))


@given(entries=ENTRIES, data=st.data())
async def test_offsets_are_those_of_the_log(entries, data):
    """Entries of ours and of others, cut into calls anywhere."""
    log, position, offset = _Log(), Position(0, -1), 0
    messages: list[tuple[Position, int, int]] = []
    forgotten = set()
    for mine, count, how in entries:
        ledger, entry = position
        position = Position(ledger + 1, 0) if how == "ledger" else Position(ledger, entry + 1)
        log.store(position, count)
        if mine:
            if how == "forgotten":
                forgotten.add(len(messages))
            messages += [(position, place, offset + place) for place in range(count)]
        offset += count
    cuts = data.draw(st.sets(st.integers(1, len(messages))))
    places, spans, expected = Places(log.first_of), [], []
    for start, end in pairwise(sorted({0, len(messages)} | cuts | forgotten)):
        if start in forgotten:
            places.forget()
        part = messages[start:end]
        spans.append(places.note(_runs(part)))
        expected.append((part[0][2], part[-1][2] + 1))
    order = data.draw(st.permutations(range(len(spans))))
    found = await asyncio.gather(*(spans[one].offsets() for one in order))
    assert found == [expected[one] for one in order]


def _runs(part: list[tuple[Position, int, int]]) -> list[Run]:
    entries = {position: place for position, place, _ in reversed(part)}
    return [
        Run(position, place, sum(one == position for one, _, _ in part))
        for position, place in sorted(entries.items())
    ]
