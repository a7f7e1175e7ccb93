"""Groups on compare-and-set keys, without a broker: claims, fencing, lost answers, forgetting."""

import asyncio
from itertools import count

import pytest

from penstock import System
from penstock.errors import BrokerFailed, Fenced, NotSupported, SubscriberBusy
from penstock.log.group_state import TopicPartition
from penstock.testing import VirtualClock
from penstock.transports.kv_groups import (
    Entry,
    KvCoordinator,
    committed_offset,
    forget_group,
    groups_of,
    place_key,
    state_key,
)

TOPIC, GROUP = "orders", "billing"


class Keys:
    """A store in memory. ``lose`` lets the next puts succeed, and their answers be lost."""

    def __init__(self, clock):
        self.entries: dict[tuple[str, ...], Entry] = {}
        self.clock = clock
        self.ahead_ms = 0
        self.lose = 0
        self.before_put = None
        self.revisions = count(1)
        self.listeners: dict[tuple[str, ...], list] = {}

    async def get(self, key):
        await asyncio.sleep(0)
        return self.entries.get(key)

    async def put(self, key, value, revision):
        await asyncio.sleep(0)
        if self.before_put is not None:
            hook, self.before_put = self.before_put, None
            await hook()
        at = self.entries[key].revision if key in self.entries else 0
        if at != revision:
            return None
        self.entries[key] = Entry(value, next(self.revisions))
        if self.lose:
            self.lose -= 1
            return None
        return self.entries[key].revision

    async def delete(self, key):
        self.entries.pop(key, None)

    async def keys(self, under):
        return [key for key in self.entries if key[: len(under)] == under]

    async def time_ms(self):
        return self.clock.time_ms() + self.ahead_ms

    async def ring(self, key):
        for listener in self.listeners.get(key, ()):
            listener()

    async def follow(self, key, listener):
        self.listeners.setdefault(key, []).append(listener)

        async def end():
            self.listeners[key].remove(listener)

        return end


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def keys(clock):
    return Keys(clock)


@pytest.fixture
def coordinator(keys, clock):
    def make(**options):
        return KvCoordinator(keys, TOPIC, GROUP, system=System(clock=clock), **options)

    return make


async def at(offset):
    return offset


def place(partition, offset):
    return {TopicPartition(TOPIC, partition): offset}


async def owner(coordinator, partition=0, start=0):
    member = await coordinator.join({TOPIC: 1})
    assert await coordinator.claim(partition, member, lambda: at(start)) >= start
    return member


async def test_a_claim_starts_a_new_group_where_it_says_and_goes_on_later(coordinator, keys):
    here = coordinator()
    member = await owner(here, start=7)
    assert await committed_offset(keys, TOPIC, GROUP, 0) == 7
    assert await here.commit(member.id, member.generation, place(0, 9)) == place(0, 9)
    assert await here.commit(member.id, member.generation, place(0, 8)) == place(0, 9)
    await member.leave()
    there = coordinator()
    member = await there.join({TOPIC: 1})
    assert await there.claim(0, member, lambda: at(0)) == 9
    assert await committed_offset(keys, TOPIC, GROUP, 1) is None


async def test_who_had_it_before_is_fenced_by_the_claim_of_the_next(coordinator, keys):
    here, there = coordinator(), coordinator()
    first = await owner(here)
    await here.commit(first.id, first.generation, place(0, 3))
    second = await there.join({TOPIC: 1})
    assert await there.claim(0, second, lambda: at(0)) == 3
    with pytest.raises(Fenced) as refused:
        await here.commit(first.id, first.generation, place(0, 5))
    assert (refused.value.topic, refused.value.partition) == (TOPIC, 0)
    assert await committed_offset(keys, TOPIC, GROUP, 0) == 3
    with pytest.raises(Fenced):
        # It stays so: the claim is gone.
        await here.commit(first.id, first.generation, place(0, 6), backwards=True)
    await there.commit(second.id, second.generation, place(0, 4))


async def test_a_claim_that_comes_late_takes_nothing_back(coordinator):
    here, there = coordinator(), coordinator()
    first = await here.join({TOPIC: 1})
    second = await there.join({TOPIC: 1})
    assert first.generation < second.generation
    await there.claim(0, second, lambda: at(0))
    with pytest.raises(Fenced):
        await here.claim(0, first, lambda: at(0))
    await there.commit(second.id, second.generation, place(0, 1))


async def test_a_commit_between_look_and_claim_counts(coordinator, keys):
    here, there = coordinator(), coordinator()
    first = await owner(here)
    second = await there.join({TOPIC: 1})

    async def last_commit():
        await here.commit(first.id, first.generation, place(0, 6))

    keys.before_put = last_commit
    assert await there.claim(0, second, lambda: at(0)) == 6


async def test_a_commit_whose_answer_was_lost_is_known_the_next_time(coordinator, keys):
    here = coordinator()
    member = await owner(here)
    keys.lose = 1
    assert await here.commit(member.id, member.generation, place(0, 5)) == place(0, 5)
    assert await here.commit(member.id, member.generation, place(0, 6)) == place(0, 6)
    assert await here.commit(member.id, member.generation, place(0, 2), backwards=True) == place(
        0, 2
    )


async def test_commits_of_one_partition_at_the_same_time_end_at_the_highest(coordinator, keys):
    here = coordinator()
    member = await owner(here)
    await asyncio.gather(
        *(here.commit(member.id, member.generation, place(0, one)) for one in (3, 9, 1, 7))
    )
    assert await committed_offset(keys, TOPIC, GROUP, 0) == 9


async def test_a_join_whose_answer_was_lost_is_one_member(coordinator, keys):
    here = coordinator()
    keys.lose = 1
    member = await here.join({TOPIC: 2})
    state = await here.describe()
    assert list(state.members) == [member.id]
    assert member.generation == state.generation


async def test_members_that_join_at_the_same_time_all_get_in(coordinator):
    members = await asyncio.gather(*(coordinator().join({TOPIC: 4}) for _ in range(4)))
    state = await coordinator().describe()
    assert state.members.keys() == {one.id for one in members}


async def test_leases_go_by_the_clock_of_the_broker(coordinator, keys, clock):
    keys.ahead_ms = 3_600_000
    here = coordinator(lease_seconds=10)
    first = await here.join({TOPIC: 1})
    assert first.is_live
    # A machine whose own clock is an hour off sees the same lease.
    second = await KvCoordinator(keys, TOPIC, GROUP, system=System()).join({TOPIC: 1})
    assert len((await here.describe()).members) == 2
    clock.advance(11)
    third = await here.join({TOPIC: 1})
    assert (await here.describe()).members.keys() == {third.id}
    assert second.id != third.id


async def test_the_bell_rings_when_something_moves(coordinator):
    rung = []
    here, there = coordinator(), coordinator()
    await here.open()
    here.follow(GROUP, lambda: rung.append(1))
    member = await there.join({TOPIC: 1})
    assert len(rung) == 1
    await member.heartbeat()
    assert len(rung) == 1
    await member.leave()
    assert len(rung) == 2
    await here.close()
    await there.join({TOPIC: 1})
    assert len(rung) == 2


async def test_a_group_is_forgotten_when_nobody_is_in_it(coordinator, keys):
    here = coordinator()
    member = await owner(here)
    assert await groups_of(keys, TOPIC) == [GROUP]
    with pytest.raises(SubscriberBusy, match="1 members"):
        await forget_group(keys, TOPIC, GROUP)
    await member.leave()
    before = (await here.describe()).generation
    await forget_group(keys, TOPIC, GROUP)
    assert await groups_of(keys, TOPIC) == []
    assert await committed_offset(keys, TOPIC, GROUP, 0) is None
    # A member from before must not look newer than those who come.
    assert (await here.describe()).generation > before
    with pytest.raises(Fenced):
        await here.commit(member.id, member.generation, place(0, 1))


async def test_nothing_else_is_written_with_a_commit(coordinator):
    here = coordinator()
    member = await owner(here)
    with pytest.raises(NotSupported):
        await here.commit(member.id, member.generation, place(0, 1), write=lambda: None)
    with pytest.raises(NotSupported):
        member.committing(place(0, 1))


async def test_what_somebody_else_wrote_is_told(coordinator, keys):
    await keys.put(state_key(TOPIC, GROUP), b"{", 0)
    with pytest.raises(BrokerFailed, match="GroupState"):
        await coordinator().describe()
    await keys.put(place_key(TOPIC, "other", 0), b'{"offset": "x"}', 0)
    with pytest.raises(BrokerFailed, match="GroupPlace"):
        await committed_offset(keys, TOPIC, "other", 0)
