"""Golden files of format version 1: still written byte for byte, still read record for record.

A failure here means that logs of users would not be read, or that an older release would not read
ours. ``tests/golden/generate.py`` says when that may be.
"""

import re
from pathlib import Path

import msgspec
import pytest

from penstock import WalMessageQueue
from penstock.log.codec import Codec
from penstock.log.frame import (
    ENTRY_BYTES_MAX,
    HEADER_BYTES,
    KIND_END,
    KIND_RECORDS,
    KIND_START,
    RECORDS_MAX,
    entries,
    seal,
)
from penstock.log.head import _BOTH as HEAD_EPOCH_AND_START
from penstock.log.head import _FIELDS as HEAD_FIELDS
from penstock.log.head import Head, HeadFile
from penstock.log.index import ROW_BYTES, Index
from penstock.log.offsets import OffsetFile
from penstock.log.partition import PartitionLog
from penstock.log.reader import PartitionReader
from penstock.log.records import Record
from penstock.log.segment import SegmentEnd, SegmentStart
from penstock.log.slots import PAYLOAD_BYTES_MAX, SLOT_BYTES
from penstock.log.topic import TopicFile
from penstock.stores.memory import MemoryStore
from penstock.testing.clock import START_MS
from tests.golden.generate import (
    BATCHES,
    CODEC_BATCHES,
    EPOCH_KEYS,
    FOLDER,
    INDEX,
    KEYS,
    PLAIN,
    golden,
)
from tests.log.plain_frame import plain_entries
from tests.log.strategies import read_records, records_of, values_draft

STORED = {
    str(path.relative_to(FOLDER)): path.read_bytes()
    for path in sorted(FOLDER.rglob("*"))
    if path.is_file()
}
MADE = golden()
EXACT = [name for name in STORED if not name.startswith("codecs/") and not name.endswith(".json")]


def store_of(part: str) -> MemoryStore:
    """The stored files of one log."""
    store = MemoryStore()
    for name, content in STORED.items():
        if name.startswith(f"{part}/"):
            store.write(name.removeprefix(f"{part}/"), content)
    return store


def test_every_golden_file_is_there():
    assert sorted(MADE) == sorted(STORED)
    assert len([name for name in EXACT if name.endswith(".log")]) >= 4


@pytest.mark.acceptance(44)
@pytest.mark.parametrize("name", EXACT)
def test_what_is_written_today_is_the_same_byte_for_byte(name):
    assert MADE[name] == STORED[name]


def expected_records():
    records: list[Record] = []
    time = START_MS
    for batch in BATCHES:
        time += 500
        records += records_of(batch, len(records), time, KEYS)
    return records


@pytest.mark.acceptance(44)
def test_the_stored_log_is_read_record_for_record():
    store = store_of("columns")
    assert read_records(PartitionReader(store, KEYS)) == expected_records()
    log = PartitionLog(store, KEYS)
    assert log.attach().clean
    assert log.head.next_offset == len(expected_records())


def test_the_stored_log_has_every_kind_of_entry_and_column():
    kinds, flags = set(), set()
    for name, content in STORED.items():
        if name.startswith("columns/") and name.endswith(".log"):
            found = list(entries(content))
            kinds |= {entry.header.kind for entry in found}
            flags |= {entry.header.flags for entry in found}
            assert SegmentStart.parse(found[0]).topic == "orders"
            if found[-1].header.kind == KIND_END:
                end = SegmentEnd.parse(found[-1])
                assert end.size == found[-1].position
    assert kinds == {KIND_START, KIND_RECORDS, KIND_END}
    assert flags == {0, 1, 2, 4, 8, 11}


async def test_the_stored_log_of_two_epochs_is_read_in_the_order_of_its_keys():
    async with WalMessageQueue(store_of("epochs"), maintenance_interval=None) as queue:
        state = await queue.create_topic("orders")
        assert [(one.epoch, one.partitions, one.starts) for one in state.epochs] == [
            (0, 2, ()),
            (1, 3, (1, 1, 0)),
        ]
        records = [(record.key, record.value) async for record in queue.replay("orders")]
        assert records == [
            (key, b"%d in %d" % (number, epoch))
            for epoch, count in enumerate((2, 3))
            for number, key in enumerate(EPOCH_KEYS[count])
        ]
        for key in EPOCH_KEYS[3]:
            done = await queue.publish("orders", b"more", key=key)
            assert done.partition == EPOCH_KEYS[3].index(key)


@pytest.mark.parametrize("codec", Codec)
def test_stored_entries_of_each_codec_are_read(codec):
    store = store_of("codecs")
    records = read_records(PartitionReader(store, KEYS))
    place = list(Codec).index(codec)
    assert [record.value for record in records[4 * place : 4 * place + 4]] == list(
        CODEC_BATCHES[codec].values
    )
    (source,) = PartitionReader(store, KEYS).segments()
    assert [entry.header.codec for entry in source.entries(0, source.size())][1:] == list(Codec)


def test_the_stored_head_is_read():
    head = HeadFile(store_of("columns"), KEYS.head).read()
    assert head is not None
    assert (head.next_offset, head.durable_offset) == (13, 13)
    assert (
        head.position
        == head.durable_position
        == len(STORED[f"columns/{KEYS.folder}/{head.segment_base:020d}.log"])
    )


@pytest.mark.acceptance(45)
def test_the_stored_offset_is_read():
    file = OffsetFile(store_of("columns"), "billing", "orders", 3)
    assert file.read() == (9, START_MS + 3_000, 0)


def test_the_stored_index_is_read():
    index = Index.parse(STORED["rows.index"])
    assert index is not None
    assert index.rows == INDEX


def test_the_stored_topic_is_read():
    """New settings may come; those of version 1 keep their names and meaning."""
    name = "columns/topics/orders/topic.json"
    state = TopicFile(store_of("columns"), "orders").read()
    assert (state.name, state.partitions, state.created_ms) == ("orders", 4, START_MS)
    assert state.subscribers == {"billing": {3: 0}}
    stored, made = (msgspec.json.decode(files[name]) for files in (STORED, MADE))
    assert stored["format"] == made["format"] == 1
    missing = {
        field: value
        for field, value in stored["topic"]["config"].items()
        if made["topic"]["config"].get(field) != value
    }
    assert not missing


@pytest.mark.acceptance(44)
def test_the_plain_file_is_read():
    assert list(plain_entries(STORED["plain.log"])) == PLAIN
    assert Path(FOLDER / "plain.log").stat().st_size == 3 * 12 + 205


def test_the_example_in_the_documents_is_the_real_thing():
    """docs/format.md shows an entry in hexadecimal; it is what is written today."""
    page = (FOLDER.parents[2] / "docs" / "format.md").read_text()
    rows = re.findall(r"^00[0-9a-f]0  ((?:[0-9a-f]{2} ){1,16})", page, re.MULTILINE)
    shown = bytes.fromhex("".join(rows))
    assert shown == b"".join(seal(values_draft(b"hello"), 0, 0, 0, START_MS)[0])
    (entry,) = entries(shown)
    assert entry.view().values() == [b"hello"]
    snippet = page.split('bytes.fromhex("""')[1].split('"""')[0]
    assert bytes.fromhex(snippet) == shown


def test_the_sizes_in_the_documents_are_the_real_ones():
    page = (FOLDER.parents[2] / "docs" / "format.md").read_text()
    assert HEADER_BYTES == 72
    assert "| 72 | … | body |" in page
    assert SLOT_BYTES == 512
    assert PAYLOAD_BYTES_MAX == 492
    assert ROW_BYTES == 32
    assert ENTRY_BYTES_MAX == 64 << 20
    assert RECORDS_MAX == 1 << 20
    head = page.split("The payload of a **head**")[1].split("The head is a claim")[0]
    sizes = [int(size) for size in re.findall(r"^\| (\d+) \|", head, re.MULTILINE)]
    assert sum(sizes) == HEAD_FIELDS.size + HEAD_EPOCH_AND_START.size
    assert len(sizes) == len(Head._fields) - 1
