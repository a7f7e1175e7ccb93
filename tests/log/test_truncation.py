"""Files cut, filled, swapped, copied or deleted: detected or rebuilt, never silently shorter."""

import pytest

from penstock.errors import DamagedEntry, DamagedFile, DamageError
from penstock.log.names import PartitionKeys, SegmentName
from penstock.log.offsets import OffsetFile
from penstock.log.topic import TopicConfig, TopicFile
from penstock.testing.disk import SimulatedDisk
from tests.log.strategies import (
    FOLDER,
    KEYS,
    ROOT,
    Machine,
    copy_of,
    machine,
    segment_paths,
)

HEAD = f"{FOLDER}/head"
OPEN = f"{FOLDER}/{0:020d}.log"
VALUES = [b"first", b"second", b"third and last"]


def one_segment(*, durable: int) -> Machine:
    """Three entries, of which so many were synced."""
    one = machine()
    for number, value in enumerate(VALUES):
        one.append(value, sync=number == durable - 1)
    return one


def three_segments(keys: PartitionKeys = KEYS, seed: int = 7) -> Machine:
    """Two sealed segments and an open one, two records each, closed cleanly."""
    one = machine(keys=keys, segment_bytes_max=400, seed=seed)
    for number in range(6):
        one.append(b"%d " % number + b"x" * 60)
    one.log.close()
    assert len(segment_paths(one.disk, f"{ROOT}/{keys.folder}")) == 3
    return one


def opened_and_read(disk: SimulatedDisk) -> list[bytes | None]:
    """What the whole log gives after recovery."""
    two = machine(disk)
    two.log.attach()
    return two.values()


@pytest.mark.acceptance(56)
def test_cut_at_every_byte_below_the_durable_position_is_refused_and_named(scored):
    """The head says that all was durable, so whatever is missing was lost later."""
    one = one_segment(durable=3)
    content = one.disk.content(OPEN)
    for size in range(len(content)):
        disk = copy_of(one.disk, {OPEN: content[:size]})
        with pytest.raises(DamageError) as caught:
            machine(disk).log.attach()
        assert caught.value.file == KEYS.log(SegmentName(0))
        assert disk.content(OPEN) == content[:size], "a refused file is left as it is"
        with pytest.raises(DamageError):
            machine(disk).values()
    scored(8, tried=len(content), bad=0)


@pytest.mark.acceptance(56)
@pytest.mark.parametrize("durable", [0, 1, 2])
def test_cut_at_every_byte_above_the_durable_position_recovers_the_prefix(durable):
    """Nobody was told that the last records were durable: they are cut and reported."""
    one = one_segment(durable=durable)
    content = one.disk.content(OPEN)
    floor, ends = entry_ends(one)
    for size in range(floor if durable else 0, len(content) + 1):
        two = machine(copy_of(one.disk, {OPEN: content[:size]}))
        report = two.log.attach()
        whole = [end for end in ends if end <= size]
        assert report.next_offset == max(0, len(whole) - 1)
        assert report.bytes_cut == size - (whole[-1] if whole else 0)
        assert two.values() == VALUES[: report.next_offset]
        assert two.append(b"next") == report.next_offset
        assert two.values()[-1] == b"next"


def entry_ends(one: Machine) -> tuple[int, list[int]]:
    """The durable position, and where each entry ends; the start entry is the first."""
    (source,) = one.reader.segments()
    ends = [entry.position + entry.header.entry_bytes for entry in source.entries(0, source.size())]
    return one.log.head.durable_position, ends


@pytest.mark.acceptance(56)
@pytest.mark.parametrize("durable", [0, 2])
def test_a_bit_of_the_tail_that_nobody_called_durable_cuts_it(durable):
    one = one_segment(durable=durable)
    floor, ends = entry_ends(one)
    content = one.disk.content(OPEN)
    for bit in range(8 * floor, 8 * len(content)):
        disk = one.disk.kill()
        disk.flip_bit(OPEN, bit)
        two = machine(disk)
        report = two.log.attach()
        kept = [end for end in ends if end <= bit // 8]
        assert report.bytes_cut == len(content) - (kept[-1] if kept else 0)
        assert two.values() == VALUES[: max(0, len(kept) - 1)]


@pytest.mark.parametrize(
    "tail", [bytes(1), bytes(600), bytes(70_000), b"garbage" * 99, b"PNSK" * 9]
)
def test_zeros_or_garbage_behind_the_end_are_cut_and_reported(tail):
    one = one_segment(durable=3)
    two = machine(copy_of(one.disk, {OPEN: one.disk.content(OPEN) + tail}))
    report = two.log.attach()
    assert report.bytes_cut == len(tail)
    assert not report.clean
    assert two.values() == VALUES
    assert machine(two.disk.kill()).log.attach().clean


@pytest.mark.parametrize("length", [1, 70, 512])
def test_a_durable_stretch_of_zeros_is_damage_wherever_it_is(length):
    one = three_segments()
    for path in segment_paths(one.disk):
        size = len(one.disk.content(path))
        for start in range(0, size, 41):
            disk = one.disk.kill()
            disk.zero(path, start, length)
            if disk.content(path) == one.disk.content(path):
                continue
            with pytest.raises(DamageError) as caught:
                opened_and_read(disk)
            assert caught.value.file == path.removeprefix(f"{ROOT}/")


def test_a_segment_cut_to_nothing_is_damage():
    one = three_segments()
    for path in segment_paths(one.disk):
        disk = copy_of(one.disk, {path: b""})
        with pytest.raises(DamageError):
            opened_and_read(disk)


def test_a_sealed_segment_cut_anywhere_is_damage_to_its_reader():
    one = three_segments()
    for path in segment_paths(one.disk)[:2]:
        content = one.disk.content(path)
        for size in range(len(content)):
            disk = one.disk.kill()
            disk.put(path, content[:size])
            with pytest.raises(DamageError) as caught:
                machine(disk).values()
            assert caught.value.file == path.removeprefix(f"{ROOT}/")


def test_swapped_segments_are_detected():
    one = three_segments()
    first, second, third = segment_paths(one.disk)
    content = one.disk.content
    for a, b in ((first, second), (second, third), (first, third)):
        disk = copy_of(one.disk, {a: content(b), b: content(a)})
        with pytest.raises(DamageError):
            opened_and_read(disk)


def test_a_segment_in_the_place_of_another_is_detected():
    one = three_segments()
    paths = segment_paths(one.disk)
    for source in paths:
        for target in paths:
            if source == target:
                continue
            disk = copy_of(one.disk, {target: one.disk.content(source)})
            with pytest.raises(DamageError):
                opened_and_read(disk)


def test_a_copy_of_a_segment_under_a_new_name_is_refused_or_removed_but_never_read():
    one = three_segments()
    values = one.values()
    for source in segment_paths(one.disk):
        for base in (1, 3, 6, 7, 100):
            name = f"{FOLDER}/{base:020d}.log"
            two = machine(copy_of(one.disk, {name: one.disk.content(source)}))
            try:
                two.log.attach()
                assert two.values() == values
            except DamageError:
                pass


def test_a_copy_that_poses_as_a_rewritten_segment_is_detected():
    one = three_segments()
    for source in segment_paths(one.disk):
        name = source.replace(".log", "-1.log")
        disk = copy_of(one.disk, {name: one.disk.content(source)})
        with pytest.raises(DamageError):
            opened_and_read(disk)


@pytest.mark.parametrize(
    ("keys", "seed"),
    [
        (PartitionKeys("invoices", 0), 7),
        (PartitionKeys("orders", 1), 7),
        (PartitionKeys("orders", 0), 8),
    ],
    ids=["another topic", "another partition", "another log"],
)
def test_a_segment_from_elsewhere_is_detected(keys, seed):
    """Same offsets, same sizes: only its start entry tells where it belongs."""
    one = three_segments()
    other = three_segments(keys, seed)
    own = segment_paths(one.disk)
    foreign = segment_paths(other.disk, f"{ROOT}/{keys.folder}")
    for place in range(3):
        changes = {own[place]: other.disk.content(foreign[place])}
        disk = copy_of(one.disk, changes)
        with pytest.raises(DamagedEntry) as caught:
            opened_and_read(disk)
        if keys == KEYS:  # which of two logs is the right one, nobody can tell
            assert caught.value.reason in ("log id", "chain")
        else:
            assert caught.value.file == own[place].removeprefix(f"{ROOT}/")
            for start in (2 * place, 2 * place + 1):
                with pytest.raises(DamagedEntry, match="another place"):
                    machine(disk).values(start)


def test_a_deleted_segment_is_named():
    one = three_segments()
    first, second, third = segment_paths(one.disk)
    assert len(machine(copy_of(one.disk, {first: None})).values(2)) == 4
    for path in (first, second, third):
        two = machine(copy_of(one.disk, {path: None}))
        with pytest.raises(DamagedFile) as caught:
            two.values(0)
        assert caught.value.file == path.removeprefix(f"{ROOT}/")
        assert caught.value.reason == "missing"
    with pytest.raises(DamagedFile, match="missing"):
        machine(copy_of(one.disk, {third: None})).log.attach()


@pytest.mark.parametrize("content", [None, b"", bytes(1_024), b"\xff" * 1_024, bytes(100)])
def test_a_lost_head_is_made_anew_from_the_segments(content):
    one = three_segments()
    values = one.values()
    two = machine(copy_of(one.disk, {HEAD: content}))
    with pytest.raises(DamagedFile, match="head"):
        two.values()
    report = two.log.attach()
    assert report.head_lost
    assert not report.clean
    assert two.values() == values
    assert two.append(b"next") == 6


@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("size", [0, 1, 100, 511])
def test_a_head_cut_or_emptied_in_one_slot_is_mended(slot, size):
    one = three_segments()
    content = bytearray(one.disk.content(HEAD))
    content[slot * 512 + size : slot * 512 + 512] = bytes(512 - size)
    two = machine(copy_of(one.disk, {HEAD: bytes(content)}))
    assert two.log.attach().head_damaged
    assert two.values() == one.values()
    assert two.append(b"next") == 6


def test_a_head_cut_at_every_byte_loses_nothing():
    one = three_segments()
    content = one.disk.content(HEAD)
    for size in range(0, len(content), 7):
        two = machine(copy_of(one.disk, {HEAD: content[:size]}))
        assert not two.log.attach().clean
        assert two.values() == one.values()


def test_deleted_while_open_the_head_is_made_anew_and_nothing_is_cut():
    """Given two processes, when the head goes while they run, neither cuts the other's records."""
    disk = SimulatedDisk()
    one, two = machine(disk, seed=1), machine(disk, seed=2)
    two.log.attach()
    for number in range(3):
        one.append(b"%d" % number)
    disk.delete(HEAD)
    assert two.append(b"3") == 3
    assert one.append(b"4") == 4
    assert one.values() == [b"0", b"1", b"2", b"3", b"4"]


def test_a_segment_that_is_cut_while_open_poisons_the_writer():
    one = machine()
    one.append(b"0")
    one.disk.truncate_file(OPEN, 10)
    with pytest.raises(DamagedFile, match="cut while in use"):
        one.append(b"1")
    assert one.log.poison is not None


@pytest.mark.parametrize("content", [None, b"", b"x" * 31, b"x" * 32, bytes(4_000), b"x" * 9_999])
def test_a_lost_or_wrong_index_is_made_anew(content):
    one = machine(segment_bytes_max=200_000)
    for number in range(12):
        one.append(bytes([number]) * 40_000)
    one.log.close()
    paths = [path for path in one.disk.files() if path.endswith(".index")]
    right = {path: one.disk.content(path) for path in paths[:-1]}
    two = machine(copy_of(one.disk, dict.fromkeys(paths, content)))
    for offset in (11, 7, 5, 3, 1, 0):
        assert two.values(offset)[0] == bytes([offset]) * 40_000
    assert {path: two.disk.content(path) for path in right} == right, "made anew on disk"


def test_a_topic_file_or_offset_file_from_elsewhere_or_lost():
    one = machine()
    TopicFile(one.store, "orders").create(TopicConfig(), 1)
    TopicFile(one.store, "invoices").create(TopicConfig(), 1)
    one.disk.put(
        f"{ROOT}/topics/orders/topic.json", one.disk.content(f"{ROOT}/topics/invoices/topic.json")
    )
    with pytest.raises(DamagedFile, match="invoices"):
        TopicFile(one.store, "orders").read()


@pytest.mark.acceptance(45)
def test_an_offset_file_cut_anywhere_is_never_taken_for_another_offset():
    one = machine()
    file = OffsetFile(one.store, "billing", "orders", 0)
    for offset in (3, 9):
        file.commit(offset, 1)
    path = f"{ROOT}/{file.key}"
    content = one.disk.content(path)
    for size in range(1, len(content)):
        two = machine(copy_of(one.disk, {path: content[:size]}))
        try:
            found = OffsetFile(two.store, "billing", "orders", 0).read()
        except DamagedFile:
            continue
        assert found is not None
        assert found.damaged_slots == 1
        assert found.offset in (3, 9)
