"""Details of upkeep that nothing else would show: gaps and what they say, strays, stale heads, what is lost and told."""

from typing import Any

import pytest
from msgspec.structs import replace

from penstock import TopicConfig, WalMessageQueue
from penstock.errors import InvalidOption
from penstock.log.batch import split
from penstock.log.checks import check_columns
from penstock.log.columns import Columns
from penstock.log.frame import KIND_GAP, draft
from penstock.log.head import Head
from penstock.log.inspection import VerifyReport, _Inspector, inspect_segment
from penstock.log.maintenance import Maintenance
from penstock.log.names import SegmentName
from penstock.log.partition_check import PartitionCheck
from penstock.log.repair import _Repair, repair
from penstock.log.repair_partition import PartitionRepair, _Part, rebuild_index
from penstock.log.retention import Needs, plan_retention
from penstock.log.rewrite import GAP_LOST, SegmentWriter
from penstock.log.segment import SegmentSource, SegmentStart
from penstock.log.tiering import move_sealed
from penstock.log.topic import Retention, TopicFile
from penstock.log.verify import verify
from penstock.log.walk import Stretch
from penstock.stores.memory import MemoryStore
from tests.log.small_log import KEYS, TOPIC, SmallLog, file_names, log_key
from tests.log.strategies import copy_of, machine, segment_paths, values_draft
from tests.log.test_forged_segments import HEAD, LOG_ID, SMALL, START, forged, rolled, stored
from tests.log.test_small_promises import part


def gap(span: int, flags: int):
    return draft(flags, [], 0, offset_span=span, kind=KIND_GAP)


@pytest.mark.parametrize(("flags", "lost"), [(0, []), (GAP_LOST, [(1, 4)])])
def test_a_gap_says_whether_its_records_are_lost(flags, lost):
    found = inspect_segment(KEYS, stored(START, values_draft(b"0"), gap(3, flags)))
    assert found.lost == lost


@pytest.mark.parametrize("flags", [0, GAP_LOST])
def test_a_gap_that_is_taken_over_keeps_what_it_says(flags):
    source = stored(START, values_draft(b"0"), gap(3, flags), values_draft(b"4"))
    writer = SegmentWriter(SegmentStart(LOG_ID, 0, 1, KEYS.topic), 0, 0, 0)
    for entry in list(source.entries(0, source.size()))[1:]:
        writer.keep(entry)
    data, _ = writer.finish(0)
    name = SegmentName(0, 1)
    store = MemoryStore()
    store.write(KEYS.log(name), data)
    found = inspect_segment(KEYS, SegmentSource(name, store, KEYS.log(name)))
    assert (found.lost, found.records) == ([(1, 4)] if flags else [], 2)


def test_an_index_that_needs_no_rows_is_removed():
    log = SmallLog()
    log.append((b"key", b"value"))
    (source,) = log.reader().segments()
    log.store.write(KEYS.index(source.name), b"stale")
    rebuild_index(KEYS, source, source.size())
    assert not log.store.exists(KEYS.index(source.name))


def test_folders_that_are_no_partitions_are_passed_over():
    log = SmallLog()
    log.append((b"key", b"value"))
    for folder in ("xy", "99999"):
        log.store.write(f"topics/{KEYS.topic}/{folder}/stray", b"")
    assert verify(log.store).partitions == 1


def test_a_batch_of_two_is_split_when_it_is_too_large():
    pieces = list(split(Columns([b"a" * 600, b"b" * 600]), 100, 1_000))
    assert [list(piece.values) for piece in pieces] == [[b"a" * 600], [b"b" * 600]]
    whole = list(split(Columns([b"a", b"b"]), 100, 1_000))
    assert [len(piece) for piece in whole] == [2]


@pytest.mark.parametrize("wrong", [-(1 << 63) - 1, 1 << 63])
def test_one_timestamp_out_of_range_is_enough(wrong):
    check_columns(Columns([b"a", b"b"], None, [0, 1]))
    with pytest.raises(InvalidOption):
        check_columns(Columns([b"a", b"b"], None, [0, wrong]))


def test_recovery_goes_on_from_a_stale_head_over_several_segments():
    one, before = rolled(4)
    two = machine(copy_of(one.disk, {HEAD: before}), **SMALL)
    report = two.log.attach()
    assert (report.next_offset, report.bytes_cut, report.clean) == (4, 0, True)
    assert len(two.values()) == 4


async def test_a_wait_needs_a_number_of_seconds(tmp_path):
    async with WalMessageQueue(tmp_path / "log") as queue:
        await queue.create_topic("orders")
        with pytest.raises(InvalidOption):
            await queue.repartition("orders", 2, timeout=-1)


def test_what_is_forged_reads_as_it_was_made():
    source = stored(START, values_draft(b"0", b"1"), values_draft(b"2"))
    entries = list(source.entries(0, source.size()))
    assert [one.header.base_offset for one in entries] == [0, 0, 2]
    assert len(forged(START)) == entries[1].position


def test_a_lost_head_is_made_anew_when_retention_took_the_first_segments():
    one, _ = rolled(4)
    first = segment_paths(one.disk)[0]
    two = machine(copy_of(one.disk, {HEAD: None, first: None}), **SMALL)
    report = two.log.attach()
    assert (report.next_offset, report.head_lost, report.bytes_cut) == (4, True, 0)
    assert len(two.values(1)) == 3


def test_a_sound_index_is_used_and_not_written_again():
    one = machine()
    for number in range(4):
        one.append(b"%d" % number * 70_000)
    one.log.segment_bytes_max = 1
    one.append(b"last")
    one.reader.locate(3)
    before = one.store.statistics().writes
    _, position, offset = one.reader.locate(3)
    assert (offset, position > 0) == (3, True)
    assert one.store.statistics().writes == before


def test_every_log_has_an_identity_of_its_own():
    found = set()
    for seed in (1, 2):
        one = machine(seed=seed, segment_bytes_max=256)
        for _ in range(2):
            one.append(b"x" * 300)
        starts = [SegmentStart.parse(each.first_entry()) for each in one.reader.segments()]
        assert len({start.log_id for start in starts}) == 1
        found.add(starts[0].log_id)
    assert len(found) == 2
    assert bytes(16) not in found


def test_a_segment_that_is_missing_at_the_start_blocks_retention_and_is_named():
    log = SmallLog()
    log.append_segments(4)
    first, second = log.bases()[:2]
    log.store.delete(log_key(first))
    limit = Retention(age_ms_max=None, bytes_max=1)
    plan = plan_retention(log.reader(), limit, Needs(), log.clock.time_ms())
    assert plan.removals == ()
    assert plan.blocked is not None
    assert plan.blocked.source.name.base == second
    assert f"offset {first} is missing" in str(plan.blocked)


def test_moving_to_the_tier_removes_what_a_crash_left_behind():
    log = SmallLog(tier=MemoryStore())
    log.append_segments(2)
    alone = KEYS.index(SegmentName(7))
    log.store.write(alone, b"alone")
    move_sealed(log.store, KEYS, log.tier)
    assert not log.store.exists(alone)


def test_a_broken_chain_and_damaged_bytes_are_told_apart():
    told: list[tuple[str, str]] = []
    world = part(
        _damage=Stretch(10, 30, "checksum"),
        _found=part(next_offset=3),
        _tell=lambda kind, position, what, *_: told.append((kind, what)),
    )
    _Inspector._settle_damage(world, 5)
    world._damage = Stretch(10, 10, "chain")
    _Inspector._settle_damage(world, 5)
    assert told == [
        ("entry", "20 bytes are damaged (checksum)"),
        ("chain", "the chain is broken"),
    ]


@pytest.mark.parametrize(("sealed", "kind"), [(True, "end"), (False, "entry")])
def test_a_segment_that_is_cut_off_lacks_its_end_or_entries(sealed, kind):
    told: list[str] = []
    world = part(
        _found=part(bound=5, next_offset=3, end=None, position=10),
        _damage=None,
        _sealed=sealed,
        _cut=False,
        _rows=(),
        _limit=0,
        _tell=lambda kind, *_: told.append(kind),
    )
    _Inspector._finish(world)
    assert told == [kind]


def test_the_end_that_a_head_tells_counts_for_offsets_beyond_it():
    log = SmallLog()
    log.append((None, b"0"), (None, b"1"))
    check = PartitionCheck(log.store, KEYS, None, VerifyReport())
    check._inspect_open(log.head(), None)
    assert check._next_offset == 2
    check._next_offset = 9
    check._inspect_open(Head(), None)
    assert check._next_offset == 9


def test_the_open_segment_is_compared_with_the_one_just_before_it(monkeypatch):
    log = SmallLog()
    log.append_segments(4)
    compared: list[int] = []
    monkeypatch.setattr(
        PartitionCheck, "_inspect_open", lambda _, head, last: compared.append(last.next_offset)
    )
    PartitionCheck(log.store, KEYS, None, VerifyReport()).run()
    assert compared == [log.head().segment_base]


def test_a_description_of_another_topic_is_not_gone_back_to():
    log = SmallLog()
    log.append((None, b"0"))
    elsewhere = MemoryStore()
    TopicFile(elsewhere, "another").create(TopicConfig(linger_ms=77), 0)
    foreign = elsewhere.read("topics/another/topic.json")
    log.store.write(log.topic.key, foreign)
    repair(log.store, TOPIC, system=log.system)
    state = TopicFile(log.store, TOPIC).read()
    assert (state.name, state.config.linger_ms) == (TOPIC, TopicConfig().linger_ms)


def test_a_part_that_begins_at_the_end_is_dropped():
    dropped: list[int] = []
    world = part(_drop_empty=lambda one: dropped.append(one.base))
    parts = [_Part(0, None, None, 5), _Part(5, None, None, 5)]
    kept = PartitionRepair._bounded(world, parts, None, 5)
    assert [one.base for one in kept] == [0]
    assert dropped == [5]


@pytest.mark.parametrize("committed", [None, 7])
def test_a_log_that_lost_everything_goes_on_behind_what_was_committed(committed):
    log = SmallLog()
    log.append((None, b"0"))
    log.log.close()
    if committed is not None:
        log.subscribe("billing", committed)
    for name in file_names(log.store, ""):
        if name.endswith((".log", "head")):
            log.store.delete(f"{KEYS.folder}/{name}")
    repair(log.store, TOPIC, system=log.system)
    log.open()
    assert log.append((None, b"next")) == (committed or 0)


async def test_queues_of_one_process_do_not_share_what_is_watched(tmp_path):
    async with WalMessageQueue(tmp_path / "one") as one, WalMessageQueue(tmp_path / "two") as two:
        await one.publish(TOPIC, b"1")
        await two.publish(TOPIC, b"2")
        assert [record.value async for record in one.replay(TOPIC)] == [b"1"]


def test_a_topic_that_is_behind_its_heads_gets_the_epoch_after_theirs():
    log = SmallLog()
    log.append((None, b"0"))
    log.log.begin_epoch(4)
    world: Any = part(_store=log.store, _system=log.system)
    epochs = _Repair._with_epoch(world, log.state).epochs
    assert [one.epoch for one in epochs] == [0, 5]
    assert epochs[-1].starts == (1,)
    ahead = replace(log.state, epochs=epochs)
    assert _Repair._with_epoch(world, ahead) is ahead


def test_retention_that_is_asked_for_twice_is_done_once():
    jobs: list[Any] = []
    done: list[str] = []
    world: Any = part(
        _worker=part(submit=jobs.append),
        _asked=set(),
        _stopping=False,
        retain=lambda topic: done.append(topic.name),
    )
    world._retain_asked = lambda topic: Maintenance._retain_asked(world, topic)
    topic: Any = part(name=TOPIC)
    for _ in range(3):
        Maintenance._retain_soon(world, topic)
    assert len(jobs) == 1
    jobs.pop()()
    assert done == [TOPIC]
    Maintenance._retain_soon(world, topic)
    assert len(jobs) == 1
