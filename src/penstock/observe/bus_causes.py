"""What the handlers of a bus are doing, and what keeps events from them.

Nothing is noted while events are handled. A task that waits knows its coroutine, and the context of
a handler knows its event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from penstock.bus.bus import MessageBus
from penstock.bus.cells import opened
from penstock.bus.drive import Suspended, current
from penstock.messages import Envelope, marks_of
from penstock.observe.stacks import await_stack, cause_in, suspended_in
from penstock.observe.values import Cause
from penstock.observe.watched import Why
from penstock.resilience.breaker import BreakerState
from penstock.resilience.bus import ResilientMessageBus
from penstock.resilience.parking import guard_of
from penstock.scaling.durable import DurableTopics
from penstock.scaling.partition_work import Work

Wanted = Callable[[Envelope], bool]


@dataclass(frozen=True, slots=True)
class Running:
    """A handler that was called and has not returned."""

    envelope: Envelope
    task: asyncio.Task[Any]
    since: float
    """When it was seen first, by the monotonic clock; it may have begun a little earlier."""

    @property
    def topic(self) -> str:
        """The topic of the event; on the hot path, that of the messages that are handled together."""
        envelope = self.envelope
        kind = envelope.lane.kind if envelope.message is None else envelope.message.__class__
        return marks_of(kind).topic


class Handlers:
    """The handlers of a bus that run, and since when; to be asked now and then."""

    def __init__(self, bus: MessageBus) -> None:
        self._bus = bus
        self._seen: dict[int, Running] = {}
        """By the identity of the event, which is kept alive here."""

    def running(self, now: float) -> list[Running]:
        """Those that wait for something at this moment, the longest first."""
        before, self._seen = self._seen, {}
        for envelope, task in self._found():
            known = before.get(id(envelope))
            since = now if known is None else known.since
            self._seen[id(envelope)] = Running(envelope, task, since)
        return sorted(self._seen.values(), key=lambda one: one.since)

    def _found(self) -> Iterator[tuple[Envelope, asyncio.Task[Any]]]:
        tasks = self._bus._dispatch.tasks
        for task, context in list(tasks.items()):
            suspended = suspended_in(task)
            found = (suspended._context if suspended is not None else context).get(current)
            envelope = None if found is None else opened(found)
            if envelope is not None and not envelope.settled and not task.done():
                yield envelope, task
        if self._in_place():
            yield from self._found_elsewhere(tasks)

    def _in_place(self) -> bool:
        """Whether events may be handled by the tasks of those who publish them."""
        lanes = self._bus._intake.all_lanes()
        return sum(lane.pumps for lane in lanes) > len(self._bus._dispatch.tasks)

    def _found_elsewhere(
        self, own: Iterable[asyncio.Task[Any]]
    ) -> Iterator[tuple[Envelope, asyncio.Task[Any]]]:
        origin = self._bus._intake.origin
        for task in asyncio.all_tasks(self._bus._dispatch.loop) - set(own):
            suspended = suspended_in(task)
            envelope = _seen_in(suspended)
            if envelope is not None and envelope.origin == origin and not envelope.settled:
                yield envelope, task


def _seen_in(suspended: Suspended | None) -> Envelope | None:
    found = None if suspended is None else suspended._context.get(current)
    return None if found is None else opened(found)


def why_running(one: Running, now: float) -> Why:
    """A handler that does not return, and where it waits."""
    offset = one.envelope.offset
    at = "" if offset is None else f" at offset {offset}"
    return Why(
        cause=cause_in(one.task),
        detail=f"a handler runs for {now - one.since:.1f} s{at}",
        offset=offset,
        stack=await_stack(one.task),
    )


def why_parked(bus: MessageBus, wanted: Wanted) -> Why | None:
    """What the events wait for that are out of their lanes; None when they are not."""
    if not isinstance(bus, ResilientMessageBus):
        return None
    for handler in bus._registry.handlers():
        guard = guard_of(handler)
        breaker = guard.breaker
        waiting = [*guard.paused, *guard.resuming.values()]
        is_shut = breaker is not None and breaker.state is not BreakerState.CLOSED
        if breaker is not None and is_shut and any(map(wanted, waiting)):
            return _circuit(handler.name, breaker.state, breaker.retry_after, waiting[0])
    for parked in bus._parking._retries.values():
        if wanted(parked.envelope):
            detail = f"{parked.handler.name} failed and is called again later"
            return Why(cause=Cause.RETRYING, detail=detail, offset=parked.envelope.offset)
    if any(map(wanted, bus._parking.envelopes())):
        detail = "it waits behind an event of its key that is tried again"
        return Why(cause=Cause.RETRYING, detail=detail)
    return None


def _circuit(name: str, state: BreakerState, seconds: float, first: Envelope) -> Why:
    return Why(
        cause=Cause.CIRCUIT_OPEN,
        detail=f"the circuit of {name} is {state}: it is tried again in {seconds:.1f} s",
        offset=first.offset,
    )


def first_open(
    durable: DurableTopics, topic: str, group: str, partition: int | None
) -> Work | None:
    """The first record of a partition that a group of this bus has read and is not done with."""
    for consumer in durable.consumers():
        if (consumer.topic, consumer.group) == (topic, group):
            work = consumer._partitions.get(partition or 0)
            return None if work is None else next(iter(work.open.values()), None)
    return None
