"""Read a topic so that each record takes effect in the user's database exactly once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from typing import Any, Protocol

from penstock.bus.timers import Timers
from penstock.errors import DeadlineExceeded, Fenced, UsageError
from penstock.log.records import Record
from penstock.log.subscription import BATCH_RECORDS_MAX, RecordBatch
from penstock.streaming.database import DatabaseCheckpoints, DatabaseClaim, check_idle
from penstock.streaming.database_connection import at_once, roll_back
from penstock.system import System

FOLLOW_SECONDS = 1.0
PATIENCE_SECONDS = 30.0
"""How long a consumer may take to hear that its group has gone on without it."""
LOOK_SECONDS = 0.02


class Assigned(Protocol):
    """What a member of a group has."""

    @property
    def generation(self) -> int:
        """Grows with every change in the group."""
        ...

    @property
    def partitions(self) -> frozenset[int]:
        """Their numbers."""
        ...


class SeekingConsumer(Protocol):
    """What is asked of a consumer; those of all transports that can seek have it."""

    topic: str

    async def next_batch(
        self, timeout: float | None = None, records_max: int = BATCH_RECORDS_MAX
    ) -> RecordBatch:
        """The next records; DeadlineExceeded when none came in time."""
        ...

    async def commit(self, done: Mapping[int, int]) -> None:
        """Mark as consumed up to an offset per partition."""
        ...

    async def seek(self, to: int, *, partition: int | None = None) -> None:
        """Go on from another offset of a partition."""
        ...

    def assignment(self) -> Assigned:
        """Which partitions it has."""
        ...

    def positions(self) -> dict[int, int]:
        """Partition → offset of the next record that will be delivered."""
        ...


class CheckpointedBatch:
    """Records of one partition, and the way to write that they have taken effect."""

    def __init__(
        self, batch: RecordBatch, checkpoints: DatabaseCheckpoints, claim: DatabaseClaim
    ) -> None:
        self.topic = batch.topic
        self.partition = batch.partition
        self.records = batch.records
        self.next_offset = batch.next_offset
        self._batch = batch
        self._checkpoints = checkpoints
        self._claim = claim

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    async def save(self, connection: Any) -> None:
        """Write in the connection's transaction that the batch has taken effect; commits nothing.

        Raises Fenced when another consumer went on from here: roll back, and begin the loop again.
        After a rollback for any other reason it may be called again, in the next transaction.
        """
        await self._checkpoints.save(connection, self._batch, self._claim)

    def save_blocking(self, connection: Any) -> None:
        """As :meth:`save`, for a blocking connection in a thread of your own."""
        at_once(self.save(connection))


class ExactlyOnce(AsyncIterator[CheckpointedBatch]):
    """Batch after batch, each from where the database is; see :func:`exactly_once`."""

    def __init__(
        self,
        consumer: SeekingConsumer,
        checkpoints: DatabaseCheckpoints,
        connection: Any,
        records_max: int,
        follow_seconds: float,
        system: System,
    ) -> None:
        self._consumer = consumer
        self._checkpoints = checkpoints
        self._connection = connection
        self._records_max = records_max
        self._follow_seconds = follow_seconds
        self._clock = system.clock
        self._timers = Timers(system.clock)
        self._has: Assigned | None = None
        """What the claims are of."""
        self._claims: dict[int, DatabaseClaim] = {}
        self._claiming: Assigned | None = None
        self._begun: dict[int, DatabaseClaim] = {}
        """What was claimed so far of an assignment; whoever was cancelled in between goes on there."""
        self._given: CheckpointedBatch | None = None
        """Delivered, and not seen in the database yet."""
        self._ahead: dict[int, int] = {}
        """Partition → where the database is and the consumer's own offset in the log is not."""
        self._put_back: dict[int, int] = {}
        """Partition → the first offset that the consumer gave and nobody got."""
        self._followed = self._clock.monotonic()

    async def __anext__(self) -> CheckpointedBatch:
        """The next batch. May be cancelled and called again: nothing is lost, and what was claimed stays."""
        while True:
            await self._see_saved()
            if self._clock.monotonic() - self._followed >= self._follow_seconds:
                await self.follow()
            if self._has != self._consumer.assignment():
                await self._claim_all()
            if (batch := await self._next_batch()) is not None:
                self._given = batch
                return batch

    async def follow(self) -> None:
        """Commit in the log what the database has, for the lag and for retention."""
        await self._see_saved()
        ahead, self._ahead = self._ahead, {}
        self._followed = self._clock.monotonic()
        if ahead:
            # Whoever took a partition over goes on from the database, and commits it then.
            with suppress(Fenced):
                await self._consumer.commit(ahead)

    # Inside

    async def _next_batch(self) -> CheckpointedBatch | None:
        """The next batch; None when there is something else to do first."""
        timeout = max(self._follow_seconds, 0.001) if self._ahead else None
        try:
            batch = await self._consumer.next_batch(timeout, self._records_max)
        except DeadlineExceeded:
            await self.follow()
            return None
        if self._has != self._consumer.assignment():
            # Read from where the log is; the database may be further. If the database does not know
            # the partition yet, it begins with what is put back here.
            self._put_back.setdefault(batch.partition, batch.records[0].offset)
            return None
        return CheckpointedBatch(batch, self._checkpoints, self._claims[batch.partition])

    async def _claim_all(self) -> None:
        """Take over what the consumer has now, and go to where the database is."""
        has = self._consumer.assignment()
        if self._claiming != has:
            self._claiming, self._begun = has, {}
        try:
            await self._claim_rest(has.generation)
        except Fenced:
            # The group has gone on, and the consumer has not heard of it yet.
            if not await self._hears_of_another(has):
                raise
        else:
            self._claims, self._has, self._ahead, self._put_back = self._begun, has, {}, {}
            self._claiming, self._begun = None, {}

    async def _claim_rest(self, generation: int) -> None:
        for partition, position in self._consumer.positions().items():
            if partition in self._begun:
                continue
            claim = await self._checkpoints.claim(
                self._connection,
                self._consumer.topic,
                partition,
                start=min(position, self._put_back.get(partition, position)),
                generation=generation,
            )
            if claim.next_offset != position:
                await self._consumer.seek(claim.next_offset, partition=partition)
            self._begun[partition] = claim

    async def _hears_of_another(self, has: Assigned) -> bool:
        """Wait until the consumer has another assignment; False when its time is up."""
        until = self._clock.monotonic() + PATIENCE_SECONDS
        while self._consumer.assignment() == has:
            if self._clock.monotonic() >= until:
                return False
            await self._timers.sleep(LOOK_SECONDS)
        return True

    async def _see_saved(self) -> None:
        """Look into the database: the batch that was delivered has to be there."""
        if (given := self._given) is None:
            return
        check_idle(self._connection)
        await roll_back(self._connection)  # only a driver that does not tell: an older view ends
        try:
            row = await self._checkpoints.row(self._connection, given._claim)
        finally:
            await roll_back(self._connection)
        if row is None or row.next_offset < given.next_offset:
            raise UsageError(
                f"the batch of {given.topic}/{given.partition} up to offset {given.next_offset} is "
                "not in the database: call save() in the transaction of its effects, and commit",
                topic=given.topic,
                partition=given.partition,
            )
        self._given = None
        if row.epoch != given._claim.epoch:
            self._has = None  # whoever asks again claims again
            raise self._checkpoints.fenced(given._claim, row)
        self._claims[given.partition] = row
        self._ahead[given.partition] = row.next_offset


def exactly_once(
    consumer: SeekingConsumer,
    checkpoints: DatabaseCheckpoints,
    connection: Any,
    *,
    records_max: int = BATCH_RECORDS_MAX,
    follow_seconds: float = FOLLOW_SECONDS,
    system: System | None = None,
) -> ExactlyOnce:
    """Read on from where the database is, with a consumer that is open.

    ``async for`` gives batches. Do the effects of one and ``await batch.save(connection)`` in the same
    transaction; the page about exactly once has the whole of it.

    The database is the truth: after a start and after a rebalance the consumer goes to where the
    database is. Raises Fenced when a newer generation of the group has claimed a partition, and the
    consumer does not hear of a new assignment for half a minute. ``connection`` is used between the batches, so no transaction may be open on it
    then; effects may go through it or through another one. A batch that was not saved raises
    UsageError when the next one is asked for. The group's offset in the log follows, every
    ``follow_seconds`` and when there is nothing to do, and serves the lag and retention alone.
    """
    return ExactlyOnce(
        consumer, checkpoints, connection, records_max, follow_seconds, system or System()
    )
