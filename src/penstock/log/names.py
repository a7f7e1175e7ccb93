"""Names of topics and groups, and the keys that they stand under in a store."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import InvalidOption
from penstock.names import NAME_LENGTH_MAX, check_case, check_name, is_name

__all__ = [
    "NAME_LENGTH_MAX",
    "PartitionKeys",
    "SegmentName",
    "check_case",
    "check_name",
    "group_bell_key",
    "group_lock_key",
    "group_state_key",
    "is_name",
    "offset_key",
    "place_in",
    "topic_key",
]
_SEGMENT = re.compile(r"(\d{20})(?:-(\d{1,9}))?\.log")


class SegmentName(NamedTuple):
    """A segment file: its first offset, and how often compaction or repair rewrote it."""

    base: int
    rewrite: int = 0

    @property
    def stem(self) -> str:
        """The file name without its ending."""
        return f"{self.base:020d}-{self.rewrite}" if self.rewrite else f"{self.base:020d}"

    @classmethod
    def parse(cls, name: str) -> SegmentName | None:
        """The name of a ``.log`` file, or None when it is not one."""
        match = _SEGMENT.fullmatch(name)
        return cls(int(match[1]), int(match[2] or 0)) if match else None


@dataclass(frozen=True, slots=True)
class PartitionKeys:
    """The keys of one partition."""

    topic: str
    partition: int

    @property
    def folder(self) -> str:
        """What all keys of the partition start with, but for the slash."""
        return f"topics/{self.topic}/{self.partition}"

    @property
    def head(self) -> str:
        """The head, which is also what writers lock."""
        return f"{self.folder}/head"

    @property
    def maintenance(self) -> str:
        """What retention, compaction, tiering and repair lock, so that one works at a time."""
        return f"{self.folder}/maintenance"

    def log(self, name: SegmentName) -> str:
        """The entries of a segment."""
        return f"{self.folder}/{name.stem}.log"

    def index(self, name: SegmentName) -> str:
        """The index of a segment."""
        return f"{self.folder}/{name.stem}.index"


def topic_key(topic: str) -> str:
    """The description of a topic."""
    return f"topics/{topic}/topic.json"


def offset_key(group: str, topic: str, partition: int) -> str:
    """The offset file of a subscriber."""
    return f"groups/{group}/{topic}-{partition}.offset"


def group_state_key(group: str) -> str:
    """The members of a group and what they own; no topic's key is below this folder."""
    return f"groups/{group}/members/state"


def group_lock_key(group: str) -> str:
    """What is locked while a group changes, or while one of its members commits."""
    return f"groups/{group}/members/lock"


def group_bell_key(group: str) -> str:
    """What is written, in place, when partitions of a group move: members watch it."""
    return f"groups/{group}/members/bell"


def place_in(url: str) -> str:
    """Where the log of a ``log:`` URL is; InvalidOption when that is nowhere, or has options."""
    path = url.partition(":")[2].removeprefix("//")
    if not path:
        raise InvalidOption(f"{url!r} names no directory: use log:./data", option="url")
    # Those of a store, as of a database, are its own.
    if "?" in path and ":" not in path:
        raise InvalidOption(
            f"{url!r} has options, and log: takes none: settings of new topics go to defaults, those of "
            "the queue are given by name",
            option="url",
        )
    return path
