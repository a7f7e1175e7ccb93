"""Two slots in turn: the newest sound one counts, a lost one is noticed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import KeyNotFound, UnsupportedFormat
from penstock.log.slots import (
    FIRST_GENERATION,
    NO_SLOT,
    PAYLOAD_BYTES_MAX,
    SLOT_BYTES,
    SlottedFile,
)
from penstock.stores.memory import MemoryStore
from tests.log.strategies import flip

MAGIC = b"TEST"


def file_of(content: bytes) -> SlottedFile:
    store = MemoryStore()
    store.write("file", content)
    return SlottedFile(store, "file", MAGIC)


def written(*payloads: bytes) -> bytes:
    store = MemoryStore()
    file = SlottedFile(store, "file", MAGIC)
    for generation, payload in enumerate(payloads, FIRST_GENERATION):
        file.write(generation, payload)
    return store.read("file")


def payload_of(generation: int) -> bytes:
    """What the tests write as that generation; the first two are one write."""
    return b"%d" % max(generation, FIRST_GENERATION)


def filled(count: int) -> bytes:
    """A file that was written up to a generation."""
    store = MemoryStore()
    file = SlottedFile(store, "file", MAGIC)
    for generation in range(FIRST_GENERATION, count + 1):
        file.write(generation, payload_of(generation))
    return store.read("file")


@given(st.lists(st.binary(max_size=PAYLOAD_BYTES_MAX), min_size=1, max_size=6))
def test_the_newest_generation_is_read(payloads):
    content = written(*payloads)
    assert len(content) == 2 * SLOT_BYTES
    assert file_of(content).read() == (len(payloads) + 1, payloads[-1], 0)


def test_an_absent_file_and_a_new_one():
    store = MemoryStore()
    with pytest.raises(KeyNotFound):
        SlottedFile(store, "file", MAGIC).read()
    for content in (b"", bytes(100), bytes(2 * SLOT_BYTES)):
        assert file_of(content).read() == NO_SLOT


@given(st.integers(2, 6), st.integers(0, 2 * SLOT_BYTES * 8 - 1))
def test_any_flipped_bit_leaves_the_other_slot_and_is_counted(newest, bit):
    slot = file_of(flip(filled(newest), bit)).read()
    struck = bit // 8 // SLOT_BYTES
    left = newest - 1 if struck == newest % 2 else newest
    assert slot == (left, payload_of(left), 1)


@given(st.integers(2, 6), st.integers(0, 2 * SLOT_BYTES))
def test_a_cut_file_never_gives_a_newer_or_wrong_payload(newest, size):
    slot = file_of(filled(newest)[:size]).read()
    assert slot.payload == (payload_of(slot.generation) if slot.generation else b"")
    assert slot.generation in (0, newest - 1, newest)
    if SLOT_BYTES <= size < 2 * SLOT_BYTES:
        assert slot.generation
        assert slot.damaged == 1


@pytest.mark.parametrize("newest", [2, 3, 6])
@pytest.mark.parametrize("slot", [0, 1])
def test_a_slot_that_turned_into_zeros_is_damage(newest, slot):
    """The first write fills both slots."""
    content = bytearray(filled(newest))
    content[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES] = bytes(SLOT_BYTES)
    assert file_of(bytes(content)).read().damaged == 1


def test_a_file_of_another_kind_is_damage():
    content = written(b"payload")
    other = SlottedFile(MemoryStore(), "file", b"ELSE")
    assert other._parse(content[SLOT_BYTES:]) is None


def test_a_newer_version_is_refused_with_its_number():
    from crc32c import crc32c

    content = bytearray(written(b"payload"))
    content[:SLOT_BYTES] = bytes(SLOT_BYTES)
    content[SLOT_BYTES + 4] = 2
    body = bytes(content[SLOT_BYTES : 2 * SLOT_BYTES - 4])
    content[-4:] = crc32c(body, crc32c(b"file")).to_bytes(4, "little")
    with pytest.raises(UnsupportedFormat, match="version 2"):
        file_of(bytes(content)).read()


def test_the_file_of_another_place_is_damage():
    store = MemoryStore()
    store.write("elsewhere", written(b"payload"))
    assert SlottedFile(store, "elsewhere", MAGIC).read() == (0, b"", 2)


@given(st.binary(max_size=1_200))
def test_random_bytes_are_damage_or_nothing(content):
    slot = file_of(content).read()
    assert slot.generation == 0
    assert slot.payload == b""
    assert slot.damaged == sum(any(part) for part in (content[:512], content[512:1024]))


@given(st.integers(0, SLOT_BYTES), st.integers(3, 6))
def test_a_write_torn_anywhere_leaves_the_generation_before(cut, generations):
    before = filled(generations - 1)
    after = filled(generations)
    start = generations % 2 * SLOT_BYTES
    torn = before[:start] + after[start : start + cut] + before[start + cut :]
    slot = file_of(torn).read()
    assert slot.generation in (generations - 1, generations)
    assert slot.payload == payload_of(slot.generation)


STEPS = st.lists(
    st.one_of(
        st.just("mine"), st.just("theirs"), st.tuples(st.integers(0, 2 * SLOT_BYTES * 8 - 1))
    ),
    max_size=12,
)


@given(STEPS)
def test_what_is_remembered_is_what_a_new_object_reads(steps):
    """Two writers and flipped bits, in any order: the object that has seen it all knows no more or less."""
    store = MemoryStore()
    mine, theirs = (SlottedFile(store, "file", MAGIC) for _ in range(2))
    mine.write(FIRST_GENERATION, b"first")
    for generation, step in enumerate(steps, FIRST_GENERATION + 1):
        if isinstance(step, tuple):
            store.write("file", flip(store.read("file"), step[0]))
        else:
            (mine if step == "mine" else theirs).write(generation, b"%d" % generation)
        assert mine.read() == SlottedFile(store, "file", MAGIC).read()


def test_the_same_bytes_are_parsed_once():
    store = MemoryStore()
    mine, theirs = (SlottedFile(store, "file", MAGIC) for _ in range(2))
    assert mine.write(2, b"a") is mine.read()
    assert mine.write(3, b"b") is mine.read() is mine.read()
    theirs.write(4, b"c")
    assert mine.read() == (4, b"c", 0)
    assert mine.read() is mine.read()
