"""Durable topics: events go to the log first, and come to the handlers from there.

``publish`` returns when the event is as safe as the topic's ``FsyncPolicy`` asks for. Each group of
handlers is a durable subscriber of the log: after a crash it goes on with the first event that not
all of its handlers were done with. So handlers see an event at least once, with the same id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from threading import get_ident
from typing import Any

from penstock.bus.bus import MessageBus
from penstock.bus.delivery import Outcome
from penstock.bus.handlers import Filter, Handler
from penstock.messages import Envelope, marks_of
from penstock.pressure.readings import Reading
from penstock.resilience.bus import ResilientMessageBus
from penstock.scaling.group_consumer import AGAIN_SECONDS, AGAIN_SECONDS_MAX, GroupConsumer, spawn
from penstock.scaling.log_publisher import LogPublisher
from penstock.scaling.log_records import LogSubscription, TopicLog

logger = logging.getLogger("penstock.scaling")

HasGroup = Callable[[str, str], bool]
"""Whether a group has members on a topic."""


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
        self._publisher = LogPublisher(log, bus._codec, bus._timers.sleep)
        self._covers = covers
        self._has_group = has_group
        self._consumers: dict[tuple[str, str], GroupConsumer] = {}
        self._leaving: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._joining: set[asyncio.Task[None]] = set()
        self._alone: set[Handler] = set()
        """Handlers without a group."""
        self._met: set[type] = set()
        """Classes that were published or subscribed to."""
        self._scheduled: set[asyncio.Task[None]] = set()
        self._delivered_before = 0
        """Events that were brought to groups that are gone."""
        self._running = False
        self._together = asyncio.Lock()
        self._writing: set[asyncio.Task[None]] = set()
        bus.schedule.send_elsewhere(self.take_scheduled)
        bus._intake.elsewhere = self._take_from_thread

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

    @property
    def published(self) -> int:
        """Events that were handed to the log here."""
        return self._publisher.published

    @property
    def delivered(self) -> int:
        """Events that were brought to handlers here, one for each group."""
        now = sum(consumer.delivered for consumer in self._consumers.values())
        return now + self._delivered_before

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
            task = spawn(consumer.start())
            self._joining.add(task)
            task.add_done_callback(self._joined)

    async def _subscribe(self, topic: str, group: str) -> LogSubscription:
        if (topic, group) in self._leaving:  # the name is not free before
            await asyncio.wait([self._leaving[topic, group]])
        await self._publisher.open(topic)
        return self._log.subscribe(topic, group)

    def _joined(self, task: asyncio.Task[None]) -> None:
        self._joining.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a group cannot read its topic", exc_info=task.exception())

    def left(self, group: str) -> None:
        """A handler is gone: read no more for its group where nobody else is in it."""
        for place in [place for place in self._consumers if place[1] == group]:
            if self._running and not self._is_wanted(*place):
                consumer = self._consumers.pop(place)
                self._delivered_before += consumer.delivered
                task = self._leaving[place] = spawn(consumer.leave())
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
        self._publisher.start()
        for consumer in list(self._consumers.values()):
            await consumer.start()

    def stop_reading(self) -> None:
        """Read no more, from this moment on."""
        self._running = False
        for consumer in self._consumers.values():
            consumer.stop_reading()

    async def close(self) -> list[Envelope]:
        """Commit what is handled, and let go; gives back what could not be written."""
        for task in self._scheduled:
            task.cancel()
        others = [*self._joining, *self._leaving.values(), *self._scheduled, *self._writing]
        await asyncio.gather(*others, return_exceptions=True)
        closing = [_close(consumer) for consumer in self._consumers.values()]
        results = await asyncio.gather(*closing, return_exceptions=True)
        left = await self._publisher.close()
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return left

    async def catch_up(self) -> None:
        """Wait until all groups that read are done with what was published before."""
        if writing := [*self._scheduled, *self._writing]:
            await asyncio.wait(writing)
        await self._publisher.flush()
        for consumer in list(self._consumers.values()):
            while not (consumer.has_caught_up or self.has_caught_up):
                await consumer.wait_for_progress()

    @property
    def has_caught_up(self) -> bool:
        """Whether all groups are done with all that is in the log; true when nobody reads."""
        readers = self._consumers.values() if self._running else ()
        waiting = self._scheduled or self._writing or (self._running and self._publisher.waiting)
        return not waiting and all(consumer.has_caught_up for consumer in readers)

    # Publishing

    async def publish(self, envelope: Envelope, *, durable: bool, timeout: float) -> Any:
        """Write an event; returns when it is as safe as its topic asks for, or on the disk."""
        self.meet(envelope.message.__class__)
        return await self._publisher.publish(envelope, durable=durable, timeout=timeout)

    def publish_nowait(self, envelope: Envelope) -> None:
        """Hand an event to the log, from any thread; BufferFull at the bound.

        Filters are asked on the loop of the bus.
        """
        intake = self._bus._intake
        if intake.filters and intake.thread not in (None, get_ident()):
            intake.post(envelope)
        elif intake.accepts(envelope):
            self._publisher.publish_nowait(envelope)

    def _take_from_thread(self, envelope: Envelope) -> bool:
        if not self.covers(envelope.message.__class__):
            return False
        self._publisher.publish_nowait(envelope)
        return True

    async def publish_and_wait(
        self, envelope: Envelope, *, timeout: float, nested: bool
    ) -> Outcome:
        """Write an event and wait until all groups that read its topic here are done with it.

        Who is ``nested``, a handler of this bus, handles it in its own task: it may be the one that
        its lane waits for.
        """
        self.meet(envelope.message.__class__)
        readers = [one for one in self._consumers.values() if one.topic == envelope.topic]
        wait = self._handle_here if nested else self._wait_for
        results = await wait(envelope, readers, timeout)
        return Outcome(
            sum(result.handled for result in results),
            tuple(failure for result in results for failure in result.failures),
            filtered=bool(results) and all(result.filtered for result in results),
        )

    async def _wait_for(
        self, envelope: Envelope, readers: list[GroupConsumer], timeout: float
    ) -> list[Outcome]:
        outcomes = [reader.expect(envelope.id) for reader in readers]
        try:
            await self.publish(envelope, durable=True, timeout=timeout)
            return [await outcome for outcome in outcomes]
        finally:
            for outcome in outcomes:
                outcome.cancel()

    async def _handle_here(
        self, envelope: Envelope, readers: list[GroupConsumer], timeout: float
    ) -> list[Outcome]:
        kept = [(reader, reader.keep_here(envelope)) for reader in readers]
        try:
            written = await self.publish(envelope, durable=True, timeout=timeout)
            place = (written.partition, written.offset)
            return [await reader.handle_here(here, *place) for reader, here in kept]
        finally:
            for reader, here in kept:
                reader.let_go(here)

    async def publish_together(
        self, envelopes: list[Envelope], others: list[Envelope], *, timeout: float
    ) -> None:
        """Write events in one transaction, then queue those that are in no log.

        Cancelled, or too late, it goes on: all of it happens, or nothing.
        """
        for envelope in envelopes:
            self.meet(envelope.message.__class__)
        writing = spawn(self._write_together(envelopes, others))
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)
        async with self._bus._timers.deadline(timeout, "publish an atomic group"):
            await asyncio.shield(writing)

    async def _write_together(self, envelopes: list[Envelope], others: list[Envelope]) -> None:
        async with self._together:
            await self._publisher.publish_together(f"{self._bus.name}.atomic", envelopes)
        for envelope in others:
            self._bus._intake.deliver(envelope)

    # Scheduled events

    def take_scheduled(self, envelope: Envelope, taken: Callable[[], None]) -> bool:
        """Write an event that has fired, if its topic is durable; ``taken`` is told when it is safe."""
        if not self.covers(envelope.message.__class__):
            return False
        if self._bus._intake.accepts(envelope):
            task = spawn(self._write_scheduled(envelope, taken))
            self._scheduled.add(task)
            task.add_done_callback(self._scheduled.discard)
        else:
            taken()
        return True

    async def _write_scheduled(self, envelope: Envelope, taken: Callable[[], None]) -> None:
        """Again and again if need be. When the bus stops before, the schedule fires it again."""
        seconds = AGAIN_SECONDS
        while True:
            try:
                await self.publish(envelope, durable=True, timeout=AGAIN_SECONDS_MAX)
            except Exception:
                logger.exception("the scheduled event %s is not in the log yet", envelope.id)
            else:
                taken()
                return
            await self._bus._timers.sleep(seconds)
            seconds = min(2 * seconds, AGAIN_SECONDS_MAX)


async def _close(consumer: GroupConsumer) -> None:
    await consumer.pause()
    await consumer.close()
