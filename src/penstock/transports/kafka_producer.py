"""Producing to Kafka: batches with one future each, an idempotent client, a thread that sends.

The client keeps the order of a partition and sends again what was on its way when a connection was lost;
the broker keeps it once. A batch is over when the last of its records is acknowledged or given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from penstock.errors import Closed, DeadlineExceeded, InvalidOption, PenstockError, UnknownTopic
from penstock.log.routing import partitions_of
from penstock.system import System
from penstock.transports.client_thread import CallThread, tell_loop
from penstock.transports.kafka_admin import KafkaAdmin
from penstock.transports.kafka_settings import LOGGER, KafkaSettings
from penstock.transports.options import check_columns
from penstock.transports.records import Produced

ANY_PARTITION = -1
POLL_SECONDS = 0.2
ROOM_SECONDS = 0.002
"""Between two looks whether the client's buffer has room."""
COUNTS_KEPT_SECONDS = 10.0
"""For how long the number of partitions of a topic is believed."""
MESSAGE_TIMEOUT_MS = 30_000
REFRESH_SECONDS = 5.0

Delivered = Callable[[KafkaError | None, Message], None]


@dataclass(frozen=True, slots=True)
class Columns:
    """The records of one call, column by column."""

    topic: str
    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None
    headers: Sequence[Mapping[str, bytes] | None] | None
    timestamps: Sequence[int] | None

    def check(self) -> None:
        """InvalidOption unless the columns are equally long."""
        check_columns(self.values, keys=self.keys, headers=self.headers, timestamps=self.timestamps)


class Routing:
    """Which partition each record goes to, by how many the topic has now."""

    def __init__(
        self, admin: KafkaAdmin, system: System, *, native: bool, auto_create: bool
    ) -> None:
        self._admin = admin
        self._clock = system.clock
        self._native = native
        self._auto_create = auto_create
        self._counts: dict[str, tuple[int, float]] = {}
        self._turns: dict[str, int] = {}

    def forget(self, topic: str) -> None:
        """Look again before the next batch."""
        self._counts.pop(topic, None)

    async def partitions(self, columns: Columns) -> list[int] | None:
        """A partition for each record; None: the client chooses."""
        count = await self._count(columns.topic)
        if self._native:
            return None
        turn = self._turns.get(columns.topic, 0)
        keys = columns.keys
        if keys is None:
            total = len(columns.values)
            self._turns[columns.topic] = (turn + total) % count
            return [(turn + place) % count for place in range(total)]
        chosen, self._turns[columns.topic] = partitions_of(keys, count, turn)
        found: list[int] = chosen.tolist()
        return found

    async def _count(self, topic: str) -> int:
        count, until = self._counts.get(topic, (0, 0.0))
        if count and self._clock.monotonic() < until:
            return count
        try:
            count = await self._admin.count(topic)
        except UnknownTopic:
            if not self._auto_create:
                raise
            await self._admin.create(topic, ANY_PARTITION, -1, {})
            count = await self._admin.count(topic)
        self._counts[topic] = count, self._clock.monotonic() + COUNTS_KEPT_SECONDS
        return count


class Batch:
    """The records of one call on their way. One thread sends it, another hears of its records."""

    __slots__ = ("_done", "_ends", "_future", "_loop", "_unplaced", "abandoned", "error", "sent")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()
        self._done = 0
        """Records that the client has told of; written where it tells."""
        self._ends: dict[int, tuple[int, int]] = {}
        self._unplaced: set[int | None] = set()
        """Partitions of which an end is not known."""
        self.sent: int | None = None
        """How many the client was given; None while it is being given them."""
        self.error: KafkaError | Exception | None = None
        self.abandoned = False
        """Nobody waits: what was not given to the client yet need not be."""

    def placed(self, error: KafkaError | None, message: Message) -> None:
        """The client tells of a record whose place is wanted."""
        if error is None:
            self._note_place(message.partition(), message.offset())
        self.counted(error, message)

    def _note_place(self, number: int | None, offset: int | None) -> None:
        # The broker has had it before, from a try whose answer was lost, and does not say where.
        if number is None or offset is None:
            self._unplaced.add(number)
            return
        first, _ = self._ends.get(number, (offset, 0))
        self._ends[number] = (first, offset + 1)

    def counted(self, error: KafkaError | None, message: Message) -> None:
        """The client tells of a record between two others of its partition."""
        if error is not None and self.error is None:
            self.error = error
        self._done += 1
        if self._done == self.sent:
            tell_loop(self._loop, self._settle)

    def handed_over(self, count: int, error: Exception | None) -> None:
        """The client was given so many of them."""
        if error is not None:
            self.error = self.error or error
        self.sent = count
        if self._done == count:
            tell_loop(self._loop, self._settle)

    async def wait(self) -> dict[int, tuple[int, int]]:
        """Partition → first offset and the one behind the last, where the broker tells both.

        The error is the caller's to see.
        """
        try:
            await self._future
        except asyncio.CancelledError:
            self.abandoned = True
            raise
        placed = sorted(self._ends.keys() - self._unplaced)
        return {number: self._ends[number] for number in placed}

    def _settle(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


def send(
    client: Producer,
    columns: Columns,
    partitions: Sequence[int] | None,
    batch: Batch,
    wait_for_room: Callable[[], None],
) -> None:
    """Give the records to the client, in order. Blocking; never raises."""
    count, is_refreshed = 0, False
    try:
        produce = client.produce
        for row in _rows(columns, partitions, batch):
            while True:
                try:
                    produce(columns.topic, *row)
                    break
                except BufferError:
                    wait_for_room()
                    if batch.abandoned:
                        return
                except KafkaException as error:
                    if is_refreshed or error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                        raise
                    # The topic has more partitions than the client has heard of.
                    is_refreshed = True
                    client.list_topics(columns.topic, timeout=REFRESH_SECONDS)
            count += 1
    except Exception as error:
        batch.error = batch.error or error
    finally:
        batch.handed_over(count, None)


def _rows(columns: Columns, partitions: Sequence[int] | None, batch: Batch) -> Any:
    """The arguments of ``produce`` behind the topic, record by record."""
    calls: Any
    if partitions is None:
        partitions, calls = list(repeat(ANY_PARTITION, len(columns.values))), repeat(batch.placed)
    else:
        # Within a partition the order is kept, so the first and the last tell the range.
        calls = [batch.counted] * len(partitions)
        for places in (range(len(partitions)), range(len(partitions) - 1, -1, -1)):
            seen: set[int] = set()
            for place in places:
                if partitions[place] not in seen:
                    seen.add(partitions[place])
                    calls[place] = batch.placed
    row: list[Any] = [columns.values, columns.keys or repeat(None), partitions, calls]
    if columns.timestamps is not None or columns.headers is not None:
        # Between them is a second name of the call that tells of the record.
        row += [calls, columns.timestamps or repeat(0)]
    if columns.headers is not None:
        row.append([dict(one) if one else None for one in columns.headers])
    return zip(*row, strict=False)


class KafkaProducer:
    """The producer of a transport. Its methods are called on the event loop."""

    def __init__(
        self,
        settings: KafkaSettings,
        routing: Routing,
        system: System,
        calls: Mapping[str, Any],
    ) -> None:
        self._settings = settings
        self._routing = routing
        self._system = system
        own = {"linger.ms": 1, "message.timeout.ms": MESSAGE_TIMEOUT_MS, "acks": "all"}
        configuration = own | settings.client("producer", **calls) | {"enable.idempotence": True}
        self._client: Producer = settings.make(Producer, configuration)
        self._sending = CallThread(system, "penstock-kafka-send")
        self._hearing = CallThread(system, "penstock-kafka-deliveries")
        self._closing = False
        self._batches: set[Batch] = set()
        self._order = asyncio.Lock()
        self._hearing.submit(self._hear)

    @property
    def waiting(self) -> int:
        """Calls whose records are on their way."""
        return len(self._batches)

    def _hear(self) -> None:
        """Until it is closed: let the client tell of what was delivered."""
        while not self._closing:
            try:
                self._client.poll(POLL_SECONDS)
            except Exception:
                # Of one record, or of a callback of the caller's; the others are to be heard of.
                LOGGER.exception("a callback of the Kafka client failed")

    async def produce(self, columns: Columns, timeout: float) -> Produced:
        """Send, and wait until all is acknowledged."""
        columns.check()
        batch = Batch()
        self._batches.add(batch)
        try:
            async with asyncio.timeout(timeout):
                # Routed and sent in one order, also when the first call has to ask for the topic.
                async with self._order:
                    partitions = await self._routing.partitions(columns)
                    self._sending.submit(self._job(columns, partitions, batch))
                ranges = await batch.wait()
        except DeadlineExceeded:
            raise
        except TimeoutError:
            raise DeadlineExceeded(
                f"{columns.topic!r} did not acknowledge {len(columns.values)} records within "
                f"{timeout:g} s; some of them may arrive",
                topic=columns.topic,
                seconds=timeout,
            ) from None
        finally:
            self._batches.discard(batch)
        if batch.error is not None:
            raise self._failed(columns.topic, batch.error, timeout)
        return Produced(columns.topic, len(columns.values), ranges, durable=True)

    def _job(
        self, columns: Columns, partitions: Sequence[int] | None, batch: Batch
    ) -> Callable[[], None]:
        def job() -> None:
            if not batch.abandoned:
                send(self._client, columns, partitions, batch, self._wait_for_room)

        return job

    def _wait_for_room(self) -> None:
        self._system.clock.sleep(ROOM_SECONDS)

    def _failed(self, topic: str, error: KafkaError | Exception, seconds: float) -> PenstockError:
        self._routing.forget(topic)
        if isinstance(error, PenstockError):
            return error
        if isinstance(error, KafkaError | KafkaException):
            return self._settings.error(error, f"produce to {topic!r}", seconds, topic=topic)
        return InvalidOption(f"not a record for {topic!r}: {error}", option="values", topic=topic)

    async def close(self, timeout: float) -> None:
        """Wait for what is on its way, at most so long, and let go; DeadlineExceeded when too slow."""
        waiting = [batch._future for batch in self._batches]
        late: set[asyncio.Future[None]] = set()
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=timeout)
        for batch in self._batches:
            batch.abandoned = True
            batch.error = batch.error or _closed()
            batch._settle()
        self._closing = True
        await self._hearing.close()
        await self._sending.close()
        if late:
            self._client.purge()
            raise DeadlineExceeded(
                f"Kafka did not acknowledge what was produced within {timeout:g} s",
                seconds=timeout,
            )


def _closed() -> Closed:
    return Closed("the transport was closed before this was acknowledged")
