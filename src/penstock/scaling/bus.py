"""The scalable bus: partitions, groups, the hot path, limits and pressure around any message bus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from threading import get_ident
from typing import TYPE_CHECKING, Any, Self

from penstock.bus.bus import SETTLE_TIMEOUT_SECONDS, MessageBus
from penstock.bus.delivery import Outcome
from penstock.bus.groups import AtomicGroup
from penstock.bus.handlers import Filter, Handler, Target
from penstock.bus.intake import PUBLISH_TIMEOUT_SECONDS
from penstock.bus.middleware import MessageObserver
from penstock.bus.session import Session
from penstock.bus.statistics import BusStatistics, StopReport
from penstock.errors import InvalidOption, LimitReached
from penstock.messages import Envelope, check_type, marks_of
from penstock.names import check_name
from penstock.pressure.message_bus import MessageBusBackpressure
from penstock.pressure.monitor import PressureMonitor
from penstock.pressure.states import BackpressureState, BackpressureThresholds
from penstock.scaling.assignment import partitions_for
from penstock.scaling.durable import DurableTopics
from penstock.scaling.durable_groups import DurableGroup
from penstock.scaling.limits import BusLimits
from penstock.scaling.log_records import TopicLog
from penstock.scaling.metrics import lane_depths, scaling_metrics
from penstock.scaling.rate import RateMeasure
from penstock.scaling.ring import RING_CAPACITY
from penstock.scaling.short_way import ShortWay, make_publish, make_publish_nowait
from penstock.scaling.subscriber_groups import SubscriberGroups
from penstock.scaling.topics import TopicLanes

if TYPE_CHECKING:
    from penstock.bus.bus import MessageBus as _Bus  # what it looks like
else:
    _Bus = object  # what it is: everything else comes from the bus inside


NEVER = 1 << 62
RATE_WINDOW_SECONDS = 10.0
LAG = "lag"
"""The stage of events in the log that groups are not done with."""


class ScalableMessageBus(_Bus):
    """Decorates a :class:`MessageBus`, plain or resilient. Every call of it works through this too.

    ``partitions`` has the number of partitions by topic; without one, a topic has as many as its
    largest group of subscribers asks for. ``hot_topics`` (and classes with ``@hot_path``) take the
    hot path. ``limits`` and ``thresholds`` can be changed while it runs. ``backpressure=False`` leaves
    publishers alone until a queue is full.

    With a ``log``, such as an open ``WalMessageQueue``, the topics in ``durable`` (all by default) live
    there: ``publish`` returns when the event is as safe as its topic asks for, and each ``group`` of
    handlers (the bus's name without one) goes on after a crash with what it was not done with.
    With ``lag_max`` the lag of the groups is a stage of the pressure, which is full there.

    Use either the decorator or the bus inside, not both: what the bus inside is given passes by the
    pressure and the limits. Belongs to the event loop of the bus inside.
    """

    def __init__(
        self,
        inner: MessageBus,
        *,
        partitions: Mapping[str, int] | None = None,
        hot_topics: Iterable[str] = (),
        ring_capacity: int = RING_CAPACITY,
        limits: BusLimits | None = None,
        thresholds: BackpressureThresholds | None = None,
        backpressure: bool = True,
        log: TopicLog | None = None,
        durable: Iterable[str] | bool = True,
        lag_max: int | None = None,
    ) -> None:
        self._inner = inner
        intake = inner._intake
        queue_size = intake.options.capacity
        self._limits = limits or BusLimits(max_message_queue_size=queue_size)
        self._fixed = set(partitions or {})
        self.lanes = TopicLanes(
            intake,
            self._limits,
            partitions=partitions or {},
            hot_topics=hot_topics,
            ring_capacity=ring_capacity,
        )
        self.lanes.change_limits(self._limits)
        self._groups = SubscriberGroups()
        clock = inner._system.clock
        monitor = PressureMonitor(
            clock,
            subsystem=inner.name,
            thresholds=thresholds,
            timers=inner._timers,
        )
        monitor.add(lambda: lane_depths(intake), counted=True)
        self.backpressure = MessageBusBackpressure(
            monitor, inner._timers, on_batching=self._switch_batching
        )
        self._rate = RateMeasure(window_seconds=RATE_WINDOW_SECONDS, system=inner._system)
        self._pressing = backpressure
        self._durable = (
            None
            if log is None
            else DurableTopics(inner, log, covering(durable), self._groups.has_members)
        )
        if self._durable is not None and lag_max is not None:
            topics, bound = self._durable, lag_max
            monitor.add(lambda: topics.readings(bound), stage=LAG)
        self._hot = {} if intake.recorder is not None else self.lanes.hot
        """The hot classes, as long as nothing else wants to see every message."""
        short = self._hot if log is None else {}
        self._way = ShortWay(intake, short, 0 if backpressure else NEVER)
        self._shorten()
        intake.on_unpublished = self._way.count
        monitor.on_change(lambda _: self._look_soon())
        monitor.on_look_soon(self._look_soon)
        self.lanes.on_change = monitor.look_soon
        self._stopping: asyncio.Future[StopReport] | None = None
        inner._registry.on_add = self._check_subscribers

    def _shorten(self) -> None:
        """Publish with functions that do not look at this object, unless a subclass has its own."""
        own = type(self)
        if own.publish is ScalableMessageBus.publish:
            self.__dict__["publish"] = make_publish(self._way, self._publish_long)
        if own.publish_nowait is ScalableMessageBus.publish_nowait:
            self.__dict__["publish_nowait"] = make_publish_nowait(
                self._way, self._publish_nowait_long
            )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    # Life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """As :meth:`MessageBus.start`; then groups go on in the log where they had committed."""
        await self._inner.start()
        if self._durable is not None:
            try:
                await self._durable.start()
            except BaseException:
                await self.stop(drain=False)
                raise

    async def stop(self, **options: Any) -> StopReport:
        """As :meth:`MessageBus.stop`. What was read from the log and not handled comes again."""
        if self._inner._intake.is_nested():
            return await self._inner.stop(**options)  # which refuses
        self._end_short_way()
        self.backpressure.close()
        if self._durable is None:
            return await self._inner.stop(**options)
        if self._stopping is None:
            self._durable.stop_reading()
            if not options.get("drain", True):
                self._inner._intake.halt()
            self._stopping = asyncio.ensure_future(self._stop_durably(self._durable, options))
        return await asyncio.shield(self._stopping)

    async def _stop_durably(self, durable: DurableTopics, options: dict[str, Any]) -> StopReport:
        """Cancelled or not, it comes to its end: groups commit what they have handled."""
        report = await self._inner.stop(**options)
        unwritten = await durable.close()
        return replace(report, undrained=(*report.undrained, *unwritten))

    async def settle(self, timeout: float = SETTLE_TIMEOUT_SECONDS) -> None:
        """As :meth:`MessageBus.settle`; groups have caught up with the log then."""
        await self._inner.settle(timeout)
        if self._durable is not None:
            async with self._inner._timers.deadline(timeout, "settle the bus"):
                await self._durable.catch_up()
                while self._inner._dispatch.busy or not self._durable.has_caught_up:
                    await self._inner.settle(timeout)
                    await self._durable.catch_up()

    def session(self, name: str) -> Session:
        """As :meth:`MessageBus.session`; what it publishes and subscribes to goes through this."""
        session = self._inner.session(name)
        session._bus = self
        return session

    # Subscribing

    def on(self, *targets: Target, **options: Any) -> Callable[[Any], Any]:
        """As :meth:`MessageBus.on`; ``group`` as for :meth:`subscribe`."""

        def register(function: Any) -> Any:
            for target in targets:
                self.subscribe(target, function, **options)
            return function

        return register if targets else self._inner.on()

    def subscribe(
        self,
        target: Target,
        function: Callable[..., Any],
        *,
        group: str | None = None,
        where: Filter | None = None,
        **options: Any,
    ) -> Handler:
        """As :meth:`MessageBus.subscribe`. The members of a ``group`` share the partitions."""
        if group is not None:
            check_name("group", group)
        durable = self._durable
        if isinstance(target, type):
            self.lanes.open(target)
            if durable is not None and durable.covers(target):
                options = durable.handler_options(options)
        if group is None and durable is not None:
            where = durable.filter_alone(where)
            handler = self._inner.subscribe(target, function, where=where, **options)
            durable.join_alone(handler)
            return handler
        if group is None:
            return self._inner.subscribe(target, function, where=where, **options)
        if not isinstance(target, type):
            raise InvalidOption("a group needs a message class, not a pattern", option="group")
        mine, join = self._groups.filter_for(target, group, where)
        handler = self._inner.subscribe(target, function, where=mine, **options)
        join(handler, lambda: self._left(target, group))
        self._fit_partitions(target)
        if durable is not None and durable.covers(target):
            durable.join(target, group)
        return handler

    def _left(self, kind: type, group: str) -> None:
        self._fit_partitions(kind)
        if self._durable is not None:
            self._durable.left(group)

    def observe(self, observer: MessageObserver) -> None:
        """As :meth:`MessageBus.observe`."""
        self._end_short_way()
        self._inner.observe(observer)

    def add_filter(self, accepts: Filter) -> None:
        """As :meth:`MessageBus.add_filter`."""
        self._end_short_way()
        self._inner.add_filter(accepts)

    def _end_short_way(self) -> None:
        self._way.end()
        self._hot = {}

    def _fit_partitions(self, kind: type) -> None:
        """Give a topic as many partitions as its subscribers can use, unless it is told."""
        if marks_of(kind).topic not in self._fixed:
            self.lanes.set_partitions(kind, partitions_for(max(1, self._groups.largest(kind))))

    def set_partitions(self, kind: type, partitions: int) -> None:
        """Change the number of partitions of a topic while it runs; order per key is kept."""
        self._fixed.add(marks_of(kind).topic)
        self.lanes.open(kind)
        self.lanes.set_partitions(kind, partitions)

    def set_hot(self, kind: type, *, hot: bool = True) -> None:
        """Move a topic to the hot path, or away from it, while it runs; the order is kept."""
        self.lanes.open(kind)
        self.lanes.set_hot(kind, hot=hot)

    # Publishing

    async def publish(self, event: Any, **options: Any) -> None:
        """As :meth:`MessageBus.publish`, under pressure.

        From WARNING on the message gets a header, in CRITICAL this waits, in SHEDDING it raises
        LoadShed unless the message's class is ``@critical``. Cancelled meanwhile, nothing was queued.
        """
        if options or not self._way.put(event):
            await self._publish_long(event, options)

    async def _publish_long(self, event: Any, options: dict[str, Any]) -> None:
        way = self._way
        way.published += 1
        if way.published >= way.look_at:
            options = await self._press(event, options)
        if self._durable is not None and self._durable.covers(event.__class__):
            await self._publish_durably(event, options)
        elif options or not self._put_hot(event):
            self._make_lanes(event)
            await self._inner.publish(event, **options)

    async def _publish_durably(self, event: Any, options: dict[str, Any]) -> None:
        assert self._durable is not None
        timeout = options.pop("timeout", PUBLISH_TIMEOUT_SECONDS)
        durable = options.pop("durable", False)
        envelope = self._enclose(event, options)
        if self._inner._intake.accepts(envelope):
            await self._durable.publish(envelope, durable=durable, timeout=timeout)

    def publish_nowait(self, event: Any, **options: Any) -> None:
        """As :meth:`MessageBus.publish_nowait`. It cannot wait, so it is not delayed, only refused."""
        if options or not self._way.put(event):
            self._publish_nowait_long(event, options)

    def _publish_nowait_long(self, event: Any, options: dict[str, Any]) -> None:
        way = self._way
        durable = self._durable is not None and self._durable.covers(event.__class__)
        mine = self._inner._intake.thread == get_ident()
        way.published += 1  # of another thread too: it fills a queue as well
        if mine and way.published >= way.look_at:
            options = self._press_nowait(event, options)
        if durable:
            self._publish_durably_nowait(event, options)
        elif not mine:
            self._inner.publish_nowait(event, **options)
        elif options or not self._put_hot(event):
            self._make_lanes(event)
            self._inner.publish_nowait(event, **options)

    def _publish_durably_nowait(self, event: Any, options: dict[str, Any]) -> None:
        assert self._durable is not None
        self._durable.publish_nowait(self._enclose(event, options))

    def _enclose(self, event: Any, options: dict[str, Any]) -> Envelope:
        """The envelope of an event of a durable topic."""
        self._inner._intake.check_open()
        check_type(event.__class__)
        return self._inner._intake.enclose(event, **options)

    def _put_hot(self, event: Any) -> bool:
        """Into the ring, or the queue behind it; False when it is not hot, or both are full."""
        hot = self._hot.get(event.__class__)
        return hot is not None and hot.put(event)

    async def publish_and_wait(self, event: Any, **options: Any) -> Any:
        """As :meth:`MessageBus.publish_and_wait`, under pressure."""
        self._way.published += 1
        if self._pressing:
            options = await self._press(event, options)
        if self._durable is not None and self._durable.covers(event.__class__):
            return await self._publish_durably_and_wait(self._durable, event, options)
        self._make_lanes(event)
        return await self._inner.publish_and_wait(event, **options)

    async def _publish_durably_and_wait(
        self, durable: DurableTopics, event: Any, options: dict[str, Any]
    ) -> Outcome:
        timeout = options.pop("timeout", PUBLISH_TIMEOUT_SECONDS)
        envelope = self._enclose(event, options)
        if not self._inner._intake.accepts(envelope):
            return Outcome(0, filtered=True)
        async with self._inner._timers.deadline(timeout, f"handle an event of {envelope.topic}"):
            nested = self._inner._intake.is_nested()
            return await durable.publish_and_wait(envelope, timeout=timeout, nested=nested)

    @asynccontextmanager
    async def atomic(
        self, *, durable: bool = False, timeout: float = PUBLISH_TIMEOUT_SECONDS
    ) -> AsyncIterator[AtomicGroup]:
        """As :meth:`MessageBus.atomic`; events of durable topics are one transaction of the log."""
        for hot in self.lanes.hot:
            self.lanes.number_waiting(hot)
        if self._durable is None:
            async with self._inner.atomic(durable=durable, timeout=timeout) as group:
                yield group
            self.backpressure.monitor.look_soon()
            return
        together = DurableGroup(self._inner._intake, self._durable)
        yield together
        await together.publish_together(self._inner.history, durable=durable, timeout=timeout)

    def _make_lanes(self, event: Any) -> None:
        """The event is about to get an envelope: it needs lanes, and others may be older."""
        kind = event.__class__
        intake = self._inner._intake
        if kind in self.lanes.hot:
            self.lanes.number_waiting(kind)
        elif kind not in intake.lanes and kind not in intake.spreads:
            self.lanes.open(kind)

    async def _press(self, event: Any, options: dict[str, Any]) -> dict[str, Any]:
        if self._inner._intake.is_nested():
            return self._press_nowait(event, options)
        marks = marks_of(event.__class__)
        headers = await self.backpressure.before_publish(
            marks.topic,
            critical=marks.critical,
            sequence=self._way.published,
            timeout=options.get("timeout", PUBLISH_TIMEOUT_SECONDS),
        )
        self._way.look_at = self.backpressure.look_at
        return _with_headers(options, headers)

    def _press_nowait(self, event: Any, options: dict[str, Any]) -> dict[str, Any]:
        marks = marks_of(event.__class__)
        headers = self.backpressure.before_publish_nowait(
            marks.topic, critical=marks.critical, sequence=self._way.published
        )
        self._way.look_at = self.backpressure.look_at
        return _with_headers(options, headers)

    def _look_soon(self) -> None:
        self._way.look_soon(0 if self._pressing else NEVER)

    def _switch_batching(self, batching: bool) -> None:
        self._inner._dispatch.batching = batching

    # Limits and figures

    @property
    def current_limits(self) -> BusLimits:
        """The limits that are in force."""
        return self._limits

    def reconfigure_limits(self, limits: BusLimits) -> None:
        """Put other limits in force, at once. Nothing that was accepted is lost or reordered."""
        if not isinstance(limits, BusLimits):
            raise InvalidOption(f"a bus has BusLimits, not {limits!r}", option="limits")
        self.lanes.change_limits(limits)
        self._limits = limits

    @property
    def current_backpressure_state(self) -> BackpressureState:
        """The level of pressure at this moment."""
        return self.backpressure.monitor.evaluate()

    def get_scaling_metrics(self) -> Mapping[str, Any]:
        """Topics, messages per second, depths by partition, subscribers, ring positions, drops.

        ``durable`` has the groups that read here from the log: lag, deliveries, records that do not
        decode.
        """
        self._rate.observe(self._published())
        rate = self._rate.per_second()
        readers = () if self._durable is None else self._durable.consumers()
        return scaling_metrics(
            self._inner, self.lanes, self._groups, self.backpressure, rate, readers
        )

    def _published(self) -> int:
        """Events that were published here; how many groups read them from the log does not count."""
        published = self.statistics().events_published
        durable = self._durable
        return published if durable is None else published + durable.published - durable.delivered

    def statistics(self) -> BusStatistics:
        """As :meth:`MessageBus.statistics`; what waits in rings counts as published and unsettled."""
        figures = self._inner.statistics()
        waiting = self._inner._dispatch.uncounted_events()
        return replace(
            figures,
            events_published=figures.events_published + waiting,
            events_unsettled=figures.events_unsettled + waiting,
        )

    def _check_subscribers(self, handler: Handler) -> None:
        limit = self._limits.max_subscribers_per_topic
        if self._inner._registry.subscribers_of(handler.target) >= limit:
            raise LimitReached(
                f"{handler.label} has {limit} subscribers: raise max_subscribers_per_topic with "
                "reconfigure_limits()",
                limit="max_subscribers_per_topic",
                value=limit,
            )


def covering(durable: Iterable[str] | bool) -> Callable[[str], bool]:
    """Which topics live in the log: all, none, or those that a name or a glob matches."""
    if isinstance(durable, bool):
        return lambda _: durable
    patterns = tuple(durable)
    return lambda topic: any(fnmatchcase(topic, pattern) for pattern in patterns)


def _with_headers(options: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
    if not headers:
        return options
    return {**options, "headers": {**(options.get("headers") or {}), **headers}}
