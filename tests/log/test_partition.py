"""The writer's side: appends only, rolls, limits, poison, several writers in several processes."""

import errno
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import (
    Closed,
    DeadlineExceeded,
    Poisoned,
    RecordTooLarge,
    StoreFailed,
)
from penstock.log import partition as partition_module
from penstock.log.codec import Codec
from penstock.log.columns import Columns
from penstock.log.frame import ENTRY_BYTES_MAX, FRAME_BYTES, RECORDS_MAX, draft
from penstock.log.names import PartitionKeys
from penstock.log.partition import PartitionLog
from penstock.log.reader import PartitionReader
from penstock.log.records import Record
from penstock.stores.directory import DirectoryStore
from penstock.stores.memory import MemoryStore
from penstock.system import OsFiles, System
from penstock.testing.disk import SimulatedDisk
from tests.log.strategies import (
    FOLDER,
    KEYS,
    columns,
    draft_of,
    machine,
    read_records,
    records_of,
    segment_paths,
    values_draft,
)


@given(
    st.lists(st.tuples(columns(1), st.booleans(), st.sampled_from(Codec)), max_size=12),
    st.integers(256, 4_000),
    st.integers(1, 5_000),
    st.data(),
)
def test_any_row_of_appends_reads_back_from_any_offset_in_any_chunks(
    appends, segment_bytes_max, bytes_max, data
):
    """Whatever the batches, the codec and the size of segments, readers get the same records."""
    one = machine(segment_bytes_max=segment_bytes_max)
    expected: list[Record] = []
    for batch, sync, codec in appends:
        appended = one.log.append([draft_of(batch, codec)], sync=sync)
        assert appended.base_offsets == [len(expected)]
        expected += records_of(batch, len(expected), appended.timestamp)
    durable = one.log.read_head().durable_offset
    assert read_records(one.reader, 0, bytes_max) == expected[:durable]
    one.log.sync()
    start = data.draw(st.integers(0, len(expected)))
    assert read_records(one.reader, start, bytes_max) == expected[start:]


class CountingFiles(OsFiles):
    """The real disk, with every write to a segment noted."""

    def __init__(self) -> None:
        self.writes: list[tuple[str, int, int]] = []
        self.cuts: list[str] = []
        self._names: dict[int, str] = {}

    def open(self, path, *, create=False, write=True):
        descriptor = super().open(path, create=create, write=write)
        self._names[descriptor] = path
        return descriptor

    def write(self, descriptor, buffers, position):
        size = sum(map(len, buffers))
        self.writes.append((self._names[descriptor], position, size))
        super().write(descriptor, buffers, position)

    def truncate(self, descriptor, size):
        self.cuts.append(self._names[descriptor])
        super().truncate(descriptor, size)


@pytest.mark.acceptance(43)
def test_a_segment_is_only_appended_to_and_little_is_written_on_top(tmp_path):
    """Bytes written to the disk, heads and indexes included, against payload and framing."""
    files = CountingFiles()
    system = System(files=files)
    store = DirectoryStore(tmp_path / "log", system=system)
    log = PartitionLog(store, KEYS, system=system, segment_bytes_max=300_000)
    log.attach()
    payload = framing = 0
    nodes: dict[str, int] = {}
    for number in range(120):
        batch = Columns([b"%05d" % number + b"x" * 95] * 100, [b"key-%05d" % number] * 100)
        made = draft_of(batch)
        payload += 100 * (100 + 9)
        framing += FRAME_BYTES + 100 * 8
        log.append([made], sync=number % 10 == 0)
        for path in tmp_path.rglob("*.log"):
            node = path.stat().st_ino
            assert nodes.setdefault(path.name, node) == node, "the file was replaced"
    log.close()
    ends: dict[str, int] = {}
    for path, position, size in files.writes:
        if path.endswith(".log"):
            assert position == ends.get(path, 0), "not an append"
            ends[path] = position + size
    assert not files.cuts
    assert {Path(path).name: size for path, size in ends.items()} == {
        path.name: path.stat().st_size for path in tmp_path.rglob("*.log")
    }
    assert len(ends) == 5
    written = sum(size for _, _, size in files.writes)
    assert written <= 1.1 * (payload + framing)


def test_files_are_private(tmp_path):
    store = DirectoryStore(tmp_path / "log")
    log = PartitionLog(store, KEYS)
    log.append([values_draft(b"secret")], sync=True)
    for path in (tmp_path / "log").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)


def test_a_segment_is_rolled_when_it_is_full_and_never_without_records():
    one = machine(segment_bytes_max=256)
    for number in range(5):
        one.append(b"x" * 300)
        assert len(segment_paths(one.disk)) == number + 1
    assert one.log.rolls == 4
    assert one.values() == [b"x" * 300] * 5


def test_several_entries_of_one_call_stay_together():
    one = machine()
    one.append(b"0")
    appended = one.log.append([values_draft(b"1", b"2"), values_draft(b"3")], sync=True)
    assert appended.base_offsets == [1, 3]
    assert one.values() == [b"0", b"1", b"2", b"3"]
    assert one.log.append([], sync=True).base_offsets == []


@pytest.mark.parametrize(
    "made",
    [
        draft(0, [bytes(ENTRY_BYTES_MAX - FRAME_BYTES + 1)], 0),
        draft(0, [bytes(ENTRY_BYTES_MAX + 1)], 0, codec=Codec.ZSTD),
        draft(0, [b""], RECORDS_MAX + 1),
    ],
    ids=["bytes", "bytes before compression", "records"],
)
def test_what_no_reader_would_take_is_refused_before_a_byte_is_written(made):
    one = machine()
    one.append(b"0")
    before = one.disk.content(f"{FOLDER}/{0:020d}.log")
    with pytest.raises(RecordTooLarge):
        one.log.append([values_draft(b"1"), made], sync=True)
    assert one.disk.content(f"{FOLDER}/{0:020d}.log") == before
    assert one.append(b"1") == 1, "nothing is poisoned by a wrong call"


def test_an_entry_of_the_largest_size_reads_back():
    one = machine()
    value = bytes(ENTRY_BYTES_MAX - FRAME_BYTES - 4)
    one.append(value)
    assert one.values() == [value]


@pytest.mark.parametrize(
    ("operation", "path"),
    [("write", "*.log"), ("sync", "*.log"), ("write", "*head"), ("sync_directory", "*")],
)
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_failed_write_or_sync_poisons_until_the_log_is_opened_again(operation, path, error):
    one = machine()
    one.log.attach()
    one.disk.fail(operation, error, path=path)
    with pytest.raises(StoreFailed):
        one.append(b"0")
    assert isinstance(one.log.poison, StoreFailed)
    for call in (lambda: one.append(b"1"), one.log.sync, one.log.attach):
        with pytest.raises(Poisoned) as caught:
            call()
        assert caught.value.__cause__ is one.log.poison
        assert (caught.value.topic, caught.value.partition) == ("orders", 0)
    one.log.close()
    two = machine(one.disk)
    report = two.log.attach()
    assert two.append(b"next") == report.next_offset
    assert two.values()[-1] == b"next"


def test_an_interrupt_poisons_too():
    """Whatever cuts a write short leaves the end of the file unknown."""
    one = machine()
    one.log.attach()

    def interrupt(operation, path):
        if operation == "write" and path.endswith(".log"):
            raise KeyboardInterrupt

    one.disk.on_call(interrupt)
    with pytest.raises(KeyboardInterrupt):
        one.append(b"0")
    one.disk._call_hooks.clear()
    with pytest.raises(Poisoned):
        one.append(b"1")


def test_bytes_of_a_dead_writer_are_overwritten():
    """Given bytes behind the head, when the next writer appends, they are cut off first."""
    disk = SimulatedDisk()
    one, two = machine(disk, seed=1), machine(disk, seed=2)
    two.log.attach()
    one.append(b"0")
    disk.fail("write", path="*head")
    with pytest.raises(StoreFailed):
        one.append(b"never acknowledged, and quite long")
    disk.heal()
    # The one that failed told the others, so the record is found and kept, or it is cut off.
    assert two.append(b"1") in (1, 2)
    assert two.values()[0] == b"0"
    assert two.values()[-1] == b"1"


def test_a_close_makes_everything_durable():
    one = machine()
    one.append(b"0", sync=False)
    one.log.close()
    (only,) = one.disk.crash_states(10)
    two = machine(only)
    report = two.log.attach()
    assert (report.next_offset, report.clean, report.bytes_checked) == (1, True, 0)
    assert two.values() == [b"0"]


def test_a_new_partition_closed_without_records_leaves_no_segment():
    one = machine()
    one.log.attach()
    one.log.close()
    assert segment_paths(one.disk) == []
    assert machine(one.disk.kill()).log.attach().clean


def test_time_never_goes_back_within_the_log():
    one = machine()
    clock = one.system.clock
    stamps = []
    for jump in (0, 5_000, -60_000, 1, -1, 10**12, -(10**13)):
        clock.jump(jump)
        stamps.append(one.log.append([values_draft(b"x")], sync=True).timestamp)
    assert stamps == sorted(stamps)
    two = machine(one.disk.kill())
    two.system.clock.jump(-(10**9))
    assert two.log.append([values_draft(b"x")], sync=True).timestamp >= stamps[-1]


def test_a_held_lock_is_waited_for_and_then_named():
    disk = SimulatedDisk()
    one, two = machine(disk, seed=1), machine(disk, seed=2)
    one.append(b"0")
    with one.store.lock(KEYS.head, 1):
        with pytest.raises(DeadlineExceeded, match="locked by another writer"):
            two.append(b"1")
    assert two.log.poison is None
    assert two.append(b"1") == 1


def test_a_log_works_on_any_store_with_the_log_capability():
    store = MemoryStore()
    log = PartitionLog(store, KEYS, segment_bytes_max=300)
    for number in range(5):
        log.append([values_draft(b"%d" % number + b"x" * 90)], sync=True)
    log.close()
    records = read_records(PartitionReader(store, KEYS))
    assert [record.offset for record in records] == list(range(5))


# Several processes for real

WRITER = """
import sys
from penstock.log.names import PartitionKeys
from penstock.log.partition import PartitionLog
from penstock.log.records import Record
from penstock.stores.directory import DirectoryStore
from tests.log.strategies import values_draft

path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
log = PartitionLog(DirectoryStore(path), PartitionKeys("orders", 0), segment_bytes_max=6_000)
sys.stdin.readline()
for number in range(count):
    value = b"%s-%d" % (name.encode(), number)
    appended = log.append([values_draft(value)], sync=number % 5 == 0)
    print(appended.base_offsets[0], value.decode(), flush=True)
log.close()
"""


def test_several_processes_append_and_every_acknowledged_record_is_there_once(tmp_path):
    """Started together on one directory, with small segments so that they all roll."""
    count = 60
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "log"), name, str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            text=True,
        )
        for name in ("a", "b", "c")
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    acknowledged: dict[int, str] = {}
    for writer in writers:
        out, _ = writer.communicate(timeout=50)
        assert writer.returncode == 0
        for line in out.splitlines():
            offset, value = line.split()
            assert acknowledged.setdefault(int(offset), value) == value
    records = read_records(PartitionReader(DirectoryStore(tmp_path / "log"), KEYS))
    values = {record.offset: bytes(record.value or b"").decode() for record in records}
    assert values == acknowledged
    assert sorted(values) == list(range(3 * count))
    for name in ("a", "b", "c"):
        own = [value for _, value in sorted(values.items()) if value.startswith(f"{name}-")]
        assert own == [f"{name}-{number}" for number in range(count)], "order of one writer"
    assert len(list((tmp_path / "log").rglob("*.log"))) > 2


def _child_of_a_fork(store: DirectoryStore, log: PartitionLog, out) -> None:
    store.abandon_after_fork()
    try:
        log.append([values_draft(b"from the child")], sync=True)
    except Closed:
        out.send("refused")
    fresh = DirectoryStore(store.path)
    again = PartitionLog(fresh, KEYS)
    out.send(again.append([values_draft(b"from the child")], sync=True).base_offsets[0])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_lets_go_of_the_parents_files_and_opens_its_own(tmp_path):
    store = DirectoryStore(tmp_path / "log")
    log = PartitionLog(store, KEYS)
    log.append([values_draft(b"0")], sync=True)
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(
        target=_child_of_a_fork, args=(store, log, there)
    )
    child.start()
    assert here.recv() == "refused"
    assert here.recv() == 1
    child.join(120)
    assert child.exitcode == 0
    assert log.append([values_draft(b"2")], sync=True).base_offsets == [2]
    values = [record.value for record in read_records(PartitionReader(store, KEYS))]
    assert values == [b"0", b"from the child", b"2"]
    assert os.getpid() != child.pid


def test_partitions_of_a_topic_share_nothing():
    disk = SimulatedDisk()
    logs = [machine(disk, keys=PartitionKeys("orders", number)) for number in (0, 1, 10)]
    for number, one in enumerate(logs):
        for _ in range(number + 1):
            one.append(b"%d" % number)
    for number, one in enumerate(logs):
        assert one.values() == [b"%d" % number] * (number + 1)
    assert partition_module.SEGMENT_BYTES == 128 << 20
