"""Reading: from any offset and any time, beside live writers, with damage said and never skipped."""

from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import (
    DamagedEntry,
    DamagedFile,
    DeadlineExceeded,
    OffsetOutOfRange,
    StoreFailed,
)
from penstock.log.frame import KIND_RECORDS
from penstock.log.reader import Cursor, PartitionReader
from penstock.log.retention import Needs, plan_retention
from penstock.log.sealed import secure_head
from penstock.log.tail import TailBudget, TailCache
from penstock.log.topic import Retention
from penstock.stores.memory import MemoryStore
from penstock.testing.disk import SimulatedDisk
from tests.log.strategies import (
    FOLDER,
    KEYS,
    Machine,
    columns,
    draft_of,
    machine,
    read_records,
    segment_paths,
    values_draft,
)


def filled(count: int, *, segment_bytes_max: int = 400, size: int = 60) -> Machine:
    one = machine(segment_bytes_max=segment_bytes_max)
    for number in range(count):
        one.append(b"%d:" % number + b"x" * size)
    return one


@given(
    st.lists(
        st.tuples(st.integers(-50, 200), st.integers(1, 3), st.booleans(), st.integers(0, 90_000)),
        min_size=1,
        max_size=14,
    ),
    st.sampled_from([256, 100_000, 1 << 20]),
    st.data(),
)
@settings(max_examples=60)
def test_an_offset_by_time_equals_a_scan(appends, segment_bytes_max, data):
    """Whatever the clock does, the sizes, the rolls and what is durable."""
    one = machine(segment_bytes_max=segment_bytes_max)
    entries = []
    for jump, records, sync, size in appends:
        one.system.clock.jump(jump)
        appended = one.log.append([values_draft(*[bytes(size)] * records)], sync=sync)
        entries.append((appended.timestamp, appended.base_offsets[0]))
    durable = one.log.read_head().durable_offset
    times = [time for time, _ in entries]
    for time in data.draw(
        st.lists(st.integers(min(times) - 2, max(times) + 2), min_size=1, max_size=6)
    ):
        expected = [offset for at, offset in entries if at >= time and offset < durable]
        assert one.reader.offset_at(time) == min(expected, default=durable)


def test_an_empty_partition_has_no_records_at_any_time():
    one = machine()
    assert one.reader.offset_at(0) == 0
    assert one.reader.earliest() == 0
    assert one.reader.cursor(0).fetch() == []
    one.log.attach()
    assert one.reader.cursor(0).fetch() == []


def test_a_cursor_goes_on_where_it_was_as_records_come():
    one = machine(segment_bytes_max=300)
    cursor = one.reader.cursor(0)
    for number in range(12):
        assert cursor.fetch() == []
        one.append(b"%d" % number + b"x" * 50, sync=False)
        assert cursor.fetch() == [], "not durable yet"
        one.log.sync()
        (entry,) = cursor.fetch()
        assert entry.header.base_offset == number
        assert cursor.offset == number + 1


def test_a_seek_goes_anywhere():
    one = filled(20)
    cursor = one.reader.cursor(0)
    for offset in (7, 0, 19, 3, 12, 12):
        cursor.seek(offset)
        (entry, *_) = cursor.fetch(1)
        assert entry.header.base_offset == offset


def test_an_offset_inside_an_entry_starts_with_that_entry():
    one = machine()
    one.append(b"0", b"1", b"2")
    (entry,) = one.reader.cursor(1).fetch()
    assert (entry.header.base_offset, entry.header.next_offset) == (0, 3)
    assert [record.offset for record in read_records(one.reader, 1)] == [1, 2]


def test_an_offset_that_is_gone_says_where_the_log_begins():
    one = filled(9)
    first, second, *_ = one.reader.segments()
    secure_head(one.store, KEYS, second.name.base)
    one.store.delete(first.key)
    earliest = one.reader.earliest()
    assert earliest == second.name.base > 0
    with pytest.raises(OffsetOutOfRange) as caught:
        one.reader.cursor(0).fetch()
    assert (caught.value.offset, caught.value.earliest) == (0, earliest)
    with pytest.raises(OffsetOutOfRange):
        one.reader.cursor(-1).fetch()
    assert len(read_records(one.reader, earliest)) == 9 - earliest
    assert one.reader.cursor(99).fetch() == [], "it may come yet"


def test_a_lost_segment_at_the_start_is_no_retention():
    """Given that retention removed nothing, a log that begins later has lost something."""
    one = filled(9)
    first, *_ = one.reader.segments()
    one.store.delete(first.key)
    for look in (one.reader.earliest, one.reader.cursor(0).fetch):
        with pytest.raises(DamagedFile, match="missing") as caught:
            look()
        assert caught.value.file == first.key
    plan = plan_retention(one.reader, Retention(bytes_max=1), Needs(), 1 << 50)
    assert plan.removals == (), "it would hide that something is missing"
    assert plan.blocked is not None


def read_on(cursor: Cursor, bytes_max: int, seen: list[int]) -> None:
    """Note the first offsets of all entries to the end."""
    while entries := cursor.fetch(bytes_max):
        seen += [entry.header.base_offset for entry in entries]


def test_records_before_damage_are_read_and_then_it_raises_every_time():
    """The iterator never just ends, and it never goes on behind the damage."""
    one = filled(6, segment_bytes_max=10_000)
    (source,) = one.reader.segments()
    entry = [e for e in source.entries(0, source.size()) if e.header.kind == KIND_RECORDS][4]
    one.disk.flip_bit(segment_paths(one.disk)[0], 8 * (entry.position + 90))
    for bytes_max in (1, 200, 1 << 20):
        cursor = one.reader.cursor(0)
        seen: list[int] = []
        with pytest.raises(DamagedEntry) as caught:
            read_on(cursor, bytes_max, seen)
        assert seen == [0, 1, 2, 3]
        assert caught.value.position == entry.position
        assert cursor.offset == 4
        with pytest.raises(DamagedEntry):
            cursor.fetch(bytes_max)


def test_an_entry_out_of_the_chain_is_damage_and_those_before_it_are_read():
    one = filled(4, segment_bytes_max=10_000)
    other = machine(seed=3)
    for number in range(4):
        other.append(b"%d:" % number + b"y" * 60)
    path = segment_paths(one.disk)[0]
    (source,) = one.reader.segments()
    positions = [entry.position for entry in source.entries(0, source.size())]
    mine, theirs = one.disk.content(path), other.disk.content(path)
    one.disk.put(
        path, mine[: positions[3]] + theirs[positions[3] : positions[4]] + mine[positions[4] :]
    )
    cursor = one.reader.cursor(0)
    assert [entry.header.base_offset for entry in cursor.fetch()] == [0, 1]
    with pytest.raises(DamagedEntry, match="does not follow") as caught:
        cursor.fetch()
    assert caught.value.position == positions[3]
    assert cursor.offset == 2


@pytest.mark.parametrize("operation", ["read", "open", "list_directory", "status"])
def test_a_failing_read_raises_and_the_cursor_stays(operation):
    """The next try, when the disk is well again, gives every record once."""
    one = filled(8)
    at = 1
    fired = True
    while fired:
        two = machine(one.disk.kill())
        fault = two.disk.fail(operation, at=at)
        cursor = two.reader.cursor(0)
        seen: list[int] = []
        for _ in range(40):
            try:
                entries = cursor.fetch(300)
            except StoreFailed:
                continue
            seen += [entry.header.base_offset for entry in entries]
            if not entries:
                break
        assert seen == list(range(8))
        fired = bool(fault.fired)
        at += 1
    assert at > 2


class Bystander:
    """Reads everything before every call of a writer that may change something."""

    def __init__(self, reading: Machine, written: list[bytes]) -> None:
        self.reading = reading
        self.written = written
        self.looks = 0
        self._looking = False

    def __call__(self, operation: str, path: str) -> None:
        if self._looking:
            return
        self._looking = True
        try:
            self.look(self.reading.reader)
            self.looks += 1
        except DeadlineExceeded:
            # The first head is being written: a reader waits for the lock, which is in vain here.
            assert not self.looks
        finally:
            self._looking = False

    def look(self, reader: PartitionReader) -> None:
        records = read_records(reader)
        assert [record.offset for record in records] == list(range(len(records)))
        assert [record.value for record in records] == self.written[: len(records)]
        assert reader.offset_at(0) == 0
        assert reader.offset_at(1 << 62) == reader.head().durable_offset
        assert reader.earliest() == 0


def test_readers_beside_a_writer_never_see_a_half_made_thing():
    """At every call of a writer that may change something, readers find a prefix and no error."""
    disk = SimulatedDisk()
    one = machine(disk, seed=1, segment_bytes_max=300)
    two = machine(disk, seed=2)
    written = [b"%d" % number + b"x" * 80 for number in range(12)]
    bystander = Bystander(two, written)
    one.append(written[0])
    disk.on_call(bystander)
    for number, value in enumerate(written[1:]):
        one.append(value, sync=number % 2 == 0)
    one.log.close()
    disk._call_hooks.clear()
    assert bystander.looks > 40
    assert two.values() == written


def test_a_head_that_is_being_written_is_waited_for():
    """A slot that looks damaged is looked at again under the lock."""
    one = filled(3, segment_bytes_max=10_000)
    path = f"{FOLDER}/head"
    whole = one.disk.content(path)
    one.disk.put(path, whole[:100] + b"torn" + whole[104:])
    with pytest.raises(DamagedFile, match="Opening the queue"):
        one.reader.head()
    one.log.attach()
    assert one.reader.head().next_offset == 3


def test_a_segment_that_moves_away_between_two_reads_is_found_again():
    """Tiering: the copy in the tier stands in for the local file."""
    one = filled(8)
    tier = MemoryStore()
    reader = PartitionReader(one.store, KEYS, tier)
    cursor = reader.cursor(0)
    seen = [entry.header.base_offset for entry in cursor.fetch(1)]
    for path in segment_paths(one.disk)[:-1]:
        key = path.removeprefix("/data/log/")
        tier.write(key, one.disk.content(path))
        one.store.delete(key)
    while entries := cursor.fetch(1):
        seen += [entry.header.base_offset for entry in entries]
    assert seen == list(range(8))


@given(
    st.lists(st.tuples(columns(1, 4), st.booleans()), min_size=1, max_size=8),
    st.integers(0, 3_000),
    st.data(),
)
@settings(max_examples=60)
def test_the_tail_cache_gives_what_the_log_gives_or_nothing(appends, bytes_max, data):
    """Whatever is cached and whatever is durable, a hit equals the records on disk."""
    one = machine()
    cache = TailCache(TailBudget(bytes_max))
    for batch, sync in appends:
        appended = one.log.append([draft_of(batch)], sync=sync)
        cache.add(appended.base_offsets[0], appended.timestamp, batch)
    durable = one.log.read_head().durable_offset
    stored = read_records(one.reader)
    offset = data.draw(st.integers(0, one.log.head.next_offset))
    found = cache.read(KEYS.topic, KEYS.partition, offset, durable)
    if found is not None:
        assert found
        assert found == stored[offset : offset + len(found)]


@pytest.mark.parametrize(("offset", "indexes"), [(0, 0), (1, 1)])
def test_who_begins_with_a_segment_asks_no_index_and_lists_once(offset, indexes, monkeypatch):
    """A subscriber of hundreds of partitions begins in each of them."""
    one = machine()
    one.append(b"a", b"b")
    reader = one.reader
    read, listed = Mock(wraps=one.store.read), Mock(wraps=one.store.list)
    monkeypatch.setattr(one.store, "read", read)
    monkeypatch.setattr(one.store, "list", listed)
    assert [record.offset for record in read_records(reader, offset)] == [0, 1][offset:]
    assert listed.call_count == 1
    assert sum(call.args[0].endswith(".index") for call in read.call_args_list) == indexes
