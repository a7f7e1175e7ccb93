"""What the child processes of the shared ring's tests run."""

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from penstock.errors import Closed
from penstock.scaling import SharedRing, SharedRingConsumer

SECONDS = 50.0
SMALL = 4_096
"""Bytes of the rings of most tests."""


def numbers(first: int, end: int) -> list[bytes]:
    """Records that carry their number, of different lengths."""
    return [b"%d" % number + b"." * (number % 7) for number in range(first, end)]


def number_of(record: bytes) -> int:
    return int(record.rstrip(b"."))


@contextmanager
def child(
    target, *arguments, method: str = "forkserver"
) -> Iterator[tuple[BaseProcess, Connection]]:
    """A process with a connection to it, as its last argument; it is killed at the end."""
    context = multiprocessing.get_context(method)
    if method == "forkserver":  # it imports what the children need once
        context.set_forkserver_preload([__name__])
    here, there = context.Pipe()
    process = context.Process(target=target, args=(*arguments, there))  # type: ignore[attr-defined]
    process.start()
    there.close()
    try:
        yield process, here
    finally:
        process.kill()
        process.join()
        process.close()
        here.close()


def ask(connection: Connection):
    """What the child says next."""
    assert connection.poll(SECONDS), "the child says nothing"
    return connection.recv()


def read_all(consumer: SharedRingConsumer, connection: Connection) -> None:
    """Check that the numbers are dense from wherever they begin; tell first, count and last."""
    connection.send("reading")
    first = expected = None
    try:
        while True:
            for record in consumer.get_many(5_000, timeout=SECONDS):
                number = number_of(record)
                if expected is None:
                    first = expected = number
                assert number == expected
                expected += 1
    except Closed:
        consumer.close()
    connection.send((first, expected))


def attach_and_read(name: str, connection: Connection) -> None:
    with SharedRing.attach(name) as ring, ring.consumer() as consumer:
        read_all(consumer, connection)


def pass_on(consumer: SharedRingConsumer, connection: Connection) -> None:
    """The first of a chain: poll, handle, pass."""
    count = 0
    while not consumer.finished:
        consumer.wait(1.0)
        while records := consumer.poll():
            count += len(records)
            consumer.advance()
    consumer.close()
    connection.send(count)


def share(member, connection: Connection) -> None:
    """A member of a group: count, sum and sum of squares of what it got, in order."""
    count = total = squares = 0
    last = -1
    try:
        while True:
            for record in member.get_many(1_000, timeout=SECONDS):
                number = number_of(record)
                assert number > last
                last = number
                count += 1
                total += number
                squares += number * number
    except Closed:
        member.close()
    connection.send((count, total, squares))


def stop_reading(consumer: SharedRingConsumer, connection: Connection) -> None:
    """Read one batch and hang, to be killed."""
    connection.send(len(consumer.get_many(10, timeout=SECONDS)))
    connection.recv()


def hold(member, connection: Connection) -> None:
    """Claim one batch, do not pass it, and hang, to be killed."""
    assert member.wait(SECONDS)
    connection.send([number_of(record) for record in member.poll()])
    connection.recv()


def report_and_pass(member, connection: Connection) -> None:
    """A member that tells what it has handled before it passes it. Killed anywhere, it loses none."""
    while not member.finished:
        if member.wait(1.0) and (records := member.poll()):
            connection.send([number_of(record) for record in records])
            member.advance()
    member.close()


def put_all(ring: SharedRing, end: int, batch: int, connection: Connection) -> None:
    for first in range(0, end, batch):
        ring.put_many(numbers(first, min(end, first + batch)), timeout=SECONDS)
    ring.close()
    connection.send("put")


def make_and_hang(connection: Connection) -> None:
    """Make a ring with a consumer and wait to be killed."""
    ring = SharedRing.create(capacity_bytes=4_096)
    ring.consumer()
    connection.send(ring.name)
    connection.recv()


def put_for_ever(ring: SharedRing, first: int, connection: Connection) -> None:
    """Put until killed."""
    connection.send(os.getpid())
    while True:
        ring.put_many(numbers(first, first + 100), timeout=SECONDS)
        first += 100
