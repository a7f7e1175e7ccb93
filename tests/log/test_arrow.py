"""Arrow equals objects, for any batches, slices and chunk sizes."""

import asyncio
import subprocess
import sys

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import DamagedEntry, MissingExtra
from penstock.log import arrow
from penstock.log.arrow import read_arrow, read_table, schema, to_batch
from penstock.log.codec import Codec
from penstock.log.columns import Columns
from penstock.log.queue import WalMessageQueue
from tests.log.strategies import columns, draft_of, machine, read_records, segment_paths


def rows_of(batch) -> list[tuple]:
    """The rows of a batch or table as plain tuples."""
    batch.validate(full=True)
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    headers = [
        {pair["key"]: pair["value"] for pair in pairs or ()}
        for pairs in batch.column("headers").to_pylist()
    ]
    names = ("topic", "partition", "offset", "key", "value")
    plain = [batch.column(name).to_pylist() for name in names]
    return list(zip(*plain, times, headers, strict=True))


def rows_of_records(records) -> list[tuple]:
    return [
        (r.topic, r.partition, r.offset, r.key, r.value, r.timestamp, dict(r.headers))
        for r in records
    ]


@given(
    st.lists(st.tuples(columns(1), st.sampled_from(Codec)), min_size=1, max_size=6),
    st.integers(1, 5_000),
    st.data(),
)
@settings(max_examples=80)
def test_arrow_equals_objects_for_any_range(batches, chunk_bytes, data):
    one = machine(segment_bytes_max=1_500)
    for batch, codec in batches:
        one.log.append([draft_of(batch, codec)], sync=True)
    expected = rows_of_records(read_records(one.reader))
    start, end = sorted(
        data.draw(st.tuples(st.integers(0, len(expected)), st.integers(0, len(expected) + 5)))
    )
    found = [
        row for batch in read_arrow(one.reader, start, end, chunk_bytes) for row in rows_of(batch)
    ]
    assert found == expected[start:end]
    table = read_table(one.reader, start, end)
    assert table.schema == schema()
    assert rows_of(table) == expected[start:end]


@given(st.lists(columns(), min_size=1, max_size=5))
@settings(max_examples=60)
def test_entries_of_any_kind_go_into_one_batch(batches):
    """Columns that only some entries have are null for the others."""
    one = machine()
    one.log.append([draft_of(batch) for batch in batches], sync=True)
    entries = one.reader.cursor(0).fetch()
    if entries:
        batch = to_batch("orders", 0, entries)
        assert rows_of(batch) == rows_of_records(read_records(one.reader))
        assert batch.column("topic").dictionary.to_pylist() == ["orders"]


def test_sparse_offsets_are_kept():
    one = machine()
    batch = Columns([b"a", b"b"], deltas=[0, 1])
    one.log.append([draft_of(batch)], sync=True)
    (only,) = list(read_arrow(one.reader, 0, 10))
    assert only.column("offset").to_pylist() == [0, 1]


def test_nothing_to_read_gives_no_batches_and_an_empty_table():
    one = machine()
    assert list(read_arrow(one.reader, 0, 10)) == []
    assert read_table(one.reader, 0, 10).num_rows == 0
    one.append(b"0")
    assert list(read_arrow(one.reader, 1, 10)) == []
    assert list(read_arrow(one.reader, 0, 0)) == []


def test_damage_raises_while_reading():
    one = machine(segment_bytes_max=300)
    for number in range(8):
        one.append(b"%d" % number + b"x" * 90)
    one.disk.flip_bit(segment_paths(one.disk)[2], 2_000)
    with pytest.raises(DamagedEntry):
        list(read_arrow(one.reader, 0, 8))


def test_what_compresses_well_comes_in_portions(monkeypatch):
    """A chunk of a few kilobytes may hold gigabytes: a batch does not."""
    monkeypatch.setattr(arrow, "BATCH_BYTES_MAX", 100_000)
    one = machine()
    for number in range(10):
        one.log.append([draft_of(Columns([bytes([number]) * 40_000]), Codec.ZSTD)], sync=True)
    batches = list(read_arrow(one.reader, 0, 10))
    assert [batch.num_rows for batch in batches] == [2, 2, 2, 2, 2]
    assert sum(map(len, (batch.column("value")[0].as_py() for batch in batches))) == 200_000


def test_a_batch_holds_what_it_needs_when_the_log_is_gone():
    one = machine()
    one.append(b"kept", b"", None)
    (batch,) = read_arrow(one.reader, 0, 3)
    del one
    assert batch.column("value").to_pylist() == [b"kept", b"", None]


def test_without_pyarrow_the_extra_is_named(monkeypatch):
    arrow._arrow.cache_clear()
    arrow.schema.cache_clear()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"penstock\[arrow\]"):
        schema()
    monkeypatch.undo()
    assert schema().names[:2] == ["key", "value"]


def test_header_names_that_are_no_text_are_damage():
    """They cannot be written; a file made by somebody else may have them."""
    one = machine()
    made = draft_of(Columns([b"v"], headers=[{"ab": b"x"}]))
    body = b"".join(made.body).replace(b"ab", b"\xff\xfe")
    one.log.append([made._replace(body=[body], checksum=crc32c(body))], sync=True)
    with pytest.raises(DamagedEntry, match="no text"):
        list(read_arrow(one.reader, 0, 1))
    (record,) = read_records(one.reader)
    assert list(record.headers) == ["\ufffd\ufffd"]


def test_reading_as_arrow_does_not_import_pandas(tmp_path):
    """It takes seconds to import, and each worker of Spark would wait for it."""
    program = (
        "import sys\n"
        "from penstock.log.arrow import read_table\n"
        "from penstock.log.names import PartitionKeys\n"
        "from penstock.log.reader import PartitionReader\n"
        "from penstock.stores import DirectoryStore\n"
        "table = read_table(PartitionReader(DirectoryStore(sys.argv[1]), PartitionKeys('a', 0)), 1, 2)\n"
        "assert table.num_rows == 1, table\n"
        "print('pandas' in sys.modules)\n"
    )

    async def publish():
        async with WalMessageQueue(tmp_path) as queue:
            await queue.publish("a", b"one")
            await queue.publish("a", b"two", key=b"k", headers={"name": b"value"})

    asyncio.run(publish())
    command = [sys.executable, "-c", program, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, check=True, text=True).stdout == "False\n"
