"""The small works that benchmarks/twin.py counts: each goes through some parts of the compiled twin.

This is the process that runs under callgrind, so it imports little.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from penstock.speedups import compiled

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

    inlet: Any = type("Inlet", (TopicInlet,), {})()
    inlet._items, inlet._receipt, inlet._gathered_bytes = [], object(), 0
    inlet._room = inlet._record_bytes_max = 1 << 40
    inlet._scheduled, inlet._lingering = True, False
    return inlet


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
    """A batch of messages to its handler, as a hot topic does it."""
    from penstock.scaling.hot import HotLane
    from penstock.scaling.hot import Work as Batch

    registry = SimpleNamespace(version=1, changes=None)
    if compiled is not None:
        registry.changes = compiled.Counter()
        registry.changes.value = 1
    lane: Any = SimpleNamespace(dispatch=SimpleNamespace(registry=registry), running=True)
    lane._handle_compiled = lambda *given: HotLane._handle_compiled(lane, *given)
    handler: Any = SimpleNamespace(function=_handle)
    messages = list(range(MANY))

    def step() -> None:
        doing = HotLane._handle_bare(lane, Batch(messages, 0, 1), handler)
        try:
            doing.send(None)
        except StopIteration:
            return
        raise AssertionError("nothing waits here")

    return step


def _handle(_: object) -> None:
    return None


WORKS = (
    Work("hash of a key", ("fnv1a",), "key of 14 bytes", MANY, hashing),
    Work("lengths of values", ("plain_lengths",), "value", MANY, lengths),
    Work("cut, all of 100 bytes", ("cut",), "value", MANY, lambda: cutting(100)),
    Work("cut, of different lengths", ("cut",), "value", MANY, lambda: cutting(90, 100, 110)),
    Work("records of an entry", ("cut", "records"), "record", MANY, objects),
    Work("ring, `publish`", ("Cells.publish",), "entry", MANY, ring("publish")),
    Work("ring, `try_publish`", ("Cells.try_publish",), "entry", MANY, ring("try_publish")),
    Work("`publish_nowait` of a hot topic", ("Gate", "Cells"), "message", MANY, gate),
    Work("calls of a handler", ("Calls", "Counter"), "message", MANY, calls),
    Work("inlet of a topic", ("TopicInlet",), "record", MANY, topic_inlet),
    Work("`publish_nowait` of a log", ("QueueInlet", "TopicInlet"), "record", MANY, queue_inlet),
)  # fmt: skip


def mark() -> None:
    """Let callgrind write down what it has counted, and begin anew."""
    os.getpriority(os.PRIO_PROCESS, 0)


def run() -> None:
    """In the process that is counted."""
    for work in WORKS:
        step = work.make()
        step()
        mark()
        step()
        mark()


if __name__ == "__main__":
    run()
