"""The ring of objects alone: in one thread, and between two."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.model import Case, Sample, Scale, Workload
from benchmarks.scale import threads
from benchmarks.scale.books import BURST, Totals, check, sent
from penstock.scaling import Ring

DRAIN = 1_024

Step = Callable[[int], Totals]
"""Sends a burst of the numbers from the given one on; returns what came of it."""


def bare_deque() -> Step:
    """The bound."""
    waiting: deque[int] = deque()
    append, popleft = waiting.append, waiting.popleft

    def step(first: int) -> Totals:
        for number in range(first, first + BURST):
            append(number)
        total = 0
        for _ in range(BURST):
            total += popleft()
        return BURST, total

    return step


def ring_one_by_one() -> Step:
    """``publish`` for each, ``drain`` in batches."""
    ring: Ring[int] = Ring()
    consumer = ring.consumer()
    publish = ring.publish

    def step(first: int) -> Totals:
        for number in range(first, first + BURST):
            publish(number)
        count = total = 0
        while batch := consumer.drain(DRAIN):
            for number in batch:
                total += number
            count += len(batch)
        return count, total

    return step


def ring_in_batches() -> Step:
    """``publish_many`` of 1,000, ``drain`` in batches."""
    ring: Ring[int] = Ring()
    consumer = ring.consumer()

    def step(first: int) -> Totals:
        for start in range(first, first + BURST, 1_000):
            ring.publish_many(list(range(start, start + 1_000)))
        count = total = 0
        while batch := consumer.drain(DRAIN):
            for number in batch:
                total += number
            count += len(batch)
        return count, total

    return step


ALONE: tuple[tuple[str, str, Callable[[], Step]], ...] = (
    ("deque", "`append`, `popleft`", bare_deque),
    ("ring", "`publish` one by one, `drain` of 1,024", ring_one_by_one),
    ("ring-batches", "`publish_many` of 1,000, `drain` of 1,024", ring_in_batches),
)


def cases(scale: Scale) -> list[Case]:
    """Those in one thread, then those between two."""
    alone = [
        Case("ring", 0, "one-thread", name, what, partial(_run, make=make, seconds=scale.seconds),
             unit="entries/s", bound=name == "deque")
        for name, what, make in ALONE
    ]  # fmt: skip
    between = [
        Case("ring", 0, "two-threads", name, what,
             partial(threads.run, make=make, seconds=scale.seconds),
             unit="entries/s", bound=name == "simple-queue")
        for name, what, make in threads.CONTENDERS
    ]  # fmt: skip
    return alone + between


def _run(_: Path, make: Callable[[], Step], seconds: float) -> Sample:
    step = make()
    check(sent(0, BURST), step(0))
    entries, start = 0, time.perf_counter()
    while not entries or time.perf_counter() - start < seconds:
        found = step(entries)
        check(sent(entries, BURST), found)
        entries += BURST
    return Sample(entries / (time.perf_counter() - start))


WORKLOAD = Workload(
    "ring",
    "The ring alone",
    "Numbers from a producer to a consumer, which adds them up; count and sum must be equal. "
    "`queue.SimpleQueue` has no call for several; ZeroMQ carries bytes, so its numbers are packed.",
    cases,
)
