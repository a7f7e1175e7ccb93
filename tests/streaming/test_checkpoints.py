"""Checkpoints live in any store: durable, going forward only, fenced, and never used when damaged."""

import asyncio
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BusyError, Closed, DamagedFile, Fenced, InvalidName, StoreFailed
from penstock.scaling import ScalingLimits
from penstock.stores import DirectoryStore, MemoryStore, SqliteStore, StoreCapabilities
from penstock.streaming import CheckpointStore, Position
from penstock.streaming.checkpoint import encode_checkpoint
from penstock.system import System
from penstock.testing import VirtualClock
from penstock.testing.clock import until_idle
from tests.streaming.streaming_world import inline, ranges
from tests.streaming.test_checkpoint import checkpoint
from tests.streaming.test_ranges import positions

NAME = "checkpoints/t/g/partition-0"


@pytest.fixture(params=["memory", "directory", "sqlite"])
def open_store(request, tmp_path):
    """Opens one place again and again; the memory store is its own place."""
    memory = MemoryStore()
    kinds = {
        "memory": lambda: memory,
        "directory": lambda: DirectoryStore(tmp_path / "d"),
        "sqlite": lambda: SqliteStore(tmp_path / "s.db"),
    }
    opened = []

    def open_again():
        opened.append(kinds[request.param]())
        return opened[-1]

    yield open_again
    for store in opened:
        store.close()


def store_on(store, **options):
    return CheckpointStore(store, runner=inline, **options)


@pytest.mark.acceptance(85)
async def test_a_checkpoint_stands_under_its_group_and_partition_and_survives(open_store):
    store = open_store()
    async with CheckpointStore(store) as checkpoints:
        await checkpoints.commit("g", "t", 0, 5)
        await checkpoints.commit("g", "t", 11, 6)
        await checkpoints.commit("h", "t", 0, 7)
    assert store.list("checkpoints/") == [
        "checkpoints/t/g/partition-0",
        "checkpoints/t/g/partition-11",
        "checkpoints/t/h/partition-0",
    ]
    async with CheckpointStore(open_store()) as again:
        assert (await again.read("g", "t", 0)).offset == 5  # type: ignore[union-attr]
        assert (await again.read("h", "t", 0)).offset == 7  # type: ignore[union-attr]
        assert await again.read("h", "t", 11) is None
        found = await again.checkpoints("g", "t")
    assert [(one.partition, one.offset) for one in found] == [(0, 5), (11, 6)]


@pytest.mark.acceptance(86)
async def test_who_resumes_knows_the_position_the_gaps_and_when():
    store, clock = MemoryStore(), VirtualClock()
    position = Position(5, ranges((7, 9), (12, 13)))
    first = store_on(store, system=System(clock=clock))
    await first.commit("g", "t", 0, position, generation=4)
    found = await store_on(store).read("g", "t", 0)
    assert found.position == position
    assert found.generation == 4
    assert found.committed_at == datetime(2026, 1, 1, tzinfo=UTC)
    assert [offset for offset in range(15) if not found.has_handled(offset)] == [
        *(5, 6, 9, 10, 11, 13, 14)
    ]


COMMITTER = """
import asyncio, os, sys
from penstock.stores import DirectoryStore
from penstock.streaming import CheckpointStore

async def main():
    await CheckpointStore(DirectoryStore(sys.argv[1])).commit("g", "t", 0, 41)
    os._exit(9)  # as a crash: nothing is closed or flushed

asyncio.run(main())
"""


@pytest.mark.acceptance(86, 88)
async def test_a_commit_that_returned_survives_the_death_of_its_process(tmp_path):
    died = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", COMMITTER, str(tmp_path)], check=False
    )
    assert died.returncode == 9
    with DirectoryStore(tmp_path) as store:
        assert (await CheckpointStore(store).read("g", "t", 0)).offset == 41  # type: ignore[union-attr]


@pytest.mark.acceptance(88)
async def test_a_commit_returns_after_the_store_has_it():
    store = MemoryStore()
    may_write = asyncio.Event()

    async def slow(call):
        await may_write.wait()
        return call()

    checkpoints = CheckpointStore(store, runner=slow)
    commit = asyncio.ensure_future(checkpoints.commit("g", "t", 0, 5))
    await asyncio.sleep(0)
    assert not commit.done()
    assert not store.exists(NAME)
    may_write.set()
    assert (await commit).offset == 5
    assert store.exists(NAME)


async def test_a_cancelled_commit_goes_on_and_later_ones_follow_it():
    store = MemoryStore()
    may_write = asyncio.Event()

    async def slow(call):
        await may_write.wait()
        return call()

    checkpoints = CheckpointStore(store, runner=slow)
    may_write.set()
    await checkpoints.commit("g", "t", 0, 1)
    may_write.clear()
    first = asyncio.ensure_future(checkpoints.commit("g", "t", 0, 9))
    await until_idle()
    first.cancel()
    second = asyncio.ensure_future(checkpoints.commit("g", "t", 0, 3))
    may_write.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    await second
    await checkpoints.close()
    assert (await store_on(store).read("g", "t", 0)).offset == 9


@given(st.lists(positions, min_size=1, max_size=6), st.booleans())
async def test_handled_records_stay_handled_in_whatever_order_they_are_committed(several, at_once):
    store = MemoryStore()
    checkpoints = store_on(store)
    calls = [checkpoints.commit("g", "t", 0, position) for position in several]
    if at_once:
        answers = await asyncio.gather(*calls)
    else:
        answers = [await call for call in calls]
    expected = several[0]
    for position in several[1:]:
        expected = expected.joined(position)
    assert (await store_on(store).read("g", "t", 0)).position == expected
    assert (await checkpoints.read("g", "t", 0)).position == expected
    for position, answer in zip(several, answers, strict=True):
        assert answer.position == answer.position.joined(position)


async def test_two_processes_never_undo_each_other(open_store):
    one, other = CheckpointStore(open_store()), CheckpointStore(open_store())
    await one.commit("g", "t", 0, 5)
    await other.commit("g", "t", 0, 9)
    assert (await one.commit("g", "t", 0, Position(6, ranges((11, 12))))).position == Position(
        9, ranges((11, 12))
    )
    assert (await other.read("g", "t", 0)).offset == 9  # type: ignore[union-attr]
    assert (await other.read("g", "t", 0, fresh=True)).gaps == ranges((11, 12))  # type: ignore[union-attr]
    assert (await other.read("g", "t", 0)).gaps == ranges((11, 12))  # type: ignore[union-attr]
    await one.close()
    await other.close()


async def test_a_commit_that_says_nothing_new_writes_nothing():
    store = MemoryStore()
    checkpoints = store_on(store)
    await checkpoints.commit("g", "t", 0, 9)
    writes = store.statistics().writes
    assert (await checkpoints.commit("g", "t", 0, 3)).offset == 9
    assert store.statistics().writes == writes


@pytest.mark.parametrize("knows", [True, False], ids=["known", "found in the store"])
async def test_an_old_generation_is_fenced(knows):
    store = MemoryStore()
    zombie = store_on(store)
    await zombie.commit("g", "t", 0, 5, generation=1)
    await (zombie if knows else store_on(store)).commit("g", "t", 0, 6, generation=2)
    with pytest.raises(Fenced) as told:
        await zombie.commit("g", "t", 0, 8, generation=1)
    assert told.value.fields == {"generation": 1, "current": 2}
    assert (await store_on(store).read("g", "t", 0)).offset == 6


async def test_a_newer_generation_with_nothing_new_fences_all_the_same():
    store = MemoryStore()
    checkpoints = store_on(store)
    await checkpoints.commit("g", "t", 0, 5, generation=1)
    assert (await checkpoints.commit("g", "t", 0, 5, generation=2)).generation == 2
    with pytest.raises(Fenced):
        await store_on(store).commit("g", "t", 0, 9, generation=1)


def flip(data):
    return data[:-3] + bytes([data[-3] ^ 4]) + data[-2:]


@pytest.mark.parametrize(
    "damage", [flip, lambda data: data[:-1], lambda data: b"", lambda data: bytes(len(data))]
)
async def test_a_damaged_checkpoint_is_told_and_not_used_until_it_is_reset(open_store, damage):
    store = open_store()
    checkpoints = CheckpointStore(store)
    await checkpoints.commit("g", "t", 0, 5)
    store.write(NAME, damage(store.read(NAME)))
    again = CheckpointStore(store)
    for call in (
        lambda: again.read("g", "t", 0),
        lambda: again.commit("g", "t", 0, 9),
        lambda: again.checkpoints("g", "t"),
        lambda: checkpoints.read("g", "t", 0, fresh=True),
        lambda: checkpoints.commit("g", "t", 0, 9),
    ):
        with pytest.raises(DamagedFile) as told:
            await call()
        assert told.value.file == NAME
    await again.reset("g", "t", 0, 2)
    assert (await CheckpointStore(store).read("g", "t", 0)).offset == 2  # type: ignore[union-attr]


async def test_a_checkpoint_under_the_name_of_another_is_damage():
    store = MemoryStore()
    store.write(NAME, encode_checkpoint(checkpoint(group="other", partition=0)))
    for fresh in (False, True):
        with pytest.raises(DamagedFile, match="that of t/other/partition-0"):
            await store_on(store).read("g", "t", 0, fresh=fresh)


async def test_a_reset_goes_back_and_commits_go_on_from_there():
    store = MemoryStore()
    checkpoints = store_on(store)
    await checkpoints.commit("g", "t", 0, Position(9, ranges((11, 12))), generation=3)
    await checkpoints.reset("g", "t", 0, 2, generation=3)
    assert (await checkpoints.read("g", "t", 0)).position == Position(2)
    await checkpoints.commit("g", "t", 0, 4, generation=3)
    assert (await store_on(store).read("g", "t", 0)).position == Position(4)


async def test_who_reads_afresh_follows_a_reset_elsewhere():
    store = MemoryStore()
    here, elsewhere = store_on(store), store_on(store)
    await here.commit("g", "t", 0, 9)
    await elsewhere.reset("g", "t", 0, 2)
    assert (await here.read("g", "t", 0, fresh=True)).offset == 2
    await here.commit("g", "t", 0, 3)
    assert (await store_on(store).read("g", "t", 0)).offset == 3


async def test_a_deleted_checkpoint_is_gone():
    store = MemoryStore()
    checkpoints = store_on(store)
    await checkpoints.commit("g", "t", 0, 9)
    await checkpoints.delete("g", "t", 0)
    assert await checkpoints.read("g", "t", 0) is None
    assert store.list() == []


@pytest.mark.acceptance(93)
async def test_memory_is_bounded_and_the_store_has_all():
    store = MemoryStore()
    checkpoints = store_on(store)
    for partition in range(10_001):
        await checkpoints.commit("g", "t", partition, partition)
    assert checkpoints.statistics().entries == 10_000
    assert checkpoints.statistics().evictions == 1
    loads = checkpoints.statistics().loads
    assert (await checkpoints.read("g", "t", 1)).offset == 1
    assert checkpoints.statistics().loads == loads
    assert (await checkpoints.read("g", "t", 0)).offset == 0
    assert checkpoints.statistics().loads == loads + 1
    assert len(store.list("checkpoints/")) == 10_001


async def test_the_bound_of_memory_can_be_chosen():
    checkpoints = store_on(MemoryStore(), limits=ScalingLimits(cache_entries_max=2))
    for partition in range(5):
        await checkpoints.commit("g", "t", partition, 1)
    assert checkpoints.statistics().entries == 2
    assert len(await checkpoints.checkpoints("g", "t")) == 5


async def test_a_failing_store_is_told_and_nothing_is_claimed():
    class Failing(MemoryStore):
        fails = False

        def write(self, key, data):
            if self.fails:
                raise StoreFailed("full")
            super().write(key, data)

    store = Failing()
    checkpoints = store_on(store)
    await checkpoints.commit("g", "t", 0, 5)
    store.fails = True
    with pytest.raises(StoreFailed):
        await checkpoints.commit("g", "t", 0, 9)
    assert (await checkpoints.read("g", "t", 0)).offset == 5
    store.fails = False
    assert (await checkpoints.commit("g", "t", 0, 9)).offset == 9


async def test_odd_names_are_refused():
    checkpoints = store_on(MemoryStore())
    for group, topic in [("", "t"), ("g/h", "t"), ("g", ".."), ("g", "")]:
        with pytest.raises(InvalidName):
            await checkpoints.commit(group, topic, 0, 1)


async def test_a_closed_store_takes_no_commits():
    checkpoints = store_on(MemoryStore())
    await checkpoints.close()
    with pytest.raises(Closed):
        await checkpoints.commit("g", "t", 0, 1)


class Locking(MemoryStore):
    """Tells which locks were taken; without the capability, taking one raises."""

    def __init__(self, *, log):
        super().__init__()
        self.locked = []
        self.capabilities = StoreCapabilities(log=log, shared=True, durable=True)

    def lock(self, key, timeout):
        assert self.capabilities.log
        self.locked.append(key)
        return super().lock(key, timeout)


@pytest.mark.parametrize("log", [True, False])
async def test_a_commit_holds_a_lock_where_the_store_has_locks(log):
    store = Locking(log=log)
    checkpoints = store_on(store)
    await checkpoints.commit("g", "t", 0, 5)
    assert store.locked == ([f"checkpoint-locks/{NAME}"] if log else [])
    await store_on(store).commit("g", "t", 0, 3)
    assert (await store_on(store).read("g", "t", 0)).offset == 5
    await checkpoints.delete("g", "t", 0)
    assert store.list() == []


async def test_a_commit_gives_up_when_others_are_faster_every_time():
    class Busy(MemoryStore):
        commits = 0

        def read(self, key, start=0, length=None):
            self.commits += 1
            one = checkpoint(partition=0, offset=self.commits * 10)
            self.write(key, encode_checkpoint(one))
            return super().read(key, start, length)

    store = Busy()
    with pytest.raises(BusyError):
        await store_on(store).commit("g", "t", 0, Position(5, ranges((1_000, 1_001))))
