"""Transactions, the blocking half: numbers, fencing, staged files, offsets, what is left behind."""

import struct

import msgspec
import pytest
from crc32c import crc32c

from penstock.errors import (
    DamagedFile,
    DeadlineExceeded,
    Fenced,
    InvalidName,
    InvalidOption,
    LimitReached,
    RecordTooLarge,
    StoreFailed,
    TransactionPending,
    UnknownTopic,
    UnsupportedFormat,
)
from penstock.log import producer_file, transactions
from penstock.log.columns import Columns
from penstock.log.names import PartitionKeys
from penstock.log.offsets import OffsetFile
from penstock.log.partition import PartitionLog
from penstock.log.producer_file import ProducerFile
from penstock.log.reader import PartitionReader
from penstock.log.slots import SlottedFile
from penstock.log.topic import TopicConfig, TopicFile
from penstock.log.transaction_care import TransactionCare
from penstock.log.transaction_commit import GroupOffsets
from penstock.log.transaction_staging import STAGED_AGE_MS, StagedRecords
from penstock.log.transactions import Transactions
from penstock.log.verify import verify
from penstock.stores import DirectoryStore, MemoryStore, SqliteStore
from penstock.testing.disk import SimulatedDisk
from tests.log.transaction_world import (
    GROUP,
    NAME,
    SOURCE,
    Process,
    State,
    columns_of,
    drafts_of,
    make_topics,
    read_state,
    read_values,
    records_of,
)


@pytest.fixture
def disk():
    return SimulatedDisk()


@pytest.fixture
def process(disk):
    made = Process(disk)
    make_topics(made.store)
    return made


@pytest.fixture
def lease(process):
    return process.transactions.open(NAME)


def care_of(process: Process) -> TransactionCare:
    return TransactionCare(process.store, process.transactions, process.system)


def leave_pending(process: Process, lease, number: int = 0, *, staged: bool = False) -> None:
    """Commit while no partition can be written."""
    fault = process.system.files.fail("write", 5, forever=True, path="*/topics/*.log")
    with pytest.raises(TransactionPending) as told:
        process.commit(lease, number, staged=staged)
    assert told.value.fields == {"producer": NAME, "number": number}
    assert fault.fired
    process.system.files.heal()


@pytest.mark.parametrize("make", [MemoryStore, DirectoryStore, SqliteStore])
def test_records_of_several_topics_and_offsets_happen_together_on_every_store(make, tmp_path):
    store = make() if make is MemoryStore else make(tmp_path / "log.db")
    with store:
        made = Transactions(store)
        make_topics(store)
        lease = made.open(NAME)
        staged = made.stage(NAME, {"journal": columns_of([b"staged"])})
        moved = GroupOffsets(GROUP, {SOURCE: 1})
        outcome = made.commit(lease, records=drafts_of(store, 0), staged=[staged], offsets=[moved])
        assert outcome == (NAME, 0, False, 11)
        state = State().after(0)
        state.values["journal"].append(b"staged")
        assert read_state(store) == state
        assert not store.list(f"producers/{NAME}/staged/")
        made.close()


def test_entries_carry_producer_epoch_sequence_and_mark(process, lease):
    process.commit(lease, 0)
    reader = PartitionReader(process.store, PartitionKeys("journal", 0))
    header = reader.cursor(0).fetch()[0].header
    assert (header.producer_id, header.producer_epoch) == (lease.producer_id, 1)
    assert (header.sequence, header.transaction_mark) == (0, 2)


def test_a_number_is_committed_once(process, lease):
    assert not process.commit(lease, 7).repeated
    again = process.commit(lease, 7, staged=True)
    assert again.repeated
    assert process.commit(lease, 3).repeated
    assert read_state(process.store) == replace_offset(State().after(7), 8)
    assert not process.store.list(f"producers/{NAME}/staged/")
    assert process.transactions.last_number(NAME) == 7


def replace_offset(state: State, offset: int) -> State:
    return State(state.values, offset)


def test_without_a_number_it_is_the_next_one(process, lease):
    numbers = [process.transactions.commit(lease).number for _ in range(3)]
    assert numbers == [0, 1, 2]
    assert process.transactions.commit(lease, number=10).number == 10
    assert process.transactions.commit(lease).number == 11


def test_an_older_opening_is_fenced(process, lease, disk):
    other = Process(disk, 9)
    newer = other.transactions.open(NAME)
    assert newer == (NAME, lease.producer_id, lease.epoch + 1)
    with pytest.raises(Fenced) as refused:
        process.commit(lease, 0)
    assert refused.value.fields == {"producer": NAME, "epoch": 1, "current": 2, "reason": "epoch"}
    assert read_state(process.store) == State()
    other.commit(newer, 0)
    assert read_state(process.store) == State().after(0)


def test_a_forgotten_producer_is_fenced_and_begins_anew(process, lease):
    process.commit(lease, 5)
    process.transactions.forget(NAME)
    with pytest.raises(Fenced):
        process.commit(lease, 6)
    assert process.transactions.last_number(NAME) == -1
    again = process.transactions.open(NAME)
    assert again.epoch == 1
    assert not process.commit(again, 1).repeated


def test_the_number_of_producers_is_bounded(process, monkeypatch):
    monkeypatch.setattr(producer_file, "PRODUCERS_MAX", 2)
    process.transactions.open("one")
    process.transactions.open("two")
    with pytest.raises(LimitReached):
        process.transactions.open("three")
    process.transactions.open("one")
    process.transactions.forget("one")
    process.transactions.open("three")


@pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 201])
def test_a_name_that_is_none_is_refused(process, name):
    with pytest.raises(InvalidName):
        process.transactions.open(name)
    with pytest.raises(InvalidName):
        process.transactions.stage(name, {})


def test_wrong_calls_are_refused_before_anything_is_written(process, lease):
    staged = process.transactions.stage("other", {"journal": Columns([b"x"])})
    with pytest.raises(InvalidOption, match="staged for producer 'other'"):
        process.transactions.commit(lease, staged=[staged])
    for number in (-1, 1 << 63):
        with pytest.raises(InvalidOption, match="number"):
            process.transactions.commit(lease, number=number)
    with pytest.raises(InvalidOption, match="offset"):
        process.transactions.commit(lease, offsets=[GroupOffsets(GROUP, {SOURCE: -1})])
    assert process.transactions.last_number(NAME) == -1


def test_a_reference_travels_as_text(process, lease):
    values = records_of(0)["invoices"]
    staged = process.transactions.stage(NAME, {"invoices": columns_of(values)})
    carried = StagedRecords.decode(staged.encode())
    assert carried == staged
    assert (carried.records, len(carried.shares)) == (5, 2)
    process.transactions.commit(lease, staged=[carried])
    assert read_state(process.store).values["invoices"] == sorted(values)
    with pytest.raises(InvalidOption):
        StagedRecords.decode(b"{}")


def test_staged_records_are_seen_by_nobody_until_a_commit_names_them(process, lease):
    writer = process.transactions.writer(NAME)
    for number in range(3):
        writer.add("journal", Columns([b"%d" % number]))
    staged = writer.finish()
    assert read_state(process.store) == State()
    process.transactions.discard([staged])
    assert not process.store.list(f"producers/{NAME}/staged/")
    with pytest.raises(TransactionPending):
        # Whoever commits what was discarded is told; the log knows that something is missing.
        process.transactions.commit(lease, staged=[staged])
    report = verify(process.store)
    assert not report.sound
    assert "is missing" in report.problems[0].message


def test_staging_checks_topics_and_sizes(process):
    with pytest.raises(UnknownTopic):
        process.transactions.stage(NAME, {"nowhere": Columns([b"x"])})
    config = TopicConfig(record_bytes_max=10, buffer_bytes_max=10)
    TopicFile(process.store, "small").create(config.check(), 0)
    with pytest.raises(RecordTooLarge):
        process.transactions.stage(NAME, {"small": Columns([b"x" * 11])})
    with pytest.raises(InvalidOption):
        process.transactions.stage(NAME, {"small": Columns(["text"])})  # type: ignore[list-item]


def test_many_records_get_a_staged_file_by_themselves(process, lease, monkeypatch):
    monkeypatch.setattr(transactions, "INLINE_BYTES_MAX", 10)
    process.commit(lease, 0)
    assert read_state(process.store) == State().after(0)
    assert process.store.size(f"producers/{NAME}/decision-1") < 1_000


def test_the_files_of_a_producer_are_as_the_page_of_the_format_says(process, lease):
    process.commit(lease, 7)
    store = process.store
    data = store.read(f"producers/{NAME}/decision-1")
    place = crc32c(f"producers/{NAME}/decision-1".encode())
    front = struct.unpack_from("<4sHHQqIII", data)
    assert front[:5] == (b"PTXN", 1, 0, 1, 7)
    description, records = data[40 : 40 + front[5]], data[40 + front[5] :]
    assert len(records) == front[6]
    assert struct.unpack_from("<I", data, 36) == (crc32c(data[:36], place),)
    assert crc32c(data[40:]) == front[7]
    told = msgspec.json.decode(description)
    assert (told["producer_id"], told["epoch"], told["number"]) == (lease.producer_id, 1, 7)
    assert told["moves"] == [
        {"group": GROUP, "topic": SOURCE[0], "partition": SOURCE[1], "before": -1, "after": 8}
    ]
    assert [share["since"] for share in told["shares"]] == [0, 0, 0]
    done = store.read(f"producers/{NAME}/done")
    place = crc32c(f"producers/{NAME}/done".encode())
    assert struct.unpack("<4sHHQqI", done) == (b"PDON", 1, 0, 1, 7, crc32c(done[:24], place))
    state = SlottedFile(store, f"producers/{NAME}/state", b"PROD").read()
    assert struct.unpack("<QIq", state.payload)[:2] == (lease.producer_id, 1)


# What is left behind


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("how", ["open", "commit", "settle", "finish"])
def test_a_pending_transaction_is_finished_by_whoever_comes_next(process, lease, disk, staged, how):
    leave_pending(process, lease, staged=staged)
    other = Process(disk, 3)
    if how == "open":
        other.transactions.open(NAME)
    elif how == "commit":
        assert process.commit(lease, 0).repeated
    elif how == "settle":
        assert care_of(other).settle() == []
    else:
        other.transactions.finish(NAME)
    assert read_state(process.store) == State().after(0)
    assert verify(process.store).clean
    assert not process.store.list(f"producers/{NAME}/staged/")


def test_verify_tells_of_a_pending_transaction(process, lease):
    process.commit(lease, 0)
    assert verify(process.store).clean
    leave_pending(process, lease, 1)
    report = verify(process.store)
    assert report.sound
    assert [problem.kind for problem in report.problems] == ["transaction"]
    assert "transaction 1 of producer 'billing'" in report.problems[0].message
    process.transactions.finish(NAME)
    assert verify(process.store).clean


def test_a_commit_that_cannot_finish_the_one_before_does_nothing(process, lease):
    leave_pending(process, lease)
    process.system.files.fail("write", 28, forever=True, path="*/topics/*.log")
    with pytest.raises(StoreFailed):
        process.commit(lease, 1)
    process.system.files.heal()
    assert process.transactions.last_number(NAME) == 0
    process.commit(lease, 1)
    assert read_state(process.store) == State().after(0).after(1)


def test_a_group_waits_for_the_offsets_of_a_pending_transaction(process, lease, disk):
    leave_pending(process, lease)
    care = care_of(Process(disk, 3))
    care.settle_group("another")
    assert read_state(process.store).values == State().values
    # The offsets themselves had moved; as if the process had died before.
    OffsetFile(process.store, GROUP, *SOURCE).delete()
    care.settle_group(GROUP)
    assert read_state(process.store) == State().after(0)


def test_a_group_gives_up_when_a_live_process_does_not_finish(process, lease, disk):
    leave_pending(process, lease)
    OffsetFile(process.store, GROUP, *SOURCE).delete()
    other = Process(disk, 3)
    with (
        ProducerFile(other.store, NAME).locked(0),
        pytest.raises(DeadlineExceeded),
    ):
        care_of(process).settle_group(GROUP, timeout=0)
    care_of(process).settle_group(GROUP, timeout=0)


def test_who_goes_on_in_a_partition_waits_for_the_entries_of_a_pending_transaction(
    process, lease, disk
):
    """The offsets have moved; what was made of the records before them is to come before what follows."""
    leave_pending(process, lease)
    care = care_of(Process(disk, 3))
    care.settle_group(GROUP)
    care.settle_entries("another", [SOURCE])
    care.settle_entries(GROUP, [("orders", 1), ("invoices", 0)])
    assert read_state(process.store).values == State().values
    care.settle_entries(GROUP, [("orders", 1), SOURCE])
    assert read_state(process.store) == State().after(0)


def test_who_goes_on_gives_up_when_a_live_process_does_not_finish(process, lease, disk):
    leave_pending(process, lease)
    other = Process(disk, 3)
    with (
        ProducerFile(other.store, NAME).locked(0),
        pytest.raises(DeadlineExceeded),
    ):
        care_of(process).settle_entries(GROUP, [SOURCE], timeout=0)
    care_of(process).settle_entries(GROUP, [SOURCE], timeout=0)
    assert read_state(process.store) == State().after(0)


def test_offsets_do_not_move_again_after_a_seek(process, lease):
    process.commit(lease, 0)
    file = OffsetFile(process.store, GROUP, *SOURCE)
    file.reset(0, 0)
    # The mark is lost, as in a power cut: the transaction is looked for again.
    process.store.delete(f"producers/{NAME}/done")
    process.transactions.finish(NAME)
    assert read_state(process.store) == replace_offset(State().after(0), 0)


def test_partitions_of_a_pending_transaction_are_left_alone(process, lease, disk):
    care = care_of(process)
    process.commit(lease, 0)
    assert care.partitions_in_use() == set()
    leave_pending(process, lease, 1)
    assert care.partitions_in_use() == {("invoices", 0), ("invoices", 1), ("journal", 0)}
    process.transactions.finish(NAME)
    assert care.partitions_in_use() == set()
    # From now on not even a power cut can bring it back as unfinished.
    for left in disk.crash_states(20):
        assert ProducerFile(Process(left).store, NAME).read_done().number == 1


def test_staged_files_without_a_decision_go_when_they_are_old(process, lease):
    clock = process.system.clock
    orphan = process.transactions.stage(NAME, {"journal": Columns([b"x"])})
    leave_pending(process, lease, staged=True)
    care = care_of(process)
    assert care.remove_orphans() == 0
    clock.advance(STAGED_AGE_MS / 1_000 + 1)
    with ProducerFile(process.store, NAME).locked(0):
        assert care_of(Process(process.system.files, 2)).remove_orphans() == 0
    assert care.remove_orphans() == 1
    assert not process.store.exists(orphan.file)
    process.transactions.finish(NAME)
    assert read_state(process.store) == State().after(0)


# Damage


def test_a_damaged_state_is_told_and_not_overwritten(process, lease, disk):
    for bit in (100, 512 * 8 + 100):
        disk.flip_bit(f"/data/log/producers/{NAME}/state", bit)
    with pytest.raises(DamagedFile):
        process.transactions.open(NAME)
    report = verify(process.store)
    assert [problem.kind for problem in report.problems] == ["producer"]
    assert not report.sound


def test_a_damaged_slot_of_the_state_is_harmless(process, lease, disk):
    disk.flip_bit(f"/data/log/producers/{NAME}/state", 100)
    assert verify(process.store).sound
    assert not verify(process.store).clean
    process.transactions.open(NAME)
    process.transactions.open(NAME)
    assert verify(process.store).clean


def test_staged_records_that_changed_are_not_published(process, lease, disk):
    leave_pending(process, lease, staged=True)
    (file,) = process.store.list(f"producers/{NAME}/staged/")
    disk.flip_bit(f"/data/log/{file}", 3)
    with pytest.raises(DamagedFile, match="transaction 0"):
        process.transactions.open(NAME)
    assert read_values(process.store, "journal", 0) == records_of(0)["journal"]


def test_bytes_of_a_dead_writer_that_another_takes_in_are_not_doubled(process, lease, disk):
    """The entries are in the file, the head does not say so, and somebody attaches."""
    disk.fail("write", 5, at=1, path="*/journal/0/head")
    with pytest.raises(TransactionPending):
        process.commit(lease, 0)
    other = Process(disk, 4)
    PartitionLog(other.store, PartitionKeys("journal", 0), system=other.system).attach()
    other.transactions.open(NAME)
    assert read_state(other.store) == State().after(0)


def test_a_decision_of_a_newer_release_is_refused(process, lease):
    process.commit(lease, 0)
    key = f"producers/{NAME}/decision-1"
    front = bytearray(process.store.read(key, 0, 40))
    front[4] = 2
    front[8] = 9
    checksum = crc32c(bytes(front[:36]), crc32c(key.encode()))
    process.store.write_at(key, 0, [bytes(front[:36]) + checksum.to_bytes(4, "little")])
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        process.transactions.open(NAME)
    assert [one.kind for one in verify(process.store).problems] == ["producer"]
