"""Processes that publish to one topic and repartition it, on a simulated disk; blocking."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

from penstock.log.epoch_replay import stretches
from penstock.log.head import HeadFile
from penstock.log.names import PartitionKeys
from penstock.log.open_topic import OpenTopic, Surroundings
from penstock.log.places import fetch
from penstock.log.records import Record
from penstock.log.topic import TopicConfig, TopicFile, TopicState
from penstock.log.verify import verify
from penstock.stores.directory import DirectoryStore
from penstock.testing.clock import VirtualClock
from penstock.testing.disk import SimulatedDisk
from penstock.testing.worker import InlineWorker, simulated_system

ROOT = "/data/log"
TOPIC = "orders"
KEYS = [b"a", b"b", b"c", b"d", b"e"]


class Publisher:
    """A process that has the topic open."""

    def __init__(self, disk: SimulatedDisk, config: TopicConfig | None = None) -> None:
        self.clock = VirtualClock()
        system = simulated_system(1, disk=disk, clock=self.clock)
        self.store = DirectoryStore(ROOT, system=system)
        around = Surroundings(
            store=self.store,
            tier=None,
            offsets=self.store,
            system=system,
            worker=InlineWorker("commit", clock=self.clock),
            loop=cast("asyncio.AbstractEventLoop", None),
            tail_cache_bytes=0,
            read_only=False,
        )
        file = TopicFile(self.store, TOPIC)
        self.state: TopicState = file.create(config, 1) if config else file.read()
        self.topic = OpenTopic(self.state, around, lambda topic, done, rows: None)

    def publish(self, value: int) -> None:
        """One record of the key that the number belongs to; raises when it is not written."""
        key = KEYS[value % len(KEYS)]
        receipt = self.topic.writer.add_nowait(b"%d" % value, key)
        cast("Any", self.topic.around.worker).run()
        assert receipt.done
        receipt.raise_errors()

    def repartition(self, partitions: int) -> None:
        self.topic.repartition(partitions)

    def replay(self) -> list[Record]:
        """All records, as a subscriber gets them that starts at the first."""
        self.topic.refresh()
        if self.topic.behind:
            self.topic.catch_up()
        ranges = {
            number: (0, self.topic.reader(number).head().durable_offset)
            for number in range(len(self.topic.logs))
        }
        return [record for one in stretches(self.topic, ranges) for record in self._read(*one)]

    def _read(self, number: int, first: int, stop: int) -> Iterator[Record]:
        cursor = self.topic.reader(number).cursor(first)
        while cursor.offset < stop and (records := fetch(cursor)):
            yield from (record for record in records if record.offset < stop)

    def heads(self) -> list[int]:
        """The epoch of each partition's head."""
        count = self.topic.state.partitions_all
        files = [HeadFile(self.store, PartitionKeys(TOPIC, one).head) for one in range(count)]
        return [head.epoch for file in files if (head := file.read()) is not None]


def check_order(records: list[Record]) -> list[int]:
    """The numbers that were published, each once, those of a key in order; returns them sorted."""
    last: dict[bytes | None, int] = {}
    for record in records:
        value = int(record.value or b"")
        assert last.get(record.key, -1) < value, f"{value} of {record.key!r} after {last}"
        last[record.key] = value
    return sorted(int(record.value or b"") for record in records)


def check_disk(
    disk: SimulatedDisk, durable: int, counts: tuple[int, int], written: int | None = None
) -> None:
    """What a process finds that opens the log now: one truth, and a log that goes on."""
    process = Publisher(disk)
    assert process.topic.state.partitions in counts
    found = check_order(process.replay())
    assert found[:durable] == list(range(durable))
    assert len(found) <= (durable if written is None else written)
    for value in range(1_000, 1_000 + 2 * len(KEYS)):
        process.publish(value)
    process.topic.writer.sync()
    assert check_order(process.replay())[len(found) :] == list(range(1_000, 1_010))
    assert set(process.heads()) == {process.topic.state.epoch}
    process.topic.close()
    problems = [one for one in verify(process.store, TOPIC).problems if not one.harmless]
    assert problems == []
