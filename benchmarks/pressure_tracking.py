"""What it costs to watch the pressure: the same events, with and without the monitor."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock import Event, MessageBus, QueueOptions, System
from penstock.pressure import PressureMonitor, Reading

BLOCK = 5_000


class Tick(Event):
    number: int


@dataclass(frozen=True)
class TrackingCost:
    """Seconds of processor time for the same number of events, the best of some rounds each."""

    events: int
    plain_seconds: float
    tracked_seconds: float

    @property
    def share(self) -> float:
        """What the monitor adds, as a share of the time without it."""
        return self.tracked_seconds / self.plain_seconds - 1

    @property
    def nanoseconds_each(self) -> float:
        """What the monitor adds to one event."""
        return (self.tracked_seconds - self.plain_seconds) / self.events * 1e9


def tracking_cost(events: int = 200_000, rounds: int = 7) -> TrackingCost:
    """Publish and handle events one by one, in turn with and without a look at the pressure."""
    return asyncio.run(_measure(events, rounds))


async def _measure(events: int, rounds: int) -> TrackingCost:
    plain = tracked = float("inf")
    for _ in range(rounds):
        plain = min(plain, await _run(events, tracks=False))
        tracked = min(tracked, await _run(events, tracks=True))
    return TrackingCost(events, plain, tracked)


async def _run(events: int, *, tracks: bool) -> float:
    handled = 0

    def handle(_: Tick) -> None:
        nonlocal handled
        handled += 1

    async with MessageBus(queue=QueueOptions(2 * BLOCK)) as bus:
        bus.subscribe(Tick, handle)
        publish = _tracked(bus) if tracks else _plain(bus)
        gc.collect()
        began = time.process_time()
        for first in range(1, events, BLOCK):
            publish(first)
            await bus.settle()
        seconds = time.process_time() - began
    assert handled == events
    return seconds


def _plain(bus: MessageBus) -> Callable[[int], None]:
    publish = bus.publish_nowait

    def block(first: int) -> None:
        for sequence in range(first, first + BLOCK):
            publish(Tick(sequence))

    return block


def _tracked(bus: MessageBus) -> Callable[[int], None]:
    """As a bus does it: for each event a comparison with a copy of ``look_at``, a look at the depths for few."""
    publish = bus.publish_nowait
    monitor = PressureMonitor(System().clock)
    monitor.add(lambda: _depths(bus), counted=True)

    def block(first: int) -> None:
        look_at = monitor.look_at
        for sequence in range(first, first + BLOCK):
            if sequence >= look_at:
                monitor.look(sequence)
                look_at = monitor.look_at
            publish(Tick(sequence))

    return block


def _depths(bus: MessageBus) -> list[Reading]:
    """How full the lanes are, as the bus itself reads them; its statistics would cost more."""
    queues = [lane.queue for lane in bus._intake.all_lanes()]
    return [Reading("Tick", len(one) + one.held, one.capacity_in_all) for one in queues]


if __name__ == "__main__":
    cost = tracking_cost()
    print(f"{cost.share:+.1%}, {cost.nanoseconds_each:+.0f} ns an event")
