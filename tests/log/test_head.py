"""The head says where a partition ends, never more than is true."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.head import Head, HeadFile
from penstock.stores.memory import MemoryStore
from tests.log.strategies import KEYS, machine

U64 = st.integers(0, (1 << 63) - 1)
U32 = st.integers(0, (1 << 32) - 1)


@st.composite
def heads(draw: st.DrawFn) -> Head:
    durable_position, position = sorted((draw(U64), draw(U64)))
    durable_offset, next_offset = sorted((draw(U64), draw(U64)))
    return Head(
        segment_base=draw(U64),
        position=position,
        next_offset=next_offset,
        durable_position=durable_position,
        durable_offset=durable_offset,
        timestamp=draw(st.integers(-(1 << 63), (1 << 63) - 1)),
        checksum=draw(U32),
        durable_checksum=draw(U32),
        failures=draw(U32),
    )


@given(st.lists(heads(), min_size=1, max_size=4))
def test_the_last_head_that_was_written_is_read(written):
    file = HeadFile(MemoryStore(), "head")
    assert file.look() == (None, False)
    last = Head()
    for head in written:
        last = file.write(head._replace(generation=last.generation))
        assert file.read() == last == head._replace(generation=last.generation)
    assert file.look() == (last, False)


@given(heads())
def test_a_durable_head_stands_in_both_slots(head):
    store = MemoryStore()
    file = HeadFile(store, "head")
    last = file.write_durably(head)
    content = store.read("head")
    for slot in (0, 1):
        one = bytearray(content)
        one[slot * 512 : slot * 512 + 512] = bytes(512)
        store.write("head", bytes(one))
        found, damaged = file.look()
        assert damaged
        assert found is not None
        assert found._replace(generation=0) == last._replace(generation=0)


@given(heads())
def test_synced_means_that_all_of_it_is_durable(head):
    synced = head.synced()
    assert synced.durable_offset == synced.next_offset == head.next_offset
    assert synced.durable_position == synced.position == head.position
    assert synced.durable_checksum == synced.checksum == head.checksum


@pytest.mark.parametrize(
    "head",
    [Head(durable_offset=1), Head(durable_position=1)],
)
def test_a_head_that_claims_more_than_was_written_is_never_written(head):
    with pytest.raises(AssertionError):
        HeadFile(MemoryStore(), "head").write(head)


def test_a_damaged_payload_counts_as_no_head():
    store = MemoryStore()
    from penstock.log.slots import SlottedFile

    SlottedFile(store, "head", b"HEAD").write(1, b"short")
    assert HeadFile(store, "head").look() == (None, True)


def test_the_durable_offset_follows_the_syncs():
    one = machine()
    one.append(b"0", sync=False)
    assert (one.log.head.next_offset, one.log.head.durable_offset) == (1, 0)
    one.append(b"1", sync=False)
    assert one.values() == []
    assert one.log.sync().durable_offset == 2
    assert one.values() == [b"0", b"1"]
    one.append(b"2")
    assert HeadFile(one.store, KEYS.head).read() == one.log.head
    assert one.log.read_head() == one.log.head


def test_the_head_of_another_process_is_seen():
    one = machine()
    two = machine(one.disk, seed=2)
    two.log.attach()
    one.append(b"0")
    assert two.log.head.next_offset == 0
    assert two.log.read_head().next_offset == 1
    assert two.append(b"1") == 1


def test_trust_needs_the_same_failures_and_no_step_back():
    head = Head(generation=5, failures=1)
    assert head.trusts(head)
    assert head.trusts(head._replace(generation=9))
    assert not head.trusts(head._replace(generation=4))
    assert not head.trusts(head._replace(generation=9, failures=2))


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_damaged_head_is_damaged_however_often_it_is_looked_at(times):
    store = MemoryStore()
    file = HeadFile(store, "head")
    last = file.write(file.write(Head(next_offset=5)))
    content = bytearray(store.read("head"))
    content[last.generation % 2 * 512 + 40] ^= 1
    store.write("head", bytes(content))
    assert [file.look()[1] for _ in range(times)] == [True] * times
