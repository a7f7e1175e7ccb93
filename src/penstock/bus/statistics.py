"""The figures of a bus, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.bus.cells import COUNTED, Counters
from penstock.bus.commands import CommandCounters, Commands
from penstock.bus.dispatch import Dispatch
from penstock.bus.handlers import Handler
from penstock.bus.intake import Intake
from penstock.bus.queue import EventQueueStatistics
from penstock.messages import Envelope, marks_of


@dataclass(frozen=True, slots=True)
class HandlerStatistics:
    """One handler."""

    name: str
    target: str
    session: str
    handled: int
    failed: int
    """Calls that raised; a retry that raises counts again."""
    filtered: int


@dataclass(frozen=True, slots=True)
class BusStatistics:
    """A bus: ``published = processed + failed + filtered + unhandled + dropped + unsettled``."""

    name: str
    events_published: int
    events_processed: int
    events_failed: int
    """Events that at least one handler failed on for good."""
    events_filtered: int
    """Events that filters or middleware kept from all handlers."""
    events_unhandled: int
    """Events that nobody listens to."""
    events_dropped: int
    """Events that made room for others in a full queue."""
    events_unsettled: int
    """Events that are queued, in work, or wait for a retry."""
    commands_executed: int
    commands_succeeded: int
    commands_failed: int
    queues: Mapping[str, EventQueueStatistics]
    """By topic."""
    handlers: tuple[HandlerStatistics, ...]
    active_sessions: int
    timers: int
    """Calls that are due later: schedules, retries, timeouts."""


@dataclass(frozen=True, slots=True)
class StopReport:
    """What ``stop`` could not finish."""

    undrained: tuple[Envelope, ...] = ()
    """Events that no handler, or not all handlers, are done with."""

    @property
    def drained(self) -> bool:
        """Whether nothing was left."""
        return not self.undrained


def handler_statistics(handler: Handler) -> HandlerStatistics:
    """The figures of one handler."""
    return HandlerStatistics(
        name=handler.name,
        target=handler.label,
        session=handler.session,
        handled=handler.handled,
        failed=handler.failed,
        filtered=handler.filtered,
    )


def event_figures(counters: Counters) -> dict[str, Any]:
    """The events by what became of them, as :class:`BusStatistics` names them."""
    return {f"events_{name}": getattr(counters, name) for name in COUNTED}


def command_figures(counters: CommandCounters) -> dict[str, Any]:
    """The commands by how they ended, as :class:`BusStatistics` names them."""
    return {f"commands_{name}": getattr(counters, name) for name in CommandCounters.__slots__}


def bus_statistics(
    name: str, dispatch: Dispatch, commands: Commands, intake: Intake, sessions: int
) -> BusStatistics:
    """The figures of a bus."""
    return BusStatistics(
        name=name,
        **event_figures(dispatch.counters),
        events_unsettled=dispatch.counters.unsettled,
        **command_figures(commands.counters),
        queues={
            marks_of(kind).topic: lane.queue.statistics() for kind, lane in intake.lanes.items()
        },
        handlers=tuple(map(handler_statistics, dispatch.registry.handlers())),
        active_sessions=sessions,
        timers=len(intake.timers),
    )
