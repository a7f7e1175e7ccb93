"""Random and hostile bytes into everything that reads the disk: an error, never worse.

Never a crash, never a hang, never more memory than one entry may have. The limit on memory is held
by the operating system in a child process, since libraries in C allocate where Python cannot see.
"""

import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import DamageError, PenstockError
from penstock.log import frame
from penstock.log.arrow import to_batch
from penstock.log.codec import Codec
from penstock.log.columns import Columns, decode
from penstock.log.head import HeadFile
from penstock.log.index import Index
from penstock.log.names import SegmentName
from penstock.log.offsets import OffsetFile
from penstock.log.segment import SegmentEnd, SegmentSource, SegmentStart
from penstock.log.topic import TopicFile
from penstock.stores.memory import MemoryStore
from tests.log.strategies import (
    FOLDER,
    KEYS,
    columns,
    copy_of,
    draft_of,
    machine,
    read_records,
    values_draft,
)

U32 = st.one_of(st.integers(0, 200), st.sampled_from([1 << 31, (1 << 32) - 1, (1 << 26) - 80]))
U64 = st.one_of(st.integers(0, 200), st.sampled_from([1 << 31, 1 << 63, (1 << 64) - 1]))


@st.composite
def hostile_entries(draw: st.DrawFn) -> bytes:
    """An entry with checksums that fit around anything at all."""
    body = draw(st.binary(max_size=300))
    time = struct.pack("<q", draw(st.integers(-(1 << 63), (1 << 63) - 1)))
    length = draw(st.one_of(st.just(68 + len(body)), U32))
    head = frame._HEAD.pack(
        length,
        frame.MAGIC,
        draw(st.sampled_from([1, 1, 1, 2, 0])),
        draw(st.integers(0, 5)),
        draw(st.integers(0, 5)),
        draw(st.integers(0, 20)),
        draw(U64),
        draw(U32),
        draw(U32),
        draw(U64),
        draw(U64),
        draw(U32),
        draw(U32),
        draw(st.integers(0, 65_535)),
        draw(st.integers(0, 65_535)),
        draw(U32),
        draw(U32),
        crc32c(body + time),
    )
    return head + struct.pack("<I", crc32c(head)) + body + time


def read_everything(data: bytes) -> None:
    """Whatever these bytes hold, through every decoder of entries."""
    for entry in frame.entries(data):
        for parse in (SegmentStart.parse, SegmentEnd.parse):
            with swallowed():
                parse(entry)
        if entry.header.kind == frame.KIND_RECORDS:
            for record in entry.view().records("orders", 0):
                assert record.value is None or isinstance(record.value, bytes)
            to_batch("orders", 0, [entry])


class swallowed:  # noqa: N801 - reads as a statement
    """Damage is what is expected here; anything else is a bug."""

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        return kind is not None and issubclass(kind, DamageError)


@given(st.binary(max_size=600))
def test_random_bytes_into_the_decoder_of_entries(data):
    with swallowed():
        frame.parse_header(data)
    with swallowed():
        read_everything(data)
    list(frame.find_headers(data))


@given(st.lists(hostile_entries(), min_size=1, max_size=3))
@settings(max_examples=400)
def test_hostile_entries_with_right_checksums(entries):
    with swallowed():
        read_everything(b"".join(entries))


@given(st.binary(max_size=300), st.integers(0, 31), U32, U64)
@settings(max_examples=300)
def test_random_bytes_into_the_decoder_of_columns(body, flags, count, base):
    with swallowed():
        view = decode(body, flags, count, base, 0)
        assert view.count == count
        if base < 1 << 62:
            view.records("orders", 0)
            view.columns()


@given(columns(1), st.data())
@settings(max_examples=200)
def test_a_body_with_some_bytes_changed(batch, data):
    """Right lengths here and there make the decoder go further."""
    flags, buffers = batch.encode()
    body = bytearray(b"".join(buffers))
    for _ in range(data.draw(st.integers(1, 3))):
        if body:
            place = data.draw(st.integers(0, len(body) - 1))
            body[place] = data.draw(st.integers(0, 255))
    with swallowed():
        view = decode(bytes(body), flags, len(batch), 0, 0)
        assert len(view.records("orders", 0)) == len(batch)


@given(st.binary(max_size=1_100))
def test_random_bytes_into_the_small_files(data):
    store = MemoryStore()
    for key in ("head", "groups/billing/orders-0.offset", "topics/orders/topic.json"):
        store.write(key, data)
    assert HeadFile(store, "head").read() is None
    Index.parse(data)
    with swallowed():
        assert OffsetFile(store, "billing", "orders", 0).read() is None
    with swallowed():
        TopicFile(store, "orders").read()
        raise AssertionError("a topic out of nothing")


@given(st.one_of(st.binary(max_size=500), hostile_entries()))
@settings(max_examples=150)
def test_random_bytes_as_a_segment_without_a_head(data):
    """It opens and cuts, or it refuses; it never invents a record and never hangs."""
    one = machine()
    one.append(b"0")
    path = f"{FOLDER}/{0:020d}.log"
    two = machine(copy_of(one.disk, {path: data, f"{FOLDER}/head": None}))
    with swallowed():
        two.log.attach()
        assert two.values() == []
        assert two.append(b"next") == 0
    three = machine(copy_of(one.disk, {path: data}))
    with swallowed():
        three.log.attach()
        read_records(three.reader)
        raise AssertionError("a durable record is gone without a word")


@given(st.one_of(st.binary(min_size=1, max_size=400), hostile_entries()))
@settings(max_examples=150)
def test_random_bytes_behind_the_end(data):
    """A torn tail of any content is cut; only a claim that more was durable may refuse."""
    one = machine()
    one.append(b"0")
    path = f"{FOLDER}/{0:020d}.log"
    two = machine(copy_of(one.disk, {path: one.disk.content(path) + data}))
    with swallowed():
        report = two.log.attach()
        assert report.bytes_cut == len(data)
        assert two.values() == [b"0"]
        assert two.append(b"next") == 1


def test_every_length_field_at_two_gigabytes():
    """Each field alone, with checksums that fit."""
    data = b"".join(frame.seal(draft_of(Columns([b"value"], [b"key"])), 0, 0, 0, 1)[0])
    fields = list(frame._HEAD.unpack_from(data))
    for place, value in enumerate(fields):
        if not isinstance(value, int):
            continue
        for huge in (1 << 31, (1 << 32) - 1):
            changed = list(fields)
            changed[place] = huge
            try:
                head = frame._HEAD.pack(*changed)
            except struct.error:
                continue
            forged = head + struct.pack("<I", crc32c(head)) + data[frame.HEADER_BYTES :]
            with swallowed():
                read_everything(forged)


MEMORY_SCRIPT = """
import resource, random, struct
from crc32c import crc32c
from tests.log.test_fuzz import hostile_corpus, read_everything, swallowed
corpus = hostile_corpus(random.Random(7), 3_000)
read_everything(b"")
import pyarrow, lz4.block, zstandard
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
usage = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
limit = usage + (200 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for data in corpus:
    with swallowed():
        read_everything(data)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(grown)
assert grown < 80 * 1024, f"{grown} KiB"
"""


def hostile_corpus(chance: random.Random, count: int) -> list[bytes]:
    """Entries with right checksums that lie about every size, compressed ones among them."""
    corpus = []
    for _ in range(count):
        codec = chance.choice(list(Codec))
        body = b"".join(Columns([chance.randbytes(chance.choice((0, 5, 90)))] * 3).encode()[1])
        made = frame.draft(0, [body], 3, codec=codec)
        stored = bytearray(b"".join(made.body))
        for _ in range(chance.choice((0, 0, 1, 4))):
            if stored:
                stored[chance.randrange(len(stored))] = chance.randrange(256)
        huge = chance.choice((made.body_length, 0, 1 << 26, (1 << 26) - 1, 1 << 31))
        time = struct.pack("<q", 1)
        head = frame._HEAD.pack(
            68 + len(stored), frame.MAGIC, 1, 0, codec, chance.choice((0, 0, 1, 2, 4, 8, 15)),
            0, chance.choice((3, 0, 1 << 20)), 1 << 20, 0, 0, 0, 0, 0, 0, huge, 0,
            crc32c(bytes(stored) + time),
        )  # fmt: skip
        corpus.append(head + struct.pack("<I", crc32c(head)) + bytes(stored) + time)
    return corpus


def test_hostile_entries_stay_within_the_memory_of_one_entry():
    """64 MiB is the limit of an entry; the process may not grow by much more."""
    subprocess.run(
        [sys.executable, "-c", MEMORY_SCRIPT],
        check=True,
        timeout=55,
        cwd=Path(__file__).parents[2],
    )


def test_a_segment_of_another_kind_of_file_is_no_segment():
    """What people put into folders: archives, text, an empty file."""
    for content in (b"", b"\n", b"PK\x03\x04" + bytes(100), b"#!/bin/sh\n" * 50, bytes(70_000)):
        store = MemoryStore()
        key = KEYS.log(SegmentName(0))
        store.write(key, content)
        source = SegmentSource(SegmentName(0), store, key)
        with pytest.raises(DamageError) as caught:
            source.first_entry()
        assert caught.value.file == key


def test_errors_of_damage_are_penstocks_own():
    assert issubclass(DamageError, PenstockError)
    with pytest.raises(DamageError):
        frame.parse_header(bytes(100))
    assert values_draft(b"x").record_count == 1


@pytest.mark.torture
@pytest.mark.timeout(3_600)
def test_a_million_hostile_entries(scored):
    chance = random.Random(11)
    for _ in range(1_000):
        for data in hostile_corpus(chance, 1_000):
            with swallowed():
                read_everything(data)
    scored(18, tried=1_000_000, bad=0, seed=11)
