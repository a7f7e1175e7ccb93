"""Small pieces of work on a log, each of which is killed at every one of its system calls.

``perform`` runs in a process of its own, in a single thread, so that the n-th call is the same one every
time. ``check`` says whether the log that it left keeps what was said.
"""

import asyncio
import json
import os
import shutil
import signal
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from penstock import FsyncPolicy, Retention, TopicConfig, WalMessageQueue, verify
from penstock.errors import UnknownTopic
from penstock.log.deletion import delete_topic
from penstock.log.group_coordinator import GroupCoordinator
from penstock.stores.directory import DirectoryStore
from penstock.system import Files, OsFiles, System
from penstock.testing.worker import InlineWorker
from tests.crash.file_layers import CutFiles

ORDERS, INVOICES, NEW = "orders", "invoices", "new"
SUBSCRIBER = "billing"
GROUP = "packing"
MOVED = 2
"""How far the member of the group gets."""
BASE = 12
"""So many records are there from the start."""
KEYS = (b"a", b"b", b"c", b"d")
CONFIG = TopicConfig(partitions=2, segment_bytes_max=300)
NOT_SYNCED = TopicConfig(
    partitions=2, segment_bytes_max=300, fsync=FsyncPolicy.TIMED, fsync_interval_ms=3_600_000
)
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


async def recovery(queue: WalMessageQueue, say: Say) -> None:
    """The log is as a dead writer left it: not closed, not synced, with half an entry behind it."""
    await queue.publish(ORDERS, value_of(100), key=key_of(100), durable=True)
    say("published", 100)


async def deletion(queue: WalMessageQueue, say: Say) -> None:
    delete_topic(queue.store, INVOICES)
    say("deleted")


async def join(queue: WalMessageQueue, say: Say) -> None:
    """A member of a group comes, commits and leaves."""
    coordinator = GroupCoordinator(queue.store, GROUP, system=System(random=Random(1)))
    async with await coordinator.join({ORDERS: CONFIG.partitions}) as member:
        say("joined", member.generation)
        await member.commit({(ORDERS, 0): MOVED})
        say("moved")


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
        recovery,
        deletion,
        join,
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


async def perform(operation: str, folder: Path, say: Say, files: Files | None = None) -> None:
    """Do one operation in this thread alone."""
    asyncio.get_running_loop().set_default_executor(InlineExecutor())
    system = System(files=files or OsFiles(), worker=InlineWorker, random=Random(1))
    async with new_queue(folder, operation, system) as queue:
        await {**OPERATIONS, **MUTANTS}[operation](queue, say)
    say("closed")


def be(argument: str, descriptor: int) -> int:
    """In the new process: wait until somebody watches, then work; or cut the power at a call."""
    operation, folder, *cut = json.loads(argument)

    def say(*words: object) -> None:
        os.write(descriptor, json.dumps(words).encode() + b"\n")

    if cut:
        asyncio.run(perform(operation, Path(folder), say, CutFiles(*cut)))
        return 0
    os.kill(os.getpid(), signal.SIGSTOP)
    asyncio.run(perform(operation, Path(folder), say))
    return 0


# ----------------------------------------------------------------------------------------- checks


async def prepare(folder: Path, operation: str) -> None:
    """The log that every operation finds: records of four keys, sealed segments, a subscriber."""
    async with new_queue(folder, operation) as queue:
        await queue.create_topic(ORDERS, NOT_SYNCED if operation == "recovery" else CONFIG)
        await queue.create_topic(INVOICES)
        for number in range(BASE):
            await queue.publish(ORDERS, value_of(number), key=key_of(number))
        async with queue.subscribe(ORDERS, SUBSCRIBER) as subscription:
            await subscription.commit(await subscription.next_batch(5, 2))
            while operation == "retention" and subscription.lag():
                # What a subscriber needs would stay.
                await subscription.commit(await subscription.next_batch(5, 100))
        await queue.publish(INVOICES, value_of(99))
        if operation == "recovery":
            shutil.copytree(folder / "log", folder / "left")
        if operation == "deletion":
            async with queue.subscribe(INVOICES, SUBSCRIBER) as subscription:
                await subscription.commit(await subscription.next_batch(5, 1))
    if operation == "recovery":
        leave(folder)


def leave(folder: Path) -> None:
    """The log as it was before it was closed, as if its writer had died in the middle of a write."""
    shutil.rmtree(folder / "log")
    (folder / "left").rename(folder / "log")
    for partition in range(CONFIG.partitions):
        newest = max((folder / f"log/topics/{ORDERS}/{partition}").glob("*.log"))
        newest.write_bytes(newest.read_bytes() + newest.read_bytes()[:50])


@dataclass
class Said:
    """What a process said before its death."""

    published: set[int] = field(default_factory=set)
    committed: dict[int, int] = field(default_factory=dict)
    standing: int | None = None
    """Where the subscriber stood, over all partitions."""
    generation: int = 0
    """Of the group that it joined."""
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
                elif word == "joined":
                    self.generation = numbers[0]

    def lose_power(self, operation: str) -> None:
        """What was written and not synced is no promise any more."""
        if operation == "sync" and "flushed" not in self.words:
            self.published.clear()


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


async def check(folder: Path, operation: str, said: Said, files: Files | None = None) -> None:
    """The log opens, keeps what was said, goes on, and is sound."""
    system = System(files=files or OsFiles())
    async with new_queue(folder, operation, system) as queue:
        if operation == "transaction":
            # Whoever opens the producer finishes what was decided.
            async with queue.transaction(SUBSCRIBER) as tx:
                await tx.publish(INVOICES, value_of(200))
        found = await read(queue)
        check_records(operation, said, found)
        positions = await check_subscriber(queue, found, said)
        if operation == "transaction":
            check_transaction(said, found, positions)
        if operation == "deletion":
            check_deletion(said, found)
        if operation == "join":
            await check_group(queue, said)
        state = await queue.create_topic(ORDERS)
        assert state.partitions in ((3,) if "repartitioned" in said.words else (2, 3))
        await queue.publish(ORDERS, value_of(300), key=KEYS[0], durable=True)
        assert (await read(queue))[ORDERS][KEYS[0]][-1] == 300, "the log does not go on"
    if operation == "deletion":
        with suppress(UnknownTopic):
            # Whatever is left of it.
            delete_topic(DirectoryStore(folder / "log", system=system), INVOICES)
    tier = DirectoryStore(folder / "tier", system=system) if operation == "tiering" else None
    if tier and "maintained" in said.words:
        assert any(key.endswith(".log") for key in tier.list()), "nothing was moved"
    report = verify(folder / "log", tier=tier, system=system)
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


def check_deletion(said: Said, found: Found) -> None:
    """The topic is gone, or there with all of it."""
    assert "deleted" not in said.words or INVOICES not in found, "a deleted topic is there"
    assert INVOICES not in found or numbers_in(found, INVOICES) == [99], "half a topic is there"


async def check_group(queue: WalMessageQueue, said: Said) -> None:
    """What the member committed stands, and another one can join."""
    coordinator = GroupCoordinator(queue.store, GROUP)
    found = await coordinator.committed([(ORDERS, 0)])
    assert "moved" not in said.words or found == {(ORDERS, 0): MOVED}, "a commit is lost"
    async with await coordinator.join({ORDERS: CONFIG.partitions}) as member:
        assert member.generation > said.generation, "the group went back"
