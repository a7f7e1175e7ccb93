"""The ring in shared memory within a process: records, groups, and memory that is torn or reordered."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import (
    BufferFull,
    Closed,
    DamagedEntry,
    InvalidName,
    InvalidOption,
    NotSupported,
    RecordTooLarge,
    UsageError,
)
from penstock.scaling import Park, SharedRing, Sleep, Spin, Yield
from penstock.scaling.shared_entry import EntryArea
from penstock.scaling.shared_places import SharedSequence
from penstock.system import System
from penstock.testing import VirtualClock
from tests.scaling.ring_programs import SMALL, numbers

# ------------------------------------------------------------------------------- one process


@pytest.mark.parametrize("sizes", [[0], [1], [60] * 30, [0, 1, 7, 8, 9, 0], range(60)])
def test_records_come_out_as_they_went_in(ring, sizes):
    consumer = ring.consumer()
    for seed in range(30):
        records = [bytes([seed]) * size for size in sizes]
        ring.put_many(records)
        assert consumer.get_many(len(records)) == records
    assert ring.statistics().records == 30 * len(sizes)


@pytest.mark.acceptance(28)
@settings(max_examples=30)
@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 700), max_size=12)), max_size=60))
def test_the_shared_ring_is_a_bounded_queue(steps):
    """Random sizes across the end of the memory, many times around."""
    with SharedRing.create(capacity_bytes=SMALL) as ring, ring.consumer() as consumer:
        waiting: list[bytes] = []
        for put, sizes in steps:
            if put:
                records = [os.urandom(size) for size in sizes]
                done = ring.try_put_many(records)
                waiting += records[:done]
                assert done == len(records) or ring.statistics().depth > 0
            else:
                taken = consumer.drain(len(sizes))
                assert taken == waiting[: len(taken)]
                assert len(taken) == min(len(sizes), len(waiting))
                del waiting[: len(taken)]
        assert consumer.drain(10_000) == waiting


def test_a_large_batch_is_split_and_a_record_too_large_refused(ring):
    consumer = ring.consumer()
    assert ring.try_put_many([b"x" * 500] * 20) < 20
    got = len(consumer.drain())
    assert got > 4
    with pytest.raises(RecordTooLarge):
        ring.put_many([b"small", b"x" * (ring.entry_bytes_max + 1)])
    assert consumer.drain() == []


def test_a_full_ring_says_who_is_slow_and_how_much_was_put(ring):
    consumer = ring.consumer()
    records = [b"%d" % number * 300 for number in range(10)] * 2
    with pytest.raises(BufferFull) as caught:
        ring.put_many(records, timeout=0.01)
    assert caught.value.process_id == os.getpid()
    taken = consumer.drain()
    assert len(taken) == caught.value.published
    assert taken == records[: len(taken)]
    ring.put_many(records[len(taken) :])
    assert consumer.drain() == records[len(taken) :]


def test_consumers_that_are_slow_late_or_gone(ring):
    first = ring.consumer()
    ring.put_many([b"a" * 1500, b"b" * 1500])
    late = ring.consumer()
    assert late.drain() == []
    assert ring.try_put_many([b"c" * 1500]) == 0
    first.close()
    assert ring.try_put_many([b"c" * 1500]) == 1
    assert late.drain() == [b"c" * 1500]
    with pytest.raises(Closed):
        first.get_many()


def test_a_consumer_behind_a_barrier_waits_for_whole_entries(ring):
    first = ring.consumer()
    second = ring.consumer(after=[first])
    ring.put_many([b"1", b"2"])
    ring.put_many([b"3"])
    assert first.poll(1) == first.poll(1) == [b"1"]
    first.advance()
    assert second.poll() == []
    assert first.drain(1) == [b"2"]
    assert second.drain() == [b"1", b"2"]
    first.close()
    assert second.drain() == [b"3"]
    with pytest.raises(InvalidOption):
        ring.consumer(after=[first])


def test_statistics_show_every_sequence(ring):
    fast, slow = ring.consumer(), ring.consumer()
    ring.put_many([b"1234"] * 3)
    fast.drain()
    ring.put_many([b"1234"])
    shown = ring.statistics()
    assert [one.records for one in shown.consumers] == [3, 0]
    assert all(shown.published - one.position == one.depth for one in shown.consumers)
    assert shown.depth == shown.consumers[1].depth == shown.published
    assert (shown.records, shown.capacity_bytes) == (4, SMALL)
    slow.close()


def test_the_end_of_a_ring(ring):
    consumer = ring.consumer()
    assert consumer.get_many(timeout=0) == []
    ring.put_many([b"last"])
    ring.close()
    ring.close()
    with pytest.raises(Closed):
        ring.put_many([b"more"])
    assert consumer.get_many() == [b"last"]
    with pytest.raises(Closed):
        consumer.get_many()
    consumer.close()
    consumer.close()


def test_a_ring_that_nobody_used_has_an_end_too(ring):
    consumer = ring.consumer()
    ring.close()
    with pytest.raises(Closed):
        consumer.get_many()
    assert consumer.finished
    consumer.close()


@pytest.mark.parametrize("strategy", [Sleep(), Yield(), Spin()])
def test_a_wait_ends_at_its_deadline(strategy):
    system = System(clock=TickingClock())
    with SharedRing.create(capacity_bytes=SMALL, wait=strategy, system=system) as ring:
        with ring.consumer() as consumer:
            assert consumer.get_many(timeout=2) == []
            with pytest.raises(BufferFull):
                ring.put_many([b"x" * 1_000] * 9, timeout=2)
            assert len(consumer.drain()) == 4


class TickingClock(VirtualClock):
    """Time passes with each look at it."""

    def monotonic(self) -> float:
        self.advance(0.01)
        return super().monotonic()


def test_what_makes_no_sense_is_refused(ring):
    with pytest.raises(InvalidName):
        SharedRing.create("../etc")
    with pytest.raises(UsageError, match="no shared ring"):
        SharedRing.attach("nobody-made-this")
    with pytest.raises(UsageError, match="in use"):
        SharedRing.create(ring.name)
    with pytest.raises(InvalidOption):
        SharedRing.create(capacity_bytes=1)
    for wrong in [0, 1_000]:
        with pytest.raises(InvalidOption):
            SharedRing.create(consumers_max=wrong)
    with SharedRing.create(capacity_bytes=SMALL, wait=Park()) as parked:
        with parked.consumer() as consumer, pytest.raises(NotSupported):
            consumer.get_many()
    consumers = [ring.consumer() for _ in range(16)]
    with pytest.raises(BufferFull):
        ring.consumer()
    with pytest.raises(InvalidOption):
        consumers[0].advance(1)


# -------------------------------------------------------------------------------------- groups


def test_members_share_and_what_one_leaves_goes_to_another(ring):
    with ring.group() as group:
        one, other = group.member(), group.member()
        after = ring.consumer(after=[group])
        for first in range(0, 40, 10):
            ring.put_many(numbers(first, first + 10))
        assert one.poll() == one.poll() == numbers(0, 10)
        assert other.drain() == numbers(10, 40)
        assert after.drain() == []
        one.advance(3)
        one.close()
        assert other.get_many(timeout=20) == numbers(0, 10), "the whole entry again"
        assert after.drain() == numbers(0, 40)
        ring.close()
        with pytest.raises(Closed):
            other.get_many()
        other.close()


def test_a_group_gates_the_producer_until_it_is_closed(ring):
    group = ring.group()
    member = group.member()
    assert ring.try_put_many([b"x" * 1500] * 3) == 2
    assert len(member.poll()) == 1
    assert ring.try_put_many([b"x" * 1500]) == 0
    with pytest.raises(InvalidOption):
        ring.consumer(after=[member])
    group.close()
    assert ring.try_put_many([b"x" * 1500]) == 1
    with pytest.raises(Closed):
        member.advance()
    with pytest.raises(Closed):
        group.member()


def test_dead_members_make_place_for_new_ones(ring):
    with ring.group() as group:
        for _ in range(40):
            group.member().place.own((1, 1))
        ring.put_many([b"x"])
        assert group.member().get_many() == [b"x"]


# ------------------------------------------------------------------- torn and reordered memory


def test_an_entry_with_any_wrong_byte_does_not_prove_itself():
    memory = bytearray(1024)
    area = EntryArea(memoryview(memory), 1024)
    size = area.write(1024 * 7 + 1000, [b"some", b"", b"records"], [4, 0, 7])
    position = 1024 * 7 + 1000
    assert area.read(position) == ([b"some", b"", b"records"], size)
    meaning = 24 + 4 * 3 + 11
    for offset in [*range(20), *range(24, meaning)]:
        memory[(position + offset) % 1024] ^= 0x10
        assert area.read(position) is None
        memory[(position + offset) % 1024] ^= 0x10
    assert area.read(position) is not None


def test_the_entry_of_an_earlier_lap_does_not_prove_itself():
    area = EntryArea(memoryview(bytearray(1024)), 1024)
    area.write(1024, [b"old"], [3])
    assert area.read(1024) == ([b"old"], 32)
    assert area.read(2048) is None


def test_every_mixture_of_an_old_and_a_new_entry_is_seen():
    """The stores of an entry arrive in any order: each 8-byte word is old or new."""
    old, new = bytearray(128), bytearray(128)
    EntryArea(memoryview(old), 128).write(128, [b"o" * 9, b"ld"], [9, 2])
    EntryArea(memoryview(new), 128).write(256, [b"new", b"er"], [3, 2])
    words = 5
    for pattern in range(1 << words):
        mixed = bytearray(old)
        for word in range(words):
            if pattern >> word & 1:
                mixed[8 * word : 8 * word + 8] = new[8 * word : 8 * word + 8]
        found = EntryArea(memoryview(mixed), 128).read(256)
        complete = mixed[:37] == new[:37]
        assert found == (([b"new", b"er"], 40) if complete else None)


def test_a_torn_sequence_keeps_its_last_good_value():
    words = memoryview(bytearray(64)).cast("Q")
    writer, reader = SharedSequence(words, 0), SharedSequence(words, 0)
    assert reader.value == 0
    writer.value = 2**32 - 8
    assert reader.value == 2**32 - 8
    before = words.tolist()
    writer.value = 2**32 + 8
    after = words.tolist()
    for mixed in [(before[2], after[3]), (after[2], before[3])]:
        words[2], words[3] = mixed
        assert reader.value == 2**32 - 8
    low, high = 2**32 - 1, (2**32 - 1) << 32
    for one, other in [(low, high), (high, low)]:
        words[2] = after[2] & one | before[2] & other
        words[3] = after[3] & one | before[3] & other
        assert reader.value == 2**32 - 8
    words[2], words[3] = after[2], after[3]
    assert reader.value == 2**32 + 8


def test_a_cursor_that_is_seen_before_its_entry_is_waited_for(ring):
    consumer = ring.consumer()
    ring.put_many([b"first"])
    assert consumer.drain() == [b"first"]
    hidden = bytes(ring._area.memory)
    ring.put_many([b"second"])
    arrived = bytes(ring._area.memory)
    ring._area.memory[:] = hidden
    assert consumer.poll() == []
    assert consumer.get_many(timeout=0) == []
    ring._area.memory[:] = arrived
    assert consumer.get_many() == [b"second"]


def test_an_entry_that_never_proves_itself_is_damage():
    system = System(clock=TickingClock())
    with SharedRing.create(capacity_bytes=SMALL, system=system) as ring:
        with ring.consumer() as consumer:
            ring.put_many([b"first"])
            consumer.drain()
            ring.put_many([b"second"])
            ring._area.memory[consumer._next + 30] ^= 1
            with pytest.raises(DamagedEntry):
                consumer.get_many(timeout=20)


def test_a_consumer_whose_first_entry_was_overrun_starts_at_the_cursor():
    system = System(clock=TickingClock())
    with SharedRing.create(capacity_bytes=SMALL, system=system) as ring:
        consumer = ring.consumer()
        place = consumer.place
        place.own((0, 0))  # the producer does not see the gate yet
        for _ in range(10):
            ring.put_many([b"x" * 1000])
        place.own((os.getpid(), 0))
        assert consumer.get_many(timeout=3) == []
        ring.put_many([b"seen"])
        assert consumer.get_many() == [b"seen"]
        consumer._segment.places.free(place)
