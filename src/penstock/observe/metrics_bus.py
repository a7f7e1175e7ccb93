"""The metrics of buses and of their pressure."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.observe.metric import COUNTER, GAUGE, HISTOGRAM, Metric, Reader, Sample
from penstock.observe.values import Snapshot
from penstock.pressure.readings import PressureStatistics
from penstock.resilience.breaker import BreakerState

BREAKER_NUMBERS = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}
BUS, TOPIC = ("bus",), ("bus", "topic")


# Buses


def _figure(field: str) -> Reader:
    return lambda seen: (((bus.name,), getattr(bus.figures, field)) for bus in seen.buses)


def _queue(field: str) -> Reader:
    return lambda seen: (
        ((bus.name, topic), getattr(queue, field))
        for bus in seen.buses
        for topic, queue in bus.figures.queues.items()
    )


def _backpressure_active(seen: Snapshot) -> Iterator[Sample]:
    for bus in seen.buses:
        pressed = any(queue.under_pressure for queue in bus.figures.queues.values())
        level = bus.pressure.level if bus.pressure is not None else 0
        yield (bus.name,), float(pressed or level > 0)


def _letters(field: str) -> Reader:
    return lambda seen: (
        ((bus.name,), getattr(bus.dead_letters, field))
        for bus in seen.buses
        if bus.dead_letters is not None
    )


def _letters_by_reason(seen: Snapshot) -> Iterator[Sample]:
    for bus in seen.buses:
        if bus.dead_letters is not None:
            for reason, count in bus.dead_letters.by_reason.items():
                yield (bus.name, str(reason)), count


def _breaker_state(seen: Snapshot) -> Iterator[Sample]:
    for bus in seen.buses:
        for handler, breaker in bus.breakers.items():
            yield (bus.name, handler), BREAKER_NUMBERS[breaker.state]


def _breaker_opened(seen: Snapshot) -> Iterator[Sample]:
    for bus in seen.buses:
        for handler, breaker in bus.breakers.items():
            yield (bus.name, handler), breaker.opened


# Pressure


def _pressures(seen: Snapshot) -> Iterator[tuple[str, PressureStatistics]]:
    for bus in seen.buses:
        if bus.pressure is not None:
            yield bus.name, bus.pressure.pressure
    for streams in seen.streams:
        yield streams.name, streams.publishers.pressure
        for topic, pressure in streams.lag_pressure.items():
            yield f"{streams.name}/{topic}", pressure


def _level(seen: Snapshot) -> Iterator[Sample]:
    return (((name,), int(one.level)) for name, one in _pressures(seen))


def _utilisation(seen: Snapshot) -> Iterator[Sample]:
    return (((name,), one.utilisation) for name, one in _pressures(seen))


def _level_seconds(seen: Snapshot) -> Iterator[Sample]:
    for name, one in _pressures(seen):
        for level, seconds in one.seconds.items():
            yield (name, level.name.lower()), seconds


def _shed(seen: Snapshot) -> Iterator[Sample]:
    for bus in seen.buses:
        if bus.pressure is not None:
            yield (bus.name,), bus.pressure.total.shed
    for streams in seen.streams:
        yield (streams.name,), streams.publishers.shed


BUS_METRICS: tuple[Metric, ...] = (
    Metric(
        "events_published", COUNTER, BUS, "Events that were queued.", _figure("events_published")
    ),
    Metric(
        "events_processed",
        COUNTER,
        BUS,
        "Events that all handlers are done with.",
        _figure("events_processed"),
    ),
    Metric(
        "events_failed",
        COUNTER,
        BUS,
        "Events that a handler failed on for good.",
        _figure("events_failed"),
    ),
    Metric(
        "events_filtered",
        COUNTER,
        BUS,
        "Events that filters or middleware kept from all handlers.",
        _figure("events_filtered"),
    ),
    Metric(
        "events_unhandled",
        COUNTER,
        BUS,
        "Events that nobody listens to.",
        _figure("events_unhandled"),
    ),
    Metric(
        "events_dropped",
        COUNTER,
        BUS,
        "Events that made room for others.",
        _figure("events_dropped"),
    ),
    Metric(
        "events_unsettled",
        GAUGE,
        BUS,
        "Events that are queued, in work, or wait for a retry.",
        _figure("events_unsettled"),
    ),
    Metric(
        "commands_published",
        COUNTER,
        BUS,
        "Commands that the bus was given to execute.",
        _figure("commands_executed"),
    ),
    Metric(
        "commands_processed",
        COUNTER,
        BUS,
        "Commands that ended well.",
        _figure("commands_succeeded"),
    ),
    Metric("commands_failed", COUNTER, BUS, "Commands that failed.", _figure("commands_failed")),
    Metric(
        "event_processing_duration_seconds",
        HISTOGRAM,
        TOPIC,
        "How long the handlers of an event took.",
        durations=lambda seen: (
            ((bus.name, topic), one)
            for bus in seen.buses
            for topic, one in bus.event_durations.items()
        ),
    ),
    Metric(
        "command_processing_duration_seconds",
        HISTOGRAM,
        ("bus", "command"),
        "How long commands took.",
        durations=lambda seen: (
            ((bus.name, topic), one)
            for bus in seen.buses
            for topic, one in bus.command_durations.items()
        ),
    ),
    Metric("queue_size", GAUGE, TOPIC, "Events that wait in a queue.", _queue("depth")),
    Metric("queue_capacity", GAUGE, TOPIC, "How many may wait in it.", _queue("capacity")),
    Metric(
        "queue_rejected", COUNTER, TOPIC, "Events that a full queue refused.", _queue("rejected")
    ),
    Metric(
        "backpressure_active",
        GAUGE,
        BUS,
        "1 while a queue is above its mark or the level is above NORMAL.",
        _backpressure_active,
    ),
    Metric(
        "circuit_breaker_state",
        GAUGE,
        ("bus", "handler"),
        "0 closed, 1 half open, 2 open.",
        _breaker_state,
    ),
    Metric(
        "circuit_breaker_opened",
        COUNTER,
        ("bus", "handler"),
        "How often a circuit opened.",
        _breaker_opened,
    ),
    Metric(
        "dead_letter_queue_size", GAUGE, BUS, "Dead letters that are kept.", _letters("letters")
    ),
    Metric(
        "dead_letters_by_reason",
        GAUGE,
        ("bus", "reason"),
        "Dead letters that are kept, by why they are.",
        _letters_by_reason,
    ),
    Metric("dead_letters_added", COUNTER, BUS, "Dead letters so far.", _letters("added")),
    Metric(
        "dead_letters_lost",
        COUNTER,
        BUS,
        "Dead letters that were not taken, as there was no room.",
        _letters("rejected"),
    ),
    Metric("active_sessions", GAUGE, BUS, "Sessions that are open.", _figure("active_sessions")),
    Metric(
        "registered_handlers",
        GAUGE,
        BUS,
        "Handlers, of events and of commands.",
        lambda seen: (((bus.name,), len(bus.figures.handlers)) for bus in seen.buses),
    ),
    Metric(
        "pressure_level",
        GAUGE,
        ("subsystem",),
        "0 normal, 1 warning, 2 critical, 3 shedding.",
        _level,
    ),
    Metric(
        "pressure_utilisation_ratio",
        GAUGE,
        ("subsystem",),
        "The share of the capacity in use, of the fullest stage.",
        _utilisation,
    ),
    Metric(
        "pressure_level_seconds",
        COUNTER,
        ("subsystem", "level"),
        "How long each level lasted.",
        _level_seconds,
    ),
    Metric(
        "pressure_shed", COUNTER, ("subsystem",), "Messages that were refused to shed load.", _shed
    ),
)
