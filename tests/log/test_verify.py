"""verify() and scrub(): every flipped bit is told, with file, place, loss and the way out."""

import threading

import pytest

from penstock.errors import InvalidOption, KeyNotFound, UnknownPartition, UnknownTopic
from penstock.log.compaction import Compactor
from penstock.log.frame import seal
from penstock.log.head import HeadFile
from penstock.log.index import INDEX_SPACING_BYTES
from penstock.log.names import SegmentName, offset_key, topic_key
from penstock.log.offsets import OffsetFile
from penstock.log.repair import repair
from penstock.log.retention import retain
from penstock.log.segment import SegmentEnd
from penstock.log.tiering import move_sealed
from penstock.log.topic import Retention, TopicFile
from penstock.log.verify import scrub, verify
from penstock.stores import open_store
from penstock.stores.directory import DirectoryStore
from penstock.stores.memory import MemoryStore
from penstock.testing.clock import VirtualClock
from penstock.testing.disk import SimulatedDisk
from penstock.testing.worker import simulated_system
from tests.log.small_log import KEYS, TOPIC, SmallLog, crash_states, filled, flips, log_key, on_disk

OFFSETS = offset_key("billing", TOPIC, 0)


def change(log, key, data):
    log.store.write(key, data)
    return verify(log.store)


def kinds(report):
    return [problem.kind for problem in report.problems]


def test_a_sound_log_is_clean():
    log = filled()
    report = verify(log.store)
    assert report.problems == []
    assert report.clean
    assert report.sound
    assert (report.topics, report.partitions, report.segments) == ([TOPIC], 1, 3)
    assert report.records == 12
    assert report.bytes == sum(source.size() for source in log.reader().segments())


def test_verify_takes_a_path_and_writes_nothing(tmp_path):
    filled(DirectoryStore(tmp_path)).store.close()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert verify(tmp_path).clean
    assert verify(str(tmp_path), TOPIC).clean
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(UnknownTopic):
        verify(tmp_path, "other")
    with pytest.raises(KeyNotFound):
        verify(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


# ------------------------------------------------------------------------------- flipped bits


@pytest.mark.acceptance(56)
@pytest.mark.parametrize("base", [0, 6, 9])
def test_every_flipped_byte_of_a_segment_is_told_with_what_it_costs(base):
    log = filled()
    key = log_key(base)
    sound = log.store.read(key)
    (source,) = [one for one in log.reader().segments() if one.name.base == base]
    entries = list(source.entries(0, len(sound)))
    for position, data in flips(sound):
        (hit,) = [e for e in entries if e.position <= position < e.position + e.header.entry_bytes]
        report = change(log, key, data)
        problems = [problem for problem in report.problems if problem.kind != "offset"]
        assert len(problems) == 1, (position, report.problems)
        (problem,) = problems
        assert (problem.file, problem.position) == (key, hit.position)
        lost = (hit.header.base_offset, hit.header.next_offset)
        expected = lost if lost[0] < lost[1] else (None, None)
        assert (problem.first_offset, problem.next_offset) == expected
        assert not problem.harmless
        assert "repair()" in problem.message
    assert change(log, key, sound).clean


@pytest.mark.parametrize("key", [KEYS.head, OFFSETS, topic_key(TOPIC)])
def test_every_flipped_byte_of_a_small_file_is_told(key):
    log = filled()
    sound = log.store.read(key)
    for position, data in flips(sound):
        report = change(log, key, data)
        assert [problem.file for problem in report.problems] == [key], position
    assert change(log, key, sound).clean


def test_every_flipped_byte_of_an_index_is_told_and_harmless():
    log = SmallLog()
    for _ in range(4):
        log.append((None, bytes(INDEX_SPACING_BYTES)))
    log.append_segments(1)
    key = KEYS.index(SegmentName(0))
    sound = log.store.read(key)
    assert len(sound) == 96
    for _, data in flips(sound):
        report = change(log, key, data)
        assert kinds(report) == ["index"]
        assert report.sound
        log.store.write(key, data)
        assert [offset for offset, _, _ in log.stored()] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("size", range(0, 400, 7))
def test_a_segment_that_was_cut_is_told(size):
    log = filled()
    sound = log.store.read(log_key(0))
    report = change(log, log_key(0), sound[:size])
    assert {problem.file for problem in report.problems} == {log_key(0)}
    assert max(problem.next_offset or 0 for problem in report.problems) in (0, 6)


def test_zeros_and_garbage_are_told():
    log = filled()
    for key in (log_key(0), log_key(6), log_key(9)):
        sound = log.store.read(key)
        assert not change(log, key, bytes(len(sound))).sound
        assert not change(log, key, sound[:100] + bytes(100) + sound[200:]).sound
        assert not change(log, key, b"\xa5" * 50 + sound[50:]).sound
        log.store.write(key, sound)
    assert verify(log.store).clean


# ------------------------------------------------------- sound bytes that are in the wrong place


def test_swapped_repeated_and_foreign_entries_are_told():
    log = filled()
    data = log.store.read(log_key(0))
    (source,) = [one for one in log.reader().segments() if one.name.base == 0]
    start, first, second, third, end = [
        data[e.position : e.position + e.header.entry_bytes] for e in source.entries(0, len(data))
    ]
    for wrong in (
        [start, second, first, third, end],
        [start, first, first, second, third, end],
        [start, first, third, end],
        [start, first, second, third, end, end],
        [start, first, second, third, end, first],
        [first, second, third, end],
        [start, start, first, second, third, end],
    ):
        report = change(log, log_key(0), b"".join(wrong))
        assert not report.sound
        assert {problem.file for problem in report.problems} == {log_key(0)}


@pytest.mark.parametrize(
    "wrong",
    [
        {"records": 5},
        {"first_offset": 1},
        {"next_offset": 7},
        {"size": 1},
        {"first_timestamp": 1},
        {"last_timestamp": 1},
    ],
)
def test_a_footer_that_contradicts_its_segment_is_told(wrong):
    log = filled()
    (source, *_) = log.reader().segments()
    *_, entry = source.entries(0, source.size())
    changed = SegmentEnd.parse(entry)._replace(**wrong)
    buffers, _, _ = seal(changed.draft(), 6, 0, entry.header.previous, entry.timestamp)
    data = log.store.read(log_key(0))[: entry.position] + b"".join(buffers)
    assert "end" in kinds(change(log, log_key(0), data))


def test_a_segment_of_another_topic_or_log_is_told():
    log, other = filled(), filled()
    other.system.random.seed(7)
    assert not change(log, log_key(0), log.store.read(log_key(6))).sound
    foreign = SmallLog()
    foreign.log._log_id = b"another log id.."
    foreign.append((b"a", b"0"), (b"b", b"1"))
    foreign.append((b"a", b"2"))
    foreign.append((None, b"x"), (None, b"y"), (None, b"z"))
    foreign.append_segments(1)
    report = change(log, log_key(0), foreign.store.read(log_key(0)))
    assert "chain" in kinds(report)


@pytest.mark.parametrize("lost", [(0, 6), (6, 9), (9, 12)])
def test_a_missing_segment_is_told(lost):
    log = filled()
    log.store.delete(log_key(lost[0]))
    report = verify(log.store)
    assert not report.sound
    (problem,) = [one for one in report.problems if one.kind == "missing"]
    assert (problem.first_offset, problem.next_offset) == lost


def test_a_subscriber_that_wants_what_is_gone_is_told():
    log = filled()
    log.store.delete(log_key(0))
    OffsetFile(log.store, "billing", TOPIC, 0).reset(3, 0)
    (problem,) = [one for one in verify(log.store).problems if one.kind == "offset"]
    assert (problem.first_offset, problem.next_offset) == (3, 6)


def test_a_missing_or_unreadable_offset_file_of_a_subscriber_is_told():
    log = filled()
    log.store.delete(OFFSETS)
    report = verify(log.store)
    assert kinds(report) == ["offset"]
    assert "seek" in report.problems[0].message
    report = change(log, OFFSETS, b"\xff" * 1024)
    assert kinds(report) == ["offset"]
    assert not report.sound


def test_an_offset_beyond_the_end_is_told():
    log = filled()
    OffsetFile(log.store, "billing", TOPIC, 0).reset(99, 0)
    assert kinds(verify(log.store)) == ["offset"]


def test_a_missing_or_wholly_damaged_head_is_told_and_harmless():
    log = filled()
    head = log.store.read(KEYS.head)
    assert change(log, KEYS.head, b"\x5a" * 1024).sound
    assert kinds(verify(log.store)) == ["head"]
    log.store.delete(KEYS.head)
    assert kinds(verify(log.store)) == ["head"]
    data = bytearray(log.store.read(log_key(6)))
    data[150] ^= 1
    log.store.write(log_key(6), data)
    assert kinds(verify(log.store)) == ["head", "entry"], "sealed segments are checked all the same"
    log.store.write(KEYS.head, head)


def test_a_head_that_does_not_fit_is_told():
    log = filled()
    file = HeadFile(log.store, KEYS.head)
    head = file.read()
    assert head is not None
    file.write(head._replace(durable_checksum=1))
    assert kinds(verify(log.store)) == ["head"]


def test_a_missing_topic_description_is_told():
    log = filled()
    log.store.delete(topic_key(TOPIC))
    report = verify(log.store)
    assert kinds(report) == ["topic"]
    assert report.topics == [TOPIC]
    assert report.records == 12


def test_a_description_of_another_topic_is_told():
    log = filled()
    other = MemoryStore()
    TopicFile(other, "other").create(log.state.config, 0)
    assert kinds(change(log, topic_key(TOPIC), other.read(topic_key("other")))) == ["topic"]


# --------------------------------------------------------------------- what is no damage at all


def test_a_torn_tail_and_leftovers_are_harmless():
    log = filled()
    data = log.store.read(log_key(9))
    report = change(log, log_key(9), data + b"half of an ent")
    assert kinds(report) == ["torn tail"]
    assert report.sound
    log.store.write(log_key(9), data)
    log.store.write(KEYS.index(SegmentName(55)), b"")
    assert kinds(verify(log.store)) == ["leftover"]


def test_compacted_and_tiered_logs_are_clean():
    log = filled(tier=MemoryStore())
    Compactor(log.store, KEYS, log.tier).run(log.clock.time_ms())
    move_sealed(log.store, KEYS, log.tier, keep_local=1)
    assert verify(log.store, tier=log.tier).clean


def test_verify_beside_a_writer_that_is_not_closed():
    log = filled()
    log.append((None, b"12"))
    log.roll()
    log.append((None, b"13"))
    assert verify(log.store).clean


def test_verify_beside_writers_and_upkeep_finds_nothing(tmp_path):
    """It takes no lock, and what moves under its eyes is not taken for damage."""
    log = SmallLog(DirectoryStore(tmp_path / "log"), DirectoryStore(tmp_path / "tier"))
    log.topic.change_config(retention=Retention(bytes_max=2_000))
    subscriber = log.subscribe("billing")
    failures: list[BaseException] = []
    done = threading.Event()

    def work() -> None:
        compactor = Compactor(log.store, KEYS, log.tier)
        reader = log.reader()
        try:
            for number in range(40):
                log.append(*[(b"k%d" % key, b"%d" % number) for key in range(3)])
                log.roll()
                subscriber.commit(number, 0)
                if number % 3 == 0:
                    compactor.run(log.clock.time_ms())
                    move_sealed(log.store, KEYS, log.tier, keep_local=2)
                if number % 10 == 9:
                    retain(reader, log.store, log.tier, 0)
        except BaseException as failure:
            failures.append(failure)
        finally:
            done.set()

    thread = threading.Thread(target=work)
    thread.start()
    rounds = 0
    while not done.is_set():
        report = verify(tmp_path / "log", tier=DirectoryStore(tmp_path / "tier"))
        assert report.sound, report.problems
        rounds += 1
    thread.join()
    assert failures == []
    assert rounds > 2
    assert verify(tmp_path / "log", tier=log.tier).clean


def test_every_state_a_power_cut_leaves_is_sound():
    disk = SimulatedDisk()
    states, _ = crash_states(disk, 6)
    log = SmallLog(on_disk(disk))
    for number in range(6):
        log.append((b"k", b"%d" % number))
        if number % 2:
            log.roll()
    Compactor(log.store, KEYS).run(log.clock.time_ms())
    for state in states:
        report = verify(on_disk(state))
        assert report.sound, report.problems


# ---------------------------------------------------------------------------------------- scrub


def test_scrub_checks_sealed_segments_only():
    log = filled()
    assert scrub(log.store, TOPIC).segments == 2
    data = bytearray(log.store.read(log_key(6)))
    data[200] ^= 2
    log.store.write(log_key(6), data)
    assert kinds(scrub(log.store, TOPIC, 0)) == ["entry"]


def test_scrub_keeps_to_its_pace():
    log = SmallLog()
    log.append_segments(20, bytes(10_000))
    clock = VirtualClock()
    system = simulated_system(clock=clock)
    report = scrub(log.store, TOPIC, system=system, bytes_per_second=1_000)
    assert report.clean
    assert abs(clock.monotonic() - report.bytes / 1_000) < 15


def test_scrub_can_be_stopped():
    log = SmallLog()
    log.append_segments(20)
    assert scrub(log.store, TOPIC, stop=lambda: True).segments == 1


def test_scrub_names_what_is_not_there():
    log = SmallLog()
    with pytest.raises(UnknownTopic):
        scrub(log.store, "other")
    with pytest.raises(UnknownPartition, match="no partition 3"):
        scrub(log.store, TOPIC, 3)


# ----------------------------------------------------------------------------------------- where


@pytest.mark.parametrize("url", ["{}", "file:{}", "file://{}", "sqlite:{}", "sqlite://{}"])
def test_the_log_may_be_named_by_a_url(tmp_path, url):
    where = url.format(tmp_path / "log")
    with pytest.raises(KeyNotFound, match="there is no log at"):
        verify(where)
    assert not list(tmp_path.iterdir()), "looking for a log makes none"
    with open_store(where) as store, open_store(f"{where}-tier") as tier:
        log = SmallLog(store, tier)
        log.append_segments(3)
        move_sealed(store, KEYS, tier)
    tier_url = f"{where}-tier"
    assert verify(where, tier=tier_url).segments == 3
    assert scrub(where, TOPIC, tier=tier_url).segments == 2
    assert repair(where, TOPIC, tier=tier_url).remaining == []


def test_an_unknown_url_is_refused():
    with pytest.raises(InvalidOption, match="no store for"):
        verify("gopher://somewhere")
