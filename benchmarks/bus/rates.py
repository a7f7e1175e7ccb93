"""Events and commands per second: one by one, and in a burst."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.bus import contenders, peers
from benchmarks.bus.blocks import BURST, STREAM, Contender, rate
from benchmarks.model import Case, Sample, Scale, Workload

Row = tuple[str, str, Contender, int]
"""Name, how, and how many events at a time."""

EACH = 2_000
FEW = 80


def _penstock(use: contenders.Use, how: str, block: int) -> list[Row]:
    return [
        (name, how, contenders.contender(kind, use), block)
        for name, kind in contenders.BUSES.items()
    ]


QUEUED: list[Row] = [
    ("queue-switch", "`await put`, maxsize 1: a switch of tasks for each", peers.queue_stream(1),
     STREAM),
    ("queue", "`await put`, maxsize 1,024", peers.queue_stream(peers.QUEUE_MAX), STREAM),
    *_penstock(contenders.publish_each, "`await bus.publish(…)`, then `settle`", STREAM),
]  # fmt: skip
HANDLED: list[Row] = [
    ("queue-join", "`await put`, `await join`", peers.queue_joined, EACH),
    *_penstock(contenders.publish_and_wait_each, "`await bus.publish_and_wait(…)`", EACH),
    ("hand-rolled", "`create_task`, `await gather`", peers.hand_rolled_each, EACH),
    ("bubus", "`await bus.dispatch(…)`, history of 1", peers.bubus_each, FEW),
    ("pyee", "`emit`, a plain function, in place", peers.pyee_sync, EACH),
    ("pyee-asyncio", "`emit`, `await wait_for_complete`", peers.pyee_each, EACH),
    ("blinker", "`send`, a plain function, in place", peers.blinker_sync, EACH),
    ("blinker-async", "`await send_async`", peers.blinker_each, EACH),
]
AT_ONCE: list[Row] = [
    ("queue", "`put_nowait` of 9,000, then a task takes them", peers.queue_burst, BURST),
    *_penstock(contenders.burst, "`publish_nowait` of 9,000, then `settle`", BURST),
    ("hand-rolled", "`create_task` for 9,000, then `wait`", peers.hand_rolled_burst, BURST),
    (
        "bubus",
        "`dispatch` of 40 (it takes 50), then the last is awaited, history of 1",
        peers.bubus_burst,
        FEW,
    ),
    ("pyee-asyncio", "`emit` of 9,000, then `wait_for_complete`", peers.pyee_burst, BURST),
]
EXECUTED: list[Row] = [
    ("direct", "`await handler(…)`, no bus", peers.direct, EACH),
    *_penstock(contenders.execute_each, "`await bus.execute(…)`", EACH),
    ("bubus", "`await bus.dispatch(…).event_result()`", peers.bubus_results, FEW),
]


def cases(workload: str, points: dict[str, list[Row]], unit: str, scale: Scale) -> list[Case]:
    """A case for each row; the first of a point is what the others are compared with."""
    return [
        Case(
            workload, 0, point, name, how,
            partial(_run, contender=opened, block=block, seconds=scale.seconds),
            unit=unit, bound=number == 0,
        )
        for point, rows in points.items()
        for number, (name, how, opened, block) in enumerate(rows)
    ]  # fmt: skip


def _run(_: Path, contender: Contender, block: int, seconds: float) -> Sample:
    return rate(contender, block, seconds)


EVENTS = Workload(
    "events",
    "Events, one by one",
    "One publisher that awaits each call. First `publish`, which returns when the event is queued "
    "and waits when the queue is full; then calls that return when the event is handled.",
    partial(cases, "events", {"queued": QUEUED, "handled": HANDLED}, "events/s"),
)
BURSTS = Workload(
    "burst",
    "Events in a burst",
    "As many as fit into the queue without waiting, then all of them are handled. pyee and blinker "
    "with plain functions have no queue: see above.",
    partial(cases, "burst", {"unawaited": AT_ONCE}, "events/s"),
)
COMMANDS = Workload(
    "commands",
    "Commands",
    "One caller that awaits each result, with its timeout watched over.",
    partial(cases, "commands", {"executed": EXECUTED}, "commands/s"),
)
