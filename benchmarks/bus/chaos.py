"""A handler that fails at random: nothing gets lost, and the books balance at every moment."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bus.blocks import Ping
from benchmarks.bus.contenders import quiet
from benchmarks.model import Case, Sample, Scale, Workload
from penstock import ResilientMessageBus, Retry

SHARE = 0.2
BLOCK = 1_000
QUICK = Retry(attempts=3, delay=0.01, delay_max=0.1)


@dataclass
class Unreliable:
    """A handler with its own books: it shares nothing with those of the bus."""

    chance: random.Random = field(default_factory=lambda: random.Random(2026))
    calls: int = 0
    failures: int = 0
    done: set[int] = field(default_factory=set)

    async def handle(self, event: Ping) -> None:
        """Fail, or note the event."""
        self.calls += 1
        if self.chance.random() < SHARE:
            self.failures += 1
            raise ConnectionError("at random")
        if event.number in self.done:
            raise AssertionError(f"event {event.number} was handled twice")
        self.done.add(event.number)


def cases(scale: Scale) -> list[Case]:
    """With the breaker out of the way, which would open at once; and as the bus comes."""
    seconds = scale.long.chaos_seconds
    contenders: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("resilient", "three attempts 10 ms apart, no breaker", {"breaker": None, "retry": QUICK}),
        ("resilient-slow", "three attempts as the bus comes, no breaker", {"breaker": None}),
        ("resilient-breaker", "as the bus comes: the breaker opens and refuses", {}),
    )
    return [
        Case("chaos", 0, "failing", name, what, partial(_run, seconds=seconds, options=options),
             unit="events/s", once=True)
        for name, what, options in contenders
    ]  # fmt: skip


def _run(_: Path, seconds: float, options: dict[str, Any]) -> Sample:
    with quiet():
        return asyncio.run(_chaos(seconds, options))


async def _chaos(seconds: float, options: dict[str, Any]) -> Sample:
    handler = Unreliable()
    async with ResilientMessageBus(**options) as bus:
        bus.on_error(lambda *_: None)
        bus.subscribe(Ping, handler.handle)
        start, published, retrying = time.perf_counter(), 0, 0
        while not published or time.perf_counter() - start < seconds:
            for number in range(published, published + BLOCK):
                await bus.publish(Ping(number))
            published += BLOCK
            retrying = max(retrying, account(bus, published, handler))
        await bus.settle(timeout=seconds + 60)
        if left := account(bus, published, handler):
            raise AssertionError(f"{left} events are not settled")
        elapsed = time.perf_counter() - start
        return Sample(published / elapsed, _books(bus, published, handler, retrying))


def account(bus: ResilientMessageBus, published: int, handler: Unreliable) -> int:
    """Check the identity; returns what is queued or waits for a retry.

    published = handled + dead letters + still on its way, once by the books of the bus and once by
    those of the handler, which know nothing of each other.
    """
    books, letters = bus.statistics(), bus.dead_letters.statistics().added
    of_bus = books.events_processed + books.events_failed + books.events_unsettled
    of_handler = len(handler.done) + letters + books.events_unsettled
    if not published == books.events_published == of_bus == of_handler:
        raise AssertionError(
            f"published {published}, of the bus {of_bus}, of the handler {of_handler}: {books}"
        )
    return books.events_unsettled


def _books(
    bus: ResilientMessageBus, published: int, handler: Unreliable, retrying: int
) -> dict[str, float]:
    letters = bus.dead_letters.statistics()
    return {
        "published": published,
        "handled": len(handler.done),
        "dead letters": letters.added,
        "on their way at most": retrying,
        "failed calls": handler.failures,
        "unaccounted events": published - len(handler.done) - letters.added,
    }


WORKLOAD = Workload(
    "chaos",
    "Chaos",
    "Published without a pause, each call awaited. After every 1,000 events and at the end it must "
    "hold that published = handled + dead letters + on its way (queued, or waiting for a retry), by "
    "the books of the bus and by those of the handler; a case where it does not is not measured. "
    "Events that wait for a retry take room in the queue, so longer waits mean fewer events a "
    "second.",
    cases,
)
