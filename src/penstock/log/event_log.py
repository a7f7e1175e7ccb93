"""The events of a bus on a topic: appended in batches that are all or none, read back after a crash.

One partition keeps the order of publishing. The bus is a subscriber of the topic, whose committed
offset is the position below which everything is handled: so retention keeps what is not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import InvalidOption, UsageError
from penstock.log.deadlines import within
from penstock.log.frame import ENTRY_BYTES_MAX
from penstock.log.names import check_name
from penstock.log.places import Position
from penstock.log.subscription import RecordBatch, Subscription
from penstock.log.topic import FsyncPolicy, Retention, TopicConfig, TopicState

if TYPE_CHECKING:
    from penstock.log.queue import WalMessageQueue

APPEND_BYTES_MAX = ENTRY_BYTES_MAX // 4
APPEND_RECORDS_MAX = 100_000
APPEND_TIMEOUT_SECONDS = 30.0
OWNER = "bus"
"""The subscriber name by which the bus claims the topic."""
SETTINGS = TopicConfig(
    fsync=FsyncPolicy.TIMED,
    batch_records_max=APPEND_RECORDS_MAX,
    batch_bytes_max=ENTRY_BYTES_MAX // 2,  # so that what is appended together is one entry
    record_bytes_max=ENTRY_BYTES_MAX // 2,
)


class LogEvents:
    """Implements :class:`penstock.bus.event_log.EventLog`; ``queue.event_log(name)`` makes one.

    It has one live owner over all processes. What was appended without ``durable`` survives a
    crash of the process, and a power cut after a second. ``retention`` is that of the queue's
    defaults; ``queue.change_topic(log.topic, retention=...)`` changes it.
    """

    batch_bytes_max = APPEND_BYTES_MAX

    def __init__(self, queue: WalMessageQueue, name: str, retention: Retention) -> None:
        self.topic = check_name("topic", f"bus.{check_name('bus', name)}.events")
        self._queue = queue
        self._retention = retention
        self._subscription: Subscription | None = None

    async def open(self) -> tuple[int, int]:
        """Claim the topic; SubscriberBusy when a live bus has it.

        Returns the position below which everything is handled, and the end.
        """
        settings = msgspec.structs.replace(SETTINGS, retention=self._retention)
        state = await self._queue.create_topic(self.topic, settings)
        if not _suits(state):
            raise InvalidOption(
                f"topic {self.topic!r} is there with other settings than an event log has: give "
                "the bus another name",
                option="name",
            )
        subscription = self._queue.subscribe(self.topic, OWNER)
        try:
            await subscription.open()
            end = await self._end()
        except BaseException:
            await subscription.close()
            raise
        self._subscription = subscription
        return subscription.positions()[0], end

    async def append(self, records: Sequence[bytes], *, durable: bool) -> int:
        """Write the records at the end, all or none; the position of the first.

        When it raises DeadlineExceeded or the disk fails, they may or may not be written.
        """
        acknowledged = await self._queue.publish_many(
            self.topic, records, durable=durable, timeout=APPEND_TIMEOUT_SECONDS
        )
        return acknowledged.ranges[0][0]

    async def read(
        self, start: int | None = None, end: int | None = None
    ) -> AsyncIterator[tuple[int, bytes]]:
        """The records from one position up to another, or up to the end at this moment."""
        until = await self._end() if end is None else end
        first: Position = "earliest" if start is None else start
        async for record in self._queue.replay(self.topic, start=first, end=until):
            yield record.offset, record.value or b""

    async def commit(self, position: int) -> None:
        """Everything below the position is handled. Durable when this returns."""
        await self._live().commit(RecordBatch(self.topic, 0, [], position))

    async def close(self) -> None:
        """Let another owner have the topic. Idempotent."""
        if self._subscription is not None:
            await self._subscription.close()

    async def _end(self) -> int:
        """The position after the last record, when all of them are durable and so can be read."""
        await within(APPEND_TIMEOUT_SECONDS, self._queue._engine.commit(), "sync the event log")
        return self._queue.durable_offset(self.topic)

    def _live(self) -> Subscription:
        if self._subscription is None:
            raise UsageError(f"event log {self.topic!r} is not open: await log.open() first")
        return self._subscription


def _suits(state: TopicState) -> bool:
    """Whether a topic keeps everything in one order, and writes what belongs together as one."""
    config = state.config
    whole = (
        config.batch_bytes_max >= SETTINGS.batch_bytes_max
        and config.batch_records_max >= SETTINGS.batch_records_max
        and config.buffer_bytes_max >= SETTINGS.batch_bytes_max
    )
    return state.partitions_all == 1 and not config.compact_keys and whole
