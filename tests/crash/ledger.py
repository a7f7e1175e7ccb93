"""What was promised, and whether it is there: the ledger of the crash tests."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from penstock.log.queue import WalMessageQueue
from penstock.log.receipts import Acknowledgement
from penstock.log.records import Record
from penstock.log.topic import TopicConfig
from tests.crash import writer as program
from tests.crash.rigs import Child, Frame
from tests.crash.said import Kind


@dataclass
class Score:
    """Counts for the line that a run prints."""

    crashes: int = 0
    acknowledged: int = 0
    lost: int = 0
    recovered: int = 0
    """Records that were found though nobody was told about them; they are real ones."""
    commits: int = 0
    bytes_cut: int = 0

    def __str__(self) -> str:
        return (
            f"{self.crashes} crashes, {self.acknowledged} acknowledged, {self.lost} lost, "
            f"{self.recovered} found unacknowledged, {self.commits} commits, "
            f"{self.bytes_cut} bytes cut"
        )


@dataclass
class Promise:
    """An acknowledged record."""

    writer: int
    sequence: int
    durable: bool
    time: float


GONE = (-1, -1)
"""A record that retention has removed before it was looked at."""


@dataclass
class Range:
    """Records that were acknowledged together, and the parts of the partitions they are in."""

    frame: Frame
    numbers: range
    places: list[tuple[int, int, int]]


@dataclass
class Ledger:
    """Everything that the writers of one topic were promised, and what was found of it."""

    path: Path
    topic: str
    config: dict[str, Any]
    record_bytes: int = 0
    score: Score = field(default_factory=Score)
    tears: bool = False
    """Writes may be torn, so that a slot of an offset file may be damaged; the other one counts."""
    varied: bool = False
    """The writers publish varied keys and tombstones."""
    tier: str = ""

    def __post_init__(self) -> None:
        self.partitions: int = self.config.get("partitions", 1)
        self.tried: dict[int, int] = defaultdict(int)
        self.promises: list[dict[int, Promise]] = [{} for _ in range(self.partitions)]
        self.ranges: list[Range] = []
        self.found: list[list[tuple[int, int]]] = [[] for _ in range(self.partitions)]
        self.durable = [0] * self.partitions
        self.earliest = [0] * self.partitions
        self.committing: dict[tuple[str, int], set[int]] = defaultdict(set)
        self.committed: dict[tuple[str, int], int] = defaultdict(int)
        self._seen: set[tuple[int, int]] = set()
        self._newest: list[dict[int, int]] = [{} for _ in range(self.partitions)]
        self._times = [0] * self.partitions
        self.lost: list[Promise] = []
        self._said = self._unsaid = 0

    def take(self, child: Child) -> None:
        """Write down what a writer said."""
        frames = iter(child.frames)
        names = child.spec.subscriber, child.spec.lagging
        for frame in frames:
            match frame.kind:
                case Kind.TRYING:
                    self.tried[frame.writer] = frame.a
                case Kind.ACKNOWLEDGED:
                    self._promise(frame)
                case Kind.MANY:
                    self.ranges.append(Range(frame, range(frame.a, frame.b), []))
                    self._count(frame.b - frame.a)
                case Kind.RANGE:
                    self.ranges[-1].places.append((frame.partition, frame.a, frame.b))
                case Kind.DURABLE:
                    self.durable[frame.partition] = max(self.durable[frame.partition], frame.a)
                case Kind.COMMITTING:
                    self.committing[names[frame.b], frame.partition].add(frame.a)
                case Kind.COMMITTED:
                    self.committed[names[frame.b], frame.partition] = frame.a
                    self.score.commits += 1
        self.tried[child.spec.writer] = max(self.tried[child.spec.writer], 0)

    def _promise(self, frame: Frame) -> None:
        promises = self.promises[frame.partition]
        assert frame.a not in promises, f"offset {frame.a} was given twice"
        promises[frame.a] = Promise(frame.writer, frame.b, bool(frame.c), frame.time)
        self._count(1)

    def _count(self, acknowledged: int) -> None:
        self._said += acknowledged
        self.score.acknowledged += acknowledged

    # After a crash

    async def check(
        self, queue: WalMessageQueue, *, again: bool = False, exact: bool = True
    ) -> None:
        """Compare the log with what was promised; ``again`` also reads what was read before.

        With ``exact`` every promise must be kept. Without it (a power cut with a policy that does
        not sync each record) only those that were said to be durable; the others are counted.
        """
        # The topic is made here when the first writer died before it could.
        await queue.create_topic(self.topic, msgspec.convert(self.config, TopicConfig))
        for report in await queue.recovery(self.topic):
            self.score.bytes_cut += report.bytes_cut
        for partition in range(self.partitions):
            await self._check_partition(queue, partition, again=again, exact=exact)
        self._check_ranges(exact=exact)

    async def _check_partition(
        self, queue: WalMessageQueue, partition: int, *, again: bool, exact: bool
    ) -> None:
        found = self.found[partition]
        earliest = await self._skip_what_retention_took(queue, partition)
        start = earliest if again else max(earliest, len(found))
        expected = start
        async for record in queue.replay(self.topic, start=start, partition=partition):
            assert record.offset == expected, "a gap, or a record twice"
            self._check_record(record, partition)
            expected += 1
        assert expected >= len(found), f"partition {partition} has become shorter"
        assert expected >= self.durable[partition], "less is there than was durable"
        self._settle_promises(partition, exact=exact)

    async def _skip_what_retention_took(self, queue: WalMessageQueue, partition: int) -> int:
        """The first offset that is there; what no subscriber needs may have gone."""
        earliest = (await queue.retention(self.topic))[partition].earliest_offset
        if earliest == 0:
            return 0
        assert "retention" in self.config, "records went, and nothing asked for it"
        found, promises = self.found[partition], self.promises[partition]
        for offset in range(len(found), earliest):
            kept = promises.pop(offset, None)
            found.append((kept.writer, kept.sequence) if kept else GONE)
        for offset in [offset for offset in promises if offset < earliest]:
            del promises[offset]
        self.earliest[partition] = earliest
        return earliest

    def parts_of(self, writer: int, sequence: int) -> program.Parts:
        return program.parts_of(writer, sequence, self.record_bytes, varied=self.varied)

    def _check_content(self, record: Record, partition: int) -> tuple[int, int]:
        """The numbers of a record that is in all its parts the one that was published."""
        assert record.partition == partition
        writer, sequence = numbers = program.numbers_in(record)
        read = program.Parts(record.value, record.key, dict(record.headers))
        assert read == self.parts_of(*numbers), record
        assert sequence < self.tried[writer], f"{numbers} was never published"
        return numbers

    def _check_record(self, record: Record, partition: int) -> None:
        writer, sequence = numbers = self._check_content(record, partition)
        found = self.found[partition]
        if record.offset < len(found):
            assert found[record.offset] == numbers, "a record has changed its place"
            return
        assert numbers not in self._seen, f"{numbers} is there twice"
        assert sequence > self._newest[partition].get(writer, -1), f"{numbers} is out of order"
        assert record.timestamp >= self._times[partition], "time goes back"
        self._seen.add(numbers)
        self._newest[partition][writer] = sequence
        self._times[partition] = record.timestamp
        found.append(numbers)

    def _settle_promises(self, partition: int, *, exact: bool) -> None:
        found = self.found[partition]
        promises = self.promises[partition]
        for offset in list(promises):
            promise = promises.pop(offset)
            if offset < len(found) and found[offset] == (promise.writer, promise.sequence):
                continue
            assert not exact, f"lost: {promise} at {partition}/{offset} of {len(found)}"
            assert not promise.durable, f"lost though durable: {promise} at {partition}/{offset}"
            assert offset >= self.durable[partition], f"lost: {offset} below the durable offset"
            self.lost.append(promise)
            self.score.lost += 1

    def _check_ranges(self, *, exact: bool) -> None:
        for one in self.ranges:
            frame = one.frame
            there = {
                numbers
                for part, first, end in one.places
                for numbers in self.found[part][first:end]
            }
            missing = [number for number in one.numbers if (frame.writer, number) not in there]
            if GONE in there:
                missing = []
            assert not (missing and exact), f"lost: {missing[:5]} of {one}"
            assert not (missing and frame.c), f"lost though durable: {missing[:5]} of {one}"
            self.score.lost += len(missing)
            self.lost += [Promise(frame.writer, number, False, frame.time) for number in missing]
        self.ranges.clear()

    async def check_subscriber(self, queue: WalMessageQueue, name: str) -> None:
        """The subscriber stands between what it has committed and what it was committing."""
        async with queue.subscribe(self.topic, name) as subscription:
            assert self.tears or not subscription.damaged_offsets
            for partition, position in subscription.positions().items():
                self._check_position(name, partition, position)
            if subscription.lag():
                async for batch in subscription.batches(10):
                    first = batch.records[0].offset
                    assert first == self.committed[name, batch.partition]
                    break

    def _check_position(self, name: str, partition: int, position: int) -> None:
        tried = self.committing[name, partition]
        done = self.committed.get((name, partition))
        if done is None:
            # It may have begun when retention had removed the first records.
            done = 0 if tried else self.earliest[partition]
        allowed = {done, *(offset for offset in tried if offset > done)}
        assert position in allowed, f"{name} resumes at {position}, not in {allowed}"
        assert position >= self.earliest[partition], "what a subscriber needs is gone"
        self.committed[name, partition] = position
        tried.clear()

    def check_now(
        self, *, again: bool = False, exact: bool = True, subscribers: Sequence[str] = ()
    ) -> None:
        """Open the log, check everything, and publish one more record to show that it goes on."""
        asyncio.run(self._check_now(again, exact, subscribers))
        self.count_recovered()

    def count_recovered(self) -> None:
        unsaid = len(self._seen) - self._said + len(self.lost)
        self.score.recovered += unsaid - self._unsaid
        self._unsaid = unsaid

    async def _check_now(self, again: bool, exact: bool, subscribers: Sequence[str]) -> None:
        async with WalMessageQueue(self.path, tier=self.tier or None) as queue:
            await self.check(queue, again=again, exact=exact)
            for name in subscribers:
                await self.check_subscriber(queue, name)
            await self._go_on(queue)

    async def _go_on(self, queue: WalMessageQueue) -> None:
        acknowledged = await self._publish_one(queue)
        assert acknowledged.offset == len(self.found[acknowledged.partition])
        await self._check_partition(queue, acknowledged.partition, again=False, exact=True)

    async def _publish_one(self, queue: WalMessageQueue) -> Acknowledgement:
        sequence = self.tried[0]
        self.tried[0] += 1
        value, key, headers = self.parts_of(0, sequence)
        acknowledged = await queue.publish(
            self.topic, value, key=key, headers=headers, durable=True
        )
        self._count(1)
        assert acknowledged.durable
        return acknowledged
