"""The golden files of format version 1: how they were made, and what must be read from them.

They change only when the format changes, which is a decision: then a new version gets a folder of
its own and the old ones stay. To write them anew, for a version that was never released:

    .venv/bin/python tests/golden/generate.py
"""

from __future__ import annotations

from pathlib import Path

from penstock.log.codec import Codec
from penstock.log.columns import Columns
from penstock.log.epoch_change import change_partitions
from penstock.log.frame import Draft, draft
from penstock.log.index import Index, IndexRow
from penstock.log.names import PartitionKeys
from penstock.log.offsets import OffsetFile
from penstock.log.partition import PartitionLog
from penstock.log.topic import TopicConfig, TopicFile
from penstock.stores.directory import DirectoryStore
from penstock.testing.disk import SimulatedDisk
from penstock.testing.worker import SimulatedSystem, simulated_system

FOLDER = Path(__file__).parent / "v1"
ROOT = "/data/log"
KEYS = PartitionKeys("orders", 3)
INDEX = [IndexRow(0, 1_000, 0), IndexRow(7, 1_000, 65_600), IndexRow(1 << 40, 1 << 50, 1 << 44)]

BATCHES = [
    Columns([b"a value", b"", None]),
    Columns([b"one", b"two"], [b"key", None]),
    Columns([b"timed", b"back in time"], None, [1_700_000_000_000, -1]),
    Columns([b"traced"], None, None, [{"trace": b"\x00\x01", "größe": b"", "": b"no name"}]),
    Columns(
        [b"all of it", None, b"x" * 40],
        [b"", b"k\x00y", None],
        [0, 1, 2],
        [None, {"a": b"b"}, {"c": b"d", "e": b"f"}],
    ),
    Columns([b"sparse", b"offsets"], deltas=[0, 1]),
]
EPOCH_KEYS = {2: [b"g", b"f"], 3: [b"g", b"a", b"f"]}
"""Partition count → a key of each partition."""
CODEC_BATCHES = {
    codec: Columns([b"compressed with %s " % codec.name.encode() * 9] * 4, [b"k"] * 4)
    for codec in Codec
}


def _draft(batch: Columns, codec: Codec = Codec.NONE) -> Draft:
    flags, body = batch.encode()
    return draft(flags, body, len(batch), codec=codec)


def _files(disk: SimulatedDisk) -> dict[str, bytes]:
    return {path.removeprefix(f"{ROOT}/"): disk.content(path) for path in disk.files()}


def _log(system: SimulatedSystem, segment_bytes_max: int) -> PartitionLog:
    store = DirectoryStore(ROOT, system=system)
    return PartitionLog(store, KEYS, system=system, segment_bytes_max=segment_bytes_max)


def columns_log() -> dict[str, bytes]:
    """Every kind of column, in three segments, with a topic and a subscriber."""
    system = simulated_system(2_026)
    store = DirectoryStore(ROOT, system=system)
    topic = TopicFile(store, KEYS.topic)
    topic.create(TopicConfig(partitions=4), system.clock.time_ms())
    topic.add_subscriber("billing", {3: 0})
    log = _log(system, 400)
    for number, batch in enumerate(BATCHES):
        system.clock.advance(0.5)
        log.append([_draft(batch)], sync=number != 1)
    log.close()
    offsets = OffsetFile(store, "billing", KEYS.topic, KEYS.partition)
    for offset in (3, 7, 9):
        offsets.commit(offset, system.clock.time_ms())
    return _files(system.files)


def codecs_log() -> dict[str, bytes]:
    """An entry of each codec. The bytes depend on the libraries; what they hold does not."""
    system = simulated_system(2_027)
    log = _log(system, 1 << 20)
    for codec, batch in CODEC_BATCHES.items():
        system.clock.advance(0.5)
        log.append([_draft(batch, codec)], sync=True)
    log.close()
    return _files(system.files)


def epochs_log() -> dict[str, bytes]:
    """A topic of two partitions that gets a third one: heads with an epoch, sealed segments."""
    system = simulated_system(2_028)
    store = DirectoryStore(ROOT, system=system)
    topic = TopicFile(store, KEYS.topic)
    topic.create(TopicConfig(partitions=2), system.clock.time_ms())
    keys = [PartitionKeys(KEYS.topic, number) for number in range(3)]
    logs = [PartitionLog(store, one, system=system) for one in keys]
    for epoch, count in enumerate((2, 3)):
        if epoch:
            change_partitions(topic, count, logs.__getitem__, lambda _: 0, system.clock.time_ms())
        for number in range(count):
            system.clock.advance(0.5)
            columns = Columns([b"%d in %d" % (number, epoch)], [EPOCH_KEYS[count][number]])
            logs[number].append([_draft(columns)], sync=True, epoch=epoch)
    for log in logs:
        log.close()
    return _files(system.files)


def golden() -> dict[str, bytes]:
    """Every golden file by its path below the version's folder."""
    files = {f"columns/{path}": content for path, content in columns_log().items()}
    files |= {f"codecs/{path}": content for path, content in codecs_log().items()}
    files |= {f"epochs/{path}": content for path, content in epochs_log().items()}
    files["rows.index"] = Index(INDEX).pack()
    files["plain.log"] = b"".join(
        len(payload).to_bytes(4, "little") + payload + time.to_bytes(8, "little", signed=True)
        for payload, time in PLAIN
    )
    return files


PLAIN = [(b"hello", 1_767_225_600_000), (b"", 1_767_225_600_001), (bytes(range(200)), -1)]


def main() -> None:
    """Write the files."""
    for path, content in golden().items():
        target = FOLDER / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        print(f"{len(content):6} {path}")


if __name__ == "__main__":
    main()
