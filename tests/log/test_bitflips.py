"""One bit turned over anywhere in a cleanly closed log: detected, or provably harmless.

Harmless means that the same records come back, all of them. Wrong bytes and missing records must
never come back without an error or a report.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from penstock.errors import DamageError, PenstockError
from penstock.log.codec import Codec
from penstock.log.columns import Columns
from penstock.log.offsets import OffsetFile
from penstock.log.records import Record
from penstock.log.topic import TopicConfig, TopicFile
from penstock.testing.disk import SimulatedDisk
from tests.log.strategies import (
    FOLDER,
    KEYS,
    ROOT,
    copy_of,
    draft_of,
    flip,
    machine,
    read_records,
    segment_paths,
)
from tests.scoreboard import Scores

BATCHES = [
    Columns([b"one", None, b""]),
    Columns([b"keyed", b"x"], [b"key", None], [11, -12]),
    Columns([b"headers"], None, None, [{"trace": b"\x01\x02", "größe": b""}]),
    Columns([b"zzzzzzzzzzzzzzzzzzzzzzzz"] * 3),
    Columns([b"the last one"]),
]


@dataclass
class Fixture:
    disk: SimulatedDisk
    records: list[Record]


def make_log(segment_bytes_max: int = 250) -> Fixture:
    """A small log of several segments, closed cleanly, with a topic and a subscriber."""
    one = machine(segment_bytes_max=segment_bytes_max)
    topic = TopicFile(one.store, KEYS.topic)
    topic.create(TopicConfig(), 1_000)
    topic.add_subscriber("billing", {0: 0})
    offsets = OffsetFile(one.store, "billing", KEYS.topic, 0)
    for number, batch in enumerate(BATCHES):
        codec = Codec.ZLIB if number == 3 else Codec.NONE
        one.log.append([draft_of(batch, codec)], sync=True)
        offsets.commit(number + 1, 2_000 + number)
    one.log.close()
    return Fixture(one.disk, read_records(one.reader))


FIXTURE = make_log()
SEGMENTS = segment_paths(FIXTURE.disk)
HEAD = f"{FOLDER}/head"
OFFSETS = f"{ROOT}/groups/billing/orders-0.offset"
TOPIC = f"{ROOT}/topics/orders/topic.json"


def verdict(disk: SimulatedDisk, *, attach: bool) -> str:
    """``same``, ``detected``, or what must never be: ``wrong`` and ``lost``."""
    one = machine(disk)
    try:
        report = one.log.attach() if attach else None
        records = read_records(one.reader)
    except DamageError as error:
        return "detected" if error.fields.get("file") else f"names no file: {error}"
    if report is not None and not report.clean:
        # A report that bytes were cut is only right when nobody was told they were safe.
        assert report.bytes_cut == 0, f"durable records were cut: {report}"
    if records == FIXTURE.records:
        return "same"
    return "lost" if all(one in FIXTURE.records for one in records) else "wrong"


def verdicts(
    path: str, bits: Sequence[int], *, attach: bool, scored: Scores | None = None
) -> set[str]:
    """What became of the log for each flipped bit."""
    found = count_verdicts(path, bits, attach=attach)
    if scored is not None:
        tell(scored, found)
    return set(found)


def count_verdicts(path: str, bits: Sequence[int], *, attach: bool) -> Counter[str]:
    found: Counter[str] = Counter()
    for bit in bits:
        disk = FIXTURE.disk.kill()
        disk.flip_bit(path, bit)
        found[verdict(disk, attach=attach)] += 1
    return found


def tell(scored: Scores, found: Counter[str]) -> None:
    scored(6, tried=found.total(), bad=found["wrong"])
    scored(7, tried=found.total(), bad=found["lost"])


def all_bits(path: str) -> range:
    return range(8 * len(FIXTURE.disk.content(path)))


def slot_bits(path: str) -> list[int]:
    """Every bit of what the slots say, and one bit of each byte that only pads them."""
    return [
        bit for bit in all_bits(path) if bit % 4_096 < 800 or bit % 4_096 >= 4_064 or not bit % 9
    ]


def test_the_fixture_has_several_segments_and_every_kind_of_column():
    assert len(SEGMENTS) == 3
    assert len(FIXTURE.records) == 10
    assert machine(FIXTURE.disk.kill()).log.attach().clean


@pytest.mark.acceptance(56)
@pytest.mark.parametrize("path", SEGMENTS, ids=["first", "second", "last"])
def test_every_bit_of_every_segment_is_detected(path, scored):
    """Nothing in a segment is without a checksum, so no flip is harmless to a reader."""
    assert verdicts(path, all_bits(path), attach=False, scored=scored) == {"detected"}


@pytest.mark.acceptance(56)
@pytest.mark.parametrize("path", SEGMENTS, ids=["first", "second", "last"])
def test_a_flipped_bit_of_a_segment_is_detected_when_the_log_is_opened(path):
    """Recovery never takes damage to durable records for a torn tail."""
    assert verdicts(path, all_bits(path)[::5], attach=True) == {"detected"}


@pytest.mark.torture
@pytest.mark.timeout(600)
@pytest.mark.parametrize("attach", [True, False])
def test_every_bit_of_everything_in_both_ways(attach, scored):
    every: Counter[str] = Counter()
    for path in (*SEGMENTS, HEAD):
        found = count_verdicts(path, all_bits(path), attach=attach)
        assert set(found) == ({"same"} if attach and path == HEAD else {"detected"})
        every += found
    tell(scored, every)


@pytest.mark.acceptance(56)
def test_a_bit_of_every_byte_of_the_head_is_mended_when_the_log_is_opened(scored):
    assert verdicts(HEAD, slot_bits(HEAD), attach=True, scored=scored) == {"same"}


def test_a_bit_of_every_byte_of_the_head_is_detected_by_a_reader_that_does_not_open_for_writing():
    """An older slot would show fewer records than there are, without a word."""
    assert verdicts(HEAD, slot_bits(HEAD), attach=False) == {"detected"}


def test_a_flip_in_the_head_is_reported_and_mended():
    for bit in (0, 5_000):
        one = machine(copy_of(FIXTURE.disk, {HEAD: flip(FIXTURE.disk.content(HEAD), bit)}))
        assert one.log.attach().head_damaged
        assert read_records(one.reader) == FIXTURE.records
        assert machine(one.disk.kill()).log.attach().clean


def test_a_flip_in_the_head_under_a_live_writer_cuts_nothing():
    """Given another process that has the log open, when the newest slot goes bad, it checks."""
    one = machine()
    for number in range(4):
        one.append(b"%d" % number)
    content = one.disk.content(HEAD)
    for bit in range(0, 8 * len(content), 61):
        disk = copy_of(one.disk)
        two = machine(disk)
        two.log.attach()
        disk.put(HEAD, flip(disk.content(HEAD), bit))
        assert two.append(b"4") == 4
        assert two.values() == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.acceptance(45, 56)
def test_every_bit_of_an_offset_file_is_reported():
    """The other slot is one commit older, so that records may come again but none is skipped."""
    for bit in all_bits(OFFSETS):
        disk = FIXTURE.disk.kill()
        disk.flip_bit(OFFSETS, bit)
        one = machine(disk)
        found = OffsetFile(one.store, "billing", KEYS.topic, 0).read()
        assert found is not None
        assert found.offset in (4, 5)
        assert found.damaged_slots == 1


def test_every_bit_of_a_first_commit_is_reported_and_loses_nothing():
    """The first commit stands in both slots."""
    one = machine()
    OffsetFile(one.store, "billing", KEYS.topic, 0).commit(7, 1)
    for bit in slot_bits(OFFSETS):
        disk = one.disk.kill()
        disk.flip_bit(OFFSETS, bit)
        found = OffsetFile(machine(disk).store, "billing", KEYS.topic, 0).read()
        assert found == (7, 1, 1), bit


@pytest.mark.acceptance(56)
def test_every_bit_of_a_topic_file_is_detected_or_harmless():
    content = FIXTURE.disk.content(TOPIC)
    right = TopicFile(machine(FIXTURE.disk.kill()).store, KEYS.topic).read()
    detected = 0
    for bit in range(8 * len(content)):
        disk = FIXTURE.disk.kill()
        disk.flip_bit(TOPIC, bit)
        one = machine(disk)
        try:
            assert TopicFile(one.store, KEYS.topic).read() == right, bit
        except DamageError:
            detected += 1
    assert detected > 4 * len(content) * 0.9


def test_every_bit_of_an_index_is_harmless():
    """The index is a hint: a wrong one is made anew from the segment."""
    one = machine(segment_bytes_max=300_000)
    values = [bytes([number]) * 40_000 for number in range(20)]
    for value in values:
        one.append(value)
    one.log.close()
    indexes = [path for path in one.disk.files() if path.endswith(".index")]
    assert len(indexes) == 3
    for path in indexes:
        content = one.disk.content(path)
        for bit in range(8 * len(content)):
            disk = one.disk.kill()
            disk.flip_bit(path, bit)
            two = machine(disk)
            offset = bit % 20
            (first, *_) = two.reader.cursor(offset).fetch(1)
            record = next(r for r in first.view().records("t", 0) if r.offset == offset)
            assert record.value == values[offset]


@pytest.mark.torture
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("attach", [True, False])
def test_every_pair_of_flips_far_apart(attach):
    """Two flips in two files: never wrong bytes, never silence."""
    head = FIXTURE.disk.content(HEAD)
    last = FIXTURE.disk.content(SEGMENTS[-1])
    for bit in range(0, 8 * len(head), 97):
        for other in range(0, 8 * len(last), 7):
            changes = {HEAD: flip(head, bit), SEGMENTS[-1]: flip(last, other)}
            one = machine(copy_of(FIXTURE.disk, changes))
            try:
                report = one.log.attach() if attach else None
                records = read_records(one.reader)
            except PenstockError:
                continue
            assert report is not None
            assert not report.clean
            assert records == FIXTURE.records[: len(records)]
