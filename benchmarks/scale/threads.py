"""Numbers from one thread to another."""

from __future__ import annotations

import queue
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import zmq

from benchmarks.model import Sample
from benchmarks.scale.books import Totals, check, sent
from penstock.scaling import Ring

BURST = 40_000
WAIT_SECONDS = 30.0

Produce = Callable[[int], None]
"""Sends a burst of the numbers from the given one on."""
Consume = Callable[[], Totals]
"""Takes a burst."""
Pair = tuple[Produce, Consume]
Contender = Callable[[], AbstractContextManager[Pair]]


@contextmanager
def simple_queue() -> Iterator[Pair]:
    """``queue.SimpleQueue``, in C."""
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()

    def produce(first: int) -> None:
        put = waiting.put
        for number in range(first, first + BURST):
            put(number)

    def consume() -> Totals:
        get, total = waiting.get, 0
        for _ in range(BURST):
            total += get()
        return BURST, total

    yield produce, consume


def ring(batch: int) -> Contender:
    """The ring, published in batches of that size, or one by one."""

    @contextmanager
    def opened() -> Iterator[Pair]:
        entries: Ring[int] = Ring()
        consumer = entries.consumer()

        def produce(first: int) -> None:
            if batch == 1:
                for number in range(first, first + BURST):
                    entries.publish(number)
            else:
                for start in range(first, first + BURST, batch):
                    entries.publish_many(list(range(start, start + batch)))

        def consume() -> Totals:
            count = total = 0
            while count < BURST:
                if not (found := consumer.drain()):
                    consumer.wait(WAIT_SECONDS)
                for number in found:
                    total += number
                count += len(found)
            return count, total

        yield produce, consume
        entries.close()

    return opened


@contextmanager
def zmq_inproc() -> Iterator[Pair]:
    """ZeroMQ between threads: a message for each number."""
    context = zmq.Context()
    receiver, sender = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    receiver.bind("inproc://numbers")
    sender.connect("inproc://numbers")
    packed = struct.Struct("<q")

    def produce(first: int) -> None:
        for number in range(first, first + BURST):
            sender.send(packed.pack(number))

    def consume() -> Totals:
        total = 0
        for _ in range(BURST):
            total += packed.unpack(receiver.recv())[0]
        return BURST, total

    yield produce, consume
    sender.close(0)
    receiver.close(0)
    context.term()


CONTENDERS: tuple[tuple[str, str, Contender], ...] = (
    ("simple-queue", "`queue.SimpleQueue`: `put`, `get`", simple_queue),
    ("ring-1000", "`publish_many` of 1,000, `drain`", ring(1_000)),
    ("ring-100", "`publish_many` of 100, `drain`", ring(100)),
    ("ring", "`publish` one by one, `drain`", ring(1)),
    ("zmq-inproc", "ZeroMQ `PUSH` and `PULL`, inproc", zmq_inproc),
)


def run(_: Path, make: Contender, seconds: float) -> Sample:
    """Entries per second; the first burst is not counted."""
    with make() as (produce, consume):
        taken: queue.SimpleQueue[Totals] = queue.SimpleQueue()
        more = threading.Semaphore(0)
        ended = threading.Event()

        def work() -> None:
            while more.acquire(timeout=WAIT_SECONDS) and not ended.is_set():
                taken.put(consume())

        thread = threading.Thread(target=work, name="consumer")
        thread.start()

        def step(first: int) -> None:
            more.release()
            produce(first)
            check(sent(first, BURST), taken.get(timeout=WAIT_SECONDS))

        try:
            return _measure(step, seconds)
        finally:
            ended.set()
            more.release()
            thread.join(WAIT_SECONDS)


def _measure(step: Callable[[int], None], seconds: float) -> Sample:
    step(0)
    entries, start = 0, time.perf_counter()
    while not entries or time.perf_counter() - start < seconds:
        step(entries)
        entries += BURST
    return Sample(entries / (time.perf_counter() - start))
