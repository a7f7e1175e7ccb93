"""The ring in shared memory between processes: handed over, found by name, and after kills."""

import os
import pickle
from contextlib import suppress

import pytest

from penstock.errors import Closed, Forked, NotSupported, ProducerDied, UsageError
from penstock.scaling import SharedRing
from penstock.scaling.shared_segment import path_of, sweep
from penstock.system import System
from tests.scaling import ring_programs as programs
from tests.scaling.ring_programs import SMALL, ask, child, number_of, numbers


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_consumer_is_handed_to_another_process(ring, method):
    consumer = ring.consumer()
    with child(programs.read_all, consumer, method=method) as (_, there):
        assert ask(there) == "reading"
        for first in range(0, 5_000, 100):
            ring.put_many(numbers(first, first + 100))
        with pytest.raises(Forked):
            consumer.get_many()
        ring.close()
        assert ask(there) == (0, 5_000)


def test_a_consumer_is_handed_over_once(ring):
    consumer = ring.consumer()
    ticket = pickle.dumps(consumer)
    with child(programs.stop_reading, consumer) as (_, there):
        ring.put_many([b"x"])
        assert ask(there) == 1
        with pytest.raises(UsageError, match="handed to another"):
            pickle.loads(ticket)


def test_a_process_finds_the_ring_by_name_and_reads_from_then_on(ring):
    with child(programs.attach_and_read, ring.name) as (_, there):
        assert ask(there) == "reading"
        for first in range(1_000, 3_000, 100):
            ring.put_many(numbers(first, first + 100))
        ring.close()
        assert ask(there) == (1_000, 3_000)


def test_the_producer_may_be_another_process_and_there_is_one(ring):
    consumer = ring.consumer()
    with child(programs.put_for_ever, ring, 0) as (_, there):
        ask(there)
        assert consumer.wait(20)
        with pytest.raises(NotSupported, match="is the producer"):
            ring.put_many([b"mine"])


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_killed_consumer_no_longer_holds_the_producer(ring, method):
    """With spawn, nobody has waited for the dead process: its remains are still there."""
    kept = ring.consumer()
    with child(programs.stop_reading, ring.consumer(), method=method) as (process, there):
        ring.put_many(numbers(0, 10))
        assert ask(there) == 10
        assert kept.drain() == numbers(0, 10)
        ring.put_many([b"x" * 1500, b"x" * 1500])
        kept.drain()
        assert ring.try_put_many([b"y" * 1500]) == 0, "the stuck consumer gates"
        process.kill()
        ring.put_many([b"y" * 1500])
    assert kept.drain() == [b"y" * 1500]
    assert len(ring.statistics().consumers) == 1


def test_a_killed_consumer_no_longer_holds_those_after_it(ring):
    first = ring.consumer()
    second = ring.consumer(after=[first])
    with child(programs.stop_reading, first) as (process, there):
        ring.put_many(numbers(0, 10))
        ring.put_many(numbers(10, 20))
        ask(there)
        process.kill()
        read = second.get_many(timeout=20)
        while len(read) < 20:
            read += second.get_many(timeout=20)
        assert read == numbers(0, 20)


def test_the_entry_of_a_killed_member_goes_to_another(ring):
    with ring.group() as group:
        mine = group.member()
        with child(programs.hold, group.member()) as (process, there):
            ring.put_many(numbers(0, 10))
            assert ask(there) == list(range(10))
            ring.put_many(numbers(10, 20))
            assert mine.get_many() == numbers(10, 20)
            process.kill()
            assert mine.get_many(timeout=20) == numbers(0, 10)
        assert ring.statistics().depth == 0


@pytest.mark.parametrize("attempt", range(3))
def test_a_killed_producer_leaves_whole_entries_and_another_goes_on(ring, attempt):
    consumer = ring.consumer()
    seen: list[bytes] = []
    with child(programs.put_for_ever, ring, 0) as (process, there):
        ask(there)
        while len(seen) < 1_000 * (attempt + 1):
            seen += consumer.get_many(timeout=20)
        process.kill()
        with suppress(ProducerDied):
            while True:
                seen += consumer.get_many(timeout=20)
    assert len(seen) % 100 == 0
    ring.put_many(numbers(len(seen), len(seen) + 50))
    seen += consumer.get_many()
    assert [number_of(record) for record in seen] == list(range(len(seen)))


def test_the_memory_of_killed_processes_is_removed():
    with child(programs.make_and_hang) as (process, there):
        name = ask(there)
        assert name not in sweep(System())
        assert os.path.exists(path_of(name))
        process.kill()
        process.join()
        assert name in sweep(System())
        assert not os.path.exists(path_of(name))


def test_a_name_left_by_dead_processes_is_used_again():
    with child(programs.make_and_hang) as (process, there):
        name = ask(there)
        process.kill()
        process.join()
        with SharedRing.create(name, capacity_bytes=SMALL) as ring, ring.consumer() as consumer:
            ring.put_many([b"new"])
            assert consumer.get_many() == [b"new"]


def test_an_old_ring_does_not_remove_a_younger_one_of_its_name():
    old = SharedRing.create("same-name", capacity_bytes=SMALL)
    os.unlink(path_of("same-name"))
    with SharedRing.create("same-name", capacity_bytes=SMALL):
        old.close()
        assert os.path.exists(path_of("same-name"))
    assert not os.path.exists(path_of("same-name"))


kills = pytest.mark.parametrize(
    "rounds",
    [5, pytest.param(200, marks=[pytest.mark.torture, pytest.mark.timeout(1_800)])],
)


@kills
def test_consumers_killed_anywhere_do_not_disturb_the_others(ring, rounds):
    kept = ring.consumer()
    sent = 0
    seen: list[bytes] = []
    for turn in range(rounds):
        with child(programs.read_all, ring.consumer()) as (process, there):
            assert ask(there) == "reading"
            for _ in range(turn % 7):
                sent += ring.try_put_many(numbers(sent, sent + 50))
                seen += kept.drain()
            process.kill()
            ring.put_many(numbers(sent, sent + 200))
            sent += 200
            seen += kept.drain()
    assert [number_of(record) for record in seen] == list(range(sent))


@kills
def test_members_killed_anywhere_lose_nothing(ring, rounds):
    with ring.group() as group:
        reported: list[int] = []
        sent = 0
        for turn in range(rounds):
            with child(programs.report_and_pass, group.member()) as (process, there):
                wanted = 1 + turn % 5
                while wanted:
                    sent += ring.try_put_many(numbers(sent, sent + 10))
                    if there.poll(0.001):
                        reported += there.recv()
                        wanted -= 1
                process.kill()
                with suppress(EOFError, OSError):
                    while there.poll(20):
                        reported += there.recv()
        last = group.member()
        ring.close()
        with suppress(Closed):
            while True:
                reported += [number_of(record) for record in last.get_many(timeout=20)]
        assert sorted(set(reported)) == list(range(sent))
        assert len(reported) - sent <= 10 * rounds, "only the last entry of each may come again"
        last.close()
