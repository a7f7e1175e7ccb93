"""A look at the files of a topic: heads, sizes, committed offsets, members. Blocking."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from penstock.errors import DamagedFile
from penstock.log.group_file import GroupFile
from penstock.log.group_state import GroupMember, GroupState, expired
from penstock.log.head import Head
from penstock.log.lag import PartitionLag, lags_of
from penstock.log.names import group_state_key
from penstock.log.open_topic import OpenTopic
from penstock.log.retention import RetentionInfo
from penstock.log.topic import TopicFile
from penstock.system import SECOND_MS

LOCK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Readers:
    """The live members of a consumer group."""

    generation: int
    members: Mapping[str, GroupMember]
    host: str
    """Where this process runs."""

    def of(self, topic: str, partition: int | None) -> tuple[str, ...]:
        """Those who have a partition; None stands for any."""
        return tuple(
            name
            for name, member in self.members.items()
            if partition in member.owned.get(topic, ())
            or (partition is None and topic in member.topics)
        )

    def has_process(self, process: int) -> bool:
        """Whether one of them is in this process."""
        return any(
            member.process == process and member.host == self.host
            for member in self.members.values()
        )

    def tell(self, topic: str, partition: int | None, now_ms: int) -> str | None:
        """Who has a partition and since when it was heard of; None when nobody has it."""
        for name in self.of(topic, partition):
            member = self.members[name]
            heard = (now_ms - member.lease_expires_ms + member.lease_ms) / SECOND_MS
            return (
                f"the member {name} (process {member.process} on {member.host}) holds it, was heard "
                f"of {max(0.0, heard):.1f} s ago, and commits nothing"
            )
        return None


@dataclass(frozen=True, slots=True)
class LookedAt:
    """What the files of a topic say."""

    heads: Sequence[Head]
    infos: Sequence[RetentionInfo]
    lags: Mapping[str, Sequence[PartitionLag]]
    """By group."""
    readers: Mapping[str, Readers]
    """By group, for those that ever had members."""
    troubles: Sequence[str]
    """What could not be read, one sentence each."""


def look_at(topic: OpenTopic, info: Callable[[OpenTopic], list[RetentionInfo]]) -> LookedAt:
    """Read all of it."""
    around = topic.around
    groups = sorted(TopicFile(around.store, topic.name).read().subscribers)
    infos = info(topic)
    lags: dict[str, Sequence[PartitionLag]] = {}
    readers: dict[str, Readers] = {}
    troubles: list[str] = []
    for group in groups:
        try:
            lags[group] = lags_of(topic, group)
            if around.store.exists(group_state_key(group)):
                readers[group] = _readers(topic, group)
        except DamagedFile as damage:
            troubles.append(f"group {group!r} cannot be looked at: {damage}")
    heads = [log.read_head() for log in topic.logs[: len(infos)]]
    return LookedAt(heads, infos, lags, readers, troubles)


def _readers(topic: OpenTopic, group: str) -> Readers:
    clock = topic.around.system.clock
    state: GroupState = GroupFile(topic.around.store, group, clock, LOCK_SECONDS).read()
    return Readers(state.generation, expired(state, clock.time_ms()), os.uname().nodename)
