"""The body of an entry: any columns round trip, and nothing reads beyond the body."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DamagedEntry, InvalidOption
from penstock.log.checks import check_columns
from penstock.log.columns import HEADERS, KEYS, NULL, SPARSE, TIMES, Columns, decode, total_bytes
from penstock.log.records import NO_HEADERS
from tests.log.strategies import columns, records_of


def encoded(batch: Columns) -> tuple[int, bytes]:
    flags, buffers = batch.encode()
    return flags, b"".join(buffers)


@given(columns(), st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_any_batch_reads_back_as_it_was(batch, base, timestamp):
    flags, body = encoded(batch)
    view = decode(body, flags, len(batch), base, timestamp)
    assert view.records("orders", 0) == records_of(batch, base, timestamp)
    again = view.columns()
    assert encoded(again) == (flags, body)


@given(columns(1), st.data())
def test_sparse_offsets_keep_their_deltas(batch, data):
    deltas = data.draw(
        st.lists(st.integers(0, 1 << 31), min_size=len(batch), max_size=len(batch), unique=True)
    )
    batch.deltas = sorted(deltas)
    flags, body = encoded(batch)
    view = decode(body, flags, len(batch), 100, 0)
    assert [record.offset for record in view.records("t", 0)] == [100 + d for d in batch.deltas]
    assert view.offsets().tolist() == [100 + d for d in batch.deltas]


@given(columns(1), st.data())
def test_picking_and_taking_keep_the_rows_together(batch, data):
    places = data.draw(st.lists(st.integers(0, len(batch) - 1)))
    start, stop = sorted(data.draw(st.tuples(st.integers(0, 20), st.integers(0, 20))))
    rows = records_of(batch, 0, 5)
    picked = records_of(batch.pick(slice(start, stop)), start, 5)
    assert picked == rows[start:stop]
    taken = records_of(batch.take(places), 0, 5)
    assert [(r.key, r.value, r.headers, r.timestamp) for r in taken] == [
        (rows[p].key, rows[p].value, rows[p].headers, rows[p].timestamp) for p in places
    ]


@given(columns())
def test_the_size_is_no_less_than_what_the_entry_takes(batch):
    """A batch is split by this size, so that no entry is larger than a reader allows."""
    pairs = sum(len(headers or {}) for headers in batch.headers or ())
    assert batch.byte_size() + 8 * pairs >= len(encoded(batch)[1])


def test_the_size_counts_the_bytes_of_names_and_not_their_characters():
    small, large = (
        Columns([b""], headers=[{name: b""}]).byte_size() for name in ("a", "\U0001f600")
    )
    assert large - small == 3


@given(columns(1), st.data())
def test_a_body_that_is_one_byte_longer_or_shorter_is_damage(batch, data):
    flags, body = encoded(batch)
    for wrong in (body + b"\0", body[:-1]):
        with pytest.raises(DamagedEntry):
            decode(wrong, flags, len(batch), 0, 0)


@pytest.mark.parametrize("flags", [0, KEYS, TIMES, SPARSE, HEADERS, 15])
@pytest.mark.parametrize("length", [1 << 31, (1 << 32) - 2])
def test_a_column_of_huge_lengths_is_damage_and_not_an_allocation(flags, length):
    body = np.full(16, length, "<u4").tobytes()
    with pytest.raises(DamagedEntry):
        decode(body, flags, 2, 0, 0)


def test_a_count_that_the_body_cannot_hold_is_damage():
    with pytest.raises(DamagedEntry):
        decode(bytes(8), 0, 1 << 20, 0, 0)


def test_unknown_columns_are_damage():
    with pytest.raises(DamagedEntry, match="0x10"):
        decode(bytes(4), 16, 1, 0, 0)


@given(st.lists(st.sampled_from([0, 1, 77, 1 << 31, NULL - 1, NULL]), max_size=9))
def test_nulls_count_for_nothing_in_the_total(lengths):
    column = np.array(lengths, np.uint32)
    assert total_bytes(column) == sum(length for length in lengths if length != NULL)


def test_a_null_value_an_empty_value_and_an_empty_key_differ():
    batch = Columns([None, b"", b""], [b"", None, b"k"])
    flags, body = encoded(batch)
    records = decode(body, flags, 3, 0, 0).records("t", 0)
    assert [(r.key, r.value) for r in records] == [(b"", None), (None, b""), (b"k", b"")]
    assert all(record.headers is NO_HEADERS for record in records)


def test_values_are_bytes_of_their_own():
    """A record may outlive the chunk that it was read from."""
    flags, body = encoded(Columns([b"a", None, b"ccc"], [b"k", b"", None]))
    for record in decode(body, flags, 3, 0, 0).records("t", 0):
        assert type(record.value) in (bytes, type(None))
        assert type(record.key) in (bytes, type(None))


@pytest.mark.parametrize("deltas", [[1, 0], [5, 5], [0, 2, 1]])
def test_offset_deltas_that_do_not_rise_are_damage(deltas):
    """A record would come twice, or out of order."""
    flags, body = encoded(Columns([b""] * len(deltas), deltas=deltas))
    with pytest.raises(DamagedEntry, match="rise"):
        decode(body, flags, len(deltas), 0, 0)


def test_values_in_other_sequences_than_lists_are_checked_one_by_one():
    mixed = Columns((b"a", None))
    assert not mixed.all_bytes()
    check_columns(mixed)
    with pytest.raises(InvalidOption):
        check_columns(Columns((b"a", 1)))  # type: ignore[arg-type]
