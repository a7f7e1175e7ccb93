"""Upkeep of another process takes files away between two looks: nobody takes that for damage."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.errors import DamagedFile, DeadlineExceeded, KeyNotFound, OffsetOutOfRange
from penstock.log import lag, partition_check, places, tiering, verify
from penstock.log.head import HeadFile
from penstock.log.inspection import VerifyReport, inspect_segment
from penstock.log.offsets import OffsetFile
from penstock.log.partition_check import PartitionCheck
from penstock.log.producer_file import ProducerFile
from penstock.log.reader import LOOKUPS_MAX
from penstock.log.recovery import TailScanner
from penstock.log.repair import repair
from penstock.log.retention import Needs, plan_retention, retention_info
from penstock.log.segment import SegmentSource
from penstock.log.slots import SlottedFile
from penstock.log.tiering import move_sealed
from penstock.log.topic import Retention, TopicFile
from penstock.log.transaction_care import TransactionCare
from penstock.stores.memory import MemoryStore
from penstock.testing.disk import SimulatedDisk
from tests.log.small_log import KEYS, TOPIC, SmallLog
from tests.log.transaction_world import NAME, Process, make_topics


def gone(*_: object, **__: object) -> Any:
    raise KeyNotFound("somebody took it away")


def once(then: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    """Fails the first time."""
    errors = [error]

    def call(*arguments: Any, **options: Any) -> Any:
        if errors:
            raise errors.pop()
        return then(*arguments, **options)

    return call


@pytest.fixture
def log() -> SmallLog:
    """Two sealed segments and an open one."""
    made = SmallLog()
    for number in range(3):
        made.append((b"key", b"%d" % number))
        made.roll()
    return made


def test_retention_leaves_a_segment_that_goes_away_to_who_took_it(log, monkeypatch):
    monkeypatch.setattr(SegmentSource, "read_end", gone)
    limit = Retention(age_ms_max=None, bytes_max=1)
    plan = plan_retention(log.reader(), limit, Needs(), log.clock.time_ms())
    assert (plan.removals, plan.blocked) == ((), None)


def test_the_oldest_time_is_not_known_when_its_segment_goes_away(log, monkeypatch):
    monkeypatch.setattr(SegmentSource, "first_entry", gone)
    info = retention_info(log.reader(), Retention(), Needs(), log.clock.time_ms())
    assert info.oldest_timestamp is None


def test_a_segment_that_goes_away_is_not_moved(log, monkeypatch):
    tier = MemoryStore()
    monkeypatch.setattr(tiering, "_checked_bytes", gone)
    report = move_sealed(log.store, KEYS, tier)
    assert (report.segments_moved, report.damage, report.busy) == (0, (), False)
    assert not tier.list()


def test_nothing_is_moved_while_the_head_is_not_safe(log, monkeypatch):
    tier = MemoryStore()
    monkeypatch.setattr(tiering, "secure_head", lambda *_: False)
    assert move_sealed(log.store, KEYS, tier).busy
    assert not tier.list()


# verify


def checked(log: SmallLog) -> VerifyReport:
    report = VerifyReport()
    PartitionCheck(log.store, KEYS, None, report).run()
    return report


def test_a_segment_that_moved_is_looked_at_where_it_is_now(log, monkeypatch):
    monkeypatch.setattr(
        partition_check, "inspect_segment", once(inspect_segment, KeyNotFound("moved"))
    )
    assert checked(log).sound


def test_a_segment_that_is_gone_for_good_is_no_damage(log, monkeypatch):
    monkeypatch.setattr(partition_check, "inspect_segment", gone)
    check = PartitionCheck(log.store, KEYS, None, VerifyReport())
    source = log.reader().segments()[0]
    assert check._inspect(source, None, 1) is None
    log.store.delete(source.key)
    assert check._inspect(source, None, 1) is None


def test_a_tail_that_moves_on_is_left_alone(log, monkeypatch):
    monkeypatch.setattr(TailScanner, "find_end", gone)
    report = VerifyReport()
    PartitionCheck(log.store, KEYS, None, report)._scan_tail(HeadFile(log.store, KEYS.head).read())
    assert report.sound


def test_a_partition_that_changes_meanwhile_is_checked_again(log, monkeypatch):
    """What looked like damage was the other process at work."""
    run, marks = PartitionCheck.run, iter(range(100))
    errors = [1]

    def hurt_at_first(check: PartitionCheck) -> None:
        run(check)
        if errors:
            errors.pop()
            check._tell("file", "entry", "it looked so")

    monkeypatch.setattr(PartitionCheck, "run", hurt_at_first)
    monkeypatch.setattr(PartitionCheck, "mark", lambda check: next(marks))
    assert verify.verify(log.store).sound
    errors += [1] * verify.TRIES_MAX
    assert not verify.verify(log.store).sound


def test_a_subscriber_that_has_not_met_the_partition_has_no_offset_to_check(log):
    log.topic.update(lambda state: _with_subscriber(state, {}))
    assert verify.verify(log.store).sound


def _with_subscriber(state: Any, starts: dict[int, int]) -> Any:
    from msgspec.structs import replace

    return replace(state, subscribers={"billing": starts})


def test_the_description_of_another_topic_is_told(log):
    other = TopicFile(log.store, "other")
    other.create(log.state.config, 0)
    log.store.write(other.key, log.store.read(log.topic.key))
    found = verify.verify(log.store)
    assert not found.sound


def test_a_head_of_a_newer_release_is_told_and_left_alone(log):
    whole = bytearray(log.store.read(KEYS.head))
    newer = SlottedFile(log.store, KEYS.head, b"HEAD")
    for generation in (101, 102):
        slot = bytearray(newer._pack(generation, b""))
        slot[4] = 9
        slot[-4:] = newer._checksum(bytes(slot[:-4]))
        whole[generation % 2 * 512 :][:512] = slot
        log.store.write_at(KEYS.head, generation % 2 * 512, [bytes(slot)])
    assert "head" in {one.kind for one in checked(log).problems}


# repair, lag, producers


def test_the_index_of_an_open_segment_that_is_gone_is_not_mended(log, monkeypatch):
    from penstock.log import repair as module

    monkeypatch.setattr(module, "inspect_segment", gone)
    log.log.close()
    assert not repair(log.store, TOPIC, dry_run=True).actions


class Reader:
    """A reader whose records retention takes away under it."""

    keys = KEYS
    offset = 0

    def __init__(self, errors: int) -> None:
        self._errors = iter([OffsetOutOfRange("gone")] * errors)

    def earliest(self) -> int:
        return 5

    def cursor(self, offset: int) -> "Reader":
        return self

    def seek(self, offset: int) -> None:
        """Where it is does not matter."""

    def fetch(self, *_: object) -> list[object]:
        for error in self._errors:
            raise error
        return []


def test_the_lag_by_time_is_looked_up_again_when_records_go_away():
    reader: Any = Reader(2)
    assert lag._time_from(reader, 0) == lag.FOREVER
    late: Any = Reader(LOOKUPS_MAX)
    assert lag._time_from(late, 0) == lag.FOREVER


def test_records_that_are_gone_count_as_there_for_who_has_to_say_where_to_go_on():
    reader: Any = Reader(1)
    assert places.has_records(reader, 0, 5)
    assert not places.has_records(reader, 0, 5)


def test_an_offset_file_of_another_length_is_damage():
    store = MemoryStore()
    file = OffsetFile(store, "billing", TOPIC, 0)
    store.write(file.key, file._slots.first(b"short"))
    with pytest.raises(DamagedFile, match="another length"):
        file.read()


@pytest.fixture
def process() -> Iterator[Process]:
    made = Process(SimulatedDisk())
    make_topics(made.store)
    yield made
    made.transactions.close()


def test_a_producer_that_is_forgotten_meanwhile_is_no_problem(process, monkeypatch):
    process.transactions.open(NAME)
    monkeypatch.setattr(ProducerFile, "damaged_slots", gone)
    assert verify.verify(process.store).sound


def test_a_producer_that_is_in_use_is_left_to_who_has_it(process, monkeypatch):
    process.transactions.open(NAME)
    care = TransactionCare(process.store, process.transactions, process.system)

    def busy(*_: object, **__: object) -> None:
        raise DeadlineExceeded("a live process has it")

    monkeypatch.setattr(process.transactions, "finish", busy)
    assert care.settle() == []
    monkeypatch.setattr(ProducerFile, "locked", busy)
    assert care._remove_orphan(NAME, "producers/billing/staged/1-1") == 0


def test_a_mark_that_is_forgotten_before_its_sync_needs_none(process, monkeypatch):
    process.commit(process.transactions.open(NAME), 0)
    care = TransactionCare(process.store, process.transactions, process.system)
    monkeypatch.setattr(ProducerFile, "sync_done", gone)
    care._secure_mark(ProducerFile(process.store, NAME))
    assert NAME not in care._synced
