"""What a writer is to do, and what it says: a spec and frames."""

import enum
import json
import os
import struct
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

from penstock.errors import PenstockError, Poisoned, StorageError, SubscriberBusy
from penstock.log.loop_worker import CommitOn
from penstock.log.topic import TopicConfig

FRAME = struct.Struct("<BIIQQQd")


class Kind(enum.IntEnum):
    """What a frame says. The numbers are (partition, a, b, c) unless said otherwise."""

    OPENED = enum.auto()
    TRYING = enum.auto()  # a: the next sequence number behind those that are about to be published
    ACKNOWLEDGED = enum.auto()  # a: offset, b: sequence number, c: whether it is durable
    RANGE = enum.auto()  # a, b: first offset and the one behind the last; follows MANY
    MANY = enum.auto()  # a, b: first sequence number and the one behind the last, c: durable
    COMMITTING = enum.auto()  # a: offset, b: 1 when it is the lagging subscriber
    COMMITTED = enum.auto()  # a, b: the same
    DURABLE = enum.auto()  # a: every offset below it
    FAILED = enum.auto()  # a: number of the error in ERRORS, b: errno
    CLOSED = enum.auto()
    READ = enum.auto()  # a: offset, b: writer, c: sequence number
    IDLE = enum.auto()  # a, b: reads of the store before and after a time without news
    USED = enum.auto()  # a, b: microseconds of user and system time, c: reads of the store
    SYNCING = enum.auto()  # a: number of the sync; it begins
    SYNCED = enum.auto()  # a: number of the sync; it is done
    LATE = enum.auto()  # a: microseconds that a short sleep took too long


Said = tuple[Kind, int, int, int, int]
ERRORS: list[type[BaseException]] = [PenstockError, StorageError, Poisoned, SubscriberBusy]


@dataclass
class Spec:
    """What a writer is to do."""

    path: str
    topic: str
    writer: int
    seed: int
    first_sequence: int = 0
    config: dict[str, Any] = field(default_factory=dict)
    steps: int | None = None
    """How many steps before it closes and ends; None: until it is killed."""
    subscriber: str = ""
    commit_on: CommitOn = "thread"
    fault: str = ""
    """A file layer that dies or lies; or ``hasty``: acknowledged before it is written."""
    fault_at: int = 0
    fault_calls: list[str] = field(default_factory=list)
    """Of which calls it is the n-th at which the process is killed; empty: of all."""
    simple: bool = False
    """One record at a time, and go on after an error, to see what later calls say."""
    record_bytes: int = 0
    batch_max: int = 200
    """How many records are published together, at most."""
    reads: int = 0
    """Do not publish: read so many records as a subscriber, then wait a while for more."""

    maintenance: float | None = None
    """Seconds between rounds of retention and compaction; None: no rounds."""
    upkeep: str = ""
    """Rounds of upkeep: all the time ``beside`` the steps, or one ``between`` two steps."""
    lagging: str = ""
    """A second subscriber, which reads and commits more seldom."""
    tier: str = ""
    varied: bool = False
    """Keys that come often, seldom or not at all, and tombstones."""
    hours: int = 0
    """How far its clock is ahead."""
    tells_syncs: bool = False
    """Tell each sync, and how long the process was held up."""

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @property
    def topic_config(self) -> TopicConfig:
        return msgspec.convert(self.config, TopicConfig)


# --------------------------------------------------------------------------------------- frames


class Out:
    """The pipe to the test. A frame that is only half in it was not said."""

    def __init__(self, descriptor: int, writer: int) -> None:
        self._descriptor = descriptor
        self._writer = writer

    def say(self, kind: Kind, partition: int = 0, a: int = 0, b: int = 0, c: int = 0) -> None:
        self.say_all([(kind, partition, a, b, c)])

    def say_all(self, frames: Sequence[Said]) -> None:
        now = time.monotonic()
        packed = [FRAME.pack(kind, self._writer, *rest, now) for kind, *rest in frames]
        data = memoryview(b"".join(packed))
        while data:
            data = data[os.write(self._descriptor, data) :]

    def failed(self, error: BaseException) -> None:
        kinds = [number for number, kind in enumerate(ERRORS) if isinstance(error, kind)]
        code = getattr(error, "errno", None) or getattr(error.__cause__, "errno", None) or 0
        self.say(Kind.FAILED, a=max(kinds, default=999), b=int(code))
