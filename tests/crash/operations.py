"""Small pieces of work on a log, each of which is killed at every one of its system calls.

``perform`` runs in a process of its own, in a single thread, so that the n-th call is the same one every
time. ``check`` says whether the log that it left keeps what was said.
"""

import asyncio
import json
import os
import signal
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from penstock import Retention, TopicConfig, WalMessageQueue, verify
from penstock.system import System
from penstock.testing.worker import InlineWorker

ORDERS, INVOICES, NEW = "orders", "invoices", "new"
SUBSCRIBER = "billing"
BASE = 12
"""So many records are there from the start."""
KEYS = (b"a", b"b", b"c", b"d")
CONFIG = TopicConfig(partitions=2, segment_bytes_max=300)
Say = Callable[..., None]


def value_of(number: int) -> bytes:
    return b"%d:" % number + b"x" * (20 + number % 50)


def key_of(number: int) -> bytes:
    return KEYS[number % len(KEYS)]


async def publish(
    queue: WalMessageQueue, numbers: Sequence[int], say: Say, topic: str = ORDERS
) -> None:
    for number in numbers:
        await queue.publish(topic, value_of(number), key=key_of(number))
        say("published", number)


# ------------------------------------------------------------------------------------------ work


async def append(queue: WalMessageQueue, say: Say) -> None:
    await publish(queue, [100], say)
    values = [value_of(number) for number in range(101, 104)]
    await queue.publish_many(ORDERS, values, keys=[key_of(number) for number in range(101, 104)])
    say("published", *range(101, 104))


async def roll(queue: WalMessageQueue, say: Say) -> None:
    await publish(queue, range(100, 105), say)


async def sync(queue: WalMessageQueue, say: Say) -> None:
    """Records that are written and synced later."""
    await queue.change_topic(ORDERS, fsync="every_n_messages")
    await publish(queue, range(100, 102), say)
    await queue.flush()
    say("flushed")


async def commit(queue: WalMessageQueue, say: Say) -> None:
    async with queue.subscribe(ORDERS, SUBSCRIBER) as subscription:
        batch = await subscription.next_batch(5, 3)
        await subscription.commit(batch)
        say("committed", batch.partition, batch.next_offset)


async def create(queue: WalMessageQueue, say: Say) -> None:
    await queue.create_topic(NEW, CONFIG)
    say("created")
    await publish(queue, [100], say, NEW)
    await queue.change_topic(NEW, linger_ms=3)


async def retention(queue: WalMessageQueue, say: Say) -> None:
    await queue.change_topic(ORDERS, retention=Retention(bytes_max=300))
    await maintain(queue, say)


async def compaction(queue: WalMessageQueue, say: Say) -> None:
    await queue.change_topic(ORDERS, compact_keys=True)
    await maintain(queue, say)


async def tiering(queue: WalMessageQueue, say: Say) -> None:
    await queue.change_topic(ORDERS, linger_ms=1)
    await maintain(queue, say)


async def maintain(queue: WalMessageQueue, say: Say) -> None:
    for report in await queue.maintain():
        if report.error is not None:
            raise report.error
    say("maintained")


async def repartition(queue: WalMessageQueue, say: Say) -> None:
    await queue.repartition(ORDERS, 3)
    say("repartitioned")
    await publish(queue, range(100, 102), say)


async def transaction(queue: WalMessageQueue, say: Say) -> None:
    """Records of two topics and an offset, all or nothing; then one that is given up."""
    async with queue.subscribe(ORDERS, SUBSCRIBER) as subscription:
        say("standing", sum(subscription.positions().values()))
        batch = await subscription.next_batch(5, 4)
        async with queue.transaction(SUBSCRIBER) as tx:
            for number in (100, 101):
                await tx.publish(INVOICES, value_of(number), key=key_of(number))
            await tx.publish(ORDERS, value_of(102), key=key_of(102))
            tx.commit_offsets(subscription, {batch.partition: batch.next_offset})
        say("published", 100, 101, 102)
        say("committed", batch.partition, batch.next_offset)
    given_up = queue.transaction(SUBSCRIBER)
    await given_up.publish(INVOICES, value_of(103))
    await given_up.abort()


OPERATIONS: dict[str, Callable[[WalMessageQueue, Say], Awaitable[None]]] = {
    one.__name__: one
    for one in (
        append,
        roll,
        sync,
        commit,
        create,
        retention,
        compaction,
        tiering,
        repartition,
        transaction,
    )
}


async def hasty(queue: WalMessageQueue, say: Say) -> None:
    """A bug: it says that a record is published before it is."""
    say("published", 100)
    await publish(queue, [100], say)


MUTANTS = {"hasty": hasty}


class InlineExecutor(ThreadPoolExecutor):
    """Does at once what it is given, in the thread that asks."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as failure:
            done.set_exception(failure)
        return done


def new_queue(folder: Path, operation: str, system: System | None = None) -> WalMessageQueue:
    return WalMessageQueue(
        folder / "log",
        tier=str(folder / "tier") if operation == "tiering" else None,
        maintenance_interval=None,
        system=system or System(),
    )


async def perform(operation: str, folder: Path, say: Say) -> None:
    """Do one operation in this thread alone."""
    asyncio.get_running_loop().set_default_executor(InlineExecutor())
    system = System(worker=InlineWorker, random=Random(1))
    async with new_queue(folder, operation, system) as queue:
        await {**OPERATIONS, **MUTANTS}[operation](queue, say)
    say("closed")


def be(argument: str, descriptor: int) -> int:
    """In the new process: wait until somebody watches, then work."""
    operation, folder = json.loads(argument)

    def say(*words: object) -> None:
        os.write(descriptor, json.dumps(words).encode() + b"\n")

    os.kill(os.getpid(), signal.SIGSTOP)
    asyncio.run(perform(operation, Path(folder), say))
    return 0


# ----------------------------------------------------------------------------------------- checks


async def prepare(folder: Path, operation: str) -> None:
    """The log that every operation finds: records of four keys, sealed segments, a subscriber."""
    async with new_queue(folder, operation) as queue:
        await queue.create_topic(ORDERS, CONFIG)
        await queue.create_topic(INVOICES)
        for number in range(BASE):
            await queue.publish(ORDERS, value_of(number), key=key_of(number))
        async with queue.subscribe(ORDERS, SUBSCRIBER) as subscription:
            await subscription.commit(await subscription.next_batch(5, 2))
            while operation == "retention" and subscription.lag():
                # What a subscriber needs would stay.
                await subscription.commit(await subscription.next_batch(5, 100))
        await queue.publish(INVOICES, value_of(99))


@dataclass
class Said:
    """What a process said before its death."""

    published: set[int] = field(default_factory=set)
    committed: dict[int, int] = field(default_factory=dict)
    standing: int | None = None
    """Where the subscriber stood, over all partitions."""
    words: set[str] = field(default_factory=set)

    def take(self, lines: bytes) -> None:
        for line in lines.splitlines(keepends=True):
            if line.endswith(b"\n"):
                word, *numbers = json.loads(line)
                self.words.add(word)
                if word == "published":
                    self.published.update(numbers)
                elif word == "committed":
                    self.committed[numbers[0]] = numbers[1]
                elif word == "standing":
                    self.standing = numbers[0]


Found = dict[str, dict[bytes, list[int]]]
"""By topic and key, the numbers that were read, in order."""


async def read(queue: WalMessageQueue) -> Found:
    found: Found = {}
    for topic in await queue.topics():
        by_key: dict[bytes, list[int]] = defaultdict(list)
        async for record in queue.replay(topic):
            number = int((record.value or b"").split(b":")[0])
            assert record.value == value_of(number), "a record has changed"
            by_key[record.key or b""].append(number)
        found[topic] = by_key
    return found


def numbers_in(found: Found, topic: str) -> list[int]:
    return [number for numbers in found.get(topic, {}).values() for number in numbers]


async def check(folder: Path, operation: str, said: Said) -> None:
    """The log opens, keeps what was said, goes on, and is sound."""
    async with new_queue(folder, operation) as queue:
        if operation == "transaction":
            # Whoever opens the producer finishes what was decided.
            async with queue.transaction(SUBSCRIBER) as tx:
                await tx.publish(INVOICES, value_of(200))
        found = await read(queue)
        check_records(operation, said, found)
        positions = await check_subscriber(queue, found, said)
        if operation == "transaction":
            check_transaction(said, found, positions)
        state = await queue.create_topic(ORDERS)
        assert state.partitions in ((3,) if "repartitioned" in said.words else (2, 3))
        await queue.publish(ORDERS, value_of(300), key=KEYS[0], durable=True)
        assert (await read(queue))[ORDERS][KEYS[0]][-1] == 300, "the log does not go on"
    if "maintained" in said.words and operation == "tiering":
        assert [*(folder / "tier").rglob("*.log")], "nothing was moved"
    report = verify(folder / "log", tier=str(folder / "tier") if operation == "tiering" else None)
    assert report.sound, report.problems
    assert not report.lost


def check_records(operation: str, said: Said, found: Found) -> None:
    everything = [number for topic in found for number in numbers_in(found, topic)]
    assert len(everything) == len(set(everything)), "a record is there twice"
    lost = said.published - set(everything)
    assert not lost, f"acknowledged and lost: {lost}"
    for by_key in found.values():
        for numbers in by_key.values():
            assert numbers == sorted(numbers), "out of order"
    gone = set(range(BASE)) - set(everything)
    if operation == "compaction":
        gone -= set(range(BASE - len(KEYS)))
    elif operation == "retention":
        gone -= set(range(BASE - 2))
    assert not gone, f"lost: {gone}"
    if "maintained" in said.words and operation in ("compaction", "retention"):
        assert set(range(BASE)) - set(everything), "nothing was removed"


async def check_subscriber(queue: WalMessageQueue, found: Found, said: Said) -> dict[int, int]:
    """It stands no further back than it has committed, and gets the rest."""
    async with queue.subscribe(ORDERS, SUBSCRIBER) as subscription:
        positions = dict(subscription.positions())
        for partition, offset in said.committed.items():
            assert positions[partition] >= offset, "a commit is lost"
        got: list[int] = []
        while subscription.lag():
            batch = await subscription.next_batch(5, 100)
            got += [int((record.value or b"").split(b":")[0]) for record in batch]
            await subscription.commit(batch)
        there = numbers_in(found, ORDERS)
        assert set(got) <= set(there)
        assert set(got) >= {number for number in there if number >= 100}, "it misses records"
        return positions


def check_transaction(said: Said, found: Found, positions: dict[int, int]) -> None:
    """All of it or nothing of it."""
    there = {100, 101, 102} & {*numbers_in(found, INVOICES), *numbers_in(found, ORDERS)}
    assert there in (set(), {100, 101, 102}), f"half a transaction: {there}"
    assert 103 not in numbers_in(found, INVOICES), "a record of a transaction that was given up"
    if said.standing is None:
        assert not there
        return
    moved = sum(positions.values()) > said.standing
    assert moved == bool(there), "the offset moved without the records, or they without it"
