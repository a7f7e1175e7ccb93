"""The parallel consumer: many records in flight, order per key, nothing passed over.

It knows no transport. Batches of records go in, a handler is called, and :meth:`ParallelConsumer.positions`
says at any time what may be committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Generic, Self

from penstock.bus.timers import Timers
from penstock.errors import Closed, HandlerFailed, InvalidOption, UnknownPartition
from penstock.resilience.retry import Retry
from penstock.streaming.key_lanes import KeyLanes, Taken, Work
from penstock.streaming.parallel_values import (
    AfterPoison,
    ParallelStatistics,
    ParkedRecord,
    after_poison_named,
    check_at_least,
)
from penstock.streaming.progress import PartitionProgress
from penstock.streaming.ranges import START, Position
from penstock.system import System

IN_FLIGHT_MAX = 100
BUFFERED_MAX = 10_000
TIMEOUT_SECONDS = 30.0
TURN_RECORDS = 100
"""Records that a worker handles without a break, when their handlers never wait."""


class ParallelConsumer(Generic[Taken]):
    """Handles up to ``in_flight_max`` records at the same time, those of one key in order.

    A record that fails is tried again as ``retry`` says; meanwhile its key waits and others go on.
    When that is no use, it goes to ``on_poison``, which makes a dead letter of it: then it counts as
    handled. Without ``on_poison``, or when that raises, the record is **parked**: it stays unhandled, so
    a commit does not pass it, and it comes again after a restart or :meth:`release`.
    ``after_poison`` says what becomes of the later records of its key.

    **A full buffer.** At most ``buffered_max`` records are in here, the parked ones and those that wait
    behind them included; a parked key takes one place. :meth:`submit` waits for room.

    **Cancellation and crash.** A handler that is cancelled has not handled its record. What
    :meth:`positions` says never passes a record that is not handled, so who resumes from it gets every
    record that was not, and with the gaps only those.

    Records of one partition are submitted in order, by one caller at a time. It belongs to one event
    loop. Handlers of a worker share its context variables.
    """

    def __init__(
        self,
        handler: Callable[[Taken], Awaitable[object]],
        *,
        in_flight_max: int = IN_FLIGHT_MAX,
        buffered_max: int = BUFFERED_MAX,
        retry: Retry | None = None,
        on_poison: Callable[[Taken, Exception], Awaitable[object]] | None = None,
        after_poison: AfterPoison | str = AfterPoison.FOLLOW,
        system: System | None = None,
    ) -> None:
        check_at_least("in_flight_max", in_flight_max, 1)
        check_at_least("buffered_max", buffered_max, in_flight_max)
        self._handler = handler
        self._in_flight_max = in_flight_max
        self._buffered_max = buffered_max
        self._retry = retry or Retry()
        self._on_poison = on_poison
        self._others_follow = after_poison_named(after_poison) is AfterPoison.FOLLOW
        self._system = system or System()
        self._timers = Timers(self._system.clock)
        self._partitions: dict[int, PartitionProgress] = {}
        self._removed: set[int] = set()
        self._lanes: KeyLanes[Taken] = KeyLanes()
        self._buffered: set[Work[Taken]] = set()
        self._running: dict[Work[Taken], asyncio.Task[None]] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._delayed = 0
        self._waiters: list[asyncio.Future[None]] = []
        self._closed = False
        self._handled = self._failures = self._dead_letters = self._passed_over = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    # Partitions

    def assign(self, partition: int, position: Position | int = START) -> None:
        """Begin a partition there: what the position has is passed over when it comes."""
        self._check_open()
        if partition in self._partitions:
            raise InvalidOption(
                f"partition {partition} is at work: remove it before it begins elsewhere",
                option="partition",
            )
        place = Position(position) if isinstance(position, int) else position
        self._partitions[partition] = PartitionProgress(place)
        self._removed.discard(partition)

    async def remove(self, partition: int, *, timeout: float = TIMEOUT_SECONDS) -> Position:
        """Stop a partition, and return what is handled of it, for the last commit.

        Handlers that run are waited for, and cancelled when the time is up. What has not begun is
        dropped and unhandled, and records that still come are passed over. *Cancelled*, it stops
        all the same, and cancels the handlers.
        """
        progress = self._partitions.pop(partition, None)
        if progress is None:
            raise _not_assigned(partition)
        self._removed.add(partition)
        await self._stop({partition}, timeout)
        return progress.position()

    def positions(self) -> Mapping[int, Position]:
        """What is handled of each partition; :class:`AutoCommit` takes this method as it is."""
        return {number: progress.position() for number, progress in self._partitions.items()}

    # Records

    async def submit(self, records: Iterable[Taken], *, timeout: float = TIMEOUT_SECONDS) -> None:
        """Take records, and return when all of them are taken, not when they are handled.

        When it is cancelled or raises DeadlineExceeded, some are taken. To submit the same records
        again is right: those are passed over.
        """
        async with self._timers.deadline(timeout, "find room for records"):
            try:
                for record in records:
                    if len(self._buffered) >= self._buffered_max:
                        self._start_workers()
                        await self._until(self._has_room)
                    self._take(record)
            finally:
                self._start_workers()  # once for all of them

    async def drain(self, *, timeout: float = TIMEOUT_SECONDS) -> None:
        """Return when all that was taken is handled, is parked, or waits behind what is parked."""
        async with self._timers.deadline(timeout, "handle all records"):
            await self._until(lambda: not (self._running or self._lanes.ready or self._delayed))

    def parked(self) -> list[ParkedRecord[Taken]]:
        """The records that failed for good and are still here, and the keys that wait."""
        return [
            ParkedRecord(one.record, one.error, one.settled, self._lanes.waiting_behind(one))
            for several in self._lanes.parked.values()
            for one in several
        ]

    def release(self, partition: int, key: Any) -> int:
        """Let a key go on: what is parked of it is tried again, and what waits behind follows.

        Returns how many records were tried again or let past; 0 when nothing of it is parked.
        """
        released = self._lanes.release((partition, key))
        for work in released:
            if work.settled:
                self._leave(work)
            else:
                work.attempts = 0
                self._lanes.resume(work)
        self._start_workers()
        self._tell()
        return len(released)

    async def close(self, *, timeout: float = TIMEOUT_SECONDS) -> None:
        """Take no more records, and return when no handler runs.

        Those that run are waited for, and cancelled when the time is up; what has not begun is dropped.
        None of these is handled, so all of them come again. :meth:`positions` still answers, for the
        last commit. :meth:`drain` before it handles all that was taken.
        """
        self._closed = True
        await self._stop(
            {one.record.partition for one in (*self._buffered, *self._running)}, timeout
        )
        self._timers.close()
        self._delayed = 0
        self._tell()

    def statistics(self) -> ParallelStatistics:
        """The figures of this moment."""
        return ParallelStatistics(
            handled=self._handled,
            failures=self._failures,
            dead_letters=self._dead_letters,
            passed_over=self._passed_over,
            running=len(self._running),
            buffered=len(self._buffered),
            parked=sum(map(len, self._lanes.parked.values())),
        )

    # Taking

    def _take(self, record: Taken) -> None:
        self._check_open()
        progress = self._partitions.get(record.partition)
        if progress is None and record.partition not in self._removed:
            raise _not_assigned(record.partition)
        if progress is None or not progress.take(record.offset):
            self._passed_over += 1
            return
        work = Work(record, progress)
        self._buffered.add(work)
        self._lanes.add(work)

    def _has_room(self) -> bool:
        return self._closed or len(self._buffered) < self._buffered_max

    def _start_workers(self) -> None:
        starting = len(self._workers) - len(self._running)
        room = self._in_flight_max - len(self._workers)
        for _ in range(min(len(self._lanes.ready) - starting, room)):
            task = asyncio.get_running_loop().create_task(self._work())
            self._workers.add(task)
            task.add_done_callback(self._worker_ended)

    def _worker_ended(self, task: asyncio.Task[None]) -> None:
        self._workers.discard(task)
        self._start_workers()  # when it was cancelled, others may be waiting for their turn
        self._tell()

    # Handling

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        turn = 0
        while self._lanes.ready:
            work = self._lanes.ready.popleft()
            self._running[work] = task
            try:
                await self._attempt(work, task)
            finally:
                del self._running[work]
                self._tell()
            turn += 1
            if turn % TURN_RECORDS == 0:
                await asyncio.sleep(0)

    async def _attempt(self, work: Work[Taken], task: asyncio.Task[None]) -> None:
        if not work.attempts:
            work.began = self._timers.clock.monotonic()
        work.attempts += 1
        try:
            await self._handler(work.record)
        except asyncio.CancelledError:
            if task.cancelling():
                raise
            await self._failed(work, _cancelled_inside(), task)
        except Exception as error:
            await self._failed(work, error, task)
        else:
            self._handled += 1
            self._settle(work)

    async def _failed(self, work: Work[Taken], error: Exception, task: asyncio.Task[None]) -> None:
        self._failures += 1
        if work not in self._buffered:  # its partition has stopped
            return
        elapsed = self._timers.clock.monotonic() - work.began
        delay = self._retry.after(error, work.attempts, elapsed, self._system.random)
        if delay is None:
            await self._bury(work, error, task)
        else:
            self._delayed += 1
            self._timers.call_after(delay, partial(self._try_again, work))

    def _try_again(self, work: Work[Taken]) -> None:
        self._delayed -= 1
        if work in self._buffered:
            self._lanes.again(work)
            self._start_workers()
        self._tell()

    async def _bury(self, work: Work[Taken], error: Exception, task: asyncio.Task[None]) -> None:
        work.error = error
        if self._on_poison is not None:
            failed = await _error_of(partial(self._on_poison, work.record, error), task)
            if failed is None:
                self._dead_letter(work)
                return
            work.error = failed
        if work in self._buffered:
            self._lanes.park(work, others_follow=self._others_follow)

    def _dead_letter(self, work: Work[Taken]) -> None:
        self._dead_letters += 1
        if self._others_follow or work.record.key is None or work not in self._buffered:
            self._settle(work)
            return
        work.progress.handled(work.record.offset)
        work.settled = True
        self._lanes.park(work, others_follow=False)

    def _settle(self, work: Work[Taken]) -> None:
        work.progress.handled(work.record.offset)
        self._leave(work)

    def _leave(self, work: Work[Taken]) -> None:
        self._buffered.discard(work)
        self._lanes.leave(work)

    # Waiting and stopping

    async def _stop(self, partitions: set[int], timeout: float) -> None:
        for partition in partitions:
            self._lanes.drop(partition)
        self._buffered = {one for one in self._buffered if one.record.partition not in partitions}
        self._tell()
        mine = {work for work in self._running if work.record.partition in partitions}
        deadline = self._timers.call_after(timeout, partial(self._cancel, mine))
        try:
            await self._until(lambda: mine.isdisjoint(self._running))
        except asyncio.CancelledError:
            self._cancel(mine)
            raise
        finally:
            deadline.cancel()

    def _cancel(self, several: set[Work[Taken]]) -> None:
        for work in several:
            if work in self._running:
                self._running[work].cancel()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def _tell(self) -> None:
        """Something changed: who waits looks again."""
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the parallel consumer was closed")


async def _error_of(
    call: Callable[[], Awaitable[object]], task: asyncio.Task[None]
) -> Exception | None:
    """What a call of the user raised, None when all went well. A cancelled worker raises."""
    try:
        await call()
    except asyncio.CancelledError:
        if task.cancelling():
            raise
        return _cancelled_inside()
    except Exception as error:
        return error
    return None


def _cancelled_inside() -> HandlerFailed:
    return HandlerFailed("something that the handler waited for was cancelled")


def _not_assigned(partition: int) -> UnknownPartition:
    return UnknownPartition(
        f"partition {partition} is not assigned: call assign() with where it begins",
        partition=partition,
    )
