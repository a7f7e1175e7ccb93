"""What recovery believes behind a torn place: only what passes its checksum."""

import pytest

from penstock.errors import DamagedEntry
from penstock.log.frame import seal
from penstock.log.head import HeadFile
from tests.log.strategies import FOLDER, KEYS, copy_of, machine, segment_paths, values_draft
from tests.log.test_forged_segments import SMALL, forged

FIRST = f"{FOLDER}/{0:020d}.log"
HEAD = f"{FOLDER}/head"


@pytest.mark.parametrize("bit", range(32))
def test_no_bit_of_a_length_hides_what_was_durable_behind_it(bit):
    """A length that is wrong must not lead recovery past the entries that claim more."""
    one = machine()
    for value in (b"0", b"1" * 50, b"2", b"3"):
        one.append(value)
    (source,) = one.reader.segments()
    position = [entry.position for entry in source.entries(0, source.size())][2]
    disk = copy_of(one.disk, {HEAD: None})
    disk.flip_bit(FIRST, 8 * position + bit)
    before = disk.content(FIRST)
    with pytest.raises(DamagedEntry) as caught:
        machine(disk).log.attach()
    assert caught.value.durable_offset == 3
    assert disk.content(FIRST) == before


def test_what_looks_like_a_claim_inside_a_torn_value_is_a_value():
    one = machine()
    one.append(b"0")
    head = HeadFile(one.store, KEYS.head).read()
    assert head is not None
    buffers, _, _ = seal(values_draft(b"a value"), 50, 50, 0, 0)
    value = b"".join(bytes(part) for part in buffers)
    torn = forged(values_draft(value), base=1, previous=head.checksum, timestamp=head.timestamp)
    disk = copy_of(one.disk, {FIRST: one.disk.content(FIRST) + torn[:-1]})
    report = machine(disk).log.attach()
    assert (report.next_offset, report.bytes_cut) == (1, len(torn) - 1)


def test_an_entry_that_claims_itself_claims_nothing():
    """Nobody writes that an entry is durable into the entry: such bytes are none of this log."""
    one = machine()
    one.append(b"0")
    buffers, _, _ = seal(values_draft(b"1"), 1, 50, 0, 0)
    behind = b"x" * 99 + b"".join(bytes(part) for part in buffers)
    disk = copy_of(one.disk, {FIRST: one.disk.content(FIRST) + behind})
    report = machine(disk).log.attach()
    assert (report.next_offset, report.bytes_cut) == (1, len(behind))


def test_the_start_of_the_next_segment_claims_all_before_it():
    """A roll had written no more of it."""
    one = machine(**SMALL)
    one.append(b"0" * 300, sync=False)
    head = one.disk.content(HEAD)
    one.append(b"1" * 300)
    first, second = segment_paths(one.disk)
    source, following = one.reader.segments()
    start = following.first_entry().header.entry_bytes
    record = list(source.entries(0, source.size()))[1]
    hurt = bytearray(one.disk.content(first))
    del hurt[record.position :]
    changes = {first: bytes(hurt) + b"x" * 99, second: one.disk.content(second)[:start], HEAD: head}
    with pytest.raises(DamagedEntry) as caught:
        machine(copy_of(one.disk, changes), **SMALL).log.attach()
    assert caught.value.durable_offset == 1


def test_a_log_of_which_nothing_was_durable_begins_anew():
    one = machine()
    one.append(b"0")
    whole = one.disk.content(FIRST)
    for size in (1, 60, 90):
        two = machine(copy_of(one.disk, {HEAD: None, FIRST: whole[:size]}))
        assert two.log.attach().next_offset == 0
        assert two.append(b"1") == 0
