"""Segments: start and end entries, reading in chunks of any size, listing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DamagedEntry, DamageError
from penstock.log.frame import KIND_END, KIND_RECORDS, KIND_START, entries, seal
from penstock.log.names import PartitionKeys, SegmentName
from penstock.log.segment import (
    END_BYTES,
    LINK_REPLACED,
    SegmentEnd,
    SegmentSource,
    SegmentStart,
    list_segments,
)
from penstock.stores.memory import MemoryStore
from tests.log.strategies import KEYS, machine, values_draft

U64 = st.integers(0, (1 << 64) - 1)
U32 = st.integers(0, (1 << 32) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)


def sealed_entry(draft):
    (entry,) = entries(b"".join(seal(draft, 5, 0, 0, 9)[0]))
    return entry


@given(st.binary(min_size=16, max_size=16), U32, U32, st.text(min_size=1, max_size=200))
def test_a_start_entry_reads_back(log_id, partition, rewrite, topic):
    start = SegmentStart(log_id, partition, rewrite, topic)
    assert SegmentStart.parse(sealed_entry(start.draft())) == start


@given(U64, U64, U64, U64, I64, I64, st.sampled_from([0, LINK_REPLACED]), U32)
def test_an_end_entry_reads_back(records, first, next_offset, size, oldest, newest, flags, link):
    end = SegmentEnd(records, first, next_offset, size, oldest, newest, flags, link)
    entry = sealed_entry(end.draft())
    assert SegmentEnd.parse(entry) == end
    assert entry.header.entry_bytes == END_BYTES
    assert end.chain_on(77) == (link if flags else 77)


def test_one_kind_is_not_taken_for_another():
    for entry in (sealed_entry(values_draft(b"x" * 60)), sealed_entry(values_draft())):
        for kind in (SegmentStart, SegmentEnd):
            with pytest.raises(DamagedEntry):
                kind.parse(entry)


def test_a_start_entry_with_a_topic_that_is_no_text_is_no_crash():
    from penstock.log.frame import draft

    body = bytes(24) + b"\xff\xfe"
    start = SegmentStart.parse(sealed_entry(draft(0, [body], 0, kind=KIND_START)))
    assert start.topic == "\ufffd\ufffd"


def source_of(values: list[bytes]) -> SegmentSource:
    store = MemoryStore()
    data = b"".join(
        buffer
        for number, value in enumerate(values)
        for buffer in seal(values_draft(value), number, 0, 0, 1)[0]
    )
    key = KEYS.log(SegmentName(0))
    store.write(key, data)
    return SegmentSource(SegmentName(0), store, key)


@given(
    st.lists(st.binary(max_size=400), min_size=1, max_size=8),
    st.integers(0, 2_000),
    st.data(),
)
def test_chunks_of_any_size_give_whole_entries_and_at_least_one(values, size, data):
    source = source_of(values)
    limit = source.size()
    position, seen = 0, []
    while position < limit:
        chunk = source.chunk(position, limit, size)
        assert chunk
        seen += [entry.view().values()[0] for entry in chunk]
        position = chunk[-1].position + chunk[-1].header.entry_bytes
        assert len(chunk) == 1 or position - chunk[0].position <= max(size, 72)
    assert seen == values
    ends = [entry.position for entry in source.entries(0, limit)]
    start = data.draw(st.sampled_from(ends))
    assert [entry.position for entry in source.entries(start, limit)] == ends[ends.index(start) :]


@given(st.lists(st.binary(max_size=100), min_size=1, max_size=4), st.data())
def test_a_limit_inside_an_entry_is_damage_that_names_the_place(values, data):
    source = source_of(values)
    starts = [entry.position for entry in source.entries(0, source.size())] + [source.size()]
    limit = data.draw(st.integers(1, source.size()).filter(lambda at: at not in starts))
    with pytest.raises(DamagedEntry) as caught:
        list(source.entries(0, limit))
    assert caught.value.position == max(start for start in starts if start < limit)
    assert caught.value.file == source.key
    assert "repair" in str(caught.value)


def test_entries_before_damage_are_given_first():
    source = source_of([b"one", b"two", b"three"])
    data = bytearray(source.store.read(source.key))
    positions = [entry.position for entry in source.entries(0, len(data))]
    data[positions[2] + 80] ^= 1
    source.store.write(source.key, bytes(data))
    chunk = source.chunk(0, len(data))
    assert [entry.position for entry in chunk] == positions[:2]
    with pytest.raises(DamageError) as caught:
        source.chunk(positions[2], len(data))
    assert caught.value.position == positions[2]


def test_a_sealed_segment_starts_and_ends_with_its_entries():
    one = machine(segment_bytes_max=300)
    for number in range(6):
        one.append(b"%d" % number + b"x" * 100)
    first, second, *_ = one.reader.segments()
    kinds = [entry.header.kind for entry in first.entries(0, first.size())]
    assert kinds == [KIND_START, KIND_RECORDS, KIND_RECORDS, KIND_END]
    end, link = first.read_end()
    assert end == (2, 0, 2, first.size() - END_BYTES, end.first_timestamp, end.last_timestamp, 0, 0)
    start = second.first_entry()
    assert start.header.previous == link
    assert SegmentStart.parse(start)[1:] == (0, 0, "orders")
    assert SegmentStart.parse(start).log_id == SegmentStart.parse(first.first_entry()).log_id


@pytest.mark.parametrize("content", [b"", b"x", bytes(END_BYTES), b"PNSK" * 40])
def test_a_footer_that_is_not_there_is_damage(content):
    store = MemoryStore()
    key = KEYS.log(SegmentName(0))
    store.write(key, content)
    source = SegmentSource(SegmentName(0), store, key)
    for call in (source.read_end, source.first_entry):
        with pytest.raises(DamagedEntry):
            call()


def test_the_newest_rewrite_counts_and_local_comes_before_the_tier():
    store, tier = MemoryStore(), MemoryStore()
    for place, names in (
        (store, ["0", "5-2", "9"]),
        (tier, ["0", "5-3", "7-1"]),
    ):
        for name in names:
            base, _, rewrite = name.partition("-")
            place.write(KEYS.log(SegmentName(int(base), int(rewrite or 0))), b"")
    store.write(f"{KEYS.folder}/head", b"")
    store.write(f"{KEYS.folder}/{9:020d}.index", b"")
    store.write(f"{KEYS.folder}/{9:020d}.log.bak", b"")
    store.write(f"{KEYS.folder}/deeper/{9:020d}.log", b"")
    store.write(PartitionKeys("orders", 10).log(SegmentName(1)), b"")
    found = [(one.name, one.store is tier) for one in list_segments(KEYS, store, tier)]
    assert found == [((0, 0), False), ((5, 3), True), ((7, 1), True), ((9, 0), False)]
    assert [one.name.base for one in list_segments(KEYS, store, None)] == [0, 5, 9]
    assert list_segments(PartitionKeys("other", 0), store, tier) == []
