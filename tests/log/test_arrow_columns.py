"""Records that come as Arrow are written as those that come as lists, byte by byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import RecordTooLarge
from penstock.log.arrow_columns import ArrowColumns
from penstock.log.batch import Router
from penstock.log.columns import Columns
from penstock.log.names import PartitionKeys
from penstock.log.reader import PartitionReader
from penstock.log.topic import TopicConfig, TopicFile
from penstock.log.transactions import Transactions
from penstock.stores import MemoryStore

cells = st.one_of(st.none(), st.binary(max_size=3), st.binary(max_size=40))
rows = st.lists(st.tuples(cells, cells, st.integers(-(1 << 62), 1 << 62)), min_size=2, max_size=90)
Row = tuple[bytes | None, bytes | None, int]


def both(given_rows: list[Row], *, keys: bool, times: bool) -> tuple[Columns, ArrowColumns]:
    """The same records as lists, and as a slice of longer columns of Arrow."""
    values, names, when = (list(column) for column in zip(*given_rows, strict=True))
    padded = [b"before", *values, b"after"]
    plain = Columns(values, names if keys else None, when if times else None)
    arrow = ArrowColumns(
        pa.array(padded, pa.binary()).slice(1, len(values)),
        pa.array(names, pa.binary()) if keys else None,
        np.array(when, np.int64) if times else None,
    )
    return plain, arrow


def body(columns: Columns) -> tuple[int, bytes]:
    flags, buffers = columns.encode()
    return flags, b"".join(bytes(one) for one in buffers)


@given(rows, st.booleans(), st.booleans(), st.data())
def test_bodies_are_the_same(given_rows, keys, times, data):
    plain, arrow = both(given_rows, keys=keys, times=times)
    assert len(arrow) == len(plain)
    assert body(arrow) == body(plain)
    assert arrow.byte_size() == plain.byte_size()
    start, stop = (data.draw(st.none() | st.integers(0, 90)) for _ in range(2))
    where = slice(start, stop, data.draw(st.sampled_from([None, 1, 2, 3])))
    assert body(arrow.pick(where)) == body(plain.pick(where))
    places = data.draw(st.lists(st.integers(0, len(plain) - 1), max_size=20))
    assert body(arrow.take(places)) == body(plain.take(places))


@given(rows, st.booleans(), st.integers(1, 9), st.integers(0, 8))
def test_they_go_to_the_same_partitions(given_rows, keys, partitions, turn):
    plain, arrow = both(given_rows, keys=keys, times=False)
    pieces = [
        [(number, list(places), body(part)) for number, places, part in routed]
        for routed in (
            Router(partitions, turn % partitions).split(plain),
            Router(partitions, turn % partitions).split(arrow),
        )
    ]
    assert pieces[0] == pieces[1]


def test_a_null_that_has_bytes_is_a_null():
    validity, offsets = pa.py_buffer(b"\x05"), pa.py_buffer(np.array([0, 1, 3, 4], np.int32))
    column = pa.Array.from_buffers(pa.binary(), 3, [validity, offsets, pa.py_buffer(b"axxb")])
    assert column.to_pylist() == [b"a", None, b"b"]
    assert body(ArrowColumns(column)) == body(Columns([b"a", None, b"b"]))


def topic(store: MemoryStore, **settings: Any) -> Transactions:
    TopicFile(store, "orders").create(TopicConfig(**settings), 0)
    return Transactions(store)


def test_they_come_out_of_a_transaction_as_they_went_in():
    store = MemoryStore()
    transactions = topic(store, partitions=1, batch_records_max=7)
    given_rows: list[Row] = [(b"v%d" % n, b"k" if n % 3 else None, n) for n in range(50)]
    writer = transactions.writer("spark")
    writer.add("orders", both(given_rows, keys=True, times=True)[1])
    transactions.commit(transactions.open("spark"), staged=[writer.finish()])
    transactions.close()
    entries = PartitionReader(store, PartitionKeys("orders", 0)).cursor(0).fetch(1 << 20)
    found = [one for entry in entries for one in entry.view().records("orders", 0)]
    assert [(one.value, one.key, one.timestamp) for one in found] == given_rows


def test_one_that_is_too_large_is_refused():
    transactions = topic(MemoryStore(), partitions=1, record_bytes_max=100)
    large = ArrowColumns(pa.array([b"x", b"y" * 70]), pa.array([b"k", b"z" * 40]))
    with pytest.raises(RecordTooLarge, match="110"):
        transactions.writer("spark").add("orders", large)
