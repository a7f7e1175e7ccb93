"""Durable topics: events go to the log first, and come to the handlers from there.

``publish`` returns when the event is as safe as the topic's ``FsyncPolicy`` asks for. Each group of
handlers is a durable subscriber of the log: after a crash it goes on with the first event that not
all of its handlers were done with. So handlers see an event at least once, with the same id.

The value of a record is the encoded message, its key the bytes of the message's key. What else the
envelope knows stands in headers that begin with ``penstock-``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from penstock.bus.bus import MessageBus
from penstock.bus.delivery import delivery_of
from penstock.errors import InvalidMessage
from penstock.hashing import key_bytes
from penstock.messages import DEFAULT_SESSION, Envelope, dotted_name, marks_of
from penstock.pressure.readings import Reading
from penstock.resilience.bus import ResilientMessageBus

logger = logging.getLogger("penstock.scaling")

IN_WORK_MAX = 1_000
"""Events of one group that are queued or in work; the next wait in the log."""
TYPE, ID, SESSION = "penstock-type", "penstock-id", "penstock-session"
CORRELATION, CAUSATION = "penstock-correlation", "penstock-causation"
OWN_HEADERS = {TYPE, ID, SESSION, CORRELATION, CAUSATION}


class LogRecord(Protocol):
    """What is needed of a record of the log."""

    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Mapping[str, bytes]: ...


class LogSubscription(Protocol):
    """What is needed of a durable subscriber of the log."""

    async def next_batch(self, timeout: float | None = None, records_max: int = 1) -> Any:
        """The next records of one partition; waits for them."""
        ...

    async def commit(self, record: Any = None) -> None:
        """Mark as consumed up to this record, durably."""
        ...

    async def close(self) -> None:
        """Give the name back."""
        ...

    def lag(self) -> int:
        """Records that were not read yet."""
        ...


class TopicLog(Protocol):
    """A durable, partitioned log, such as ``WalMessageQueue``."""

    async def create_topic(self, name: str) -> Any:
        """Make the topic when it is not there, and open it."""
        ...

    async def publish(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        durable: bool = False,
        timeout: float = 30.0,
    ) -> Any:
        """Publish a record; returns when it is as safe as its topic asks for."""
        ...

    def publish_nowait(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
    ) -> Any:
        """Hand a record over without waiting."""
        ...

    def subscribe(self, topic: str, name: str) -> LogSubscription:
        """A durable subscriber, which resumes where it committed."""
        ...


class Unhandled:
    """The records of one partition that are not handled yet, and how far all before are."""

    def __init__(self) -> None:
        self._open: OrderedDict[int, tuple[LogRecord, bool]] = OrderedDict()
        self.handled: LogRecord | None = None
        """The last record before which nothing is open, if it is not committed."""

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, record: LogRecord) -> None:
        """A record is going to be handled."""
        self._open[record.offset] = (record, False)

    def end(self, record: LogRecord) -> None:
        """A record is handled."""
        self._open[record.offset] = (record, True)
        while self._open:
            first, done = next(iter(self._open.values()))
            if not done:
                return
            self.handled = first
            del self._open[first.offset]


class GroupConsumer:
    """Brings the records of one topic to the handlers of one group."""

    def __init__(self, bus: MessageBus, log: TopicLog, kind: type, group: str) -> None:
        self._bus = bus
        self._log = log
        self._kind = kind
        self._group = group
        self._partitions: dict[int, Unhandled] = {}
        self._subscription: LogSubscription | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._committing: asyncio.Task[None] | None = None
        self._less = asyncio.Event()
        self.invalid = 0
        """Records that are no message of a known class."""

    @property
    def topic(self) -> str:
        """The topic that it reads."""
        return marks_of(self._kind).topic

    @property
    def in_work(self) -> int:
        """Events that are queued or in work."""
        return sum(map(len, self._partitions.values()))

    @property
    def group(self) -> str:
        """The group that it reads for."""
        return self._group

    @property
    def lag(self) -> int:
        """Events of the topic that the group is not done with."""
        unread = 0 if self._subscription is None else self._subscription.lag()
        return unread + self.in_work

    async def start(self) -> None:
        """Begin to read, where the group has committed."""
        if self._fetching is None:
            await self._log.create_topic(self.topic)
            self._subscription = self._log.subscribe(self.topic, self._group)
            self._fetching = asyncio.get_running_loop().create_task(self._fetch(self._subscription))

    async def pause(self) -> None:
        """Read no more; what was read is handled."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)

    async def close(self) -> None:
        """Commit what is handled, and give the name back."""
        if self._committing is not None:
            await asyncio.gather(self._committing, return_exceptions=True)
        if self._subscription is not None:
            try:
                await self._commit(self._subscription)
            finally:
                await self._subscription.close()

    async def _fetch(self, subscription: LogSubscription) -> None:
        while True:
            while self.in_work >= IN_WORK_MAX:
                self._less.clear()
                await self._less.wait()
            for record in await subscription.next_batch(records_max=IN_WORK_MAX - self.in_work):
                await self._hand_over(record)

    async def _hand_over(self, record: LogRecord) -> None:
        unhandled = self._partitions.setdefault(record.partition, Unhandled())
        unhandled.begin(record)
        try:
            envelope = self._envelope(record)
        except InvalidMessage as error:
            self._refuse(record, error)
            return
        delivery_of(envelope).on_outcome = lambda _: self._settled(record)
        intake = self._bus._intake
        lane = intake.lane_of(envelope)
        while lane.queue.room < 1:
            await lane.wait_for_room()
        intake.deliver(envelope)

    def _envelope(self, record: LogRecord) -> Envelope:
        headers = {name: value.decode("utf-8", "replace") for name, value in record.headers.items()}
        message = self._decode(headers.get(TYPE), record.value or b"")
        envelope = self._bus._intake.enclose(message, headers.get(SESSION, DEFAULT_SESSION))
        envelope.given_id = headers.get(ID)
        envelope.correlation_id = headers.get(CORRELATION)
        envelope.causation_id = headers.get(CAUSATION)
        envelope.headers = {name: text for name, text in headers.items() if name not in OWN_HEADERS}
        envelope.group, envelope.offset = self._group, record.offset
        return envelope

    def _decode(self, name: str | None, data: bytes) -> Any:
        """The message; a class that is not known here, as it was moved, counts as ours."""
        codec = self._bus._codec
        try:
            kind = codec.type_of(name or "")
        except InvalidMessage:
            kind = self._kind
        return codec.decode(dotted_name(kind), data)

    def _refuse(self, record: LogRecord, error: InvalidMessage) -> None:
        self.invalid += 1
        logger.error("record %s of %s does not decode: %s", record.offset, self.topic, error)
        if isinstance(self._bus, ResilientMessageBus):
            self._bus._burial.bury_record(self.topic, record, error)
        self._settled(record)

    def _settled(self, record: LogRecord) -> None:
        self._partitions[record.partition].end(record)
        self._less.set()
        if self._committing is None and self._subscription is not None:
            commit = self._commit(self._subscription)
            self._committing = asyncio.get_running_loop().create_task(commit)

    async def _commit(self, subscription: LogSubscription) -> None:
        """Commit what is handled, until nothing is left to commit."""
        try:
            while handled := self._take_handled():
                for record in handled:
                    await subscription.commit(record)
        except Exception:
            logger.exception("cannot commit for group %s on %s", self._group, self.topic)
        finally:
            self._committing = None

    def _take_handled(self) -> list[LogRecord]:
        handled = [one.handled for one in self._partitions.values() if one.handled is not None]
        for one in self._partitions.values():
            one.handled = None
        return handled


class DurableTopics:
    """The topics of a bus that live in a log."""

    def __init__(self, bus: MessageBus, log: TopicLog, covers: Callable[[str], bool]) -> None:
        self._bus = bus
        self._log = log
        self._covers = covers
        self._consumers: dict[tuple[type, str], GroupConsumer] = {}
        self._running = False
        self._joining: set[asyncio.Task[None]] = set()

    def covers(self, kind: type) -> bool:
        """Whether the events of a class live in the log."""
        return self._covers(marks_of(kind).topic)

    def readings(self, lag_max: int) -> list[Reading]:
        """How far the groups are behind, for a monitor; ``lag_max`` counts as full."""
        return [
            Reading(f"{consumer.topic} for {consumer.group}", consumer.lag, lag_max)
            for consumer in self._consumers.values()
        ]

    def consumers(self) -> Iterable[GroupConsumer]:
        """Those who read for the groups."""
        return self._consumers.values()

    def handler_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """An open circuit makes events wait, unless the handler says no: they are in the log."""
        resilient = isinstance(self._bus, ResilientMessageBus)
        return {"pause": True, **options} if resilient else options

    def join(self, kind: type, group: str) -> None:
        """A group has a handler: read for it, from the start of the bus on."""
        self._bus._codec.register(kind)
        if (kind, group) not in self._consumers:
            consumer = GroupConsumer(self._bus, self._log, kind, group)
            self._consumers[kind, group] = consumer
            if self._running:
                task = asyncio.get_running_loop().create_task(consumer.start())
                self._joining.add(task)
                task.add_done_callback(self._joined)

    def _joined(self, task: asyncio.Task[None]) -> None:
        self._joining.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a group cannot read its topic", exc_info=task.exception())

    async def start(self) -> None:
        """Begin to read for all groups."""
        self._running = True
        for consumer in list(self._consumers.values()):
            await consumer.start()

    async def pause(self) -> None:
        """Read no more."""
        self._running = False
        await asyncio.gather(*self._joining, return_exceptions=True)
        for consumer in self._consumers.values():
            await consumer.pause()

    async def close(self) -> None:
        """Commit what is handled, and let go."""
        for consumer in self._consumers.values():
            await consumer.close()

    async def publish(self, envelope: Envelope, *, durable: bool, timeout: float) -> None:
        """Write an event; returns when it is as safe as its topic asks for, or on the disk."""
        topic = envelope.topic
        await self._log.create_topic(topic)
        await self._log.publish(
            topic,
            self._bus._codec.encode(envelope.message),
            key=_key(envelope),
            headers=_headers(envelope),
            durable=durable,
            timeout=timeout,
        )

    def publish_nowait(self, envelope: Envelope) -> None:
        """Hand an event to the log; its topic must be open."""
        self._log.publish_nowait(
            envelope.topic,
            self._bus._codec.encode(envelope.message),
            _key(envelope),
            _headers(envelope),
        )


def _key(envelope: Envelope) -> bytes | None:
    key = envelope.key
    return None if key is None else key_bytes(key)


def _headers(envelope: Envelope) -> dict[str, bytes]:
    own = {
        TYPE: dotted_name(type(envelope.message)),
        ID: envelope.id,
        SESSION: envelope.session if envelope.session != DEFAULT_SESSION else None,
        CORRELATION: envelope.correlation_id,
        CAUSATION: envelope.causation_id,
    }
    known = {name: text for name, text in own.items() if text is not None}
    return {name: text.encode() for name, text in {**envelope.headers, **known}.items()}
