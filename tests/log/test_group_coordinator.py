"""Members of a group: joining, heartbeats, hand-over, fenced commits, clocks that jump."""

import asyncio
import os
import threading

import pytest

from penstock.errors import Closed, DeadlineExceeded, Fenced, Forked, InvalidName, InvalidOption
from penstock.log.group_coordinator import GroupCoordinator
from penstock.log.group_state import TopicPartition
from penstock.log.names import group_lock_key
from penstock.log.offsets import OffsetFile
from penstock.system import System
from tests.log.group_world import KEY, LEASE, TOPICS, numbers, settle


@pytest.mark.acceptance(76)
async def test_two_members_share_and_one_that_leaves_gives_all_back(coordinator):
    first = await coordinator.join(TOPICS)
    assert numbers(first.assignment) == [0, 1, 2, 3]
    second = await coordinator.join(TOPICS)
    assert second.assignment == frozenset()
    change = await first.heartbeat()
    assert change is not None
    assert numbers(change.lost) == numbers(first.releasing) == [2, 3]
    assert numbers(change.assignment) == numbers(first.assignment) == [0, 1]
    assert await second.heartbeat() is None
    assert await first.release() is None
    assert first.releasing == frozenset()
    change = await second.heartbeat()
    assert change is not None
    assert numbers(change.gained) == numbers(second.assignment) == [2, 3]
    await second.leave()
    change = await first.heartbeat()
    assert change is not None
    assert numbers(change.gained) == [2, 3]
    assert change.generation == first.generation == 3


async def test_the_old_owner_commits_until_it_releases_and_not_after(coordinator):
    first = await coordinator.join(TOPICS)
    second = await coordinator.join(TOPICS)
    await first.heartbeat()
    assert await first.commit({("orders", 3): 7}) == {("orders", 3): 7}
    await first.release()
    with pytest.raises(Fenced, match="belongs to another member"):
        await first.commit({("orders", 3): 9})
    await second.heartbeat()
    assert await coordinator.committed([("orders", 3)]) == {("orders", 3): 7}
    assert await second.commit({("orders", 3): 5}) == {("orders", 3): 7}, "never back"


async def test_a_commit_of_an_old_generation_waits_for_a_heartbeat(coordinator):
    first = await coordinator.join(TOPICS)
    await coordinator.join(TOPICS)
    with pytest.raises(Fenced) as refused:
        await first.commit({("orders", 0): 1})
    assert refused.value.reason == "generation"
    assert (refused.value.generation, refused.value.current) == (1, 2)
    await first.heartbeat()
    await first.commit({("orders", 0): 1})


async def test_nothing_is_written_when_one_partition_is_refused(coordinator):
    first, second = await coordinator.join(TOPICS), await coordinator.join(TOPICS)
    await settle(first, second)
    with pytest.raises(Fenced):
        await first.commit({("orders", 0): 5, ("orders", 2): 5})
    with pytest.raises(InvalidOption):
        await first.commit({("orders", 0): 5, ("orders", 1): -1})
    assert await coordinator.committed([("orders", 0)]) == {("orders", 0): None}


@pytest.mark.acceptance(76)
async def test_a_member_that_is_silent_for_a_lease_is_removed_and_refused(coordinator, clock):
    dead, alive = await coordinator.join(TOPICS), await coordinator.join(TOPICS)
    await settle(dead, alive)
    clock.advance(LEASE / 2)
    assert await alive.heartbeat() is None
    clock.advance(LEASE / 2)
    assert dead.assignment == dead.releasing == frozenset(), "by its own clock"
    change = await alive.heartbeat()
    assert change is not None
    assert numbers(change.assignment) == [0, 1, 2, 3]
    for call in (dead.heartbeat, dead.release, lambda: dead.commit({("orders", 0): 99})):
        with pytest.raises(Fenced) as refused:
            await call()
        assert refused.value.reason == "removed"
    assert await coordinator.committed([("orders", 0)]) == {("orders", 0): None}
    await dead.leave()


async def test_a_clock_that_jumps_forward_makes_no_second_owner(coordinator, clock):
    first, second = await coordinator.join(TOPICS), await coordinator.join(TOPICS)
    await settle(first, second)
    clock.jump(3_600_000)
    assert first.assignment == second.assignment == frozenset()
    await first.heartbeat()
    assert numbers(first.assignment) == [0, 1, 2, 3]
    with pytest.raises(Fenced):
        await second.commit({("orders", 2): 1})


async def test_a_clock_that_jumps_back_does_not_hide_a_crash_for_long(coordinator, clock):
    dead, alive = await coordinator.join(TOPICS), await coordinator.join(TOPICS)
    await settle(dead, alive)
    clock.jump(-3_600_000)
    await alive.heartbeat()
    clock.advance(LEASE * 0.6)
    await alive.heartbeat()
    assert numbers(alive.assignment) == [2, 3]
    assert dead.is_live, "and nobody else has its partitions"
    clock.advance(LEASE * 0.4)
    await alive.heartbeat()
    assert numbers(alive.assignment) == [0, 1, 2, 3]
    assert not dead.is_live, "its monotonic clock says so"


async def test_check_answers_without_a_commit(coordinator):
    member = await coordinator.join(TOPICS)
    await coordinator.check(member.id, member.generation, ("orders", 0))
    with pytest.raises(Fenced):
        await coordinator.check(member.id, member.generation + 1, ("orders", 0))
    with pytest.raises(Fenced):
        await coordinator.check("somebody", member.generation, ("orders", 0))


async def test_more_partitions_are_shared_by_all(coordinator):
    first, second = await coordinator.join(TOPICS), await coordinator.join(TOPICS)
    await settle(first, second)
    change = await first.resubscribe({"orders": 6})
    assert change is not None
    await settle(first, second)
    assert numbers(first.assignment | second.assignment) == [0, 1, 2, 3, 4, 5]
    assert len(first.assignment) == len(second.assignment) == 3


async def test_the_context_leaves(coordinator):
    async with await coordinator.join(TOPICS, strategy="range") as member:
        described = await coordinator.describe()
        assert described.members[member.id].process == os.getpid()
        assert described.members[member.id].host == os.uname().nodename
    assert (await coordinator.describe()).members == {}
    assert member.assignment == frozenset()
    with pytest.raises(Closed):
        await member.heartbeat()
    with pytest.raises(Closed):
        await member.commit({})
    await member.leave()


async def test_generations_go_on_when_everybody_has_left(coordinator):
    for generation in (1, 3, 5):
        async with await coordinator.join(TOPICS) as member:
            assert member.generation == generation


async def test_groups_do_not_know_each_other(coordinator, store, clock):
    other = GroupCoordinator(store, "shipping", system=System(clock=clock))
    members = [await coordinator.join(TOPICS), await other.join(TOPICS)]
    assert all(numbers(one.assignment) == [0, 1, 2, 3] for one in members)
    await members[0].commit({("orders", 0): 3})
    assert await other.committed([("orders", 0)]) == {("orders", 0): None}


async def test_many_tasks_join_at_once(coordinator):
    members = await asyncio.gather(*(coordinator.join({"orders": 100}) for _ in range(10)))
    await settle(*members)
    assert sorted(len(one.assignment) for one in members) == [10] * 10
    assert len(frozenset().union(*(one.assignment for one in members))) == 100


async def test_committed_offsets_are_those_of_a_subscriber_of_that_name(coordinator, store):
    member = await coordinator.join(TOPICS)
    await member.commit({("orders", 1): 12})
    found = OffsetFile(store, "billing", "orders", 1).read()
    assert found is not None
    assert found.offset == 12


async def test_a_group_that_is_held_up_says_so_in_time(store):
    member = await GroupCoordinator(store, "billing").join(TOPICS)
    hurried = GroupCoordinator(store, "billing", timeout=0.05)
    with store.lock(group_lock_key("billing"), 1):
        with pytest.raises(DeadlineExceeded):
            await hurried.join(TOPICS)
        assert (await hurried.describe()).members.keys() == {member.id}, "reading needs no lock"


async def test_a_cancelled_heartbeat_is_made_up_for_by_the_next(coordinator, store):
    first = await coordinator.join(TOPICS)
    await coordinator.join(TOPICS)
    with store.lock(group_lock_key("billing"), 1):
        beat = asyncio.create_task(first.heartbeat())
        await asyncio.sleep(0)
        beat.cancel()
        with pytest.raises(asyncio.CancelledError):
            await beat
    assert numbers(first.assignment) == [0, 1, 2, 3]
    change = await first.heartbeat()
    assert change is not None
    assert numbers(change.lost) == [2, 3]


async def test_what_is_released_is_not_the_members_even_if_no_answer_comes(coordinator, store):
    first, second = await coordinator.join(TOPICS), await coordinator.join(TOPICS)
    await first.heartbeat()
    with store.lock(group_lock_key("billing"), 1):
        releasing = asyncio.create_task(first.release())
        await asyncio.sleep(0)
        releasing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await releasing
    assert first.releasing == frozenset()
    assert numbers(first.assignment) == [0, 1]
    await settle(first, second)
    assert numbers(second.assignment) == [2, 3]


async def test_a_member_that_leaves_during_a_heartbeat_has_nothing_afterwards(coordinator, store):
    member = await coordinator.join(TOPICS)
    with store.lock(group_lock_key("billing"), 1):
        beat = asyncio.create_task(member.heartbeat())
        await asyncio.sleep(0)
        leaving = asyncio.create_task(member.leave())
        await asyncio.sleep(0)
        assert member.assignment == frozenset()
    with pytest.raises(Closed):
        await beat
    await leaving
    assert member.assignment == frozenset()
    assert (await coordinator.describe()).members == {}


async def test_the_loop_is_free_while_the_store_works(coordinator, store):
    """Whoever holds the lock is a thread: were the call on the loop, nobody would let go."""
    held, let_go = threading.Event(), threading.Event()

    def hold():
        with store.lock(group_lock_key("billing"), 1):
            held.set()
            let_go.wait(30)

    holding = asyncio.create_task(asyncio.to_thread(hold))
    await asyncio.to_thread(held.wait, 30)
    joining = asyncio.create_task(coordinator.join(TOPICS))
    await asyncio.sleep(0)
    let_go.set()
    await holding
    assert numbers((await joining).assignment) == [0, 1, 2, 3]


async def test_a_forked_member_is_nobody(coordinator, monkeypatch):
    member = await coordinator.join(TOPICS)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert member.assignment == frozenset()
    with pytest.raises(Forked):
        await member.heartbeat()
    with pytest.raises(Forked):
        await member.commit({("orders", 0): 1})
    await member.leave()
    monkeypatch.undo()
    assert member.id in (await coordinator.describe()).members, "the parent's is still there"


# Looks, parts and commits


async def test_a_look_tells_what_a_heartbeat_tells_and_writes_nothing(coordinator, store, clock):
    first = await coordinator.join(TOPICS)
    assert await first.look() is None
    second = await coordinator.join(TOPICS)
    before = store.read(KEY)
    change = await first.look()
    assert change is not None
    assert numbers(change.lost) == [2, 3]
    assert store.read(KEY) == before
    await first.release()
    assert await second.look() is not None
    clock.advance(LEASE + 1)
    assert await first.look() is None, "the lease is not renewed by it"
    assert first.assignment == frozenset()
    await second.heartbeat()
    with pytest.raises(Fenced) as refused:
        await first.look()
    assert refused.value.reason == "removed"


async def test_a_part_may_be_released_before_the_rest(coordinator):
    first, second = await coordinator.join(TOPICS), await coordinator.join(TOPICS)
    await first.heartbeat()
    assert numbers(first.releasing) == [2, 3]
    await first.release(frozenset({TopicPartition("orders", 3), TopicPartition("orders", 0)}))
    await second.look()
    assert (numbers(first.releasing), numbers(second.assignment)) == ([2], [3])
    await first.release()
    await second.look()
    assert numbers(second.assignment) == [2, 3]


async def test_what_belongs_to_a_commit_is_written_while_the_group_is_held(coordinator):
    member = await coordinator.join(TOPICS)
    at = ("orders", 0)

    def wait_in_vain():
        with pytest.raises(DeadlineExceeded), coordinator._store.lock(group_lock_key("billing"), 0):
            pass

    def held():
        with member.committing({at: 5}):
            wait_in_vain()

    await asyncio.to_thread(held)
    assert await coordinator.committed([at]) == {at: 5}
    with pytest.raises(ZeroDivisionError), member.committing({at: 9}):
        raise ZeroDivisionError
    assert await coordinator.committed([at]) == {at: 5}
    await member.commit({at: 2}, write=wait_in_vain, backwards=True)
    assert await coordinator.committed([at]) == {at: 2}
    await coordinator.join(TOPICS)
    with pytest.raises(Fenced) as refused, member.committing({at: 9}):
        raise AssertionError("it is behind the generation")
    assert refused.value.reason == "generation"
    await member.look()
    with member.committing({at: 9}):
        pass
    assert await coordinator.committed([at]) == {at: 9}


async def test_what_a_dead_member_left_is_finished_before_offsets_are_read(store):
    left = [{("orders", 0): 7}]

    def recover(write):
        while left:
            write(left.pop())

    coordinator = GroupCoordinator(store, "billing", recover=recover)
    await coordinator.recovered([])
    await coordinator.recovered([])
    assert await coordinator.committed([("orders", 0)]) == {("orders", 0): 7}
    await GroupCoordinator(store, "billing").recovered([])


async def test_what_was_decided_is_waited_for_without_the_lock(store):
    seen = []

    def settle(partitions):
        with store.lock(group_lock_key("billing"), 0):
            seen.append(partitions)

    coordinator = GroupCoordinator(store, "billing", settle=settle)
    await coordinator.recovered([TopicPartition("orders", 3)])
    assert seen == [{("orders", 3)}]


async def test_a_member_may_have_a_name_and_a_guard(coordinator):
    member = await coordinator.join(TOPICS, name="anna")
    other = await coordinator.join(TOPICS, name="anna")
    assert member.id.startswith("anna-")
    assert member.id != other.id
    with pytest.raises(InvalidName, match="member"):
        await coordinator.join(TOPICS, name="a/b")

    def guard():
        raise ZeroDivisionError

    before = await coordinator.describe()
    with pytest.raises(ZeroDivisionError):
        await coordinator.join(TOPICS, guard=guard)
    assert await coordinator.describe() == before
