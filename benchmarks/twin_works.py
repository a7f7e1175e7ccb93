"""The small works that benchmarks/twin.py counts: each goes through some parts of the compiled twin.

This is the process that runs under callgrind, so it imports little.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

MARK = "getpriority"
"""A call of the system that nothing else makes: callgrind writes down its counts at each."""
MANY = 1_000

Step = Callable[[], object]


@dataclass(frozen=True)
class Work:
    """Something small that goes through parts of the twin."""

    name: str
    parts: tuple[str, ...]
    unit: str
    units: int
    make: Callable[[], Step]
    """Prepares it, and returns what is counted; it is done once before, to be warm."""


def hashing() -> Step:
    """FNV-1a of one key, as a partition is chosen."""
    from penstock.hashing import fnv1a

    keys = [b"customer-%05d" % number for number in range(MANY)]
    return lambda: [fnv1a(key) for key in keys]


def lengths() -> Step:
    """Whether all values are bytes, and how long they are."""
    from penstock.log.columns import plain_lengths

    values = [bytes(100)] * MANY
    return lambda: plain_lengths(values)


def cutting(*sizes: int) -> Step:
    """The bytes of a batch as objects."""
    import numpy as np

    from penstock.log.columns import _cut

    found = np.array([sizes[number % len(sizes)] for number in range(MANY)], "<u4")
    body = bytes(int(found.sum()))
    return lambda: _cut(body, 0, found)


def objects() -> Step:
    """Records out of a stored entry."""
    from penstock.log.columns import Columns, decode

    flags, body = Columns([bytes(100)] * MANY).encode()
    view = decode(b"".join(body), flags, MANY, 1 << 40, 17)
    return lambda: view.records("orders", 0)


def ring(name: str) -> Callable[[], Step]:
    """Single entries into a ring; they are taken out as one batch, which is counted too."""

    def make() -> Step:
        from penstock.scaling import Ring

        entries: Any = Ring()
        consumer = entries.consumer()
        publish = getattr(entries, name)

        def step() -> object:
            for number in range(MANY):
                publish(number)
            return consumer.drain(MANY)

        return step

    return make


def topic_inlet() -> Step:
    """Single records to the writer of a topic, without its commits."""
    inlet = _inlet()
    add = inlet.add_nowait
    values = [bytes(100)] * MANY

    def step() -> None:
        inlet._gathered_bytes = 0
        for value in values:
            add(value)

    return step


def queue_inlet() -> Step:
    """The same, by the name of the topic."""
    from penstock.log.inlet import QueueInlet

    queue: Any = type("Queue", (QueueInlet,), {})()
    inlet = _inlet()
    queue._opened = {"orders": SimpleNamespace(writer=inlet)}
    publish = queue.publish_nowait
    values = [bytes(100)] * MANY

    def step() -> None:
        inlet._gathered_bytes = 0
        for value in values:
            publish("orders", value)

    return step


def _inlet() -> Any:
    """An inlet that a commit is on its way for."""
    from penstock.log.inlet import TopicInlet
    from penstock.log.published import PublishedRow

    inlet: Any = type("Inlet", (TopicInlet,), {})()
    inlet._items, inlet._receipt, inlet._gathered_bytes = [], object(), 0
    inlet._room = inlet._record_bytes_max = 1 << 40
    inlet._scheduled, inlet._lingering = True, False
    inlet._loop, inlet._row_kind = object(), PublishedRow
    return inlet


def awaited() -> Step:
    """Single records that somebody waits for each, from their topic's name to their acknowledgement, without a commit."""
    from penstock.log.inlet import QueueInlet
    from penstock.log.published import acknowledge, resume
    from penstock.log.receipts import Placement

    queue: Any = type("Queue", (QueueInlet,), {})()
    inlet = _inlet()
    queue._opened = {"orders": SimpleNamespace(writer=inlet)}
    values = [bytes(100)] * MANY
    context = copy_context()
    placed = Placement(0, range(MANY), 1 << 40, 17, True)

    def step() -> None:
        inlet._gathered_bytes, inlet._items, queue._turn = 0, [], {30.0: []}
        for value in values:
            row = queue._enter("orders", value, None, None, None, False, 30.0)
            next(row.__await__())
            row.add_done_callback(_result, context=context)
        acknowledge(inlet._items, "orders", placed)
        resume(inlet._items)

    return step


def _result(row: Any) -> None:
    row.result()


def gate() -> Step:
    """Single messages into a hot topic, the short way."""
    from penstock.scaling.hot_ring import HotRing
    from penstock.scaling.short_way import make_publish_nowait

    entries = HotRing(1 << 16)
    consumer = entries.consumer()
    way: Any = SimpleNamespace(rings={int: entries}, put=entries.try_publish)
    publish = make_publish_nowait(way, _never)

    def step() -> None:
        entries.open_for(1 << 15)
        for number in range(MANY):
            publish(number)
        consumer.drain(MANY)

    return step


def _never(*_: object) -> None:
    raise AssertionError("not the short way")


def calls() -> Step:
    """A batch of messages to its async handler, as a hot topic does it."""
    from penstock import MessageBus
    from penstock.scaling.hot import HotLane
    from penstock.scaling.hot import Work as Batch

    intake = MessageBus()._intake
    lane = HotLane(int, intake)
    lane.running = True
    version = intake.dispatch.registry.version
    handler: Any = SimpleNamespace(function=_handle, guard=None)
    messages = list(range(MANY))

    def step() -> None:
        doing = lane._handle_bare(Batch(messages, 0, version), handler)
        try:
            doing.send(None)
        except StopIteration:
            return
        raise AssertionError("nothing waits here")

    return step


async def _handle(_: object) -> None:
    return None


def bus(name: str, *, timed: bool = False) -> Callable[[], Step]:
    """Single events through a bus as it comes, each to its async handler; ``timed`` for its metrics."""

    def make() -> Step:
        from penstock import Event, ResilientMessageBus
        from penstock.bus.durations import Meters
        from penstock.testing import VirtualClock

        class Ping(Event):
            number: int

        async def handle(event: Ping) -> None:
            pass

        loop = asyncio.new_event_loop()
        made = ResilientMessageBus()
        made.subscribe(Ping, handle)
        if timed:
            # Counting makes events slow, and slow ones are timed each; of these none takes any time.
            made._dispatch.meters = Meters(VirtualClock())
        loop.run_until_complete(made.start())
        each = {"publish_nowait": _burst, "publish": _await_publish, "publish_and_wait": _wait}
        return lambda: loop.run_until_complete(each[name](made, Ping))

    return make


async def _burst(made: Any, kind: Any) -> None:
    for number in range(MANY):
        made.publish_nowait(kind(number))
    await made.settle()


async def _await_publish(made: Any, kind: Any) -> None:
    for number in range(MANY):
        await made.publish(kind(number))
    await made.settle()


async def _wait(made: Any, kind: Any) -> None:
    for number in range(MANY):
        await made.publish_and_wait(kind(number))


LANES = ("BusInlet", "IntakeCells", "QueueCells", "LaneCells", "Slip", "Counters")

WORKS = (
    Work("hash of a key", ("fnv1a",), "key of 14 bytes", MANY, hashing),
    Work("lengths of values", ("plain_lengths",), "value", MANY, lengths),
    Work("cut, all of 100 bytes", ("cut",), "value", MANY, lambda: cutting(100)),
    Work("cut, of different lengths", ("cut",), "value", MANY, lambda: cutting(90, 100, 110)),
    Work("records of an entry", ("records",), "record", MANY, objects),
    Work("ring, `publish`", ("Cells.publish",), "entry", MANY, ring("publish")),
    Work("ring, `try_publish`", ("Cells.try_publish",), "entry", MANY, ring("try_publish")),
    Work("`publish_nowait` of a hot topic", ("Gate", "Cells"), "message", MANY, gate),
    Work("calls of an async handler", ("Calls", "Counter"), "message", MANY, calls),
    Work("bus, `publish_nowait` and handler", LANES, "event", MANY, bus("publish_nowait")),
    Work("bus, `await publish` and handler", LANES, "event", MANY, bus("publish")),
    Work("bus, `await publish_and_wait`", (*LANES, "BreakerCells"), "event", MANY, bus("publish_and_wait")),
    Work("the same, timed", (*LANES, "BreakerCells", "MeterCells"), "event", MANY,
         bus("publish_and_wait", timed=True)),
    Work("inlet of a topic", ("TopicInlet",), "record", MANY, topic_inlet),
    Work("`publish_nowait` of a log", ("QueueInlet", "TopicInlet"), "record", MANY, queue_inlet),
    Work("records that are waited for", ("AwaitedRow", "resume", "acknowledge", "QueueInlet._enter"),
         "record", MANY, awaited),
)  # fmt: skip


def mark() -> None:
    """Let callgrind write down what it has counted, and begin anew."""
    os.getpriority(os.PRIO_PROCESS, 0)


def run() -> None:
    """In the process that is counted."""
    for work in WORKS:
        step = work.make()
        step()
        gc.collect()
        gc.freeze()  # or a look at all objects falls into some works and not into others
        mark()
        step()
        mark()


if __name__ == "__main__":
    run()
