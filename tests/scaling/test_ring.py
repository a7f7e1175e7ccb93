"""The ring in one process: order, gating, barriers, groups and figures."""

import gc
import threading
import weakref
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BufferFull, Closed, InvalidOption
from penstock.scaling import Ring
from penstock.speedups import compiled
from tests.scaling.threads import running


class Thing:
    """An object whose life can be watched."""


def publish_at_once(ring: Ring[int], items: list[int]) -> int:
    """Publish what there is room for now; how many items that were."""
    before = ring.value
    with suppress(BufferFull):
        ring.publish_many(items, timeout=0)
    return ring.value - before


@pytest.mark.acceptance(28)
@pytest.mark.parametrize(
    ("asked", "given"), [(1, 1), (2, 2), (3, 4), (1000, 1024), (1024, 1024), (1025, 2048)]
)
def test_the_capacity_is_rounded_up_to_a_power_of_two(asked, given):
    assert Ring(asked).capacity == given


@pytest.mark.acceptance(29)
def test_the_default_capacity_is_65536():
    assert Ring().capacity == 65_536


@pytest.mark.parametrize("capacity", [0, -1, 1 << 40])
def test_a_capacity_out_of_range_is_refused(capacity):
    with pytest.raises(InvalidOption):
        Ring(capacity)


@pytest.mark.acceptance(28)
@pytest.mark.parametrize("exponent", range(6))
@pytest.mark.parametrize("batch", [1, 2, 3, 5, 7])
def test_nothing_is_lost_or_reordered_across_the_end_of_the_slots(exponent, batch):
    ring: Ring[int] = Ring(1 << exponent)
    consumer = ring.consumer()
    seen: list[int] = []
    sent = 0
    for _ in range(400):
        sent += publish_at_once(ring, list(range(sent, sent + batch)))
        if ring.try_publish(sent):
            sent += 1
        seen += consumer.drain(batch)
    seen += consumer.drain()
    assert seen == list(range(sent))
    assert sent > ring.capacity * 10


# Counts are 64 bits wide where they are compiled: a ring gets there in some thousand years.
HIGHEST = 1 << (63 if compiled is None else 62)


@pytest.mark.parametrize("position", [(1 << 16) - 1, (1 << 30) - 1, (1 << 32) - 1, HIGHEST - 1])
def test_positions_do_not_wrap(position):
    ring: Ring[int] = Ring(4)
    ring.value = position
    ring.find_room()
    consumer = ring.consumer()
    for start in range(0, 30, 3):
        ring.publish(start)
        ring.publish_many([start + 1, start + 2])
        assert consumer.drain() == [start, start + 1, start + 2]


@given(
    st.integers(0, 4),
    st.lists(
        st.tuples(st.sampled_from(["one", "many", "poll", "join", "leave"]), st.integers(0, 9)),
        max_size=80,
    ),
)
def test_the_ring_is_a_bounded_queue_for_each_consumer(exponent, steps):
    """Against a plain list for each consumer, with consumers that come and go."""
    ring: Ring[int] = Ring(1 << exponent)
    consumers = [ring.consumer()]
    expected: list[list[int]] = [[]]
    number = 0
    for step, size in steps:
        full = max((len(one) for one in expected), default=0)
        if step in {"one", "many"}:
            items = list(range(number, number + (1 if step == "one" else size)))
            room = min(len(items), ring.capacity - full) if consumers else len(items)
            took = (
                int(ring.try_publish(items[0])) if step == "one" else publish_at_once(ring, items)
            )
            assert took == room
            number += took
            for one in expected:
                one.extend(items[:took])
        elif step == "join":
            consumers.append(ring.consumer())
            expected.append([])
        elif consumers:
            index = size % len(consumers)
            if step == "leave":
                consumers.pop(index).close()
                expected.pop(index)
            else:
                assert consumers[index].drain(size) == expected[index][:size]
                del expected[index][:size]
    for consumer, rest in zip(consumers, expected, strict=True):
        assert consumer.drain(1000) == rest


@pytest.mark.acceptance(31)
def test_the_slowest_consumer_gates_the_producer():
    ring: Ring[int] = Ring(4)
    fast, slow = ring.consumer("fast"), ring.consumer("slow")
    assert publish_at_once(ring, list(range(10))) == 4
    assert fast.drain() == [0, 1, 2, 3]
    assert not ring.try_publish(4)
    assert slow.drain(1) == [0]
    assert ring.try_publish(4)
    assert not ring.try_publish(5)
    assert slow.drain() == [1, 2, 3, 4]
    assert ring.refused == 2


@pytest.mark.acceptance(31)
def test_removing_the_slowest_consumer_releases_the_producer():
    ring: Ring[int] = Ring(4)
    fast, slow = ring.consumer(), ring.consumer()
    ring.publish_many(range(4))
    assert fast.drain() == [0, 1, 2, 3]
    assert not ring.try_publish(4)
    slow.close()
    assert ring.try_publish(4)
    assert fast.drain() == [4]


@pytest.mark.acceptance(31)
def test_removing_a_consumer_wakes_a_producer_that_waits():
    ring: Ring[int] = Ring(2)
    ring.consumer("kept")
    kept, stuck = ring.consumer(), ring.consumer()
    ring._stages[0].sequence.value = 2
    done = threading.Event()

    def produce() -> None:
        ring.publish_many(range(4), timeout=50)
        done.set()

    with running(produce):
        while not stuck.stage.sequence.parked:
            kept.drain()
        stuck.close()
        assert done.wait(50)


@pytest.mark.acceptance(31)
def test_a_late_joiner_starts_at_the_cursor():
    ring: Ring[int] = Ring(4)
    first = ring.consumer()
    ring.publish_many([0, 1, 2])
    late = ring.consumer()
    assert late.poll() == []
    ring.publish(3)
    assert late.drain() == [3]
    assert first.drain() == [0, 1, 2, 3]


@pytest.mark.acceptance(31)
def test_a_consumer_behind_a_barrier_sees_what_those_before_it_have_passed():
    ring: Ring[int] = Ring(8)
    first, second = ring.consumer("first"), ring.consumer("second")
    last = ring.consumer("last", after=[first, second])
    ring.publish_many(range(6))
    assert last.poll() == []
    first.drain(4)
    assert last.poll() == []
    second.drain(3)
    assert last.poll() == [0, 1, 2]
    second.poll()
    assert last.drain() == [0, 1, 2], "polling is not passing"
    first.drain()
    second.drain()
    assert last.drain() == [3, 4, 5]


def test_when_the_consumer_of_a_barrier_leaves_its_own_barrier_takes_its_place():
    ring: Ring[int] = Ring(8)
    first = ring.consumer("first")
    middle = ring.consumer("middle", after=[first])
    last = ring.consumer("last", after=[middle])
    ring.publish_many(range(4))
    first.drain(2)
    middle.close()
    assert last.drain() == [0, 1]
    first.close()
    assert last.drain() == [2, 3]


def test_a_barrier_of_another_ring_or_of_a_closed_consumer_is_refused():
    ring: Ring[int] = Ring(8)
    gone = ring.consumer()
    gone.close()
    for wrong in [gone, Ring[int](8).consumer()]:
        with pytest.raises(InvalidOption):
            ring.consumer(after=[wrong])


def test_polling_shows_the_same_entries_until_they_are_passed():
    ring: Ring[int] = Ring(8)
    consumer = ring.consumer()
    ring.publish_many(range(5))
    assert consumer.poll(3) == consumer.poll(3) == [0, 1, 2]
    consumer.advance(2)
    assert consumer.poll(2) == [2, 3]
    consumer.advance()
    assert consumer.poll() == [4]
    for wrong in [-1, 2]:
        with pytest.raises(InvalidOption):
            consumer.advance(wrong)


@pytest.mark.parametrize("consumers", [1, 2, 3])
def test_the_ring_forgets_what_everybody_has_passed(consumers):
    ring: Ring[Thing] = Ring(8)
    readers = [ring.consumer() for _ in range(consumers)]
    things = [Thing() for _ in range(6)]
    alive = [weakref.ref(thing) for thing in things]
    ring.publish_many(things)
    del things
    for reader in readers[1:]:
        reader.drain()
    gc.collect()
    assert all(one() for one in alive)
    readers[0].drain(4)
    assert [one() is not None for one in alive] == [False] * 4 + [True] * 2
    readers[0].close()
    assert not any(one() for one in alive), "leaving is passing"


def test_a_finalizer_may_use_the_ring():
    ring: Ring[Thing] = Ring(8)
    consumer = ring.consumer()
    ring.publish(Thing())
    weakref.finalize(consumer.poll()[0], lambda: ring.consumer("made by a finalizer"))
    consumer.advance()
    assert [one.name for one in ring.statistics().consumers][1:] == ["made by a finalizer"]


def test_a_group_forgets_too():
    ring: Ring[Thing] = Ring(8)
    one, other = (group := ring.group()).member(), group.member()
    alive = []
    for _ in range(4):
        thing = Thing()
        alive.append(weakref.ref(thing))
        ring.publish(thing)
        del thing
    one.poll(2)
    other.drain()
    assert all(reference() for reference in alive), "the first two are still held"
    one.advance()
    assert not any(reference() for reference in alive)


# ------------------------------------------------------------------------------------- groups


def test_members_of_a_group_share_the_entries():
    ring: Ring[int] = Ring(8)
    group = ring.group()
    one, other = group.member(), group.member()
    everything = ring.consumer()
    ring.publish_many(range(6))
    assert one.poll(2) == [0, 1]
    assert other.drain(3) == [2, 3, 4]
    assert one.poll(9) == [0, 1], "the same until it is passed"
    one.advance()
    assert one.drain() == [5]
    assert other.drain() == []
    assert everything.drain() == [0, 1, 2, 3, 4, 5]


def test_a_group_holds_the_producer_at_its_first_unfinished_entry():
    ring: Ring[int] = Ring(4)
    one, other = (group := ring.group()).member(), group.member()
    after = ring.consumer(after=[group])
    ring.publish_many(range(4))
    assert one.poll(1) == [0]
    assert other.drain() == [1, 2, 3]
    assert ring.room() == 0
    assert after.poll() == []
    one.advance()
    assert after.drain() == [0, 1, 2, 3]
    assert ring.room() == 4


def test_what_a_member_leaves_behind_goes_to_another():
    ring: Ring[int] = Ring(8)
    one, other = (group := ring.group()).member(), group.member()
    ring.publish_many(range(6))
    assert one.poll(4) == [0, 1, 2, 3]
    one.advance(1)
    one.close()
    assert other.drain(2) == [1, 2]
    assert other.drain(2) == [3]
    assert other.drain(2) == [4, 5]
    assert other.drain(2) == []
    assert ring.room() == 8
    with pytest.raises(Closed):
        one.poll()


def test_a_partly_passed_claim_stays_with_its_member():
    ring: Ring[int] = Ring(8)
    one, other = (group := ring.group()).member(), group.member()
    ring.publish_many(range(4))
    assert one.poll(4) == [0, 1, 2, 3]
    assert one.poll(1) == [0]
    one.advance()
    assert one.pending()
    assert not other.pending()
    assert one.poll() == [1, 2, 3]


def test_a_closed_group_gates_no_more():
    ring: Ring[int] = Ring(2)
    group = ring.group()
    member = group.member()
    ring.publish_many([0, 1])
    group.close()
    assert ring.try_publish(2)
    assert member.finished
    with pytest.raises(Closed):
        member.poll()
    with pytest.raises(Closed):
        group.member()


# ---------------------------------------------------------------------------------- statistics


@pytest.mark.acceptance(37)
def test_statistics_show_every_sequence():
    ring: Ring[int] = Ring(8)
    fast, group = ring.consumer("fast"), ring.group("workers")
    member = group.member()
    ring.publish_many(range(7))
    fast.drain()
    member.drain(3)
    shown = ring.statistics()
    assert (shown.capacity, shown.published, shown.depth, shown.refused) == (8, 7, 4, 0)
    assert [(one.name, one.position, one.depth) for one in shown.consumers] == [
        ("fast", 7, 0),
        ("workers", 3, 4),
    ]
    assert all(shown.published - one.position == one.depth for one in shown.consumers)


@pytest.mark.acceptance(32)
def test_what_is_refused_stays_with_the_caller_and_is_counted():
    ring: Ring[int] = Ring(8)
    consumer = ring.consumer()
    queue = [number for number in range(3 * 8) if not ring.try_publish(number)]
    assert queue == list(range(8, 24))
    assert ring.statistics().refused == 16
    seen = consumer.drain()
    while queue:
        del queue[: publish_at_once(ring, queue)]
        seen += consumer.drain()
    assert seen == list(range(24))
