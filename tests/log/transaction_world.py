"""A small log on a simulated disk, one transaction on it, and what it may look like afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from penstock.log.columns import Columns
from penstock.log.names import PartitionKeys
from penstock.log.offsets import OffsetFile
from penstock.log.partition import PartitionLog
from penstock.log.reader import PartitionReader
from penstock.log.topic import TopicConfig, TopicFile
from penstock.log.transaction_commit import GroupOffsets, Outcome
from penstock.log.transaction_staging import Drafted, drafted
from penstock.log.transactions import Transactions
from penstock.stores.base import PersistentBackingStore
from penstock.stores.directory import DirectoryStore
from penstock.testing.disk import SimulatedDisk
from penstock.testing.worker import simulated_system

ROOT = "/data/log"
NAME = "billing"
GROUP = "invoicing"
PARTITIONS = {"invoices": 2, "journal": 1}
SOURCE = ("orders", 0)

Values = dict[str, list[bytes]]
"""Topic → values, sorted."""


@dataclass
class State:
    """What readers see."""

    values: Values = field(default_factory=lambda: {topic: [] for topic in PARTITIONS})
    offset: int | None = None

    def after(self, number: int) -> State:
        """With the transaction of this number."""
        more = records_of(number)
        values = {topic: sorted([*self.values[topic], *more[topic]]) for topic in PARTITIONS}
        return State(values, number + 1)


def records_of(number: int, each: int = 5) -> Values:
    """What transaction ``number`` publishes."""
    return {
        topic: [b"%s %d.%d" % (topic.encode(), number, one) for one in range(each)]
        for topic in PARTITIONS
    }


def columns_of(values: list[bytes]) -> Columns:
    return Columns(values, [b"key-" + value[-1:] for value in values])


def make_topics(store: PersistentBackingStore, **config) -> None:
    for topic, count in PARTITIONS.items():
        TopicFile(store, topic).create(TopicConfig(partitions=count, **config).check(), 0)


def drafts_of(store: PersistentBackingStore, number: int) -> list[Drafted]:
    found: list[Drafted] = []
    for topic, values in records_of(number).items():
        found += drafted(TopicFile(store, topic).read(), columns_of(values))
    return found


def read_state(store: PersistentBackingStore) -> State:
    """All durable records and the committed offset."""
    values: Values = {}
    for topic, count in PARTITIONS.items():
        values[topic] = sorted(
            value for number in range(count) for value in read_values(store, topic, number)
        )
    committed = OffsetFile(store, GROUP, *SOURCE).read()
    return State(values, None if committed is None else committed.offset)


def read_values(store: PersistentBackingStore, topic: str, number: int) -> list[bytes]:
    cursor = PartitionReader(store, PartitionKeys(topic, number)).cursor(0)
    values: list[bytes] = []
    while entries := cursor.fetch():
        for entry in entries:
            values += [one.value or b"" for one in entry.view().records(topic, number)]
    return values


class Process:
    """One process on the disk."""

    def __init__(self, disk: SimulatedDisk, seed: int = 0) -> None:
        self.system = simulated_system(seed, disk=disk)
        self.store = DirectoryStore(ROOT, system=self.system)
        self.transactions = Transactions(self.store, system=self.system, lock_timeout=0)

    def commit(self, lease, number: int, *, staged: bool = False) -> Outcome:
        """The transaction of this number: records for three partitions, and an offset."""
        moved = GroupOffsets(GROUP, {SOURCE: number + 1})
        if staged:
            columns = {topic: columns_of(values) for topic, values in records_of(number).items()}
            waiting = [self.transactions.stage(NAME, columns)]
            return self.transactions.commit(lease, number=number, staged=waiting, offsets=[moved])
        records = drafts_of(self.store, number)
        return self.transactions.commit(lease, number=number, records=records, offsets=[moved])


def attach_all(process: Process) -> None:
    """As opening the topics does: tails are checked, sound bytes behind a head are taken in."""
    for topic, count in PARTITIONS.items():
        for number in range(count):
            keys = PartitionKeys(topic, number)
            PartitionLog(process.store, keys, system=process.system).attach()


def prepared(**config) -> SimulatedDisk:
    """A disk with the topics, and transaction 0 done."""
    disk = SimulatedDisk()
    process = Process(disk)
    make_topics(process.store, **config)
    process.commit(process.transactions.open(NAME), 0)
    return disk


def reopened(disk: SimulatedDisk, random: Random) -> tuple[Process, State]:
    """What is there once somebody has opened the producer and the log, in either order."""
    process = Process(disk, random.getrandbits(32))
    if random.random() < 0.5:
        attach_all(process)
    process.transactions.open(NAME)
    attach_all(process)
    return process, read_state(process.store)
