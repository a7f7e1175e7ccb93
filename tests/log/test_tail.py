"""The tail cache: what it serves, what it forgets, and that it stays within its bytes."""

import pytest

from penstock import WalMessageQueue
from penstock.log.columns import Columns
from penstock.log.tail import BATCH_OVERHEAD_BYTES, TailBudget, TailCache
from penstock.testing.worker import simulated_system

ALL = 1 << 60


def one(value=b"x"):
    return Columns([value])


def held(*columns):
    """What these batches count."""
    return sum(BATCH_OVERHEAD_BYTES + each.byte_size() for each in columns)


def offsets(cache, count):
    """The offsets below a number that the cache serves."""
    return [number for number in range(count) if cache.read("t", 0, number, ALL)]


def test_the_newest_batches_are_served():
    cache = TailCache(TailBudget(3 * held(one())))
    for number in range(1_000):
        cache.add(number, 7, one())
        assert offsets(cache, number + 2) == list(range(max(0, number - 2), number + 1))
    (record,) = list(cache.read("t", 0, 999, ALL) or ())
    assert (record.offset, record.timestamp, record.value) == (999, 7, b"x")


def test_a_batch_is_served_from_the_middle_and_only_when_all_of_it_is_durable():
    cache = TailCache(TailBudget(ALL))
    cache.add(0, 0, one())
    cache.add(1, 0, Columns([b"a", b"b", b"c"]))
    assert [record.value for record in cache.read("t", 0, 2, 4) or ()] == [b"b", b"c"]
    assert cache.read("t", 0, 2, 3) is None
    assert cache.read("t", 0, 4, ALL) is None


def test_batches_that_follow_each_other_are_served_together():
    """Small calls must not make small batches for a subscriber that is behind."""
    cache = TailCache(TailBudget(ALL))
    for number in range(5):
        cache.add(2 * number, number, Columns([b"a", b"b"]))
    served = cache.read("t", 0, 1, 8) or []
    assert [record.offset for record in served] == [1, 2, 3, 4, 5, 6, 7]
    assert [record.timestamp for record in served] == [0, 1, 1, 2, 2, 3, 3]
    assert cache.hits == 1
    cache.note_failures(1)
    assert cache.read("t", 0, 1, 8) is None


def test_no_more_is_served_at_once_than_is_read_from_the_disk(monkeypatch):
    cache = TailCache(TailBudget(ALL))
    for number in range(5):
        cache.add(number, 0, one())
    monkeypatch.setattr("penstock.log.tail.READ_BYTES", 2 * held(one()))
    assert [record.offset for record in cache.read("t", 0, 1, ALL) or ()] == [1, 2]
    # A batch is served as a whole, however large it is.
    monkeypatch.setattr("penstock.log.tail.READ_BYTES", 1)
    assert [record.offset for record in cache.read("t", 0, 4, ALL) or ()] == [4]


def test_a_batch_behind_those_of_another_process_starts_anew():
    budget = TailBudget(ALL)
    cache = TailCache(budget)
    cache.add(0, 0, one())
    cache.add(5, 0, one())
    assert offsets(cache, 10) == [5]
    assert budget.bytes == held(one())


def test_a_batch_counts_with_its_own_records():
    """A parcel is what one partition gets of a batch."""
    budget = TailBudget(ALL)
    parcels = [Columns([bytes(100)] * 3, [b"key"] * 3), one()]
    TailCache(budget).add(0, 0, parcels[0])
    TailCache(budget).add(0, 0, parcels[1])
    assert budget.bytes == held(*parcels)


def test_partitions_share_the_bytes_and_the_oldest_batch_goes_first():
    budget = TailBudget(3 * held(one()))
    first, second = TailCache(budget), TailCache(budget)
    first.add(0, 0, one())
    second.add(0, 0, one())
    first.add(1, 0, one())
    second.add(1, 0, one())
    assert (offsets(first, 2), offsets(second, 2)) == ([1], [0, 1])
    for number in range(2, 5):
        second.add(number, 0, one())
    assert (offsets(first, 2), offsets(second, 5)) == ([], [2, 3, 4])
    second.clear()
    assert budget.bytes == 0
    first.add(2, 0, one())
    assert offsets(first, 3) == [2]


def test_what_is_larger_than_the_bytes_is_not_kept():
    budget = TailBudget(0)
    cache = TailCache(budget)
    for number in range(10):
        cache.add(number, 0, one())
    assert offsets(cache, 10) == []
    assert budget.bytes == 0


def test_an_add_does_not_copy_what_is_kept():
    """The lists are made anew after as many adds as they are long, not at each."""
    cache = TailCache(TailBudget(100 * held(one())))
    runs: list[object] = []
    for number in range(10_000):
        cache.add(number, 0, one())
        if not runs or runs[-1] is not cache._run:
            runs.append(cache._run)
    assert len(runs) < 200
    assert len(cache._run.slots) < 300


def test_forgotten_batches_do_not_pile_up():
    """Two processes that take turns: each batch starts anew, and none is pushed out by bytes."""
    budget = TailBudget(ALL)
    quiet, busy = TailCache(budget), TailCache(budget)
    quiet.add(0, 0, one())
    for number in range(1_000):
        busy.add(2 * number, 0, one())
    assert len(budget._slots) < 10
    assert offsets(quiet, 1) == [0]


def test_batches_from_before_a_failure_are_not_served():
    failures = [0]
    cache = TailCache(TailBudget(ALL), lambda: failures[0])
    cache.add(0, 0, one())
    cache.note_failures(1)
    # A batch that was written before the failure, and arrives here after it.
    cache.add(1, 0, one())
    failures[0] = 1
    cache.add(2, 0, one())
    assert offsets(cache, 3) == [2]
    # An older head, seen by a slower thread.
    cache.note_failures(0)
    assert offsets(cache, 3) == [2]


@pytest.mark.parametrize("lost", ["failures", "generation"])
async def test_a_head_that_is_not_the_one_before_empties_the_cache(lost, monkeypatch):
    system = simulated_system()
    async with WalMessageQueue("/data/log", system=system, maintenance_interval=None) as queue:
        await queue.publish("orders", b"x")
        topic = queue._opened["orders"]
        topic.refresh()
        assert offsets(topic.caches[0], 1) == [0]
        head = topic.logs[0].head
        other = head._replace(failures=1) if lost == "failures" else head._replace(generation=1)
        monkeypatch.setattr(topic.logs[0], "read_head", lambda: other)
        topic.refresh()
        assert offsets(topic.caches[0], 1) == []
