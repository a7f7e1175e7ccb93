"""The words of the benchmark: a scale, a load, a case and the sample that a case gives."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

BATCH = 1_000
MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class LongRuns:
    """How long the runs of bus and scale take that are about time and not about speed."""

    paced_seconds: float = 1.5
    sustained_seconds: float = 5.0
    chaos_seconds: float = 5.0
    processor_seconds: float = 0.7
    """At each of the rates."""
    growth_events: int = 1_000_000
    scheduled: int = 100_000
    hot_seconds: float = 5.0
    growth_steps: int = 4
    """How many sizes of each dimension."""


@dataclass(frozen=True)
class Scale:
    """How much is measured: the same cases, for longer or shorter."""

    name: str
    rounds: int
    seconds: float
    """How long a sample of a rate takes, unless the bytes run out first."""
    bytes_max: int
    """How much a sample may write, so that the page cache, not its eviction, is measured."""
    read_bytes: int
    recovery_bytes: int
    latency_messages: int
    payloads: tuple[int, ...] = (100, 1024)
    side_payloads: tuple[int, ...] = (100, 1024)
    """Payloads of the workloads that vary something else: partitions, processes, policies."""
    profile_seconds: float = 1.5
    settle: bool = True
    """Sync the whole disk before each sample, so that no case pays for another."""
    long: LongRuns = LongRuns()


SCALES = {
    scale.name: scale
    for scale in (
        Scale("quick", 2, 0.1, 64 * MEBIBYTE, 64 * MEBIBYTE, 64 * MEBIBYTE, 100,
              side_payloads=(100,), profile_seconds=0.5,
              long=LongRuns(0.5, 1.0, 1.0, 0.3, 200_000, 20_000, 1.0, 3)),
        Scale("default", 3, 0.35, 256 * MEBIBYTE, 128 * MEBIBYTE, 1024 * MEBIBYTE, 300),
        Scale("full", 7, 1.5, 512 * MEBIBYTE, 256 * MEBIBYTE, 1024 * MEBIBYTE, 2_000,
              long=LongRuns(3.0, 30.0, 60.0, 2.0, hot_seconds=10.0, growth_steps=5)),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """One measurement, and what explains it, such as how many records shared a sync."""

    value: float
    notes: Mapping[str, float] = field(default_factory=dict)


class Missing(Exception):
    """A peer cannot be had on this machine: its cases are named, and left out."""


def _start_at_once() -> None:
    pass


@dataclass(frozen=True)
class Load:
    """What a contender has to write: records of one size, in blocks, for a while."""

    payload_bytes: int
    seconds: float
    bytes_max: int
    batch: int = BATCH
    gate: Callable[[], None] = _start_at_once
    """Called when the contender is warm; returns when the measurement is to start."""

    @classmethod
    def of(cls, scale: Scale, payload_bytes: int, batch: int = BATCH) -> Load:
        """The load of a scale."""
        return cls(payload_bytes, scale.seconds, scale.bytes_max, batch)

    def values(self) -> list[bytes]:
        """A block of records: different bytes, the same in every run."""
        return list(_values(self.payload_bytes, self.batch))


@cache
def _values(payload_bytes: int, count: int) -> tuple[bytes, ...]:
    source = random.Random(payload_bytes)
    return tuple(source.randbytes(payload_bytes) for _ in range(count))


class Meter:
    """Counts records from its creation on; says when it is time to stop."""

    def __init__(self, load: Load) -> None:
        self.records = 0
        self._seconds = load.seconds
        self._records_max = load.bytes_max // load.payload_bytes
        load.gate()
        self._start = time.perf_counter()

    def more(self) -> bool:
        """Whether the contender should go on; something has to be counted."""
        is_full = self.records >= self._records_max or self.elapsed() >= self._seconds
        return not (is_full and self.records)

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._start

    def sample(self, **notes: float) -> Sample:
        """The rate up to now."""
        return Sample(self.records / self.elapsed(), notes)


def drive(load: Load, step: Callable[[], object], finish: Callable[[], object] = int) -> Sample:
    """Run a step, which writes a block, until the meter is full; the first one is not counted."""
    step()
    meter = Meter(load)
    while meter.more():
        step()
        meter.records += load.batch
    finish()
    return meter.sample()


@dataclass(frozen=True)
class Prepared:
    """Data that several cases read: made once, kept for all rounds."""

    name: str
    build: Callable[[Path], None]


@dataclass(frozen=True)
class Case:
    """One line of the table: a contender doing a workload under one promise."""

    workload: str
    payload_bytes: int
    """0 where the size does not matter."""
    point: str
    contender: str
    what: str
    run: Callable[[Path], Sample]
    unit: str = "records/s"
    bound: bool = False
    """This is the limit that the others of the same group are compared with."""
    prepared: Prepared | None = None
    once: bool = False
    """A long run, measured in the first round only."""
    durability: str = ""
    """What is safe when a call returns, where the contenders of a group differ in how they do it."""

    @property
    def group(self) -> str:
        """Cases of a group do the same work and are compared with each other."""
        size = f"/{self.payload_bytes}" if self.payload_bytes else ""
        return f"{self.workload}{size}/{self.point}"

    @property
    def name(self) -> str:
        """The name that targets and ``--only`` use."""
        return f"{self.group}/{self.contender}"


@dataclass(frozen=True)
class Workload:
    """A set of cases that are measured together, interleaved."""

    name: str
    title: str
    about: str
    cases: Callable[[Scale], list[Case]]


POINTS = {
    "sync-1000": "durable; a sync for 1,000 records where nothing else is said",
    "sync-100": "durable; a sync for 100 records where nothing else is said",
    "sync-each": "every record durable when its call returns",
    "no-sync": "written, never synced: survives a crash of the process",
    "timed": "synced once a second",
    "read": "durable records, in the page cache",
    "delivery": "delivered after the sync that makes the record durable",
    "delivery-ram": "the same on a file system in memory, where a sync costs nothing",
    "restart": "opening a log after its process has ended",
    "buffer": "a buffer in memory",
    "peak": "resident memory over that of the idle process",
    "queued": "each call awaited; all events are handled when the clock stops",
    "handled": "each call awaited until the event is handled",
    "unawaited": "published without waiting, then handled",
    "10000": "10,000 events a second",
    "11000": "11,000 events a second",
    "idle": "nothing else to do",
    "slope": "growth per event, after warm-up",
    "rates": "0, 50,000, 100,000 and 200,000 events a second",
    "failing": "every fifth call of the handler fails, at random",
    "executed": "each call awaited until its result is there",
    "pending": "while many others are pending",
    "sync-handler": "handled by a function",
    "async-handler": "handled by a coroutine function",
    "one-thread": "in one thread: a burst goes in, then it is taken out",
    "two-threads": "from one thread to another",
    "batch-1000": "in batches of 1,000",
    "batch-10000": "in batches of 10,000",
    "batch-100": "in batches of 100",
    "slow-handler": "the handler waits a millisecond",
    "watched": "what watching adds",
    "micro-batches": "a stream, micro-batch by micro-batch",
    "table": "a batch query",
    "topic-to-topic": "from its publish to its place in the other topic",
    "manual-commit": "each batch is committed, durably, before the next one",
    "auto-commit": "committed ten times a second",
    "publish": "single records, acknowledged by the broker",
    "handle": "records that lie on the broker",
    "grow-publish": "publishing",
    "grow-read": "reading",
    "grow-bare": "the same bytes without a log",
    "grow-memory": "peak of resident memory over that of the idle process",
    "grow-handles": "file handles that are open",
    "grow-recovery": "opening everything again, with every head lost",
    "produce": "acknowledged by the broker",
    "consume": "each batch is committed before the next one",
    "hand-over": "until everybody has their share",
}
