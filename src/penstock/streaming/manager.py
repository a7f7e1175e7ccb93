"""Streams over any transport: publishing, subscribing, and scaling by what is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

from penstock.bus.encoding import MessageCodec
from penstock.bus.tracing import Tracing
from penstock.errors import Closed, UsageError
from penstock.log.names import check_name
from penstock.pressure.contracts import BackpressureContext, OnBackpressureChanged
from penstock.pressure.decisions import PublishDecision, PublishRules
from penstock.pressure.states import BackpressureState, BackpressureThresholds
from penstock.pressure.strategies import BackpressureStrategy
from penstock.pressure.streaming import SUBSYSTEM, StreamingBackpressureHandler
from penstock.scaling.limits import checked_limits
from penstock.stores.base import PersistentBackingStore
from penstock.streaming.committing import INTERVAL_SECONDS
from penstock.streaming.event_stream import EventStream
from penstock.streaming.lag_pressure import LagLimit, LagPressure
from penstock.streaming.outbox import Outbox, PublishCall
from penstock.streaming.outgoing import Encoder, Headers, Outgoing
from penstock.streaming.run_values import Executor
from penstock.streaming.scalability import ScalabilityConfig
from penstock.streaming.scaler import ScalingRecord, StreamScaler
from penstock.streaming.stream_limits import StreamLimits
from penstock.streaming.stream_metrics import scaling_metrics
from penstock.streaming.stream_run import StreamRun
from penstock.streaming.stream_runs import StreamRuns
from penstock.streaming.task_member import Handler, OnPoison
from penstock.streaming.topic_watch import TopicWatch
from penstock.streaming.topic_watches import TopicWatches
from penstock.streaming.transport_set import (
    TransportSet,
    TransportSlot,
    committed_offset,
    make_consumer,
)
from penstock.streaming.transport_statistics import TransportStatistics
from penstock.system import System
from penstock.transports.base import BATCH_RECORDS_MAX, Transport
from penstock.transports.records import Produced, StartPosition
from penstock.transports.registry import TransportRegistry

PUBLISH_TIMEOUT_SECONDS = 30.0
CLOSE_TIMEOUT_SECONDS = 30.0
LOOK_SECONDS = 1.0
DEFAULT = "default"


class StreamingScalingManager:
    """Publishes to and subscribes from streams; the transport is chosen by a URL.

    ``async with StreamingScalingManager("log:./data") as streams``. The first transport has the name
    ``default``; others are registered beside it, and one of them is active.

    **Publishing.** Calls wait in the backpressure handler (``handler``) for their turn at the
    transport, and feel its strategy when it fills up. Producers of a topic on which a group lags
    feel that too, where ``lag_limits`` says how far one may lag.

    **Looking.** Every ``look_seconds`` it looks at the topics that are used here: their
    partitions, their rate, the lag of their groups. The figures are of the last look.

    It belongs to one event loop. Is a ``ScalableSubsystem`` and a ``BackpressureAware``.
    """

    def __init__(
        self,
        transport: Transport | str = "memory:",
        *,
        config: ScalabilityConfig | None = None,
        limits: StreamLimits | None = None,
        strategy: BackpressureStrategy = BackpressureStrategy.ADAPTIVE,
        thresholds: BackpressureThresholds | None = None,
        lag_limits: Mapping[str, LagLimit] | None = None,
        rules: PublishRules | None = None,
        checkpoints: PersistentBackingStore | None = None,
        codec: MessageCodec | None = None,
        registry: TransportRegistry | None = None,
        look_seconds: float = LOOK_SECONDS,
        system: System | None = None,
        **options: Any,
    ) -> None:
        self._system = system or System()
        self._config, self._limits = _agreed(config or ScalabilityConfig(), limits)
        self.codec = codec or MessageCodec()
        """Encodes and decodes messages; the same as that of a bus unless another one is given."""
        self.handler: StreamingBackpressureHandler[PublishCall] = StreamingBackpressureHandler(
            self._limits.publish_queue_max,
            strategy=strategy,
            thresholds=thresholds,
            subsystem=SUBSYSTEM,
            system=self._system,
        )
        """What publishers wait in."""
        clock = self._system.clock
        self.lag_pressure = LagPressure(lag_limits or {}, clock, rules=rules, thresholds=thresholds)
        """What producers feel of groups that lag."""
        self._encoder = Encoder(self.codec, self._system)
        self._outbox = Outbox(self.handler, clock, self._limits.publishes_in_flight_max)
        self._transports = TransportSet(
            registry, checkpoints, self._limits.checkpoint_cache_entries_max, self._system
        )
        self._watches = TopicWatches(self.lag_pressure, look_seconds, self._system)
        self._scaler = StreamScaler(self._config, self._system)
        self._runs = StreamRuns(
            self._transports, self._watches, self._scaler, self._encoder, self._system
        )
        self._watches.after_look = self._runs.act
        self._streams: dict[EventStream, TopicWatch] = {}
        self._opened = self._closed = False
        self._transports.register(DEFAULT, transport, options)

    # Life

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect the active transport, and begin to look. Others are connected on first use."""
        self._check_not_closed()
        await self._transports.open(self._transports.find())
        if not self._opened:
            self._opened = True
            self._watches.begin()

    async def close(self, timeout: float = CLOSE_TIMEOUT_SECONDS) -> None:
        """Stop the runs, commit what was handled, send what was accepted, let go. Idempotent.

        Raises the first error, after all parts are closed.
        """
        if self._closed:
            return
        self._closed = True
        errors: list[Exception] = []
        steps: list[Callable[[], Any]] = [
            self._watches.close,
            lambda: self._runs.stop(timeout),
            *(stream.close for stream in list(self._streams)),
            lambda: self._outbox.close(timeout),
            lambda: self._transports.close(timeout),
        ]
        for step in steps:
            try:
                await step()
            except Exception as error:
                errors.append(error)
        self.lag_pressure.close()
        if errors:
            raise errors[0]

    # Transports

    def register(self, name: str, transport: Transport | str, **options: Any) -> None:
        """Add a transport, or that of a URL with its options, under a name of its own."""
        self._transports.register(check_name("transport", name), transport, options)

    async def activate(self, name: str) -> None:
        """Publish to, and subscribe from, another transport from now on.

        InvalidOption, which names the known ones, when there is none of that name.
        """
        await self.connect(name)
        self._transports.activate(name)

    async def connect(self, name: str) -> None:
        """Connect a transport without making it the active one; publishing to it does it too."""
        self._check_open()
        await self._transports.open(self._transports.find(name))

    @property
    def active(self) -> str:
        """The name of the active transport."""
        return self._transports.find().name

    @property
    def transports(self) -> tuple[str, ...]:
        """The names of all transports."""
        return self._transports.names()

    def transport(self, name: str | None = None) -> Transport:
        """A transport itself, the active one without a name."""
        return self._transports.find(name).transport

    async def create_topic(
        self,
        topic: str | type,
        *,
        partitions: int | None = None,
        transport: str | None = None,
        **options: Any,
    ) -> None:
        """Make a topic when it is not there; options are those of the transport."""
        slot = await self._slot(transport)
        name = self._encoder.topic_of(topic)
        await slot.transport.create_topic(name, partitions=partitions, **options)

    # Publishing

    async def publish(
        self,
        topic: Any,
        value: Any = None,
        *,
        key: Any = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
        critical: bool = False,
        transport: str | None = None,
        timeout: float = PUBLISH_TIMEOUT_SECONDS,
    ) -> Produced:
        """Publish a record, ``publish(topic, value)``, or a message, ``publish(message)``.

        Values are bytes, text (UTF-8), None (a tombstone), or messages, which the codec encodes.
        Records with a key go to the key's partition, others to the partitions in turn. A message
        has the topic and the key of its class.

        Returns when the transport has acknowledged it. What was published at the same time travels
        together, and the ranges in the answer are those of all of it. Under pressure it waits, or
        raises LoadShed, which says when to try again; dropped by DROP_OLDEST it raises BufferFull.
        Cancelled, or after DeadlineExceeded, the record may have been sent.
        """
        outgoing = self._encoder.one(topic, value, key, headers)
        timestamps = None if timestamp is None else [timestamp]
        return await self._send(outgoing, timestamps, critical, transport, timeout)

    async def publish_many(
        self,
        topic: str | type,
        values: Sequence[Any],
        *,
        keys: Sequence[Any] | None = None,
        headers: Sequence[Headers | None] | None = None,
        timestamps: Sequence[int] | None = None,
        critical: bool = False,
        transport: str | None = None,
        timeout: float = PUBLISH_TIMEOUT_SECONDS,
    ) -> Produced:
        """Publish many records of one topic, in order; as :meth:`publish` otherwise.

        Not all or none: after an error a leading part may have been sent. Under pressure it counts
        as one call.
        """
        outgoing = self._encoder.many(topic, values, keys, headers)
        return await self._send(outgoing, timestamps, critical, transport, timeout)

    async def _send(
        self,
        outgoing: Outgoing,
        timestamps: Sequence[int] | None,
        critical: bool,
        transport: str | None,
        timeout: float,
    ) -> Produced:
        began = self._system.clock.monotonic()
        slot = await self._slot(transport)
        topic, critical = outgoing.topic, critical or outgoing.critical
        watch = self._watches.watch(slot, topic)
        added = await self.lag_pressure.before_publish(topic, critical=critical, timeout=timeout)
        outgoing = self._encoder.stamped(outgoing.with_headers(added))
        call = PublishCall(
            slot.transport,
            slot.meter,
            topic,
            outgoing.values,
            outgoing.keys,
            outgoing.headers,
            timestamps,
            began,
        )
        produced = await self._outbox.send(call, critical=critical, timeout=timeout)
        watch.published += len(outgoing.values)
        return produced

    # Subscribing

    def subscribe(
        self,
        topic: str | type,
        group: str,
        *,
        start: StartPosition = "earliest",
        requires: Iterable[str] = (),
        auto_ack: bool | None = None,
        auto_commit: float | None = INTERVAL_SECONDS,
        records_max: int = BATCH_RECORDS_MAX,
        transport: str | None = None,
        **options: Any,
    ) -> EventStream:
        """The events of a topic for one member of a group; see :class:`EventStream`.

        A group goes on where it committed; a new one begins at ``start``. ``auto_commit`` is the
        interval in seconds; None: you commit, and what you passed is not handled before. ``requires`` names what the transport must be able
        to do, and ``options`` are its own: NotSupported or InvalidOption when it does not, here
        and not later. So does a wrong name of a topic or a group.
        """
        self._check_open()
        slot = self._transports.connected(transport)
        name = check_name("topic", self._encoder.topic_of(topic))
        check_name("group", group)
        stream = EventStream(
            partial(
                make_consumer,
                partial(
                    slot.transport.subscribe, name, group, start=start, requires=requires, **options
                ),
                slot.transport,
            ),
            partial(committed_offset, slot.transport, name, group),
            self._transports.checkpoints_of(slot),
            slot.meter,
            self.codec,
            auto_ack=auto_commit is not None if auto_ack is None else auto_ack,
            auto_commit=auto_commit,
            records_max=records_max,
            system=self._system,
            on_close=lambda closed: self._streams.pop(closed, None),
        )
        watch = self._watches.watch(slot, name)
        watch.groups.add(group)
        self._streams[stream] = watch
        return stream

    def run(
        self,
        topic: str | type,
        group: str,
        handler: Handler | str,
        *,
        executor: Executor | str = Executor.TASK,
        consumers: int = 1,
        on_poison: OnPoison | None = None,
        transport: str | None = None,
        **options: Any,
    ) -> StreamRun:
        """Consumers that call a handler with each event; ``async with streams.run(...)``.

        The scaler adds consumers when the group lags and takes them away again, between 1 and
        ``max_consumers``, and changes the partitions of the topic by its rate. ``executor`` says
        whether they are tasks or processes. A process imports the handler by its name, so it has to
        be a function of a module, or ``"package.module:function"``; it opens the transport by its
        URL. Options are the fields of ``RunOptions``.

        A handler that raises is called again, ``attempts`` times in all. What fails for good goes
        to ``on_poison`` or to ``dead_letter_topic``; without either it is parked, and comes again
        after a restart.
        """
        self._check_open()
        slot = self._transports.find(transport)
        name = check_name("topic", self._encoder.topic_of(topic))
        check_name("group", group)
        options.setdefault("buffered_max", self._limits.buffered_records_max)
        return self._runs.make(slot, name, group, handler, executor, consumers, on_poison, options)

    def observe(self, tracing: Tracing | None) -> None:
        """Make spans of what is published, and of what the tasks of runs handle; None: no more."""
        self._encoder.tracing = tracing

    def autoscale(self, topic: str | type, *, transport: str | None = None) -> None:
        """Let the scaler change the partitions of a topic that has no run here."""
        self._runs.scale(self._transports.find(transport), self._encoder.topic_of(topic))

    def decisions(self, topic: str | None = None) -> tuple[ScalingRecord, ...]:
        """What the scaler decided, why, and what came of it; of one topic or of all."""
        return self._scaler.records(topic)

    # What every subsystem that scales has

    @property
    def config(self) -> ScalabilityConfig:
        """When the scaler acts; its maxima are those of the limits."""
        return self._config

    @property
    def current_limits(self) -> StreamLimits:
        """The limits that are in force."""
        return self._limits

    def reconfigure(self, config: ScalabilityConfig) -> None:
        """Let the scaler go by another configuration; its maxima become the limits."""
        self.reconfigure_limits(
            self._limits.with_(
                max_partitions=config.max_partitions, max_consumers=config.max_consumers
            )
        )
        self._config = config
        self._scaler.reconfigure(config)

    def reconfigure_limits(self, limits: StreamLimits) -> None:
        """Put other limits in force, at once. What was accepted is not lost by it.

        Where there are more partitions or consumers than a lower limit allows, the scaler takes
        the others away at its next look.
        """
        self._config, self._limits = _agreed(self._config, checked_limits(limits, StreamLimits))
        self.handler.capacity = limits.publish_queue_max
        self._outbox.resize(limits.publishes_in_flight_max)
        self._scaler.reconfigure(self._config)
        self._transports.resize_cache(limits.checkpoint_cache_entries_max)

    @property
    def current_backpressure_state(self) -> BackpressureState:
        """How full the handler is: its own value."""
        return self.handler.current_state

    def get_scaling_metrics(self) -> Mapping[str, Any]:
        """Partitions, consumers, throughput, lag and checkpoints, as of the last look."""
        return scaling_metrics(
            self._watches, self._consumers_of, self._transports, self.handler, self._outbox
        )

    def _consumers_of(self, watch: TopicWatch) -> int:
        streams = sum(own is watch for own in self._streams.values())
        return streams + sum(run.consumers for run in self._runs.of(watch))

    def statistics(self) -> Mapping[str, TransportStatistics]:
        """What went over each transport: throughput, latency, errors."""
        return self._transports.statistics()

    async def look(self) -> None:
        """Look at all topics now, as is done every ``look_seconds`` anyway."""
        self._check_open()
        await self._watches.look()

    # What everything that presses back has

    @property
    def strategy(self) -> BackpressureStrategy:
        """What is done to publishers when the handler fills up. May be set at any time."""
        return self.handler.strategy

    @strategy.setter
    def strategy(self, strategy: BackpressureStrategy) -> None:
        self.handler.strategy = strategy

    @property
    def current_state(self) -> BackpressureState:
        """The level of the handler."""
        return self.handler.current_state

    def on_backpressure_changed(self, callback: OnBackpressureChanged) -> Callable[[], None]:
        """Call back on every change of the level, once; returns what ends that."""
        return self.handler.on_backpressure_changed(callback)

    async def apply_backpressure(self, context: BackpressureContext) -> PublishDecision:
        """Do to a producer what this situation asks for, as the handler does."""
        return await self.handler.apply_backpressure(context)

    # Inside

    async def _slot(self, name: str | None) -> TransportSlot:
        self._check_open()
        return await self._transports.open(self._transports.find(name))

    def _check_not_closed(self) -> None:
        if self._closed:
            raise Closed("streaming was closed: make a new StreamingScalingManager to go on")

    def _check_open(self) -> None:
        self._check_not_closed()
        if not self._opened:
            raise UsageError("open it first: async with StreamingScalingManager(...) as streams")


def _agreed(
    config: ScalabilityConfig, limits: StreamLimits | None
) -> tuple[ScalabilityConfig, StreamLimits]:
    """Both with the same maxima: those of the limits, where limits are given."""
    if limits is None:
        limits = StreamLimits(
            max_partitions=config.max_partitions, max_consumers=config.max_consumers
        )
    return (
        replace(config, max_partitions=limits.max_partitions, max_consumers=limits.max_consumers),
        limits,
    )
