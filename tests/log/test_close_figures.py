"""Cases of files, upkeep and figures of the log that are alike but for one step."""

from pathlib import PurePosixPath
from typing import Any

import pytest

from penstock import Retention, TopicConfig, WhenFull
from penstock.errors import (
    BufferFull,
    Closed,
    DamagedEntry,
    DamagedFile,
    DamageError,
    RecordTooLarge,
    StoreFailed,
)
from penstock.log import arrow
from penstock.log.batch import split
from penstock.log.checks import largest_record
from penstock.log.columns import Columns, decode
from penstock.log.compaction import Compactor
from penstock.log.deletion import delete_topic
from penstock.log.frame import HEADER_BYTES, entries
from penstock.log.index import INDEX_SPACING_BYTES, ROW_BYTES, Index
from penstock.log.inspection import LostRange, Problem, VerifyReport
from penstock.log.lag import FOREVER, _first_time
from penstock.log.partition import PartitionLog
from penstock.log.recovery import TailScanner
from penstock.log.retention import Needs, find_needs, retention_info
from penstock.log.segment import SegmentEnd, SegmentStart
from penstock.log.tail import TailBudget, TailCache
from penstock.log.verify import _local_path, verify
from penstock.log.writer import TopicWriter
from penstock.stores.memory import MemoryStore
from penstock.testing.worker import simulated_system
from tests.log.small_log import KEYS, TOPIC, SmallLog
from tests.log.strategies import FOLDER, copy_of, machine, segment_paths, values_draft
from tests.log.test_forged_segments import (
    SMALL,
    START,
    forged,
    indexed,
    rolled,
    stored,
    with_a_wrong_row,
)
from tests.log.test_small_promises import part
from tests.log.test_walk import with_offsets

# Upkeep


def test_compaction_is_due_when_there_may_be_something_to_do(monkeypatch):
    log = SmallLog()
    log.append((b"k", b"v"))
    compactor = Compactor(log.store, KEYS)
    assert compactor.is_due(0)
    compactor._done_base = log.head().segment_base
    assert not compactor.is_due(0)
    compactor._next_due_ms = 100
    assert [compactor.is_due(now) for now in (99, 100, 101)] == [False, True, True]
    compactor._next_due_ms, compactor._awaited = None, 7
    for needed, due in ((6, False), (7, False), (8, True)):
        monkeypatch.setattr(compactor, "_needed", lambda needed=needed: needed)
        assert compactor.is_due(0) == due


class Noted(MemoryStore):
    """A store that tells in which order it was asked to lock and to delete."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, Any]] = []

    def lock(self, key: str, timeout: float) -> Any:
        self.calls.append(("lock", (key, timeout)))
        return super().lock(key, timeout)

    def delete(self, key: str) -> None:
        self.calls.append(("delete", key))
        super().delete(key)


def test_a_partition_is_deleted_under_its_lock_and_its_head_last():
    store = Noted()
    log = SmallLog(store)
    log.append_segments(2)
    log.subscribe("billing")
    store.calls.clear()
    delete_topic(store, TOPIC)
    locks = dict(call for name, call in store.calls if name == "lock")
    assert locks[f"groups/billing/{TOPIC}.lock"] == 0
    assert locks[KEYS.head] > 0
    of_partition = [
        name if name == "lock" else key.rpartition("/")[2].rpartition(".")[2]
        for name, key in store.calls
        if KEYS.folder in str(key)
    ]
    assert of_partition[0] == "lock"
    assert of_partition[-1] == "head"
    assert of_partition.count("log") >= 2
    assert not list(store.list(f"topics/{TOPIC}/"))


def test_a_subscriber_that_has_not_met_a_partition_needs_all_of_it():
    log = SmallLog()
    log.topic.add_subscriber("billing", {})
    assert find_needs(log.store, log.state, 0) == Needs(0, "billing")


def test_a_topic_is_full_beyond_its_limit():
    log = SmallLog()
    log.append_segments(3)
    needs = Needs(0, "billing")
    sealed = retention_info(log.reader(), Retention(), needs, 0).sealed_bytes
    for limit, full in ((sealed, False), (sealed - 1, True)):
        retention = Retention(age_ms_max=None, bytes_max=limit, when_full=WhenFull.REJECT)
        assert retention_info(log.reader(), retention, needs, 0).full == full


def test_only_what_is_local_and_not_known_durable_is_written_again():
    touched: list[str] = []
    store: Any = part(read=lambda *_: b"x", write_at=lambda key, *_: touched.append(key))
    store.sync = lambda key: touched.append(f"synced {key}")

    def source(key: str, where: Any, size: int) -> Any:
        return part(key=key, store=where, size=lambda: size)

    spans = [(source("tier", object(), 9), 0), (source("whole", store, 9), 9)]
    spans.append((source("tail", store, 9), 8))
    end: Any = part(spans=spans)
    PartitionLog._write_again(part(_store=store), end)
    assert touched == ["tail", "synced tail"]


@pytest.mark.parametrize(
    ("where", "path"),
    [
        ("/data/log", "/data/log"),
        ("file:///data/log", "/data/log"),
        ("file:log", "log"),
        ("sqlite:///data/log.db", "/data/log.db"),
        ("s3://bucket/log", None),
        ("./a:b", "./a:b"),
        (PurePosixPath("s3:log"), "s3:log"),
        ("", ""),
    ],
)
def test_a_path_is_told_from_a_url(where, path):
    assert _local_path(where) == path


def test_an_end_that_is_damaged_does_not_hide_how_far_the_segments_before_it_reach():
    log = SmallLog()
    log.append_segments(3)
    log.append((None, b"behind it"))
    log.subscribe("billing", 2)
    source = log.reader().segments()[-1]
    record = list(source.entries(0, source.size()))[1]
    hurt = bytearray(log.store.read(source.key))
    hurt[record.position + HEADER_BYTES] ^= 1
    log.store.write(source.key, bytes(hurt))
    log.store.delete(KEYS.head)
    kinds = {one.kind for one in verify(log.store).problems}
    assert "entry" in kinds
    assert "offset" not in kinds


def test_a_log_keeps_its_identity_in_the_next_segment():
    one = machine()
    one.append(b"0" * 300)
    two = machine(copy_of(one.disk), **SMALL)
    two.append(b"1")
    ids = {SegmentStart.parse(source.first_entry()).log_id for source in two.reader.segments()}
    assert len(two.reader.segments()) == 2
    assert len(ids) == 1


@pytest.mark.parametrize(("topic", "partition"), [("another", 0), ("orders", 1)])
def test_a_segment_of_another_place_is_not_read(topic, partition):
    one, _ = rolled(3)
    path = segment_paths(one.disk)[1]
    mine = SegmentStart.parse(one.reader.segments()[1].first_entry())
    start = mine._replace(topic=topic, partition=partition).draft()
    two = machine(copy_of(one.disk, {path: forged(start, values_draft(b"evil"), base=1)}))
    assert two.reader.cursor(2).fetch()
    with pytest.raises(DamageError, match="another place"):
        two.reader.cursor(1).fetch()


def test_a_log_whose_first_segment_is_lost_has_no_earliest_offset():
    log = SmallLog()
    log.append_segments(3)
    assert log.reader().earliest() == 0
    log.store.delete(log.reader().segments()[0].key)
    with pytest.raises(DamagedFile, match="missing"):
        log.reader().earliest()


def test_an_index_that_was_wrong_is_made_right_once(monkeypatch):
    reader, rows = with_a_wrong_row(indexed())
    calls: list[Any] = []
    rebuild = reader._rebuild

    def counted(*arguments: Any) -> Index:
        calls.append(arguments)
        return rebuild(*arguments)

    monkeypatch.setattr(reader, "_rebuild", counted)
    found = reader.locate(rows[0].offset)
    count = len(calls)
    assert reader.locate(rows[0].offset) == found
    assert len(calls) == count > 0


def test_an_entry_that_chains_to_the_end_of_a_segment_is_not_part_of_it():
    end = SegmentEnd(1, 0, 1, 0, 0, 0).draft()
    whole = forged(START, values_draft(b"0"), end)
    source = stored(START, values_draft(b"0"), end, values_draft(b"behind"))
    found = TailScanner(KEYS, [source], None).find_end()
    assert found.torn == (source, len(whole))
    assert found.head.next_offset == 1


def test_a_lost_head_is_told_though_nothing_is_torn():
    one = machine()
    assert not one.log.attach().head_lost
    one.append(b"0")
    report = machine(copy_of(one.disk, {f"{FOLDER}/head": None})).log.attach()
    assert (report.head_lost, report.bytes_cut, report.next_offset) == (True, 0, 1)


# Figures


def test_columns_that_are_cut_anywhere_are_damage():
    batch = Columns([b"a", None], [b"k", b""], [5, 6], [{"n": b"v"}, None], [0, 3])
    flags, body = batch.encode()
    whole = b"".join(bytes(one) for one in body)
    assert decode(whole, flags, 2, 0, 0).columns().values == batch.values
    for size in range(len(whole)):
        with pytest.raises(DamagedEntry):
            decode(whole[:size], flags, 2, 0, 0)


@pytest.mark.parametrize(
    ("sizes", "counts"), [([6, 4], [2]), ([6, 5, 5], [1, 2]), ([11, 1], [1, 1])]
)
def test_entries_go_into_one_arrow_batch_while_they_fit(monkeypatch, sizes, counts):
    monkeypatch.setattr(arrow, "BATCH_BYTES_MAX", 10)
    made: Any = [part(header=part(body_length=size)) for size in sizes]
    assert [len(one) for one in arrow._portions(made)] == counts


def test_an_index_has_a_row_for_each_spacing_and_one_more():
    assert Index.size_max(0) == ROW_BYTES
    assert Index.size_max(3 * INDEX_SPACING_BYTES) == 4 * ROW_BYTES


def test_a_batch_that_just_fits_is_not_split():
    batch = Columns([b"12345", b"67890"])
    size = batch.byte_size()
    assert [len(one) for one in split(batch, 10, size)] == [2]
    assert [len(one) for one in split(batch, 10, size - 1)] == [1, 1]


def test_the_next_record_may_stand_in_a_later_entry():
    """The entry covers offsets whose records are gone."""
    first = list(entries(forged(with_offsets(0, span=4), timestamp=5)))
    second = list(entries(forged(values_draft(b"4"), base=4, timestamp=9)))
    for offset, time in ((0, 5), (2, 9), (4, 9), (5, FOREVER)):
        portions = iter([first, second, []])
        reader: Any = part(cursor=lambda _, it=portions: part(fetch=lambda _: next(it)))
        assert _first_time(reader, offset) == time


def test_a_cache_that_was_cleared_serves_what_goes_on_further_back():
    """As after a failed write, whose offsets are given to others."""
    cache = TailCache(TailBudget(1 << 20))
    for base in (0, 5, 10):
        cache.add(base, 1, Columns([b"old"] * 5))
    cache.clear()
    assert cache.read(TOPIC, 0, 5, 15) is None
    cache.add(5, 1, Columns([b"new"]))
    found = cache.read(TOPIC, 0, 5, 6)
    assert found is not None
    assert [(one.offset, one.value) for one in found] == [(5, b"new")]
    assert cache.hits == 1


def test_slots_of_a_cache_are_cleared_away_when_most_of_them_are_empty():
    budget = TailBudget(1 << 20)
    slots: list[Any] = [part(batch=object(), size=10) for _ in range(7)]
    for slot in slots[:4]:
        budget.put(slot)
    counts = []
    for fresh, gone in zip(slots[4:], (slots[:2], slots[2:3], slots[3:4]), strict=True):
        budget.drop(gone)
        budget.put(fresh)
        counts.append(len(budget._slots))
    assert counts == [5, 6, 3]
    assert budget.bytes == 30


@pytest.mark.parametrize(
    ("values", "limit", "batch", "refused"),
    [
        ([b"123456"], 5, 5, True),
        ([b"12345"], 5, 5, False),
        ([b"1", b"123456"], 5, 100, True),
        ([b"1", b"12345"], 5, 100, False),
    ],
)
def test_each_record_of_a_batch_may_be_as_large_as_one_may_be(values, limit, batch, refused):
    def refuse(size: int) -> None:
        raise RecordTooLarge(f"{size}")

    config = TopicConfig(record_bytes_max=limit, batch_bytes_max=batch)
    world = part(config=config, _refuse=refuse)
    if refused:
        with pytest.raises(RecordTooLarge, match="6"):
            TopicWriter.check_sizes(world, [Columns(values)])
    else:
        TopicWriter.check_sizes(world, [Columns(values)])


def test_what_another_process_left_unsynced_is_synced_and_told():
    told: list[Any] = []
    logs = [part(poison=None), part(poison=OSError())]
    world = part(_logs=logs, _on_commit=lambda done, rows: told.append(done))
    world._try_sync = lambda number, log: told.append(number)
    TopicWriter.adopt(world, 0)
    TopicWriter.adopt(world, 1)
    assert told == [0, ()]


@pytest.mark.parametrize(
    ("columns", "largest"),
    [
        (Columns([b"1", b"123", None]), 3),
        (Columns([b"1", b"12"], [b"1234", None]), 5),
        (Columns([b"1", b"12"], None, None, [{"name": b"v"}, None]), 6),
        (Columns([b"1", b"12"], [b"1234", None], None, [None, {"name": b"v"}]), 7),
        (Columns([]), 0),
    ],
)
def test_the_largest_record_is_counted_with_its_key_and_headers(columns, largest):
    assert largest_record(columns) == largest


def test_what_is_being_written_still_takes_room():
    writer: Any = writer_of(TopicConfig(buffer_bytes_max=200), part(submit=lambda job: None))
    full = []

    def commit(_: object) -> None:
        with pytest.raises(BufferFull):
            writer.add_nowait(b"x" * 150)
        full.append(writer.pending_bytes)

    writer._commit_batches = commit
    writer.add_nowait(b"x" * 100)
    writer.commit()
    assert full[0] >= 100
    writer.add_nowait(b"x" * 150)


def test_reports_of_several_checks_add_up():
    lost = LostRange(TOPIC, 0, 1, 2)
    other = VerifyReport([], 1, 2, 3, 4, [Problem("file", "entry", "hurt")], [lost])
    report = VerifyReport()
    report.add(other)
    report.add(other)
    assert (report.partitions, report.segments, report.records, report.bytes) == (2, 4, 6, 8)
    assert (len(report.problems), report.lost) == (2, [lost, lost])


def test_who_published_before_everything_failed_hears_of_it():
    writer: Any = writer_of(TopicConfig(), part(submit=lambda job: None))
    error = StoreFailed("the disk")
    writer._committing = 3
    writer._fail_rest([], error)
    for since, told in ((2, [error]), (3, [error]), (4, [])):
        receipt = part(since=since, errors={})
        writer._inherit(receipt)
        assert list(receipt.errors.values()) == told


def test_what_came_in_beside_the_end_fails():
    writer = writer_of(TopicConfig(), part(submit=lambda job: None))
    receipt = writer.add_nowait(b"0")
    writer.refuse_from_now_on(Closed("the queue is closed"))
    writer.stop()
    assert receipt.done
    assert [type(one) for one in receipt.errors.values()] == [Closed]


def writer_of(config: TopicConfig, worker: Any) -> TopicWriter:
    """One that writes nowhere."""
    return TopicWriter(
        TOPIC,
        config,
        [],
        [],
        system=simulated_system(),
        worker=worker,
        on_commit=lambda done, rows: None,
        partitions=1,
    )


def test_a_record_that_is_too_large_is_told_from_a_buffer_that_is_full():
    config = TopicConfig(record_bytes_max=5, buffer_bytes_max=9)
    writer = writer_of(config, part(submit=lambda job: None))
    with pytest.raises(RecordTooLarge):
        writer.add_nowait(b"123456")
    writer.add_nowait(b"12345")
    with pytest.raises(BufferFull):
        writer.add_nowait(b"12345")
    with pytest.raises(RecordTooLarge):
        writer.add_nowait(b"123456")


def test_a_commit_that_was_asked_for_is_not_asked_for_again():
    """Not by those that come while a full batch waits for the worker."""
    asked: list[str] = []
    worker = part(submit=lambda job: asked.append("now"))
    worker.submit_after = lambda seconds, job: asked.append("later")
    config = TopicConfig(linger_ms=5, batch_records_max=3)
    writer = writer_of(config, worker)
    for number in range(6):
        writer.add_nowait(b"%d" % number)
    assert asked == ["later", "now"]
