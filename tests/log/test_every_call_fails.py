"""Every call that a queue makes to its disk fails: once, and from then on; with each error there is.

A small application does everything that a queue can do. Then the first call of its disk fails, then the
second, and so on until it gets through. Every call of the application returns or raises an error of
Penstock's. What it was told is durable stays, in the next process and after a power cut; after a
failed sync the partition takes no more records, and nothing is synced again.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from penstock import TopicConfig, WalMessageQueue
from penstock.errors import PenstockError, StoreFailed, UnknownTopic
from penstock.log.deletion import delete_topic
from penstock.stores.directory import DirectoryStore
from penstock.testing.disk import SimulatedDisk
from penstock.testing.disk_faults import OPERATIONS, Fault
from penstock.testing.worker import simulated_system

CONFIG = TopicConfig(segment_bytes_max=300)
COMPACTED = TopicConfig(segment_bytes_max=256, compact_keys=True)
ERRORS = {
    "open": (errno.EIO, errno.EMFILE, errno.EROFS),
    "write": (errno.EIO, errno.ENOSPC),
    "sync": (errno.EIO, errno.ENOSPC),
    "truncate": (errno.EIO, errno.ENOSPC),
    "rename": (errno.EIO, errno.ENOSPC),
    "make_directory": (errno.EIO, errno.ENOSPC),
}
_SEGMENT_OF_TORN = "/torn/0/0"
SHORT = (0, 1, 60)
"""Bytes that a failing write leaves."""
CALLS = sorted(OPERATIONS - {"watch"})
"""All of them. (A watch does not fail: where there is none, the answer is None, as it always is on this disk.)"""


def open_queue(disk: SimulatedDisk) -> WalMessageQueue:
    system = simulated_system(1, disk=disk)
    return WalMessageQueue("/data/log", system=system, maintenance_interval=None)


def delete(disk: SimulatedDisk) -> None:
    system = simulated_system(2, disk=disk)
    delete_topic(DirectoryStore("/data/log", system=system), "old", system=system)


@dataclass
class Application:
    """Uses a queue, and remembers what it was promised."""

    disk: SimulatedDisk
    durable: dict[int, bytes] = field(default_factory=dict)
    """Offset → value of what was acknowledged as durable, in the topic of orders."""
    committed: int = 0
    numbers: list[int] = field(default_factory=list)
    """Of the transactions that were committed."""
    changed: int = -1
    """The last change of the one key."""
    behind_a_tail: list[bytes] = field(default_factory=list)
    """What was published to a topic in which a dead writer has left bytes."""
    deleted: bool = False
    """The topic of old records is."""
    published: set[bytes] = field(default_factory=set)
    failed_sync: bool = False
    violations: list[str] = field(default_factory=list)

    async def run(self) -> None:
        try:
            queue = open_queue(self.disk)
            await queue.open()
        except PenstockError:
            return
        await self._try(lambda: queue.create_topic("orders", CONFIG))
        await self._try(lambda: self._change(queue))
        for number in range(5):
            await self._publish(queue, b"order %d" % number + b"x" * 60)
        await self._try(lambda: self._consume(queue))
        await self._try(lambda: self._transact(queue))
        await self._try(queue.maintain)
        await self._try(lambda: self._meet_a_tail(queue))
        await self._try(lambda: self._delete(queue))
        for number in range(5, 8):
            await self._publish(queue, b"order %d" % number)
        await self._try(queue.close)

    async def _try(self, call: Callable[[], Awaitable[Any]]) -> bool:
        """Whether it went well; anything but an error of Penstock's is a violation."""
        try:
            async with asyncio.timeout(20):
                await call()
        except PenstockError:
            return False
        except Exception as error:
            self.violations.append(f"{type(error).__name__} out of a call: {error}")
            return False
        return True

    async def _publish(self, queue: WalMessageQueue, value: bytes) -> None:
        self.published.add(value)
        found: list[Any] = []

        async def publish() -> None:
            found.append(await queue.publish("orders", value, key=value[:7]))

        if await self._try(publish):
            if self.failed_sync:
                self.violations.append("acknowledged after a failed sync")
            self.durable[found[0].offset] = value

    async def _change(self, queue: WalMessageQueue) -> None:
        await queue.create_topic("changes", COMPACTED)
        for number in range(6):
            await queue.publish("changes", b"%d" % number * 90, key=b"k")
            self.changed = number

    async def _consume(self, queue: WalMessageQueue) -> None:
        if len(self.durable) < 2:
            return
        async with queue.subscribe("orders", "billing") as subscription:
            records = aiter(subscription)
            for _ in range(2):
                record = await anext(records)
                await subscription.commit(record)
                self.committed = record.offset + 1

    async def _transact(self, queue: WalMessageQueue) -> None:
        for number in range(3):
            async with queue.transaction("invoicing", number=number) as transaction:
                await transaction.publish("journal", b"entry %d" % number)
            self.numbers.append(number)

    async def _meet_a_tail(self, queue: WalMessageQueue) -> None:
        """Another writer has died in the middle of a write, twice."""
        for number in range(3):
            value = b"behind %d" % number
            await queue.publish("torn", value)
            self.behind_a_tail.append(value)
            if segments := [one for one in self.disk.files() if _SEGMENT_OF_TORN in one]:
                self.disk.put(segments[-1], self.disk.content(segments[-1]) + b"left behind")

    async def _delete(self, queue: WalMessageQueue) -> None:
        await queue.create_topic("old")
        async with queue.subscribe("old", "billing") as subscription:
            await queue.publish("old", b"record")
            await subscription.commit(await anext(aiter(subscription)))
        delete(self.disk)
        self.deleted = True

    async def check(self, disk: SimulatedDisk) -> None:
        """Everything that was promised is there, and the log goes on."""
        async with open_queue(disk) as queue:
            await queue.create_topic("orders", CONFIG)
            await self._check_records(queue)
            await self._check_transactions(queue)
            await self._check_others(queue, disk)
            if self.committed:
                async with queue.subscribe("orders", "billing") as subscription:
                    assert subscription.positions()[0] >= self.committed, "a commit is lost"
            last = await queue.publish("orders", b"next", key=b"next")
            assert last.durable

    async def _check_records(self, queue: WalMessageQueue) -> None:
        found = {one.offset: one.value async for one in queue.replay("orders")}
        for offset, value in self.durable.items():
            assert found.get(offset) == value, f"record {offset} is lost"
        assert self.published.issuperset(found.values()), "a record that nobody wrote"

    async def _check_others(self, queue: WalMessageQueue, disk: SimulatedDisk) -> None:
        if self.changed >= 0:
            changes = [one.value async for one in queue.replay("changes")]
            assert int((changes[-1] or b"")[:1]) >= self.changed, (
                "the newest value of a key is lost"
            )
        if self.behind_a_tail:
            found = [one.value async for one in queue.replay("torn")]
            assert found[: len(self.behind_a_tail)] == self.behind_a_tail, "lost behind a tail"
        if self.deleted:
            assert "old" not in await queue.topics(), "a topic that was deleted is there again"
        with suppress(UnknownTopic):
            # Whatever a failed one has left.
            delete(disk)

    async def _check_transactions(self, queue: WalMessageQueue) -> None:
        found = []
        if "journal" in await queue.topics():
            found = [one.value async for one in queue.replay("journal")]
        assert len(found) == len(set(found)), "a transaction twice"
        for number in self.numbers:
            assert b"entry %d" % number in found, "a transaction is lost"


class Outcome(NamedTuple):
    """What came of a fault: whether such a call was made, and what was violated."""

    failed: bool
    violations: list[str]


def run_with(operation: str, at: int, forever: bool, error: int, short: int) -> Outcome | None:
    """What came of it; None when there is no such call any more."""
    disk = SimulatedDisk()
    application = Application(disk)
    fault = disk.fail(operation, error, at=at, forever=forever, short=short)
    cause = fault
    if operation == "remove_directory":
        # A folder is removed when its name cannot be made durable.
        fault.at = 1
        cause = disk.fail("sync_directory", error, at=at)
    if operation == "sync":
        _watch_syncs(disk, application, fault)
    asyncio.run(application.run())
    if not cause.fired:
        return None
    disk.heal()
    # Where a directory cannot be synced, the file system is down: nothing is promised of its names.
    states = [disk.kill(), *(disk.crash_states(2) if cause.operation != "sync_directory" else ())]
    for state in states:
        try:
            asyncio.run(application.check(state))
        except (AssertionError, PenstockError) as violation:
            application.violations.append(f"{type(violation).__name__}: {violation}")
    return Outcome(fault.fired > 0, application.violations)


def _watch_syncs(disk: SimulatedDisk, application: Application, fault: Fault) -> None:
    """After a failed sync of a segment, no other one of that file before it was written again."""
    failed: set[str] = set()

    def watch(point: Any) -> None:
        if point.operation != "sync" or not point.path.endswith(".log"):
            return
        if point.done and fault.seen >= fault.at and (fault.forever or fault.seen == fault.at):
            failed.add(point.path)
            application.failed_sync |= "/orders/" in point.path
        elif not point.done and point.path in failed:
            application.violations.append(f"{point.path} was synced again")

    def forgive(operation: str, path: str) -> None:
        if operation == "write":
            # Recovery makes the pages dirty again: then a sync tells the truth.
            failed.discard(path)

    disk.on_sync(watch)
    disk.on_call(forgive)


def try_all(operation: str, step: int) -> tuple[int, list[str]]:
    """How many failures were tried, and what was violated."""
    tried, violations = 0, []
    for forever in (False, True):
        for error in ERRORS.get(operation, (errno.EIO,)):
            for short in SHORT if operation == "write" else (0,):
                for at in range(1, 5_000, step):
                    found = run_with(operation, at, forever, error, short)
                    if found is None:
                        break
                    tried += found.failed
                    where = f"{operation} {at} forever={forever} errno={error} short={short}"
                    violations += [f"{where}: {one}" for one in found.violations]
    return tried, violations


def test_without_a_fault_the_application_does_it_all():
    disk = SimulatedDisk()
    application = Application(disk)
    asyncio.run(application.run())
    assert application.violations == []
    assert application.deleted
    assert (len(application.durable), application.committed, application.changed) == (8, 2, 5)
    assert (len(application.numbers), len(application.behind_a_tail)) == (3, 3)
    assert set(disk.calls) | {"remove_directory"} == OPERATIONS


STEPS = {"sync": 5, "truncate": 1, "remove_directory": 3, "rename": 7, "unlink": 7}
"""Every so many-th call fails in the short form, if not every 29th."""


@pytest.mark.parametrize("operation", CALLS)
def test_some_calls_fail(operation, scored):
    tried, violations = try_all(operation, STEPS.get(operation, 29))
    print("\n".join(violations[:3]))
    if operation == "sync":
        scored(9, tried=tried, bad=sum("sync" in one for one in violations))
    scored(10, tried=tried, bad=len(violations))


@pytest.mark.torture
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("operation", CALLS)
def test_every_call_fails(operation, scored):
    tried, violations = try_all(operation, step=1)
    print("\n".join(violations[:3]))
    if operation == "sync":
        scored(9, tried=tried, bad=sum("sync" in one for one in violations))
    scored(10, tried=tried, bad=len(violations))


def test_caught_a_failed_sync_that_is_not_told(monkeypatch):
    plain = DirectoryStore.sync

    def keep_quiet(self, key):
        with suppress(StoreFailed):
            plain(self, key)

    monkeypatch.setattr(DirectoryStore, "sync", keep_quiet)
    _, violations = try_all("sync", step=11)
    assert any("after a failed sync" in one for one in violations)
    assert any("is lost" in one for one in violations)


def test_caught_a_sync_that_is_tried_again(monkeypatch):
    plain = DirectoryStore.sync

    def try_twice(self, key):
        try:
            plain(self, key)
        except StoreFailed:
            plain(self, key)

    monkeypatch.setattr(DirectoryStore, "sync", try_twice)
    _, violations = try_all("sync", step=11)
    assert any("again" in one for one in violations)
