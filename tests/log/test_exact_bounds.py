"""Bounds to the byte and to the offset: what stands exactly on one."""

import pytest

from penstock.errors import DamagedEntry, RecordTooLarge
from penstock.log import frame
from penstock.log.appending import check_sizes
from penstock.log.codec import Codec
from penstock.log.frame import Header, _check_bounds
from penstock.log.index import INDEX_SPACING_BYTES, Index, IndexBuilder, IndexRow
from penstock.log.tiering import move_sealed
from penstock.stores.memory import MemoryStore
from tests.log.small_log import KEYS, SmallLog, compact
from tests.log.strategies import values_draft


def test_a_row_of_the_index_is_found_at_its_own_offset_and_before_its_own_time():
    """Records before the row may have its time too."""
    first, second = IndexRow(10, 100, 1_000), IndexRow(20, 200, 70_000)
    index = Index([first, second])
    assert [index.at_offset(one) for one in (9, 10, 19, 20)] == [None, first, first, second]
    assert [index.at_time(one) for one in (100, 101, 200, 201)] == [None, first, first, second]


def test_a_row_is_made_exactly_one_spacing_on():
    builder = IndexBuilder(500)
    assert builder.offer(1, 1, 500 + INDEX_SPACING_BYTES - 1) is None
    assert builder.offer(2, 2, 500 + INDEX_SPACING_BYTES) == (2, 2, 500 + INDEX_SPACING_BYTES)
    assert builder.offer(3, 3, 500 + 2 * INDEX_SPACING_BYTES - 1) is None


def header(**fields: int) -> Header:
    plain = dict.fromkeys(Header._fields, 0) | {"length": frame.HEADER_BYTES - 4}
    return Header(**(plain | fields))


LARGEST: dict[str, int] = {
    "length": frame.ENTRY_BYTES_MAX - 12,
    "body_length": frame.ENTRY_BYTES_MAX,
    "kind": frame.KIND_GAP,
}


@pytest.mark.parametrize(("name", "largest"), LARGEST.items())
def test_a_field_of_a_header_may_be_as_large_as_its_bound_and_no_larger(name, largest):
    _check_bounds(header(**{name: largest}))
    with pytest.raises(DamagedEntry):
        _check_bounds(header(**{name: largest + 1}))


def test_counts_and_offsets_may_be_as_large_as_their_bounds_and_no_larger():
    most = frame.RECORDS_MAX
    _check_bounds(header(record_count=most, offset_span=most))
    _check_bounds(header(base_offset=frame.OFFSET_MAX))
    for wrong in (
        header(record_count=most + 1, offset_span=most + 1),
        header(record_count=2, offset_span=1),
        header(base_offset=frame.OFFSET_MAX, offset_span=1),
        header(length=frame.HEADER_BYTES - 5),
    ):
        with pytest.raises(DamagedEntry):
            _check_bounds(wrong)


def test_an_entry_may_be_as_large_as_one_may_be_and_no_larger():
    entry = values_draft(b"x")
    fits = frame.ENTRY_BYTES_MAX - frame.FRAME_BYTES
    check_sizes([entry._replace(stored_length=fits)])
    with pytest.raises(RecordTooLarge):
        check_sizes([entry._replace(stored_length=fits + 1)])
    most = entry._replace(record_count=frame.RECORDS_MAX)
    check_sizes([most])
    with pytest.raises(RecordTooLarge):
        check_sizes([most._replace(record_count=frame.RECORDS_MAX + 1)])


def largest_sealed(log: SmallLog) -> int:
    return max(one.size() for one in log.reader().segments()[:-1])


@pytest.mark.parametrize(("less", "moved"), [(0, 2), (1, 1)])
def test_a_segment_may_be_moved_that_is_as_large_as_one_that_can_be_held(monkeypatch, less, moved):
    log = SmallLog(tier=MemoryStore())
    log.append((None, bytes(500)))
    log.append_segments(2)
    bound = largest_sealed(log) - less
    monkeypatch.setattr("penstock.log.tiering.HELD_SEGMENT_BYTES_MAX", bound)
    assert move_sealed(log.store, KEYS, log.tier).segments_moved == moved


@pytest.mark.parametrize(("less", "left"), [(0, [1, 2]), (1, [0, 1, 2])])
def test_a_segment_may_be_compacted_that_is_as_large_as_one_that_can_be_held(
    monkeypatch, less, left
):
    log = SmallLog()
    log.append((b"a", bytes(500)))
    log.roll()
    log.append((b"a", b"newer"))
    log.append_segments(1)
    bound = largest_sealed(log) - less
    monkeypatch.setattr("penstock.log.compaction.HELD_SEGMENT_BYTES_MAX", bound)
    compact(log)
    assert [offset for offset, _, _ in log.stored()] == left


@pytest.mark.parametrize(
    ("name", "most"),
    [("body_length", frame.PACKED_BODY_BYTES_MAX), ("record_count", frame.PACKED_RECORDS_MAX)],
)
def test_a_compressed_entry_may_say_to_hold_so_much_and_no_more(name, most):
    packed = {"codec": int(Codec.ZLIB), "offset_span": frame.RECORDS_MAX}
    _check_bounds(header(**packed, **{name: most}))
    _check_bounds(header(**packed | {"codec": 0}, **{name: most + 1}))
    with pytest.raises(DamagedEntry, match="unpack"):
        _check_bounds(header(**packed, **{name: most + 1}))


@pytest.mark.parametrize(
    ("body", "records", "codec"),
    [
        (frame.PACKED_BODY_BYTES_MAX, 1, Codec.ZLIB),
        (frame.PACKED_BODY_BYTES_MAX + 1, 1, Codec.NONE),
        (10, frame.PACKED_RECORDS_MAX, Codec.ZLIB),
        (10, frame.PACKED_RECORDS_MAX + 1, Codec.NONE),
    ],
)
def test_what_is_too_large_to_be_unpacked_is_not_packed(body, records, codec):
    made = frame.draft(0, [bytes(body)], records, codec=Codec.ZLIB)
    assert (made.codec, made.body_length) == (codec, body)
    assert (made.stored_length < body) == (codec is Codec.ZLIB and body > 10)
