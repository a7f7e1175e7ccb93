"""A small log with every kind of file that Penstock keeps, and what an application sees of it.

``KINDS`` lists the kinds. ``make_files`` writes a log that has them all; ``look`` opens such files anew
and tells what each part of an application finds: its records, its offsets, its numbers. A part that
raises tells the error instead.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any
from unittest.mock import patch

from penstock import TopicConfig, WalMessageQueue
from penstock.errors import PenstockError
from penstock.log import index
from penstock.log.codec import Codec
from penstock.log.columns import Columns
from penstock.log.group_coordinator import GroupCoordinator
from penstock.log.group_file import GroupFile
from penstock.log.places import Position
from penstock.log.transactions import Transactions
from penstock.log.verify import verify
from penstock.spark.checkpoint import ready_checkpoint
from penstock.spark.ledger import Ledger, Progress
from penstock.stores.base import PersistentBackingStore
from penstock.stores.memory import MemoryStore
from penstock.streaming.checkpoints import CheckpointStore
from penstock.testing.disk import SimulatedDisk
from penstock.testing.worker import SimulatedSystem, simulated_system

Files = dict[str, bytes]
"""Key → content; the keys of the tier begin with ``tier/``."""
TIER = "tier/"
PACKED = {f"packed-{codec.name.lower()}": codec for codec in Codec if codec is not Codec.NONE}
"""A topic for each way to compress; the others are not compressed."""
TOPICS = ("changes", "notes", "orders", *PACKED)
INDEX_SPACING_BYTES = 400
"""A row of an index for so many bytes, not for 64 KiB: every bit of a log that has an index can be turned over."""
GROUPS = ("billing", "shipping")
PRODUCERS = ("audit", "invoicing")
LAST_NOTES = 4
CHECKPOINT = "/data/checkpoint"
PROCESS = 4321


@dataclass(frozen=True)
class Kind:
    """A kind of file: its keys, the parts of an application that use it, and what it is worth."""

    name: str
    pattern: str
    parts: tuple[str, ...]
    derived: bool = False
    """Made anew from others, or worth nothing: no damage to it may be seen anywhere."""

    def fits(self, key: str) -> bool:
        return re.fullmatch(self.pattern, key) is not None


_BASE = r"(tier/)?topics/[^/]+/\d+/\d{20}"
KINDS = (
    Kind("segment", _BASE + r"\.log", ("records",)),
    Kind("rewritten segment", _BASE + r"-\d+\.log", ("records",)),
    Kind("index", _BASE + r"(-\d+)?\.index", ("records",), derived=True),
    Kind("head", r"topics/[^/]+/\d+/head", ("records",)),
    Kind("topic", r"topics/[^/]+/topic\.json", ("records", "offsets")),
    Kind("offset", r"groups/[^/]+/[^/]+-\d+\.offset", ("offsets",)),
    Kind("group", r"groups/[^/]+/members/state", ("groups",)),
    Kind("bell", r"groups/[^/]+/members/bell", ("groups",), derived=True),
    Kind("producer", r"producers/[^/]+/state", ("producers",)),
    Kind("decision", r"producers/[^/]+/decision-[01]", ("producers", "records")),
    Kind("done mark", r"producers/[^/]+/done", ("producers", "records")),
    Kind("staged records", r"producers/[^/]+/staged/[^/]+", ("producers",), derived=True),
    Kind("checkpoint", r"checkpoints/[^/]+/[^/]+/partition-\d+", ("checkpoints",)),
    Kind("progress of a query", r"ledgers/[^/]+/progress", ("ledgers", "queries")),
    Kind("plan of a query", r"ledgers/[^/]+/plan-[0-9a-f]{8}", ("ledgers", "queries")),
    Kind(
        "lock",
        r"topics/[^/]+/lock|topics/[^/]+/\d+/maintenance|groups/[^/]+/[^/]+\.lock"
        r"|groups/[^/]+/members/lock|producers/[^/]+/lock|checkpoint-locks/.*",
        (),
        derived=True,
    ),
)


def kind_of(key: str) -> Kind:
    """The one kind that a key is of."""
    (kind,) = [one for one in KINDS if one.fits(key)]
    return kind


def topics_with(key: str) -> tuple[str, ...]:
    """The topics whose records the file has to do with."""
    named = re.match(r"(?:tier/)?topics/([^/]+)/", key)
    return (named[1],) if named else ("changes",) if key.startswith("producers/") else ()


# Making one


def make_files() -> Files:
    """A log with every kind of file, closed; the same bytes every time."""
    store, tier = MemoryStore(), MemoryStore()
    # Members write down whose they are; this may be a forked process.
    with patch("os.getpid", return_value=PROCESS), small_indexes():
        asyncio.run(_make(store, tier))
    return {key: store.read(key) for key in store.list()} | {
        TIER + key: tier.read(key) for key in tier.list()
    }


def small_indexes() -> Any:
    """While it lasts, small segments have an index."""
    return patch.object(index, "INDEX_SPACING_BYTES", INDEX_SPACING_BYTES)


async def _make(store: MemoryStore, tier: MemoryStore) -> None:
    system = simulated_system(5)
    async with _queue(store, tier, system) as queue:
        await _publish(queue)
        await _consume(queue)
        await queue.repartition("orders", 3)
        for number in range(4):
            await queue.publish("orders", b"later %d" % number, key=b"k%d" % number)
        await _transact(queue)
        system.clock.jump(10_000)
        await queue.maintain()
        for number in range(6):
            # Not sent to the tier any more: sealed segments and an index beside the open one.
            await queue.publish("changes", b"last %d" % number, key=b"last")
            await queue.publish("notes", b"%d" % number * 300)
    Transactions(store, system=system).stage("invoicing", {"changes": Columns([b"not decided"])})
    await _stream(store, system)


def _queue(store: MemoryStore, tier: MemoryStore, system: SimulatedSystem) -> WalMessageQueue:
    return WalMessageQueue(store, tier=tier, system=system, maintenance_interval=None)


async def _publish(queue: WalMessageQueue) -> None:
    await queue.create_topic("orders", TopicConfig(partitions=2, segment_bytes_max=600))
    await queue.create_topic("changes", TopicConfig(compact_keys=True, segment_bytes_max=300))
    await queue.create_topic("notes", TopicConfig(segment_bytes_max=1_200))
    for topic, codec in PACKED.items():
        await queue.create_topic(topic, TopicConfig(codec=codec))
        await queue.publish_many(topic, [b"packed %d " % number * 9 for number in range(4)])
    for number in range(6):
        value, key = b"order %d" % number + b"x" * 30, b"k%d" % (number % 3)
        await queue.publish("orders", value, key=key, headers={"trace": b"%d" % number})
        await queue.publish("changes", b"v%d" % number, key=b"k%d" % (number % 2))


async def _consume(queue: WalMessageQueue) -> None:
    for group, count in zip(GROUPS, (4, 2), strict=True):
        async with queue.subscribe("orders", group) as subscription:
            records = aiter(subscription)
            for _ in range(count):
                await subscription.commit(await anext(records))


async def _transact(queue: WalMessageQueue) -> None:
    for producer, count in zip(PRODUCERS, (2, 5), strict=True):
        for number in range(count):
            async with queue.transaction(producer) as transaction:
                value = b"%s %d" % (producer.encode(), number)
                await transaction.publish("changes", value, key=producer.encode())


async def _stream(store: MemoryStore, system: SimulatedSystem) -> None:
    checkpoints = CheckpointStore(store, system=system, runner=_here)
    for place, group in enumerate(GROUPS):
        coordinator = GroupCoordinator(store, group, system=system)
        await coordinator.join({"orders": 3})
        for offset in (1, 3 - place):
            await checkpoints.commit(group, "orders", 0, offset, generation=1)
        ledger = Ledger(store, group)
        for batch in (0, 1):
            ledger.plan({"orders": {0: batch + place}}, {"orders": {0: batch + place + 1}})
            ledger.note(_progress(group, batch))


def _progress(group: str, batch: int) -> Progress:
    return Progress(query_id=group, batch_id=batch, ends=(f'{{"n":{batch}}}',))


async def _here(work: Callable[[], Any]) -> Any:
    return work()


# Looking at it


@dataclass
class Seen:
    """What an application found: a value or an error for each thing that it asked for."""

    topics: tuple[str, ...]
    values: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, PenstockError] = field(default_factory=dict)
    reports: list[str] = field(default_factory=list)
    """What was mended or is in doubt, as it was told."""

    @property
    def told(self) -> bool:
        """Whether anything was said at all."""
        return bool(self.errors or self.reports)

    async def ask(self, name: str, question: Callable[[], Awaitable[Any]]) -> None:
        try:
            self.values[name] = await question()
        except PenstockError as error:
            self.errors[name] = error


def stores_of(files: Mapping[str, bytes]) -> tuple[MemoryStore, MemoryStore]:
    """The files in stores again."""
    store, tier = MemoryStore(), MemoryStore()
    for key, content in files.items():
        if key.startswith(TIER):
            tier.write(key.removeprefix(TIER), content)
        else:
            store.write(key, content)
    return store, tier


def look(
    files: Mapping[str, bytes], parts: tuple[str, ...] = (), topics: tuple[str, ...] = TOPICS
) -> Seen:
    """What an application sees that opens these files; all parts of it, unless some are named."""
    with small_indexes():
        return _loop().run(_look(*stores_of(files), parts or tuple(_PARTS), Seen(topics)))


@cache
def _loop() -> asyncio.Runner:
    """One event loop for all looks: a new one each time takes longer than a look."""
    runner = asyncio.Runner()
    # The loop alone: Runner.close starts a thread, which Python 3.12 refuses so late.
    atexit.register(runner.get_loop().close)
    os.register_at_fork(after_in_child=_loop.cache_clear)  # two processes cannot have one
    return runner


def problems_of(files: Mapping[str, bytes]) -> list[str]:
    """What ``verify`` says; it changes nothing."""
    store, tier = stores_of(files)
    return [problem.file for problem in verify(store, tier=tier).problems]


async def _look(store: MemoryStore, tier: MemoryStore, parts: tuple[str, ...], seen: Seen) -> Seen:
    system = simulated_system(6)
    system.clock.jump(20_000)
    try:
        async with _queue(store, tier, system) as queue:
            for part in parts:
                await _PARTS[part](seen, queue)
    except PenstockError as error:
        seen.errors["queue"] = error
    return seen


async def _records(seen: Seen, queue: WalMessageQueue) -> None:
    for topic in seen.topics:
        await seen.ask(f"topic {topic}", partial(_open, seen, queue, topic))
        await seen.ask(f"records of {topic}", partial(_read, queue, topic))
        if topic == "notes":
            # The index tells where to look.
            await seen.ask("last notes", partial(_read, queue, topic, LAST_NOTES))


async def _open(seen: Seen, queue: WalMessageQueue, topic: str) -> object:
    state = await queue.create_topic(topic)
    for report in await queue.recovery(topic):
        if not report.clean:
            seen.reports.append(str(report))
    return state


async def _read(queue: WalMessageQueue, topic: str, start: Position = "earliest") -> list[object]:
    return [record async for record in queue.replay(topic, start=start)]


async def _offsets(seen: Seen, queue: WalMessageQueue) -> None:
    for group in GROUPS:
        await seen.ask(f"offsets of {group}", partial(_positions, seen, queue, group))


async def _positions(seen: Seen, queue: WalMessageQueue, group: str) -> object:
    async with queue.subscribe("orders", group) as subscription:
        seen.reports += subscription.damaged_offsets
        return subscription.positions()


async def _groups(seen: Seen, queue: WalMessageQueue) -> None:
    for group in GROUPS:
        file = GroupFile(queue.store, group, simulated_system().clock, 1.0)
        await seen.ask(f"group {group}", partial(_here, file.read))


async def _producers(seen: Seen, queue: WalMessageQueue) -> None:
    for name in PRODUCERS:
        producer = queue.producer(name)
        await seen.ask(f"number of {name}", producer.last_number)
        await seen.ask(f"opening {name}", producer.open)
        await seen.ask(f"number of {name} when open", producer.last_number)


async def _checkpoints(seen: Seen, queue: WalMessageQueue) -> None:
    checkpoints = CheckpointStore(queue.store, runner=_here)
    for group in GROUPS:
        await seen.ask(
            f"checkpoint of {group}",
            partial(checkpoints.read, group, "orders", 0, fresh=True),
        )


async def _ledgers(seen: Seen, queue: WalMessageQueue) -> None:
    for group in GROUPS:
        ledger = Ledger(queue.store, group)
        await seen.ask(f"progress of {group}", partial(_here, ledger.progress))
        await seen.ask(f"plans of {group}", partial(_here, ledger.plans))


async def _queries(seen: Seen, queue: WalMessageQueue) -> None:
    for group in GROUPS:
        await seen.ask(f"query {group}", partial(_here, partial(_resume, queue.store, group)))


def _resume(store: PersistentBackingStore, group: str) -> object:
    """Where Spark goes on from a checkpoint that is sound."""
    system = simulated_system(7, disk=(disk := SimulatedDisk()))
    sound = Ledger(MemoryStore(), group)
    sound.note(_progress(group, 1))
    ready_checkpoint(CHECKPOINT, sound, system)
    found = ready_checkpoint(CHECKPOINT, Ledger(store, group), system)
    return found, {path: disk.content(path) for path in disk.files()}


_PARTS: dict[str, Callable[[Seen, WalMessageQueue], Awaitable[None]]] = {
    "groups": _groups,
    "records": _records,
    "offsets": _offsets,
    "producers": _producers,
    "checkpoints": _checkpoints,
    "ledgers": _ledgers,
    "queries": _queries,
}
