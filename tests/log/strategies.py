"""What the tests of the log share: generated records, and small logs on a simulated disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hypothesis import strategies as st

from penstock.log.codec import Codec
from penstock.log.columns import Columns
from penstock.log.frame import Draft, draft
from penstock.log.names import PartitionKeys
from penstock.log.partition import PartitionLog
from penstock.log.reader import PartitionReader
from penstock.log.records import NO_HEADERS, Record
from penstock.stores.directory import DirectoryStore
from penstock.testing.disk import SimulatedDisk
from penstock.testing.worker import SimulatedSystem, simulated_system

ROOT = "/data/log"
KEYS = PartitionKeys("orders", 0)
FOLDER = f"{ROOT}/{KEYS.folder}"

SMALL_BYTES = st.binary(max_size=40)
BYTES = st.one_of(SMALL_BYTES, st.binary(max_size=3_000))
TIMES = st.integers(-(1 << 63), (1 << 63) - 1)
HEADERS = st.dictionaries(st.text(max_size=8), SMALL_BYTES, max_size=4)


@st.composite
def columns(draw: st.DrawFn, records_min: int = 0, records_max: int = 20) -> Columns:
    """A batch with any mix of columns, nulls, and unicode header names."""
    count = draw(st.integers(records_min, records_max))

    def column(item: st.SearchStrategy) -> st.SearchStrategy:
        return st.lists(item, min_size=count, max_size=count)

    return Columns(
        draw(column(st.none() | BYTES)),
        draw(st.none() | column(st.none() | SMALL_BYTES)),
        draw(st.none() | column(TIMES)),
        draw(st.none() | column(st.none() | HEADERS)),
        None,
    )


def draft_of(batch: Columns, codec: Codec = Codec.NONE) -> Draft:
    """The batch as an entry to be sealed."""
    flags, body = batch.encode()
    return draft(flags, body, len(batch), codec=codec)


def values_draft(*values: bytes | None) -> Draft:
    """An entry of these values."""
    return draft_of(Columns(list(values)))


def records_of(
    batch: Columns, base_offset: int, timestamp: int, keys: PartitionKeys = KEYS
) -> list[Record]:
    """What a reader must get for the batch."""
    count = len(batch)
    rows = zip(
        range(base_offset, base_offset + count),
        batch.timestamps if batch.timestamps is not None else [timestamp] * count,
        batch.keys if batch.keys is not None else [None] * count,
        batch.values,
        batch.headers if batch.headers is not None else [None] * count,
        strict=True,
    )
    return [
        Record(keys.topic, keys.partition, offset, time, key, value, headers or NO_HEADERS)
        for offset, time, key, value, headers in rows
    ]


def read_records(reader: PartitionReader, start: int = 0, bytes_max: int = 1 << 20) -> list[Record]:
    """All durable records from an offset on."""
    cursor = reader.cursor(start)
    found: list[Record] = []
    while entries := cursor.fetch(bytes_max):
        for entry in entries:
            found += entry.view().records(reader.keys.topic, reader.keys.partition)
    return [record for record in found if record.offset >= start]


@dataclass
class Machine:
    """A simulated machine with one log, and the process that has it open."""

    disk: SimulatedDisk
    system: SimulatedSystem
    store: DirectoryStore
    log: PartitionLog

    @property
    def reader(self) -> PartitionReader:
        """A new reader."""
        return PartitionReader(self.store, self.log.keys)

    def append(self, *values: bytes | None, sync: bool = True) -> int:
        """Append one entry; its first offset."""
        return self.log.append([values_draft(*values)], sync=sync).base_offsets[0]

    def values(self, start: int = 0) -> list[bytes | None]:
        """The durable values."""
        return [record.value for record in read_records(self.reader, start)]


def machine(
    disk: SimulatedDisk | None = None,
    *,
    keys: PartitionKeys = KEYS,
    segment_bytes_max: int = 1 << 20,
    seed: int = 7,
) -> Machine:
    """A process that has the partition open on the disk; not attached yet."""
    disk = disk or SimulatedDisk()
    system = simulated_system(seed, disk=disk)
    store = DirectoryStore(ROOT, system=system)
    log = PartitionLog(store, keys, system=system, segment_bytes_max=segment_bytes_max)
    return Machine(disk, system, store, log)


def copy_of(
    disk: SimulatedDisk, changes: Mapping[str, bytes | None] | None = None
) -> SimulatedDisk:
    """A durable copy of the files, some of them changed or (None) left out."""
    twin = SimulatedDisk()
    contents: dict[str, bytes | None] = {path: disk.content(path) for path in disk.files()}
    for path, content in {**contents, **(changes or {})}.items():
        if content is not None:
            twin._contents.put_directories(path.rpartition("/")[0])
            twin.put(path, content)
    return twin


def segment_paths(disk: SimulatedDisk, folder: str = FOLDER) -> list[str]:
    """The segments, by first offset."""
    return [path for path in disk.files() if path.startswith(folder) and path.endswith(".log")]


def flip(content: bytes, bit: int) -> bytes:
    """The content with one bit turned over."""
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
