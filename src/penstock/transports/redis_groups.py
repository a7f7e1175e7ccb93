"""Consumer groups on Redis: the state of a group is one key, replaced only as it was read.

The group is the same as on the log (:mod:`penstock.log.group_state`). Who owns a partition stands beside
the state in a hash that is written with it, so that a commit is one script: it looks at the owner and
writes the offset at once. Times are those of the server, so the clocks of the members need not agree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractContextManager

import msgspec

from penstock.decoding import decoder_of
from penstock.errors import BrokerFailed, Fenced, NotSupported, OffsetOutOfRange, SubscriberBusy
from penstock.log.group_ports import Change, OwnWrite
from penstock.log.group_state import GroupState, Offsets, TopicPartition, swept
from penstock.transports import redis_scripts as scripts
from penstock.transports.broker_groups import BrokerGroup
from penstock.transports.redis_client import RedisClient
from penstock.transports.redis_notices import RedisNotices
from penstock.transports.redis_settings import NAME

CALL_SECONDS = 30.0
"""How long a group waits for a server that is away."""
PAUSE_SECONDS_MAX = 0.02
"""Before the state is read again because somebody else was quicker; a random part of it."""

_to_state = decoder_of(GroupState)


class RedisGroup(BrokerGroup):
    """A group in keys of Redis; ``base`` is the topic's key."""

    def __init__(
        self, client: RedisClient, base: str, topic: str, group: str, lease_seconds: float
    ) -> None:
        super().__init__(topic, group, client.system, lease_seconds)
        self._client = client
        self._base = base
        self.seconds = CALL_SECONDS

    # The bell

    async def listen(self, notices: RedisNotices) -> None:
        """Hear of changes from now on."""
        await notices.follow(self._bell, self._rang, self.seconds)

    async def stop_listening(self, notices: RedisNotices) -> None:
        """Hear no more of them."""
        await notices.forget(self._bell, self._rang)

    @property
    def _bell(self) -> str:
        return f"{self._base}:bell:{self.group}"

    # The state

    async def describe(self) -> GroupState:
        """The group as it is now."""
        return (await self._read())[0]

    async def change(self, change: Change) -> GroupState:
        """The next state; as safe as the server is when this returns."""
        while True:
            before, version, now = await self._read()
            after = change(before, now)
            if after == before or await self._write(before, after, version):
                return after
            await asyncio.sleep(self.system.random.random() * PAUSE_SECONDS_MAX)

    async def _read(self) -> tuple[GroupState, bytes, int]:
        stored, version, now = await self._call(scripts.READ_GROUP, "read the group")
        self._clock.set(int(now))
        return self._decode(stored), version, int(now)

    async def _write(self, before: GroupState, after: GroupState, version: bytes) -> bool:
        moved = after.shape() != before.shape()
        owners = [
            word
            for name in sorted(after.members)
            for one in sorted(after.owned_by(name))
            for word in (one.partition, name)
        ]
        arguments = [version, msgspec.json.encode(after), int(moved), *(owners if moved else ())]
        return bool(await self._call(scripts.WRITE_GROUP, "change the group", *arguments))

    def _decode(self, stored: bytes) -> GroupState:
        if not stored:
            return GroupState(group=self.group)
        try:
            return _to_state(stored)
        except (msgspec.MsgspecError, UnicodeError) as cause:
            raise BrokerFailed(
                f"the state of group {self.group!r} in {self._base} was written by something else: "
                "remove the key, and the members join again",
                transport=NAME,
            ) from cause

    async def forget_all(self) -> None:
        """Remove the offsets of the group; SubscriberBusy when it has a live member."""
        while True:
            state, version, now = await self._read()
            if members := swept(state, now).members:
                raise SubscriberBusy(
                    f"group {self.group!r} of {self.topic!r} has {len(members)} members: close them "
                    "first",
                    subscriber=self.group,
                    topic=self.topic,
                )
            if await self._call(scripts.FORGET_GROUP, "forget the group", version):
                return

    # The offsets

    async def commit(
        self,
        member: str,
        generation: int,
        offsets: Offsets,
        *,
        write: OwnWrite | None = None,
        backwards: bool = False,
    ) -> dict[TopicPartition, int]:
        """Move offsets forward, all of them or none, if the partitions are this member's; else Fenced.

        A partition is the member's through any number of generations, until it is given away.
        """
        if write is not None:
            raise NotSupported("Redis cannot hold a write of yours with its commit", transport=NAME)
        wanted = {TopicPartition(*one): offset for one, offset in offsets.items()}
        words = [word for one, at in wanted.items() for word in (one.partition, at)]
        how = "anywhere" if backwards else "forward"
        answer = await self._call(scripts.COMMIT, "commit the offsets", member, how, *words)
        if answer and answer[0] == b"fenced":
            raise self._fenced(member, generation, int(answer[1]))
        if answer and answer[0] == b"range":
            raise self._beyond(wanted, int(answer[1]), int(answer[2]))
        return dict(zip(wanted, map(int, answer), strict=True))

    def committing(
        self, member: str, generation: int, offsets: Offsets
    ) -> AbstractContextManager[None]:
        """Not here: nobody can hold the group."""
        raise NotSupported("Redis cannot hold a group while something is written", transport=NAME)

    async def _call(self, script: str, what: str, *arguments: object) -> list[bytes]:
        answer: list[bytes] = await self._client.script(
            script, self._base, self.group, *arguments, seconds=self.seconds, what=what
        )
        return answer

    def _fenced(self, member: str, generation: int, partition: int) -> Fenced:
        return Fenced(
            f"partition {partition} of {self.topic!r} is another member's in group {self.group!r}, or "
            "nobody's: its records come again to whoever has it",
            group=self.group,
            member=member,
            generation=generation,
            current=generation,
            reason="partition",
            topic=self.topic,
            partition=partition,
        )

    def _beyond(
        self, wanted: Mapping[TopicPartition, int], partition: int, end: int
    ) -> OffsetOutOfRange:
        offset = wanted[TopicPartition(self.topic, partition)]
        return OffsetOutOfRange(
            f"offset {offset} of {self.topic}/{partition} cannot be committed: use 0 to {end}",
            topic=self.topic,
            partition=partition,
            offset=offset,
            end=end,
        )
