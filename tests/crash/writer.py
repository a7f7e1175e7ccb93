"""The process that is killed: it publishes, subscribes and commits, and says what it was promised.

It runs in two ways. ``writer.py nursery`` is a small parent without threads that forks one writer for each
request, which costs milliseconds instead of an interpreter's start. ``writer.py write SPEC`` is a
writer by itself, to be run under strace. What a writer has to say goes to a pipe as frames: first
what it is about to do, then, after the promise was given, what it was promised.
"""

import asyncio
import contextlib
import json
import os
import random
import resource
import socket
import sys
import time
import traceback
import zlib
from collections.abc import Mapping
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.log.queue import WalMessageQueue
from penstock.log.records import Record
from penstock.log.subscription import Subscription
from penstock.system import System
from penstock.testing import transport_member
from tests.crash import operations
from tests.crash.file_layers import AheadClock, files_of
from tests.crash.said import Kind, Out, Said, Spec

FILLER = random.Random(7).randbytes(64 * 1024)

# ------------------------------------------------------------------------------------- records


def value_of(writer: int, sequence: int, size: int = 0) -> bytes:
    """The bytes of a record, which anybody can make again from its two numbers."""
    place = (sequence * 2_654_435_761 + writer * 40_503) % 40_000
    length = size or (20_000 if sequence % 97 == 96 else place % 300)
    filler = FILLER[place : place + length] if length < 24_000 else FILLER * (length // 65_536 + 1)
    return b"%d:%d:" % (writer, sequence) + filler[:length]


def numbers_of(value: bytes) -> tuple[int, int]:
    """The writer and the sequence number of a record."""
    writer, sequence, _ = value.split(b":", 2)
    return int(writer), int(sequence)


def key_of(sequence: int) -> bytes | None:
    return b"key-%d" % (sequence % 11) if sequence % 3 else None


def headers_of(sequence: int) -> Mapping[str, bytes]:
    return {"sequence": b"%d" % sequence} if sequence % 5 == 0 else {}


class Parts(NamedTuple):
    """A record as it is published."""

    value: bytes | None
    key: bytes | None
    headers: Mapping[str, bytes]


def parts_of(writer: int, sequence: int, size: int = 0, *, varied: bool = False) -> Parts:
    """The record of two numbers. A tombstone has them in a header."""
    value, headers = value_of(writer, sequence, size), headers_of(sequence)
    if not varied:
        return Parts(value, key_of(sequence), headers)
    chance = zlib.crc32(b"%d:%d" % (writer, sequence))
    kind, rest = chance % 8, chance // 8
    if kind == 0:
        return Parts(value, None, headers)
    key = b"often-%d" % (rest % 5) if kind < 5 else b"seldom-%d" % (rest % 300)
    if rest % 7:
        return Parts(value, key, headers)
    return Parts(None, key, {**headers, "tombstone": b"%d:%d:" % (writer, sequence)})


def numbers_in(record: Record) -> tuple[int, int]:
    """The writer and the sequence number of a record that was read."""
    return numbers_of(record.headers["tombstone"] if record.value is None else record.value)


# --------------------------------------------------------------------------------------- a writer


class Writer:
    """Publishes, reads and commits, in an order that its seed decides."""

    def __init__(self, spec: Spec, out: Out) -> None:
        self.spec = spec
        self.out = out
        self.random = random.Random(spec.seed)
        self.sequence = spec.first_sequence
        self.system = System(files=files_of(spec, out), clock=AheadClock(spec.hours))
        self.queue = self.new_queue()
        self.subscription: Subscription | None = None
        self.lagging: Subscription | None = None
        self.tending: asyncio.Task[None] | None = None
        self.closing = False
        self.told: dict[int, int] = {}
        self.expected = 0
        """The offset of the next record, where there is one writer and one partition."""

    def new_queue(self) -> WalMessageQueue:
        spec = self.spec
        return WalMessageQueue(
            spec.path,
            system=self.system,
            tier=spec.tier or None,
            maintenance_interval=spec.maintenance,
            commit_on=spec.commit_on,
        )

    async def run(self) -> None:
        await self.open()
        beating = asyncio.create_task(self.tell_lateness()) if self.spec.tells_syncs else None
        done = 0
        while self.spec.steps is None or done < self.spec.steps:
            if self.spec.simple:
                await self.simple()
            else:
                await self.step()
            await self.tend_between()
            done += 1
        if beating is not None:
            beating.cancel()
        await self.close()

    async def open(self) -> None:
        spec = self.spec
        await self.queue.open()
        await self.queue.create_topic(spec.topic, spec.topic_config)
        if spec.subscriber:
            self.subscription = self.queue.subscribe(spec.topic, spec.subscriber)
            await self.subscription.open()
        if spec.lagging:
            self.lagging = self.queue.subscribe(spec.topic, spec.lagging)
            await self.lagging.open()
        if spec.upkeep == "beside":
            self.closing = False
            self.tending = asyncio.create_task(self.tend_beside())
        self.out.say(Kind.OPENED)

    async def close(self) -> None:
        self.closing = True
        if self.tending is not None:
            await self.tending
        await self.queue.close()
        self.out.say(Kind.CLOSED)

    async def tell_lateness(self) -> None:
        """How much longer than asked for a short sleep takes: the machine is busy."""
        while True:
            begin = time.monotonic()
            await asyncio.sleep(0.005)
            if (late := time.monotonic() - begin - 0.005) > 0.005:
                self.out.say(Kind.LATE, a=int(late * 1e6))

    async def tend_beside(self) -> None:
        while not self.closing:
            await self.tend()

    async def tend_between(self) -> None:
        if self.spec.upkeep == "between":
            await self.tend()
        if self.tending is not None and self.tending.done():
            await self.tending

    async def tend(self) -> None:
        """A round of upkeep; whatever keeps it from finishing ends the writer."""
        for report in await self.queue.maintain():
            if report.error is not None:
                raise report.error

    async def reopen(self) -> None:
        await self.close()
        self.queue = self.new_queue()
        await self.open()

    async def step(self) -> None:
        choices = [self.one, self.some, self.many, self.burst, self.read, self.flush, self.reopen]
        weights = [30, 20, 12, 10, 20, 5, 3]
        if self.lagging is not None:
            choices.append(self.lag)
            weights.append(8)
        (chosen,) = self.random.choices(choices, weights)
        await chosen()
        self.tell_durable()

    def take(self, count: int) -> range:
        first = self.sequence
        self.sequence += count
        self.out.say(Kind.TRYING, a=self.sequence)
        return range(first, self.sequence)

    def tell_durable(self) -> None:
        for partition in range(self.spec.topic_config.partitions):
            durable = self.queue.durable_offset(self.spec.topic, partition)
            if durable != self.told.get(partition, 0):
                self.told[partition] = durable
                self.out.say(Kind.DURABLE, partition, durable)

    def parts(self, sequence: int) -> Parts:
        spec = self.spec
        return parts_of(spec.writer, sequence, spec.record_bytes, varied=spec.varied)

    async def publish(self, sequence: int, *, durable: bool = False) -> None:
        value, key, headers = self.parts(sequence)
        if self.spec.fault == "hasty" and self.expected:
            self.out.say(Kind.ACKNOWLEDGED, 0, self.expected, sequence, 0)
        acknowledged = await self.queue.publish(
            self.spec.topic, value, key=key, headers=headers, durable=durable
        )
        where = acknowledged.partition, acknowledged.offset
        if self.spec.fault != "hasty" or not self.expected:
            self.out.say(Kind.ACKNOWLEDGED, *where, sequence, acknowledged.durable)
        self.expected = acknowledged.offset + 1

    async def one(self) -> None:
        for sequence in self.take(1):
            await self.publish(sequence, durable=self.random.random() < 0.1)

    async def some(self) -> None:
        await asyncio.gather(
            *map(self.publish, self.take(self.random.randint(2, min(20, self.spec.batch_max))))
        )

    async def many(self) -> None:
        numbers = self.take(self.random.randint(1, self.spec.batch_max))
        values, keys, headers = zip(*map(self.parts, numbers), strict=True)
        done = await self.queue.publish_many(self.spec.topic, values, keys=keys, headers=headers)
        frames: list[Said] = [(Kind.MANY, 0, numbers.start, numbers.stop, int(done.durable))]
        frames += [(Kind.RANGE, part, *ends, 0) for part, ends in done.ranges.items()]
        self.out.say_all(frames)

    async def burst(self) -> None:
        numbers = self.take(self.random.randint(2, min(50, self.spec.batch_max)))
        receipts = [self.queue.publish_nowait(self.spec.topic, *self.parts(one)) for one in numbers]
        durable = True
        frames: list[Said] = []
        for receipt in dict.fromkeys(receipts):
            done = await receipt.wait()
            durable &= done.durable
            frames += [(Kind.RANGE, part, *ends, 0) for part, ends in done.ranges.items()]
        self.out.say_all([(Kind.MANY, 0, numbers.start, numbers.stop, int(durable)), *frames])

    async def read(self) -> None:
        await self.consume(self.subscription)

    async def lag(self) -> None:
        await self.consume(self.lagging)

    async def consume(self, subscription: Subscription | None) -> None:
        if subscription is None or not subscription.lag():
            return
        async for batch in subscription.batches(self.random.randint(1, 300)):
            place = batch.partition, batch.next_offset, int(subscription is self.lagging)
            self.out.say(Kind.COMMITTING, *place)
            await subscription.commit(batch)
            self.out.say(Kind.COMMITTED, *place)
            break

    async def flush(self) -> None:
        await self.queue.flush()

    async def simple(self) -> None:
        """One record; an error is told and the next call is made all the same."""
        for sequence in self.take(1):
            try:
                await self.publish(sequence)
            except PenstockError as error:
                self.out.failed(error)
        self.tell_durable()


class Reader:
    """A subscriber that tells each record that it gets, and what waiting costs."""

    def __init__(self, spec: Spec, out: Out) -> None:
        self.spec = spec
        self.out = out
        self.queue = WalMessageQueue(spec.path)

    async def run(self) -> None:
        spec = self.spec
        async with self.queue as queue:
            await queue.create_topic(spec.topic, spec.topic_config)
            async with queue.subscribe(spec.topic, spec.subscriber) as subscription:
                self.out.say(Kind.OPENED)
                await self.read(subscription)
                await self.wait(subscription)
        used = resource.getrusage(resource.RUSAGE_SELF)
        times = int(used.ru_utime * 1e6), int(used.ru_stime * 1e6)
        self.out.say(Kind.USED, 0, *times, self.reads())

    def reads(self) -> int:
        return self.queue.store.statistics().reads

    async def read(self, subscription: Subscription) -> None:
        left = self.spec.reads
        async for batch in subscription.batches(100):
            for record in batch:
                assert record.value is not None
                numbers = numbers_of(record.value)
                self.out.say(Kind.READ, record.partition, record.offset, *numbers)
            await subscription.commit(batch)
            left -= len(batch)
            if left <= 0:
                return

    async def wait(self, subscription: Subscription) -> None:
        before = self.reads()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await anext(aiter(subscription))
        self.out.say(Kind.IDLE, 0, before, self.reads())


def write(spec: Spec, descriptor: int) -> int:
    """Be a writer or a reader; the exit code tells whether an error ended it."""
    out = Out(descriptor, spec.writer)
    try:
        asyncio.run((Reader if spec.reads else Writer)(spec, out).run())
    except (PenstockError, OSError) as error:
        out.failed(error)
        if spec.reads or spec.upkeep:
            traceback.print_exc()
        return 3
    except BaseException:
        traceback.print_exc()
        return 4
    return 0


# -------------------------------------------------------------------------------------- nursery


def nursery(link: socket.socket) -> None:
    """Fork a writer for each request, wait for one when asked; ends with the test's process."""
    while True:
        request, descriptors, _, _ = socket.recv_fds(link, 65_536, 1)
        if not request:
            return
        command, _, argument = request.decode().partition(" ")
        if command == "wait":
            _, status = os.waitpid(int(argument), 0)
            link.sendall(b"%d" % status)
            continue
        child = os.fork()
        if child == 0:
            link.close()
            code = 4
            with contextlib.suppress(BaseException):
                code = be(command, argument, descriptors[0])
            os._exit(code)
        os.close(descriptors[0])
        link.sendall(b"%d" % child)


def be(command: str, argument: str, descriptor: int) -> int:
    """In the new process: a writer, an operation, or a member of a group."""
    if command == "fork":
        return write(Spec(**json.loads(argument)), descriptor)
    if command == "operation":
        return operations.be(argument, descriptor)
    os.dup2(descriptor, sys.stdout.fileno())
    asyncio.run(transport_member._main(*json.loads(argument)))
    return 0


def main() -> None:
    command, *rest = sys.argv[1:]
    if command == "nursery":
        nursery(socket.socket(fileno=int(rest[0])))
    else:
        os._exit(write(Spec(**json.loads(rest[0])), 1))


if __name__ == "__main__":
    main()
