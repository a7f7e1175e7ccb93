"""Reading past damage, entry by entry: what counts as the next one."""

from typing import Any

import pytest

from penstock.log import segment, walk
from penstock.log.columns import Columns
from penstock.log.frame import HEADER_BYTES, Draft, draft, entries
from penstock.log.segment import SegmentSource
from penstock.log.walk import Stretch, Walker
from tests.log.strategies import values_draft
from tests.log.test_forged_segments import START, forged, stored

FIRST = len(forged(START))
"""Where the first entry behind the start stands."""


def told(source: SegmentSource, data: bytes, limit: int | None = None) -> list[Any]:
    """The positions of the sound entries, and the stretches."""
    source.store.write(source.key, data)
    steps = Walker(source, len(data) if limit is None else limit).steps()
    return [step[:2] if isinstance(step, Stretch) else step.position for step in steps]


def positions(data: bytes) -> list[int]:
    return [entry.position for entry in entries(data)]


def without_marks(data: bytes, position: int) -> bytes:
    """Nothing of the header is left but its length, so that nobody knows what chains to it."""
    return data[: position + 4] + bytes(HEADER_BYTES - 4) + data[position + HEADER_BYTES :]


def looking_like_an_entry(base: int) -> bytes:
    """A value that is a whole entry."""
    return forged(values_draft(b"a value"), base=base, previous=77)


def test_a_header_is_found_at_every_place_and_up_to_any_limit(monkeypatch):
    whole = b"x" + forged(START, values_draft(b"0"), values_draft(b"1" * 90))
    source = stored(START)
    source.store.write(source.key, whole)
    places = [one + 1 for one in positions(whole[1:])]
    for size in range(1, len(whole)):
        monkeypatch.setattr(segment, "CHUNK_BYTES", size)
        found = [place for place, _ in source.headers(0, len(whole))]
        assert sorted(set(found)) == places
        assert found == sorted(found)
    monkeypatch.setattr(segment, "CHUNK_BYTES", 100)
    for limit in range(len(whole)):
        wanted = [one for one in places if one + HEADER_BYTES <= limit]
        assert sorted({place for place, _ in source.headers(0, limit)}) == wanted
        assert all(header.length for _, header in source.headers(places[1], limit))


def test_a_byte_too_many_costs_nothing_else():
    whole = forged(START, values_draft(b"0"), values_draft(b"1"))
    second = positions(whole)[2]
    steps = told(stored(START), whole[:second] + b"x" + whole[second:])
    assert steps == [0, FIRST, (second, second + 1), second + 1]


def test_what_chains_to_the_damaged_entry_is_the_next_one_whatever_looks_like_it():
    inside = looking_like_an_entry(base=1)
    whole = forged(START, values_draft(inside), values_draft(b"1"))
    second = positions(whole)[2]
    # The length, a field, and what the next one chains to.
    for place in (0, 30, HEADER_BYTES - 1):
        hurt = bytearray(whole)
        hurt[FIRST + place] ^= 1
        assert told(stored(START), bytes(hurt)) == [0, (FIRST, second), second]


def test_without_a_chain_the_first_that_can_follow_is_the_next_one():
    older, newer = looking_like_an_entry(base=0), looking_like_an_entry(base=9)
    whole = forged(START, values_draft(b"0"), values_draft(older), values_draft(newer, b"2"))
    _, _, second, third = positions(whole)
    hurt = without_marks(whole, second)
    assert told(stored(START), hurt) == [0, FIRST, (second, third), third]


def test_the_last_entry_is_passed_over_as_a_whole():
    whole = forged(START, values_draft(looking_like_an_entry(base=5)))
    hurt = without_marks(whole, FIRST)
    assert told(stored(START), hurt) == [0, (FIRST, len(whole))]


def test_nothing_behind_the_limit_is_looked_at():
    whole = forged(START, values_draft(b"0"), values_draft(b"1"))
    second = positions(whole)[2]
    hurt = bytearray(whole)
    hurt[FIRST + 30] ^= 1
    for limit in (FIRST + 10, second, second + HEADER_BYTES, len(whole) - 1):
        assert told(stored(START), bytes(hurt), limit)[:1] == [0]
        assert told(stored(START), bytes(hurt), limit)[-1][-1] == limit


@pytest.mark.parametrize("beyond", [0, 1])
def test_no_entry_reaches_further_than_one_can(monkeypatch, beyond):
    """What chains to the damaged entry from further away is not the next one, if another can be."""
    whole = forged(START, values_draft(b"0"), values_draft(b"1" * 9))
    second = positions(whole)[2]
    between = forged(values_draft(b"b"), base=7, previous=77)
    hurt = bytearray(whole[:second] + between + whole[second:])
    hurt[FIRST + 30] ^= 1
    monkeypatch.setattr(walk, "ENTRY_BYTES_MAX", second + len(between) - FIRST - beyond)
    following = second if beyond else second + len(between)
    assert told(stored(START), bytes(hurt))[1] == (FIRST, following)


def with_offsets(*offsets: int, span: int) -> Draft:
    batch = Columns([b"v"] * len(offsets), None, None, None, list(offsets))
    flags, body = batch.encode()
    return draft(flags, body, len(offsets), offset_span=span)


@pytest.mark.parametrize(
    ("offsets", "span", "sound"),
    [
        ((0, 2, 3), 4, True),
        ((3,), 4, True),
        ((0, 0, 3), 4, False),
        ((0, 2, 2), 4, False),
        ((2, 1, 3), 4, False),
        ((0, 2, 4), 4, False),
        ((4,), 4, False),
    ],
)
def test_offsets_rise_and_stay_within_the_entry(offsets, span, sound):
    data = forged(START, with_offsets(*offsets, span=span))
    assert told(stored(START), data) == [0, FIRST if sound else (FIRST, len(data))]
