"""A partition with tiny segments, and what the tests of its upkeep ask of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from penstock.log.codec import Codec
from penstock.log.columns import Columns
from penstock.log.compaction import CompactionReport, Compactor
from penstock.log.frame import draft
from penstock.log.head import Head, HeadFile
from penstock.log.names import PartitionKeys, SegmentName
from penstock.log.offsets import OffsetFile
from penstock.log.partition import PartitionLog
from penstock.log.places import fetch
from penstock.log.reader import PartitionReader
from penstock.log.topic import Retention, TopicConfig, TopicFile, TopicState
from penstock.stores.base import PersistentBackingStore
from penstock.stores.directory import DirectoryStore
from penstock.stores.memory import MemoryStore
from penstock.testing.clock import VirtualClock
from penstock.testing.disk import SimulatedDisk, SyncPoint
from penstock.testing.worker import simulated_system

TOPIC = "orders"
KEYS = PartitionKeys(TOPIC, 0)
HOUR_MS = 3_600_000
DAY_SECONDS = 24 * 3600
HUGE = 1 << 40

Row = tuple[bytes | None, bytes | None]
"""Key and value."""
Stored = tuple[int, bytes | None, bytes | None]
"""Offset, key and value."""


def remove_first_segment(store: PersistentBackingStore) -> None:
    """As retention does: the head says where the rest starts, before anything is gone."""
    first, second = sorted(key for key in store.list(f"{KEYS.folder}/") if key.endswith(".log"))[:2]
    file = HeadFile(store, KEYS.head)
    head = file.read()
    assert head is not None
    file.write(head._replace(start=int(second.rpartition("/")[2].removesuffix(".log"))))
    store.delete(first)


class SmallLog:
    """Appends rows, one entry a call, and rolls when it is told to."""

    def __init__(
        self,
        store: PersistentBackingStore | None = None,
        tier: PersistentBackingStore | None = None,
        *,
        clock: VirtualClock | None = None,
        config: TopicConfig | None = None,
    ) -> None:
        self.store = store if store is not None else MemoryStore()
        self.tier: Any = tier
        self.clock = clock or VirtualClock()
        self.system = simulated_system(clock=self.clock)
        self.topic = TopicFile(self.store, TOPIC)
        self.topic.create(config or TopicConfig(), self.clock.time_ms())
        self.open()
        self.rolls = False

    def open(self) -> None:
        self.log = PartitionLog(
            self.store, KEYS, system=self.system, segment_bytes_max=HUGE, tier=self.tier
        )
        self.report = self.log.attach()

    @property
    def state(self) -> TopicState:
        return self.topic.read()

    def append(self, *rows: Row, codec: Codec = Codec.NONE) -> int:
        """Append the rows as one entry, durably; returns the first offset."""
        keys = [key for key, _ in rows]
        columns = Columns([value for _, value in rows], keys if any(keys) else None)
        flags, body = columns.encode()
        self.log.segment_bytes_max = 1 if self.rolls else HUGE
        self.rolls = False
        return self.log.append(
            [draft(flags, body, len(rows), codec=codec)], sync=True
        ).base_offsets[0]

    def roll(self) -> None:
        """Let the next append seal the open segment and start another one."""
        self.rolls = True

    def append_segments(self, count: int, value: bytes = b"v") -> None:
        """One record in each of as many new segments."""
        for _ in range(count):
            self.roll()
            self.append((None, value))

    def reader(self) -> PartitionReader:
        return PartitionReader(self.store, KEYS, self.tier)

    def head(self) -> Head:
        return self.reader().head()

    def bases(self) -> list[int]:
        return [one.name.base for one in self.reader().segments()]

    def subscribe(self, name: str, offset: int = 0) -> OffsetFile:
        """Register a subscriber, as a subscription does."""
        file = OffsetFile(self.store, name, TOPIC, 0)
        file.reset(offset, self.clock.time_ms())
        self.topic.add_subscriber(name, {0: offset})
        return file

    def stored(self, start: int | None = None) -> list[Stored]:
        reader = self.reader()
        return read_all(reader, reader.earliest() if start is None else start)


def filled(
    store: PersistentBackingStore | None = None, tier: PersistentBackingStore | None = None
) -> SmallLog:
    """Two sealed segments, of three and two entries, and an open one of two; one subscriber."""
    log = SmallLog(store, tier)
    log.append((b"a", b"0"), (b"b", b"1"))
    log.append((b"a", b"2"))
    log.append((None, b"3"), (None, b"4"), (None, b"5"))
    log.roll()
    log.append((b"c", b"6"))
    log.append((b"c", b"7"), (b"a", b"8"))
    log.roll()
    log.append((None, b"9"))
    log.append((None, b"10"), (None, b"11"))
    file = log.subscribe("billing")
    for offset in (2, 4, 6):
        file.commit(offset, 0)
    log.log.close()
    return log


def read_all(reader: PartitionReader, start: int = 0) -> list[Stored]:
    """Every record that a subscriber would get."""
    cursor = reader.cursor(start)
    found: list[Stored] = []
    while records := fetch(cursor, 512):
        found += [(record.offset, record.key, record.value) for record in records]
    return found


def crash_states(
    disk: SimulatedDisk, limit: int = 12, seed: int = 0
) -> tuple[list[SimulatedDisk], Random]:
    """From now on, the states that a power cut at any sync could leave are collected here."""
    found: list[SimulatedDisk] = []
    random = Random(seed)

    def note(_: SyncPoint) -> None:
        found.extend(disk.crash_states(limit, random))

    disk.on_sync(note)
    return found, random


def on_disk(disk: SimulatedDisk, path: str = "/data/log") -> DirectoryStore:
    """The store on a simulated disk."""
    return DirectoryStore(path, system=simulated_system(disk=disk))


def file_names(store: PersistentBackingStore, ending: str = ".log") -> list[str]:
    return [key.rpartition("/")[2] for key in store.list(f"{KEYS.folder}/") if key.endswith(ending)]


def log_key(base: int, rewrite: int = 0) -> str:
    return KEYS.log(SegmentName(base, rewrite))


def flips(data: bytes, step: int = 1) -> Iterator[tuple[int, bytes]]:
    """Every byte of the data with one of its bits turned over."""
    for position in range(0, len(data), step):
        changed = bytearray(data)
        changed[position] ^= 1 << position % 8
        yield position, bytes(changed)


def keep_for_ever() -> Retention:
    return Retention(age_ms_max=None, bytes_max=None)


def values(rows: Sequence[Stored]) -> list[bytes | None]:
    return [value for _, _, value in rows]


def compact(log: SmallLog, **options: Any) -> CompactionReport:
    age = options.pop("tombstone_age_ms", None)
    return Compactor(log.store, KEYS, log.tier, **options).run(log.clock.time_ms(), age)
