"""What runs while a queue is open: its topics, its commit worker, its bells and its maintenance."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.log.changes import Changes
from penstock.log.deadlines import Deadlines
from penstock.log.maintenance import Maintenance
from penstock.log.open_topic import OpenTopic, Surroundings
from penstock.log.published import PublishedRow, wake
from penstock.log.receipts import Receipt
from penstock.log.topic import TopicConfig
from penstock.log.topics import Topics
from penstock.log.waiting import CommitWaiters, call_soon, runs_here, set_done

if TYPE_CHECKING:
    from penstock.log.producer import Producer

_log = logging.getLogger("penstock.log")


class Engine:
    """The running parts of a queue, on one event loop."""

    def __init__(self, around: Surroundings, defaults: TopicConfig, *, auto_create: bool) -> None:
        self.around = around
        self.maintenance = Maintenance(around, lambda: self.topics)
        self.topics = Topics(
            around,
            defaults,
            self._on_commit,
            self.maintenance.follow,
            auto_create=auto_create,
        )
        self.changes = Changes(around.store, around.loop)
        self.deadlines = Deadlines(around.loop)
        self.waiters = CommitWaiters(around.loop)
        self.producers: weakref.WeakSet[Producer] = weakref.WeakSet()
        self.named_producers: dict[str, Producer] = {}

    async def start(self, maintenance_interval: float | None) -> None:
        """Finish the transactions of processes that died, and let maintenance begin.

        Trouble with a transaction is logged; maintenance tries it again.
        """
        for trouble in await asyncio.to_thread(self.around.care.settle):
            _log.warning("a committed transaction cannot be finished yet: %s", trouble)
        if maintenance_interval is not None:
            self.maintenance.start(maintenance_interval)

    async def commit(self) -> None:
        """Write and sync everything that was accepted before this call."""
        await self._on_worker(self.topics.commit)

    async def repartition(self, topic: OpenTopic, partitions: int) -> None:
        """Change the partition count on the commit worker, between two commits."""
        failures: list[BaseException] = []

        def change() -> None:
            try:
                topic.repartition(partitions)
            except BaseException as failure:
                failures.append(failure)

        await self._on_worker(change)
        for failure in failures:
            raise failure
        self.changes.wake(topic.name)

    async def drain(self, refusal: PenstockError) -> None:
        """Take nothing more, write and sync what was accepted, stop the threads."""
        await asyncio.gather(*(one.close() for one in list(self.producers)))
        await self.topics.refuse_from_now_on(refusal)
        await self.commit()
        await asyncio.to_thread(self.maintenance.close)
        await asyncio.to_thread(self.around.transactions.close)
        await asyncio.to_thread(self.around.worker.close)
        await asyncio.to_thread(self.topics.close)

    def stop(self, refusal: PenstockError) -> None:
        """Let all waits end. A worker that still hangs ends when its disk answers."""
        self.changes.close(refusal)
        self.deadlines.close()
        self.waiters.close(refusal)
        self.maintenance.stop()
        self.around.worker.submit(self.around.worker.close)

    async def wait_durable(self, topic: OpenTopic, partition: int, offset: int) -> None:
        """Return when the record is durable, by whomever; raises when the partition is poisoned."""
        topic.note_commits()
        log = topic.logs[partition]
        if log.head.durable_offset <= offset < log.head.next_offset:
            # Written here and not synced yet: if that failed, the offset may be another record's.
            log.check()
        if topic.durable[partition] > offset:
            return
        self.changes.follow(topic)
        ticket = self.changes.ticket(topic.name)
        await asyncio.to_thread(topic.refresh)
        while topic.durable[partition] <= offset:
            log.check()
            await self.changes.wait(topic.name, ticket)
            ticket = self.changes.ticket(topic.name)

    async def _on_worker(self, job: Callable[[], None]) -> None:
        """Run a job on the commit worker and wait for it."""
        loop = self.around.loop
        done: asyncio.Future[None] = loop.create_future()

        def run() -> None:
            try:
                job()
            finally:
                call_soon(loop, lambda: set_done(done))

        self.around.worker.submit(run)
        await done

    def _on_commit(
        self, topic: OpenTopic, done: Sequence[Receipt], rows: list[PublishedRow]
    ) -> None:
        """On the worker: tell the loop, once for all that was committed together.

        A worker on the loop itself has nobody to wake.
        """
        loop = self.around.loop
        tell = partial(self._committed, topic, done, rows)
        if runs_here(loop):
            loop.call_soon(tell)  # not at once: this may be inside the call that publishes
        else:
            call_soon(loop, tell)

    def _committed(
        self, topic: OpenTopic, done: Sequence[Receipt], rows: list[PublishedRow]
    ) -> None:
        topic.note_commits()
        for one in done:
            one.resolve()
        self.changes.wake(topic.name)
        self.waiters.committed()
        # Last, as these may go on at once.
        wake(self.around.loop, rows)
