"""A consumer of a run that is a task of this process."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

from penstock.bus.encoding import MessageCodec
from penstock.bus.tracing import Tracing
from penstock.errors import DeadlineExceeded, Fenced, NotSupported
from penstock.resilience.retry import Retry
from penstock.streaming.checkpoints import CheckpointStore
from penstock.streaming.committing import AutoCommit
from penstock.streaming.event_stream import Subscribe, decoded
from penstock.streaming.group_commits import Committed, GroupCommits
from penstock.streaming.parallel import ParallelConsumer
from penstock.streaming.ranges import OFFSET_MAX
from penstock.streaming.run_values import MemberFigures, PartitionWork, RunOptions
from penstock.streaming.stream_event import StreamEvent, event_of
from penstock.streaming.traced import traced
from penstock.streaming.transport_statistics import TransportMeter
from penstock.system import System
from penstock.transports.base import Consumer
from penstock.transports.records import StreamBatch

logger = logging.getLogger("penstock.streaming")

READ_RECORDS_MAX = 1_000

Handler = Callable[[StreamEvent], Any]
"""A coroutine function, or a plain one, which is called in a thread."""
OnPoison = Callable[[StreamEvent, Exception], Awaitable[object]]


class TaskMember:
    """Reads as a member of the group and hands the events to a parallel consumer.

    An event is handled when the handler has returned. A partition that goes to another member is
    finished and committed first.
    """

    def __init__(
        self,
        handler: Handler,
        subscribe: Subscribe,
        committed: Committed,
        checkpoints: CheckpointStore | None,
        options: RunOptions,
        *,
        on_poison: OnPoison | None,
        meter: TransportMeter,
        codec: MessageCodec,
        tracing: Callable[[], Tracing | None],
        system: System,
    ) -> None:
        self._handler = handler
        self._is_async = inspect.iscoroutinefunction(handler)
        self._options = options
        self._meter = meter
        self._codec = codec
        self._tracing = tracing
        self._consumer: Consumer = subscribe(on_revoke=self._revoked, handled=self._handled_below)
        self._commits = GroupCommits(self._consumer, checkpoints, committed)
        self._parallel: ParallelConsumer[StreamEvent] = ParallelConsumer(
            self._handle,
            in_flight_max=options.in_flight_max,
            buffered_max=max(options.buffered_max, options.in_flight_max),
            retry=Retry(attempts=options.attempts, delay=options.retry_delay),
            on_poison=on_poison,
            after_poison=options.after_poison,
            system=system,
        )
        self._auto = AutoCommit(
            self._parallel.positions,
            self._commits,
            interval_seconds=options.auto_commit,
            on_error=self._commit_failed,
            system=system,
        )
        self._mine: set[int] = set()
        """Partitions that the parallel consumer works on."""
        self._ending: set[asyncio.Task[None]] = set()
        """Last commits that are on their way."""
        self._leaving: dict[int, int] = {}
        """Their partitions, and what is handled of each."""
        self._changing = asyncio.Lock()
        """One partition at a time begins, or ends with its last commit."""
        self._stop = asyncio.Event()
        self._joined = False

    def stop(self) -> None:
        """Begin nothing more; see :class:`RunMember`."""
        self._stop.set()

    async def run(self) -> None:
        """Consume until it is stopped."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._consumer.close)
            await self._consumer.open()
            self._joined = True
            stack.push_async_callback(self._ended)  # again: one may have begun meanwhile
            stack.push_async_callback(self._commit_last)
            self._auto.begin()
            stack.push_async_callback(self._ended)
            stack.push_async_callback(self._parallel.close, timeout=self._options.stop_seconds)
            await self._until_stopped()

    async def _until_stopped(self) -> None:
        tasks = [asyncio.ensure_future(self._read()), asyncio.ensure_future(self._stop.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                await tasks[0]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _commit_last(self) -> None:
        with suppress(Fenced):  # another member has it, and goes on with it
            await self._auto.close()

    def figures(self) -> MemberFigures:
        """What it did, and how far it is in its partitions."""
        figures = self._parallel.statistics()
        oldest: dict[int, int] = {}
        for work in self._parallel._buffered:
            if work.error is None:  # what is parked waits for people, not for consumers
                record = work.record
                known = oldest.get(record.partition, record.timestamp)
                oldest[record.partition] = min(known, record.timestamp)
        places = self._parallel.positions()
        return MemberFigures(
            handled=figures.handled,
            failures=figures.failures,
            dead_letters=figures.dead_letters,
            parked=figures.parked,
            assigned=self._consumer.assignment().partitions if self._joined else frozenset(),
            partitions={
                number: PartitionWork(places[number].offset, oldest.get(number))
                for number in self._mine & places.keys()
            },
        )

    # Reading

    async def _read(self) -> None:
        while True:
            batch = await self._consumer.next_batch(records_max=READ_RECORDS_MAX)
            await self._let_go()
            if await self._is_mine(batch):
                group = self._consumer.group
                await self._submit([event_of(one, group, self) for one in batch.records])

    async def _submit(self, events: list[StreamEvent]) -> None:
        while True:
            try:
                await self._parallel.submit(events)
            except DeadlineExceeded:
                continue  # the handlers are slow; those that are in are passed over
            self._meter.delivered += len(events)
            return

    async def _let_go(self) -> None:
        """Finish the partitions that this member does not read any more.

        Either they are about to be revoked, or the group took it for dead; then the commit is
        refused.
        """
        if self._mine - self._consumer.assignment().partitions:
            async with self._changing:
                await self._finish_all(self._mine - self._consumer.assignment().partitions)

    async def _is_mine(self, batch: StreamBatch) -> bool:
        """Whether to handle a batch. A partition that is new begins where the group stands."""
        partition, first = batch.partition, batch.records[0].offset
        if partition in self._mine:
            return True
        async with self._changing:
            return await self._begin(partition, first)

    async def _begin(self, partition: int, first: int) -> bool:
        if not await self._commits.is_next(partition, first):
            return False
        place = await self._commits.resume(partition, first)
        if partition not in self._consumer.assignment().partitions:
            return False
        self._auto.forget(partition)
        self._parallel.assign(partition, place)
        self._mine.add(partition)
        return True

    async def _revoked(self, partitions: frozenset[int]) -> None:
        """These go to another member: finish what runs, commit what is handled."""
        async with self._changing:
            await self._finish_all(self._mine & partitions)

    async def _finish_all(self, partitions: set[int]) -> None:
        self._mine -= partitions
        for partition in partitions:
            task = asyncio.get_running_loop().create_task(self._finish(partition))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        if self._ending:
            # Cancelled, it goes on all the same: what is handled has to be committed.
            await asyncio.wait(set(self._ending))

    async def _ended(self) -> None:
        while self._ending:
            await asyncio.wait(set(self._ending))

    async def _finish(self, partition: int) -> None:
        self._leaving[partition] = 0
        try:
            place = await self._parallel.remove(partition)
            self._leaving[partition] = place.offset
            self._auto.forget(partition)
            await self._commits(partition, place)
            await self._commits.go_back(partition, place.offset)  # what was read ahead is dropped
        except Exception as error:
            self._commit_failed(partition, error)
        finally:
            del self._leaving[partition]

    def _handled_below(self, partition: int) -> int:
        if partition in self._leaving:
            return self._leaving[partition]
        progress = self._parallel._partitions.get(partition)
        return OFFSET_MAX if progress is None else progress.position().offset

    # Handling

    async def _handle(self, event: StreamEvent) -> None:
        tracing = self._tracing()
        if tracing is None:
            await self._call(event)
        else:
            await traced(tracing, event, self._call)

    async def _call(self, event: StreamEvent) -> None:
        if self._is_async:
            await self._handler(event)
            return
        result = await asyncio.to_thread(self._handler, event)
        if inspect.isawaitable(result):
            await result

    def ack(self, event: StreamEvent) -> None:
        """Nothing: a handler acknowledges an event by returning."""

    async def commit(self, event: StreamEvent) -> None:
        """A handler does not commit: what is handled is committed for it."""
        raise NotSupported("a handler of a run does not commit: it returns, and that is enough")

    def decode(self, event: StreamEvent) -> Any:
        """The message that an event is."""
        return decoded(self._codec, event)

    def _commit_failed(self, partition: int, error: Exception) -> None:
        level = logging.INFO if isinstance(error, Fenced) else logging.ERROR
        topic, group = self._consumer.topic, self._consumer.group
        fields = {"topic": topic, "partition": partition, "group": group}
        logger.log(level, "cannot commit %s/%s: %s", topic, partition, error, extra=fields)
