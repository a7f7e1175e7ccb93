"""The ledger of a log from which upkeep removes records: which may be gone, and which may not."""

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from penstock.log.queue import WalMessageQueue
from penstock.log.topic import TopicConfig
from tests.crash.ledger import Ledger, Range
from tests.crash.rigs import Child

Numbers = tuple[int, int]
"""The writer and the sequence number of a record."""
Key = bytes
TOMBSTONE_HOURS = 25
"""A tombstone may go after 24 hours: a writer whose clock is so far ahead may remove it."""


@dataclass
class View:
    """A partition as a reader finds it."""

    earliest: int
    end: int
    present: dict[int, Numbers]


@dataclass
class UpkeepLedger(Ledger):
    """Holds the log to what its settings say.

    A record below the earliest offset was consumed by all subscribers, or its topic asks for no
    such thing. In a compacted topic a record may also be gone when a newer one of its key is
    there, or when the newest one is a tombstone that is old and was consumed by all. What is
    gone stays gone, and everything else is at its offset, once and in order.

    It must look at the log after each death: a record that nobody was told of is known from then.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.known: list[dict[int, Numbers]] = [{} for _ in range(self.partitions)]
        """Every record that was acknowledged or found, by its offset."""
        self.gone: list[set[int]] = [set() for _ in range(self.partitions)]
        self.views: list[View] = []
        self.names: set[str] = set()
        self.hours = 0
        """How far the clock of the newest writer was ahead."""
        self._places: dict[Numbers, tuple[int, int]] = {}
        self._born: dict[int, int] = defaultdict(int)
        self.retains = bool(self.config.get("retention", {}).get("acknowledged"))
        self.compacts = bool(self.config.get("compact_keys"))

    def take(self, child: Child) -> None:
        super().take(child)
        spec = child.spec
        self._born[spec.writer] = spec.hours
        self.hours = max(self.hours, spec.hours)
        self.names |= {name for name in (spec.subscriber, spec.lagging) if name}

    async def check(
        self, queue: WalMessageQueue, *, again: bool = False, exact: bool = True
    ) -> None:
        """Compare the whole log with what was promised; nothing may be lost."""
        await queue.create_topic(self.topic, msgspec.convert(self.config, TopicConfig))
        for report in await queue.recovery(self.topic):
            self.score.bytes_cut += report.bytes_cut
        await self._look(queue)

    async def _look(self, queue: WalMessageQueue) -> None:
        infos = await queue.retention(self.topic)
        earliest = [info.earliest_offset for info in infos]
        self.views = [await self._read(queue, *one) for one in enumerate(earliest)]
        self._settle_promises_kept()
        for partition, view in enumerate(self.views):
            self._check_end(partition, view)
            self._check_removed(partition, view)
            if self.compacts:
                self._check_newest(partition, view)
        self._check_ranges_kept()
        for partition, view in enumerate(self.views):
            self.earliest[partition] = view.earliest
            self.gone[partition].update(set(range(view.earliest, view.end)) - view.present.keys())

    async def _read(self, queue: WalMessageQueue, partition: int, earliest: int) -> View:
        """What is there: each record where it always was, once, in order, and none that was gone."""
        view = View(earliest, queue.durable_offset(self.topic, partition), {})
        known, gone = self.known[partition], self.gone[partition]
        newest: dict[int, int] = {}
        before, time = -1, 0
        async for record in queue.replay(self.topic, start=earliest, partition=partition):
            writer, sequence = numbers = self._check_content(record, partition)
            assert record.offset > before, "a record twice, or out of order"
            assert record.offset not in gone, f"{numbers} has come back"
            self._place(numbers, partition, record.offset)
            assert sequence > newest.get(writer, -1), f"{numbers} is out of order"
            assert record.timestamp >= time, "time goes back"
            before, newest[writer], time = record.offset, sequence, record.timestamp
            view.present[record.offset] = known[record.offset]
        return view

    def _place(self, numbers: Numbers, partition: int, offset: int) -> None:
        known = self.known[partition].setdefault(offset, numbers)
        assert known == numbers, f"offset {offset} was {known} and is {numbers} now"
        place = self._places.setdefault(numbers, (partition, offset))
        assert place == (partition, offset), f"{numbers} is at {place} and at {partition, offset}"
        self._seen.add(numbers)

    def _settle_promises_kept(self) -> None:
        for partition, promises in enumerate(self.promises):
            for offset, promise in promises.items():
                self._place((promise.writer, promise.sequence), partition, offset)
            promises.clear()

    def _check_end(self, partition: int, view: View) -> None:
        assert view.end >= self.durable[partition], "less is there than was durable"
        assert view.end > max(self.known[partition], default=-1), "the log has become shorter"
        assert view.earliest >= self.earliest[partition], "removed segments have come back"
        assert self.retains or view.earliest == 0, "records went, and nothing asked for it"
        assert view.earliest <= self._consumed(partition), "what a subscriber needs is gone"

    def _consumed(self, partition: int) -> int:
        """All subscribers have consumed everything below, at most."""
        reached = [
            max(self.committed[name, partition], *self.committing[name, partition], 0)
            for name in self.names
        ]
        return min(reached, default=self.views[partition].end)

    def _key(self, numbers: Numbers) -> Key | None:
        return self.parts_of(*numbers).key

    def _check_removed(self, partition: int, view: View) -> None:
        missing = [
            (offset, numbers)
            for offset, numbers in self.known[partition].items()
            if offset >= view.earliest and offset not in view.present
        ]
        assert self.compacts or not missing, f"lost: {missing[:5]}"
        loose = [one for one in missing if self._key(one[1]) is None]
        assert not loose, f"lost, though without a key: {loose[:5]}"

    def _newest_of(self, partition: int) -> dict[Key, int]:
        """The newest offset of each key."""
        return {
            key: offset
            for offset, numbers in sorted(self.known[partition].items())
            if (key := self._key(numbers)) is not None
        }

    def _check_newest(self, partition: int, view: View) -> None:
        """The newest record of each key is there, or was a tombstone that has hidden all others."""
        vanished = {
            key: offset
            for key, offset in self._newest_of(partition).items()
            if offset >= view.earliest and offset not in view.present
        }
        consumed = self._consumed(partition)
        for key, offset in vanished.items():
            numbers = self.known[partition][offset]
            assert self.parts_of(*numbers).value is None, f"lost: {key!r}, {numbers} at {offset}"
            assert self._born[numbers[0]] < self.hours, f"{numbers}: a young tombstone is gone"
            assert offset < consumed, f"{numbers}: a tombstone is gone that was not consumed"
        for numbers in view.present.values():
            assert self._key(numbers) not in vanished, f"{numbers} outlives its tombstone"

    def _check_ranges_kept(self) -> None:
        newest = [self._newest_of(partition) for partition in range(self.partitions)]
        for one in self.ranges:
            for sequence in one.numbers:
                numbers = one.frame.writer, sequence
                self._seen.add(numbers)
                place = self._places.get(numbers)
                if place is not None:
                    partition, offset = place
                    assert any(
                        part == partition and first <= offset < end
                        for part, first, end in one.places
                    ), f"{numbers} is at {place}, not in {one}"
                elif not any(self.views[part].earliest > first for part, first, _ in one.places):
                    self._check_superseded(numbers, one, newest)
        self.ranges.clear()

    def _check_superseded(
        self, numbers: Numbers, one: Range, newest: Sequence[dict[Key, int]]
    ) -> None:
        """A record that was compacted before anybody looked has a newer one of its key."""
        key = self._key(numbers)
        assert self.compacts, f"lost: {numbers} of {one}"
        assert key is not None, f"lost, though without a key: {numbers} of {one}"
        for partition, first, _ in one.places:
            offset = newest[partition].get(key, -1)
            if offset >= first:
                writer, sequence = self.known[partition][offset]
                assert (writer, sequence) > numbers or writer != numbers[0], f"lost: {numbers}"
                return
        raise AssertionError(f"lost: {numbers}, the newest of {key!r}, of {one}")

    async def check_subscriber(self, queue: WalMessageQueue, name: str) -> None:
        """It stands where it was, and gets everything from there on that is there."""
        async with queue.subscribe(self.topic, name) as subscription:
            assert self.tears or not subscription.damaged_offsets
            positions = subscription.positions()
            for partition, position in positions.items():
                self._check_position(name, partition, position)
            got: list[list[tuple[int, Numbers]]] = [[] for _ in range(self.partitions)]
            batches = subscription.batches(500)
            while subscription.lag():
                batch = await anext(batches)
                for record in batch:
                    numbers = self._check_content(record, batch.partition)
                    got[batch.partition].append((record.offset, numbers))
            for partition, position in positions.items():
                present = self.views[partition].present.items()
                needed = itertools.dropwhile(lambda one: one[0] < position, present)  # noqa: B023
                assert got[partition] == list(needed), f"{name} misses records of {partition}"

    async def _go_on(self, queue: WalMessageQueue) -> None:
        acknowledged = await self._publish_one(queue)
        partition = acknowledged.partition
        assert acknowledged.offset == self.views[partition].end
        self._place((0, self.tried[0] - 1), partition, acknowledged.offset)
        await self._look(queue)
