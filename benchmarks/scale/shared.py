"""Records from one process to another."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import faster_fifo
import zmq

from benchmarks.child import Child, gate
from benchmarks.model import BATCH, Case, Load, Sample, Scale, Workload
from benchmarks.scale.books import Records, Totals, check
from penstock.scaling import SharedRing

BATCHES = (BATCH, 100)
PAYLOAD_BYTES = 100
END = b"end"
"""The first record of the last batch."""
IN_FLIGHT = 10_000
"""How many records a peer's queue may hold; the shared ring has 8 MiB, which is 80,000."""
QUEUE_BYTES = 8 << 20
WAIT_SECONDS = 30.0

Send = Callable[[list[bytes]], object]
Receive = Callable[[], list[bytes]]
"""The next records; of those that take one at a time, a batch."""


@dataclass
class Sender:
    """The side of the producer: where the other one connects, how to send, how to end."""

    address: Any
    send: Send
    close: Callable[[], object]


@dataclass(frozen=True)
class Contender:
    """Makes both sides."""

    open: Callable[[Path], Sender]
    connect: Callable[[Any, int], Receive]
    """In the other process, with the size of a batch."""


def _ring_sender(_: Path) -> Sender:
    ring = SharedRing.create(capacity_bytes=QUEUE_BYTES)
    return Sender(ring.name, ring.put_many, ring.close)


def _ring_receiver(name: str, batch: int) -> Receive:
    consumer = SharedRing.attach(name).consumer()
    return partial(consumer.get_many, batch, WAIT_SECONDS)


def _queue_sender(_: Path) -> Sender:
    queue: Any = multiprocessing.get_context("forkserver").Queue(IN_FLIGHT)

    def send(records: list[bytes]) -> None:
        for record in records:
            queue.put(record, timeout=WAIT_SECONDS)

    return Sender(queue, send, partial(_close_queue, queue))


def _queue_receiver(queue: Any, batch: int) -> Receive:
    return lambda: [queue.get() for _ in range(batch)]


def _list_sender(_: Path) -> Sender:
    queue: Any = multiprocessing.get_context("forkserver").Queue(IN_FLIGHT // BATCH)
    return Sender(queue, partial(queue.put, timeout=WAIT_SECONDS), partial(_close_queue, queue))


def _close_queue(queue: Any) -> None:
    queue.cancel_join_thread()  # all has come, or nobody takes it any more
    queue.close()


def _list_receiver(queue: Any, _: int) -> Receive:
    return partial(queue.get, timeout=WAIT_SECONDS)


def _fifo_sender(_: Path) -> Sender:
    queue = faster_fifo.Queue(max_size_bytes=QUEUE_BYTES, loads=bytes, dumps=bytes)
    return Sender(queue, partial(queue.put_many, timeout=WAIT_SECONDS), queue.close)


def _fifo_receiver(queue: Any, batch: int) -> Receive:
    return partial(queue.get_many, timeout=WAIT_SECONDS, max_messages_to_get=batch)


def _zmq_sender(folder: Path, *, multipart: bool) -> Sender:
    context = zmq.Context()
    socket = context.socket(zmq.PUSH)
    socket.sndtimeo = round(WAIT_SECONDS * 1_000)
    address = f"ipc://{folder}/socket"
    socket.bind(address)

    def send(records: list[bytes]) -> None:
        for record in records:
            socket.send(record)

    return Sender(
        address, socket.send_multipart if multipart else send, partial(context.destroy, 0)
    )


def _zmq_receiver(address: str, batch: int, *, multipart: bool) -> Receive:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PULL)
    socket.connect(address)
    if multipart:
        return socket.recv_multipart
    return lambda: [socket.recv() for _ in range(batch)]


CONTENDERS: dict[str, tuple[str, Contender]] = {
    "mp-queue": ("`multiprocessing.Queue`: `put`, `get` of each record",
                 Contender(_queue_sender, _queue_receiver)),
    "mp-queue-lists": ("`multiprocessing.Queue`: `put`, `get` of a list for each batch",
                       Contender(_list_sender, _list_receiver)),
    "penstock": ("`SharedRing`: `put_many`, `get_many`", Contender(_ring_sender, _ring_receiver)),
    "faster-fifo": ("`put_many`, `get_many` of bytes as they are",
                    Contender(_fifo_sender, _fifo_receiver)),
    "zmq-ipc": ("ZeroMQ `PUSH` and `PULL`, ipc, a message for each record",
                Contender(partial(_zmq_sender, multipart=False),
                          partial(_zmq_receiver, multipart=False))),
    "zmq-ipc-multipart": ("the same, a message of many parts for each batch",
                          Contender(partial(_zmq_sender, multipart=True),
                                    partial(_zmq_receiver, multipart=True))),
}  # fmt: skip


def cases(scale: Scale) -> list[Case]:
    """Every contender, with both sizes of a batch."""
    return [
        Case("shared", PAYLOAD_BYTES, f"batch-{batch}", name, what,
             partial(_run, name=name, load=Load.of(scale, PAYLOAD_BYTES, batch)),
             bound=name == "mp-queue")
        for batch in BATCHES
        for name, (what, _) in CONTENDERS.items()
    ]  # fmt: skip


def _run(folder: Path, name: str, load: Load) -> Sample:
    sender = CONTENDERS[name][1].open(folder)
    try:
        child = Child(receive, name=name, address=sender.address, batch=load.batch)
        child.wait_ready()
        child.go()
        return _send(sender.send, child, load)
    finally:
        sender.close()


def _send(send: Send, child: Child, load: Load) -> Sample:
    """Records per second, until the other process says that all have come; warm from the start."""
    values, books = load.values(), Records()
    _send_one(send, values, books)
    start, before = time.perf_counter(), books.count
    while books.count == before or time.perf_counter() - start < load.seconds:
        _send_one(send, values, books)
    _send_one(send, [END, *values[1:]], books)
    found: Totals = child.result()
    elapsed = time.perf_counter() - start
    check(books.totals(), found)
    return Sample((books.count - before) / elapsed)


def _send_one(send: Send, batch: list[bytes], books: Records) -> None:
    send(batch)
    books.take(batch)


def receive(name: str, address: Any, batch: int) -> Totals:
    """In the other process: take everything up to the last batch."""
    take = CONTENDERS[name][1].connect(address, batch)
    books = Records()
    gate()
    ends_at = None
    while books.count != ends_at:
        records = take()
        if not records:
            raise TimeoutError(f"nothing came for {WAIT_SECONDS:.0f} seconds")
        if ends_at is None and END in records:
            ends_at = books.count + records.index(END) + batch
        books.take(records)
    return books.totals()


WORKLOAD = Workload(
    "shared",
    "Between two processes",
    "One process sends batches, another one takes them. The clock stops when the other one has said "
    "that all have come; count and checksum (of every hundredth record) must be equal. Each has a "
    "buffer that is bounded. `multiprocessing.Queue` has no call for several records: “mp-queue” puts "
    "each record, which is what the targets are about, “mp-queue-lists” puts a batch as one list.",
    cases,
)
