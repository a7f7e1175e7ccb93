"""What recovery believes behind a torn place: only what passes its checksum."""

import pytest

from penstock.errors import DamagedEntry
from tests.log.strategies import FOLDER, copy_of, machine

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
