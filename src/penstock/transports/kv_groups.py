"""Consumer groups on a broker that has no partition assignment, but keys with compare-and-set.

The group is the same as on the log (:mod:`penstock.log.group_state`): leases, generations, owners.
Its state is one key, which is replaced only at the revision that was read. Whoever looks removes
those whose lease ran out, by the clock of the broker.

The offset of each partition is a key of its own, which names its owner. A member that is given a
partition *claims* it: it writes itself into that key. From then on it commits at the revision that it
wrote last; a commit of whoever had the partition before finds another revision, and is ``Fenced``.
Claims carry the generation that gave the partition, so one that comes late cannot take it back.
Commits of different partitions do not stand in each other's way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from penstock.decoding import decoder_of
from penstock.errors import BrokerFailed, Fenced, NotSupported, SubscriberBusy
from penstock.log.deadlines import within
from penstock.log.group_coordinator import LEASE_SECONDS
from penstock.log.group_member import Member
from penstock.log.group_ports import Change, OwnWrite
from penstock.log.group_state import GroupState, Offsets, TopicPartition, emptied, swept
from penstock.log.offsets import check_offset
from penstock.system import System
from penstock.transports.broker_groups import BrokerGroup, Listener
from penstock.transports.foreign_names import names_among

TIMEOUT_SECONDS = 30.0
PATIENCE_SECONDS = 5.0
"""A group waits so much longer than its calls, whose errors tell more."""
PAUSE_SECONDS_MAX = 0.05
"""Before the state is read again because somebody else was quicker; a random part of it."""

Key = tuple[str, ...]
"""Names of groups and topics, and numbers; the store writes them as its keys need it."""
_S = TypeVar("_S", bound=msgspec.Struct)


class Entry(NamedTuple):
    """What a key holds, and the revision to replace it at."""

    value: bytes
    revision: int


class KeyValue(Protocol):
    """Keys of a broker. Calls wait for a lost connection, and raise a PenstockError in time."""

    async def get(self, key: Key) -> Entry | None:
        """What the key holds; None when there is no such key. Never older than the last put."""

    async def put(self, key: Key, value: bytes, revision: int) -> int | None:
        """Write if the key is at this revision, 0: not there. The new revision; None if it is not.

        None also when an earlier attempt of this very call succeeded and its answer was lost.
        """

    async def delete(self, key: Key) -> None:
        """Remove the key, if it is there. A put at the revision that it had fails."""

    async def keys(self, under: Key) -> Iterable[Key]:
        """All keys that begin so."""

    async def time_ms(self) -> int:
        """The time of the broker, the same for all."""

    async def ring(self, key: Key) -> None:
        """Call those who follow the key, in whatever process; some may miss it."""

    async def follow(self, key: Key, listener: Listener) -> Callable[[], Awaitable[None]]:
        """Call the listener, on the loop, for each ring; the answer ends that."""


class GroupPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a group goes on in a partition, and who may move that."""

    offset: int
    member: str
    generation: int


_DECODERS: dict[type, Callable[[bytes], Any]] = {
    kind: decoder_of(kind) for kind in (GroupState, GroupPlace)
}


@dataclass(slots=True)
class _Claim:
    place: GroupPlace
    revision: int
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class KvCoordinator(BrokerGroup):
    """A group in the keys of a broker. Every call ends within ``timeout`` seconds."""

    def __init__(
        self,
        store: KeyValue,
        topic: str,
        group: str,
        *,
        system: System | None = None,
        lease_seconds: float = LEASE_SECONDS,
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        super().__init__(topic, group, system or System(), lease_seconds)
        self._store = store
        self._timeout = timeout
        self._claims: dict[int, _Claim] = {}
        self._unfollow: Callable[[], Awaitable[None]] | None = None

    # The bell

    async def open(self) -> None:
        """Hear the bell of the group from now on."""
        if self._unfollow is None:
            self._unfollow = await self._store.follow(state_key(self.topic, self.group), self._rang)

    async def close(self) -> None:
        """Hear it no longer."""
        unfollow, self._unfollow = self._unfollow, None
        self._listeners.clear()
        if unfollow is not None:
            await unfollow()

    # The state

    async def describe(self) -> GroupState:
        """The group as it is now."""
        state, _ = await within(self._timeout, self._read(), "read the group")
        return state

    async def change(self, change: Change) -> GroupState:
        """The next state, kept by the broker on return."""
        return await within(self._timeout, self._change(change), "change the group")

    async def _change(self, change: Change) -> GroupState:
        self._clock.set(await self._store.time_ms())
        while True:
            before, revision = await self._read()
            after = change(before, self._clock.time_ms())
            if after == before or await self._replaced(after, revision):
                break
            await asyncio.sleep(self.system.random.random() * PAUSE_SECONDS_MAX)
        if after.shape() != before.shape():
            self._rang()
            await self._store.ring(state_key(self.topic, self.group))
        return after

    async def _replaced(self, state: GroupState, revision: int) -> bool:
        key = state_key(self.topic, self.group)
        return await self._store.put(key, msgspec.json.encode(state), revision) is not None

    async def _read(self) -> tuple[GroupState, int]:
        entry = await self._store.get(state_key(self.topic, self.group))
        if entry is None:
            return GroupState(group=self.group), 0
        return _decoded(entry.value, GroupState), entry.revision

    # The offsets

    async def claim(
        self, partition: int, member: Member, start: Callable[[], Awaitable[int]]
    ) -> int:
        """Make the partition this member's alone; where it goes on. ``start``: where a new group does.

        Raises Fenced when a later generation has given it to somebody else.
        """
        key = place_key(self.topic, self.group, partition)
        while True:
            entry = await self._store.get(key)
            revision = 0 if entry is None else entry.revision
            before = None if entry is None else _decoded(entry.value, GroupPlace)
            if before is not None:
                self._check_claim(before, member, partition)
            place = GroupPlace(
                offset=await start() if before is None else before.offset,
                member=member.id,
                generation=member.generation,
            )
            written = await self._store.put(key, msgspec.json.encode(place), revision)
            if written is not None:
                self._claims[partition] = _Claim(place, written)
                return place.offset

    def _check_claim(self, place: GroupPlace, member: Member, partition: int) -> None:
        if place.generation < member.generation or place.member == member.id:
            return
        raise self._fenced(member.id, member.generation, partition)

    async def commit(
        self,
        member: str,
        generation: int,
        offsets: Offsets,
        *,
        write: OwnWrite | None = None,
        backwards: bool = False,
    ) -> dict[TopicPartition, int]:
        """Move offsets forward where the partitions are this member's; else Fenced.

        Each partition is written alone: when one is refused, others may have moved. Offsets never
        go back, unless the caller says so; the answer says where each stands.
        """
        if write is not None:
            raise NotSupported("a broker's group cannot hold a write of yours with its commit")
        wanted = {TopicPartition(*one): offset for one, offset in offsets.items()}
        for offset in wanted.values():
            check_offset(offset)
        moves = [
            self._move(one.partition, member, generation, offset, backwards)
            for one, offset in wanted.items()
        ]
        stands = await within(self._timeout, _all(moves), "commit the offsets")
        return dict(zip(wanted, stands, strict=True))

    async def _move(
        self, partition: int, member: str, generation: int, offset: int, backwards: bool
    ) -> int:
        claim = self._claims.get(partition)
        if claim is None or claim.place.member != member:
            raise self._fenced(member, generation, partition)
        async with claim.turn:
            while backwards or offset > claim.place.offset:
                place = msgspec.structs.replace(claim.place, offset=offset)
                key = place_key(self.topic, self.group, partition)
                revision = await self._store.put(key, msgspec.json.encode(place), claim.revision)
                if revision is not None:
                    claim.place, claim.revision = place, revision
                    break
                await self._look_again(partition, claim, generation)
            return claim.place.offset

    async def _look_again(self, partition: int, claim: _Claim, generation: int) -> None:
        """The key is at another revision: by a write of ours without an answer, or it is not ours."""
        entry = await self._store.get(place_key(self.topic, self.group, partition))
        place = None if entry is None else _decoded(entry.value, GroupPlace)
        if entry is None or place is None or place.member != claim.place.member:
            if self._claims.get(partition) is claim:
                del self._claims[partition]
            raise self._fenced(claim.place.member, generation, partition)
        claim.place, claim.revision = place, entry.revision

    def committing(
        self, member: str, generation: int, offsets: Offsets
    ) -> AbstractContextManager[None]:
        """Not on a broker: nobody can hold the group."""
        raise NotSupported("a broker's group cannot be held while something else is written")

    def _fenced(self, member: str, generation: int, partition: int) -> Fenced:
        return Fenced(
            f"partition {partition} of {self.topic!r} is another member's in group {self.group!r}: "
            "its records come again to whoever has it",
            group=self.group,
            member=member,
            generation=generation,
            reason="partition",
            topic=self.topic,
            partition=partition,
        )


async def _all(moves: Sequence[Awaitable[int]]) -> list[int]:
    """What they return; raises the first error when all of them have come to an end."""
    if len(moves) == 1:
        # Most commits: no task of its own, which would wait for its turn on a busy loop.
        return [await moves[0]]
    done = await asyncio.gather(*moves, return_exceptions=True)
    for one in done:
        if isinstance(one, BaseException):
            raise one
    return [one for one in done if not isinstance(one, BaseException)]


# From outside of the group


async def committed_offset(store: KeyValue, topic: str, group: str, partition: int) -> int | None:
    """Where a group goes on in a partition; None when it was never there."""
    entry = await store.get(place_key(topic, group, partition))
    return None if entry is None else _decoded(entry.value, GroupPlace).offset


async def groups_of(store: KeyValue, topic: str) -> list[str]:
    """The groups that have offsets in a topic."""
    keys = await store.keys(("offsets", topic))
    return names_among({key[2] for key in keys}, transport="a broker", kind="group")


async def forget_group(store: KeyValue, topic: str, group: str, timeout: float = 30.0) -> None:
    """Remove the offsets of a group without a live member; SubscriberBusy when it has one.

    The generation stays, so that a member from before stays refused.
    """
    coordinator = KvCoordinator(store, topic, group, timeout=timeout)

    def empty(state: GroupState, now_ms: int) -> GroupState:
        if members := swept(state, now_ms).members:
            raise SubscriberBusy(
                f"group {group!r} of {topic!r} has {len(members)} members: close them first",
                subscriber=group,
                topic=topic,
            )
        return emptied(state, state.generation + 1)

    await coordinator.change(empty)
    for key in list(await store.keys(("offsets", topic, group))):
        await store.delete(key)


def state_key(topic: str, group: str) -> Key:
    """The members of a group and what they own."""
    return ("groups", topic, group)


def place_key(topic: str, group: str, partition: int) -> Key:
    """Where a group goes on in a partition."""
    return ("offsets", topic, group, str(partition))


def _decoded(data: bytes, kind: type[_S]) -> _S:
    try:
        found: _S = _DECODERS[kind](data)
        return found
    except (msgspec.MsgspecError, UnicodeError) as cause:
        raise BrokerFailed(
            f"a key of a group does not hold a {kind.__name__}: something else wrote it", kind=kind
        ) from cause
