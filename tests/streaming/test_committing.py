"""Auto-commit: only what was handled, no more often than said, and a last time on close."""

import asyncio

import pytest

from penstock.errors import Closed, DeadlineExceeded, Fenced, InvalidOption, StoreFailed
from penstock.stores import MemoryStore
from penstock.streaming import AutoCommit, CheckpointStore, Position
from penstock.system import System
from penstock.testing import VirtualClock
from penstock.testing.clock import until_idle
from tests.streaming.streaming_world import inline


class World:
    """Positions that a test moves, and what was committed when."""

    def __init__(self):
        self.clock = VirtualClock()
        self.positions: dict[int, Position] = {}
        self.commits: list[tuple[float, int, int]] = []
        self.errors: list[tuple[int, Exception]] = []
        self.fails: dict[int, Exception] = {}
        self.may_commit = asyncio.Event()
        self.may_commit.set()

    def handled(self, partition, offset):
        self.positions[partition] = Position(offset)

    async def commit(self, partition, position):
        await self.may_commit.wait()
        if partition in self.fails:
            raise self.fails[partition]
        self.commits.append((self.clock.monotonic(), partition, position.offset))

    def auto(self, **options):
        options.setdefault("on_error", lambda *told: self.errors.append(told))
        return AutoCommit(
            lambda: self.positions, self.commit, system=System(clock=self.clock), **options
        )

    async def pass_time(self, seconds):
        self.clock.advance(seconds)
        await until_idle()


@pytest.mark.acceptance(87)
async def test_what_is_handled_is_committed_every_five_seconds():
    world = World()
    auto = world.auto()
    auto.begin()
    for second in range(1, 13):
        world.handled(0, second)
        await world.pass_time(1)
    assert world.commits == [(5.0, 0, 5), (10.0, 0, 10)]
    await auto.close()
    assert world.commits[2:] == [(12.0, 0, 12)]
    await world.pass_time(100)
    assert len(world.commits) == 3


@pytest.mark.acceptance(87)
async def test_the_interval_can_be_chosen_and_what_did_not_move_is_not_written():
    world = World()
    async with world.auto(interval_seconds=0.5):
        world.handled(0, 1)
        await world.pass_time(0.5)
        await world.pass_time(0.5)
        world.handled(1, 7)
        await world.pass_time(0.5)
    assert world.commits == [(0.5, 0, 1), (1.5, 1, 7)]


@pytest.mark.acceptance(87)
async def test_through_a_store_it_is_a_checkpoint():
    world, store = World(), MemoryStore()
    checkpoints = CheckpointStore(store, runner=inline)

    async def commit(partition: int, position: Position) -> None:
        await checkpoints.commit("g", "t", partition, position, generation=3)

    auto = AutoCommit(lambda: world.positions, commit, system=System(clock=world.clock))
    auto.begin()
    world.handled(2, 8)
    await auto.close()
    found = await CheckpointStore(store, runner=inline).read("g", "t", 2)
    assert (found.offset, found.generation) == (8, 3)  # type: ignore[union-attr]


@pytest.mark.acceptance(88)
async def test_a_manual_commit_does_not_wait_for_the_interval():
    world = World()
    auto = world.auto()
    auto.begin()
    world.handled(0, 3)
    await auto.commit()
    assert world.commits == [(0.0, 0, 3)]
    assert auto.committed == {0: Position(3)}
    await auto.close()
    assert len(world.commits) == 1


async def test_a_commit_that_takes_longer_than_the_interval_is_not_overtaken():
    world = World()
    auto = world.auto()
    auto.begin()
    world.handled(0, 1)
    world.may_commit.clear()
    await world.pass_time(5)
    world.handled(0, 2)
    await world.pass_time(20)
    world.may_commit.set()
    await until_idle()
    assert world.commits == [(25.0, 0, 1)]
    await world.pass_time(5)
    assert world.commits[1:] == [(30.0, 0, 2)]
    await auto.close()


async def test_a_failure_is_told_and_tried_again_and_does_not_hold_up_others():
    world = World()
    auto = world.auto()
    auto.begin()
    world.fails[0] = failure = StoreFailed("full")
    world.handled(0, 1)
    world.handled(1, 1)
    await world.pass_time(5)
    assert world.commits == [(5.0, 1, 1)]
    assert world.errors == [(0, failure)]
    with pytest.raises(StoreFailed):
        await auto.commit()
    world.fails.clear()
    await world.pass_time(5)
    assert world.commits[1:] == [(10.0, 0, 1)]
    await auto.close()


async def test_without_on_error_the_loop_hears_of_a_failure():
    world = World()
    told = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    auto = world.auto(on_error=None)
    auto.begin()
    world.fails[0] = failure = StoreFailed("full")
    world.handled(0, 1)
    await world.pass_time(5)
    assert told[0]["exception"] is failure
    world.fails.clear()
    await auto.close()


async def test_the_last_commit_raises_when_it_fails():
    world = World()
    auto = world.auto()
    auto.begin()
    world.handled(0, 1)
    world.fails[0] = StoreFailed("full")
    with pytest.raises(StoreFailed):
        await auto.close()
    with pytest.raises(Closed):
        auto.begin()


async def test_the_last_commit_has_a_deadline():
    world = World()
    auto = world.auto()
    world.handled(0, 1)
    world.may_commit.clear()
    with pytest.raises(DeadlineExceeded):
        await world.clock.run_until(auto.close(timeout=3))
    assert world.clock.monotonic() == 3.0


async def test_a_fenced_partition_is_left_alone_until_it_comes_back():
    world = World()
    auto = world.auto()
    auto.begin()
    world.fails[0] = Fenced("newer", generation=1, current=2)
    world.handled(0, 1)
    await world.pass_time(5)
    await world.pass_time(5)
    assert len(world.errors) == 1
    world.fails.clear()
    auto.forget(0)
    await world.pass_time(5)
    assert world.commits == [(15.0, 0, 1)]
    await auto.close()


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_an_interval_that_cannot_be_is_refused(seconds):
    with pytest.raises(InvalidOption):
        AutoCommit(dict, World.commit, interval_seconds=seconds)  # type: ignore[arg-type]
