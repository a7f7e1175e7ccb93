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
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

from penstock.bus.bus import MessageBus
from penstock.bus.delivery import Outcome
from penstock.bus.handlers import Filter, Handler
from penstock.hashing import key_bytes
from penstock.messages import DEFAULT_SESSION, NORMAL, Envelope, dotted_name, marks_of
from penstock.pressure.readings import Reading
from penstock.resilience.bus import ResilientMessageBus
from penstock.scaling.group_consumer import (
    CAUSATION,
    CORRELATION,
    ID,
    PRIORITY,
    SESSION,
    TYPE,
    GroupConsumer,
    LogSubscription,
)

logger = logging.getLogger("penstock.scaling")

HasGroup = Callable[[str, str], bool]
"""Whether a group has members on a topic."""


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

    async def flush(self) -> None:
        """Wait until everything that was accepted is durable."""
        ...

    def subscribe(self, topic: str, name: str) -> LogSubscription:
        """A durable subscriber, which resumes where it committed."""
        ...


class DurableTopics:
    """The topics of a bus that live in a log.

    Handlers without a group are together one subscriber of the log, which has the bus's name; each
    of them gets every event.
    """

    def __init__(
        self, bus: MessageBus, log: TopicLog, covers: Callable[[str], bool], has_group: HasGroup
    ) -> None:
        self._bus = bus
        self._log = log
        self._covers = covers
        self._has_group = has_group
        self._consumers: dict[tuple[str, str], GroupConsumer] = {}
        self._leaving: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._joining: set[asyncio.Task[None]] = set()
        self._alone: set[Handler] = set()
        """Handlers without a group."""
        self._met: set[type] = set()
        """Classes that were published or subscribed to."""
        self._running = False

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

    # Who listens

    def handler_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """An open circuit makes events wait, unless the handler says no: they are in the log."""
        resilient = isinstance(self._bus, ResilientMessageBus)
        return {"pause": True, **options} if resilient else options

    def filter_alone(self, where: Filter | None) -> Filter:
        """What keeps a handler without a group from the events that were read for groups."""
        mine = (None, self._bus.name)
        return lambda envelope: envelope.group in mine and (where is None or where(envelope))

    def join_alone(self, handler: Handler) -> None:
        """A handler without a group came: read for it what it listens to, as far as that is known."""
        self._alone.add(handler)
        remove = handler.remove
        assert remove is not None

        def leave(gone: Handler) -> None:
            remove(gone)
            self._alone.discard(gone)
            self.left(self._bus.name)

        handler.remove = leave
        if isinstance(handler.target, type) and self.covers(handler.target):
            self.meet(handler.target)
        for kind in list(self._met):
            self._join_if_wanted(kind)

    def meet(self, kind: type) -> None:
        """A class is used: handlers of patterns and base classes may listen to it."""
        if kind not in self._met:
            self._met.add(kind)
            self._bus._codec.register(kind)
            self._join_if_wanted(kind)

    def _join_if_wanted(self, kind: type) -> None:
        if self._alone.intersection(self._bus._registry.all_of(kind)):
            self.join(kind, self._bus.name)

    def _is_wanted(self, topic: str, group: str) -> bool:
        return self._has_group(topic, group) or (
            group == self._bus.name
            and any(
                self._alone.intersection(self._bus._registry.all_of(kind))
                for kind in self._met
                if marks_of(kind).topic == topic
            )
        )

    def join(self, kind: type, group: str) -> None:
        """A group has a handler: read for it, from the start of the bus on."""
        self.meet(kind)
        place = (marks_of(kind).topic, group)
        if place in self._consumers:
            return
        consumer = self._consumers[place] = GroupConsumer(
            self._bus,
            kind,
            group,
            lambda: self._subscribe(*place),
            lambda: self._is_wanted(*place),
        )
        if self._running:
            task = asyncio.get_running_loop().create_task(consumer.start())
            self._joining.add(task)
            task.add_done_callback(self._joined)

    async def _subscribe(self, topic: str, group: str) -> LogSubscription:
        if (topic, group) in self._leaving:  # the name is not free before
            await asyncio.wait([self._leaving[topic, group]])
        await self._log.create_topic(topic)
        return self._log.subscribe(topic, group)

    def _joined(self, task: asyncio.Task[None]) -> None:
        self._joining.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a group cannot read its topic", exc_info=task.exception())

    def left(self, group: str) -> None:
        """A handler is gone: read no more for its group where nobody else is in it."""
        for place in [place for place in self._consumers if place[1] == group]:
            if self._running and not self._is_wanted(*place):
                task = asyncio.get_running_loop().create_task(self._consumers.pop(place).leave())
                self._leaving[place] = task
                task.add_done_callback(partial(self._gone, place))

    def _gone(self, place: tuple[str, str], task: asyncio.Task[None]) -> None:
        if self._leaving.get(place) is task:
            del self._leaving[place]
        if not task.cancelled() and task.exception() is not None:
            logger.error("a group did not leave its topic well", exc_info=task.exception())

    # Life

    async def start(self) -> None:
        """Begin to read for all groups."""
        self._running = True
        for consumer in list(self._consumers.values()):
            await consumer.start()

    async def pause(self) -> None:
        """Read no more."""
        self._running = False
        await asyncio.gather(*self._joining, *self._leaving.values(), return_exceptions=True)
        for consumer in self._consumers.values():
            await consumer.pause()

    async def close(self) -> None:
        """Commit what is handled, and let go."""
        closing = [consumer.close() for consumer in self._consumers.values()]
        for result in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def catch_up(self) -> None:
        """Wait until all groups that read are done with what was published before."""
        await self._log.flush()
        for consumer in list(self._consumers.values()):
            while not (consumer.has_caught_up or self.has_caught_up):
                await consumer.wait_for_progress()

    @property
    def has_caught_up(self) -> bool:
        """Whether all groups are done with all that is in the log; true when nobody reads."""
        readers = self._consumers.values() if self._running else ()
        return all(consumer.has_caught_up for consumer in readers)

    # Publishing

    async def publish(self, envelope: Envelope, *, durable: bool, timeout: float) -> None:
        """Write an event; returns when it is as safe as its topic asks for, or on the disk."""
        self.meet(envelope.message.__class__)
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

    async def publish_and_wait(self, envelope: Envelope, *, timeout: float) -> Outcome:
        """Write an event and wait until all groups that read its topic here are done with it."""
        self.meet(envelope.message.__class__)
        topic = envelope.topic
        readers = [one for one in self._consumers.values() if one.topic == topic]
        outcomes = [reader.expect(envelope.id) for reader in readers]
        try:
            await self.publish(envelope, durable=True, timeout=timeout)
            results = [await outcome for outcome in outcomes]
        finally:
            for outcome in outcomes:
                outcome.cancel()
        return Outcome(
            sum(result.handled for result in results),
            tuple(failure for result in results for failure in result.failures),
            filtered=bool(results) and all(result.filtered for result in results),
        )

    def publish_nowait(self, envelope: Envelope) -> None:
        """Hand an event to the log; UnknownTopic, which says what to do, if its topic is not open."""
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
        PRIORITY: str(int(envelope.priority)) if envelope.priority != NORMAL else None,
    }
    known = {name: text for name, text in own.items() if text is not None}
    return {name: text.encode() for name, text in {**envelope.headers, **known}.items()}
