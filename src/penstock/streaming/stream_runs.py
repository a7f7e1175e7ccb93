"""The runs of a manager: made, scaled, stopped."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from penstock.errors import InvalidOption, NotSupported
from penstock.streaming.event_stream import Subscribe
from penstock.streaming.outgoing import Encoder, Headers
from penstock.streaming.process_member import ProcessMember
from penstock.streaming.process_protocol import (
    WorkerSpec,
    check_plain,
    find_handler,
    handler_name,
)
from penstock.streaming.run_values import Executor, RunOptions
from penstock.streaming.scaler import StreamScaler
from penstock.streaming.stream_event import StreamEvent
from penstock.streaming.stream_run import MakeMember, StreamRun
from penstock.streaming.task_member import Handler, OnPoison, TaskMember
from penstock.streaming.topic_watch import TopicWatch
from penstock.streaming.topic_watches import TopicWatches
from penstock.streaming.transport_set import (
    TransportSet,
    TransportSlot,
    committed_offset,
    make_consumer,
)
from penstock.system import System
from penstock.transports.options import check_options

OPTIONS = frozenset(RunOptions.__struct_fields__)
DEAD_TOPIC, DEAD_PLACE, DEAD_ERROR = (
    "penstock-dead-topic",
    "penstock-dead-place",
    "penstock-dead-error",
)
"""Headers of a record that failed for good: where it was, and why it is here."""


class StreamRuns:
    """Makes runs, lets the scaler look at them, and stops them."""

    def __init__(
        self,
        transports: TransportSet,
        watches: TopicWatches,
        scaler: StreamScaler,
        encoder: Encoder,
        system: System,
    ) -> None:
        self._transports = transports
        self._watches = watches
        self._scaler = scaler
        self._encoder = encoder
        self._system = system
        self._runs: dict[StreamRun, TopicWatch] = {}
        self._scaled: set[TopicWatch] = set()
        """Topics whose partitions are scaled though nothing runs on them here."""

    def make(
        self,
        slot: TransportSlot,
        topic: str,
        group: str,
        handler: Handler | str,
        executor: Executor | str,
        consumers: int,
        on_poison: OnPoison | None,
        options: Mapping[str, Any],
    ) -> StreamRun:
        """A run that is not started yet."""
        check_options("a run", options, OPTIONS)
        run_options = RunOptions(**options)
        check_plain(run_options.subscribe_options)
        kind = _executor_named(executor)
        if kind is Executor.PROCESS:
            make = self._processes(slot, topic, group, handler, on_poison, run_options)
        else:
            make = self._tasks(slot, topic, group, handler, on_poison, run_options)
        watch = self._watches.watch(slot, topic)
        watch.groups.add(group)
        return StreamRun(
            topic,
            group,
            make,
            executor=kind,
            consumers=consumers,
            stop_seconds=run_options.stop_seconds,
            clock=self._system.clock,
            on_start=partial(self._begin, watch),
            on_stop=lambda run: self._runs.pop(run, None),
        )

    async def _begin(self, watch: TopicWatch, run: StreamRun) -> None:
        """Connect, and make the topic where the transport can: consumers may come first."""
        slot = await self._transports.open(watch.slot)
        if slot.transport.capabilities.create_topics:
            await slot.transport.create_topic(watch.topic)
        self._runs[run] = watch

    def scale(self, slot: TransportSlot, topic: str) -> None:
        """Scale the partitions of a topic, also when nothing runs on it here."""
        self._scaled.add(self._watches.watch(slot, topic))

    def of(self, watch: TopicWatch) -> list[StreamRun]:
        """The runs on a topic."""
        return [run for run, own in self._runs.items() if own is watch]

    async def act(self) -> None:
        """Let the scaler look at each topic that has runs."""
        for watch in {*self._runs.values(), *self._scaled}:
            await self._scaler.act(watch, self.of(watch))

    async def stop(self, timeout: float) -> None:
        """Stop all."""
        await asyncio.gather(*(run.stop(timeout) for run in list(self._runs)))

    # Members

    def _tasks(
        self,
        slot: TransportSlot,
        topic: str,
        group: str,
        handler: Handler | str,
        on_poison: OnPoison | None,
        options: RunOptions,
    ) -> MakeMember:
        called = find_handler(handler_name(handler)) if isinstance(handler, str) else handler
        if options.dead_letter_topic is not None:
            on_poison = on_poison or partial(self._bury, slot, options.dead_letter_topic)
        joined = partial(
            slot.transport.subscribe,
            topic,
            group,
            start=options.start,  # type: ignore[arg-type]  # checked by the transport
            **options.subscribe_options,
        )
        subscribe: Subscribe = partial(make_consumer, joined, slot.transport)

        def make() -> TaskMember:
            return TaskMember(
                called,
                subscribe,
                partial(committed_offset, slot.transport, topic, group),
                self._transports.checkpoints_of(slot),
                options,
                on_poison=on_poison,
                meter=slot.meter,
                codec=self._encoder.codec,
                tracing=lambda: self._encoder.tracing,
                system=self._system,
            )

        return make

    def _processes(
        self,
        slot: TransportSlot,
        topic: str,
        group: str,
        handler: Handler | str,
        on_poison: OnPoison | None,
        options: RunOptions,
    ) -> MakeMember:
        if slot.url is None or not slot.transport.capabilities.shared:
            raise NotSupported(
                f"other processes cannot open the transport {slot.name!r}: use a URL of one that "
                "is shared, such as log:./data",
                transport=slot.name,
            )
        if on_poison is not None:
            raise InvalidOption(
                "on_poison is called in this process: use dead_letter_topic with "
                "executor='process'",
                option="on_poison",
            )
        spec = WorkerSpec(
            url=slot.url,
            transport_options=check_plain(dict(slot.options)),
            topic=topic,
            group=group,
            handler=handler_name(handler),
            run=options,
            path=list(sys.path),
        )
        return lambda: ProcessMember(spec, self._system.clock)

    async def _bury(
        self, slot: TransportSlot, dead_topic: str, event: StreamEvent, error: Exception
    ) -> None:
        """Publish what failed for good to the topic for that."""
        headers: Headers = {
            **event.headers,
            DEAD_TOPIC: event.topic,
            DEAD_PLACE: f"{event.partition}/{event.offset}",
            DEAD_ERROR: f"{type(error).__name__}: {error}",
        }
        record = self._encoder.one(dead_topic, event.value, event.key, headers)
        await slot.transport.produce(
            record.topic, record.values, keys=record.keys, headers=record.headers
        )


def _executor_named(name: Executor | str) -> Executor:
    try:
        return Executor(name)
    except ValueError:
        raise InvalidOption(
            f"there is no executor {name!r}: use one of {', '.join(Executor)}", option="executor"
        ) from None
