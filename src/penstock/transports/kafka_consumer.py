"""A consumer of Kafka: a member of a group, polled in a thread of its own.

A task asks the client for records, whether anybody waits for them or not: so the member takes part in
rebalances. What nobody has asked for yet waits in a bounded buffer. The client's calls about partitions
come in that thread; they ask the event loop, which owns all state.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from penstock.errors import (
    Closed,
    DeadlineExceeded,
    Fenced,
    OffsetOutOfRange,
    PenstockError,
    UnknownPartition,
    UsageError,
)
from penstock.system import System
from penstock.transports.assignment import MemberAssignment, OnRevoke
from penstock.transports.base import BATCH_RECORDS_MAX, Consumer
from penstock.transports.kafka_admin import KafkaAdmin
from penstock.transports.kafka_member import Fetched, KafkaMember
from penstock.transports.kafka_settings import KafkaSettings
from penstock.transports.kafka_thread import CallThread, settle_by, tell_loop
from penstock.transports.records import StartPosition, StreamBatch, StreamRecord

BUFFER_RECORDS_MAX = 20_000
OVERSHOOT_MAX = 256
"""Records that a full buffer takes, one by one: asking for one is how a member hears of a rebalance."""
POLL_SECONDS = 0.1
FULL_SECONDS = 0.1
AGAIN_SECONDS = 0.05
COMMIT_SECONDS = 20.0
JOIN_SECONDS = 60.0
GRACE_SECONDS = 2.0
"""For the event loop to say that a partition may go, beyond ``release_seconds``."""

GONE = {
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError.FENCED_MEMBER_EPOCH,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError._ASSIGNMENT_LOST,
    KafkaError._FENCED,
}
"""The group has gone on without this member."""
AGAIN = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.NOT_COORDINATOR,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.STALE_MEMBER_EPOCH,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._WAIT_COORD,
}
"""The group or the broker is busy: try again while the partition is this member's."""


@dataclass(slots=True, eq=False)
class _Owned:
    """A partition that the group has given to this member."""

    committed: int
    """What is known to be committed, or where it started."""
    next: int
    """Offset of the next record that will be delivered."""
    since: int = 0
    """Offset from which on it was delivered here; 0 unless it was had before."""
    is_going: bool = False
    """It will be another member's: nothing more is delivered."""
    waiting: deque[list[StreamRecord]] = field(default_factory=deque)
    place: int = 0
    """How many of the first list are delivered."""

    def take(self, most: int) -> list[StreamRecord]:
        """The next records, at least one."""
        records, place = self.waiting[0], self.place
        if len(records) - place <= most:
            self.waiting.popleft()
            self.place = 0
            taken = records[place:] if place else records
        else:
            self.place = place + most
            taken = records[place : self.place]
        self.next = taken[-1].offset + 1
        return taken

    def drop(self) -> int:
        """Forget what waits; how many records that were."""
        count = sum(map(len, self.waiting)) - self.place
        self.waiting.clear()
        self.place = 0
        return count


MakeMember = Callable[["KafkaConsumer"], KafkaMember]


class KafkaConsumer(Consumer):
    """A member of a group; see ``KafkaTransport.subscribe`` for its options.

    A partition that is given to it starts at the group's committed offset. One that is to be given
    away delivers nothing more, and may be committed until it is released. When the process was away
    for longer than its lease, the client joins again by itself: what was delivered before is fenced,
    and comes again to whoever has the partition then.
    """

    def __init__(
        self,
        topic: str,
        group: str,
        make_member: MakeMember,
        *,
        settings: KafkaSettings,
        admin: Callable[[], KafkaAdmin],
        system: System,
        on_revoke: OnRevoke | None,
        release_seconds: float,
        among: set[KafkaConsumer],
        took: Callable[[int], None],
    ) -> None:
        self.topic = topic
        self.group = group
        self._make_member = make_member
        self._settings = settings
        self._admin = admin
        self._system = system
        self._on_revoke = on_revoke
        self._release_seconds = release_seconds
        self._among = among
        self._took = took
        self._opening: asyncio.Future[None] | None = None
        self._is_open = False
        self._closed = False
        self._owned: dict[int, _Owned] = {}
        self._once: set[int] = set()
        self._ready: dict[int, None] = {}
        """Partitions with records that wait, in the order of their turn."""
        self._buffered = 0
        self._paused: set[int] = set()
        self._is_held = False
        """The buffer is so full that the client fetches nothing."""
        self._generation = 0
        self._count = 0
        self._failure: PenstockError | None = None
        self._joined = asyncio.Event()
        self._arrived = asyncio.Event()
        self._drained = asyncio.Event()
        self._progress = asyncio.Event()
        self._turn = asyncio.Lock()
        """Who may call the client's thread; between two turns its position may be changed."""
        self._committing = asyncio.Lock()
        self._pumping: asyncio.Task[None] | None = None

    # Life

    async def open(self) -> None:
        """Join the group and wait for what it gives; DeadlineExceeded when it does not settle."""
        try:
            await self._opened()
        except BaseException:
            await asyncio.shield(self.close())
            raise

    async def _opened(self) -> None:
        """Of several who open it, one does it for all; it goes on when they are cancelled."""
        if self._closed:
            raise self._is_closed()
        if self._is_open:
            return
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open())
            self._opening.add_done_callback(_heard)
        await asyncio.shield(self._opening)

    async def _open(self) -> None:
        self._count = await self._admin().count(self.topic)
        self._loop = asyncio.get_running_loop()
        self._member = self._make_member(self)
        self._thread = CallThread(self._system, "penstock-kafka-poll")
        self._among.add(self)
        await self._thread.call(self._member.join)
        self._pumping = asyncio.create_task(self._pump())
        try:
            async with asyncio.timeout(JOIN_SECONDS):
                await self._joined.wait()
        except TimeoutError:
            raise DeadlineExceeded(
                f"group {self.group!r} gave this member nothing within {JOIN_SECONDS:g} s: its other "
                "members or the broker do not answer",
                group=self.group,
                seconds=JOIN_SECONDS,
            ) from None
        self._raise_failure()
        self._is_open = True

    async def close(self) -> None:
        """Leave the group. Commits nothing; who waits for a batch gets Closed. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for event in (self._arrived, self._joined, self._drained, self._progress):
            event.set()
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self._pumping is None:
            return
        await asyncio.wait([self._pumping])
        async with self._committing:
            self._among.discard(self)
            await self._thread.call(self._member.close)
            await self._thread.close()

    # Reading

    async def next_batch(
        self, timeout: float | None = None, records_max: int = BATCH_RECORDS_MAX
    ) -> StreamBatch:
        """The next records of one of its partitions, at least one."""
        if not self._is_open or self._closed:
            await self._opened()
        until = None if timeout is None else self._loop.time() + timeout
        while True:
            self._raise_failure()
            batch = self._take(records_max)
            if batch is not None:
                return batch
            self._arrived.clear()
            await self._arrival(until, timeout)
            if self._closed:
                raise self._is_closed()

    async def _arrival(self, until: float | None, timeout: float | None) -> None:
        try:
            async with asyncio.timeout_at(until):
                await self._arrived.wait()
        except TimeoutError:
            if self._ready_number() is None and self._failure is None:
                raise DeadlineExceeded(
                    f"nothing came from {self.topic!r} within {timeout:g} s",
                    topic=self.topic,
                    seconds=timeout,
                ) from None

    def _take(self, records_max: int) -> StreamBatch | None:
        number = self._ready_number()
        if number is None:
            return None
        owned = self._owned[number]
        records = owned.take(max(1, records_max))
        del self._ready[number]
        if owned.waiting:
            self._ready[number] = None
        self._buffered -= len(records)
        self._took(len(records))
        if self._buffered < BUFFER_RECORDS_MAX:
            self._drained.set()
        return StreamBatch(self.topic, number, records, owned.next)

    def _ready_number(self) -> int | None:
        for number in self._ready:
            if number not in self._paused:
                return number
        return None

    async def _pump(self) -> None:
        """Until it is closed: fetch while there is room, and answer the group when there is none."""
        while not self._closed:
            try:
                await self._fetch()
            except PenstockError as error:
                self._fail(error)
            except KafkaException as error:
                self._fail(self._settings.error(error, f"read {self.topic!r}", topic=self.topic))
                await asyncio.sleep(AGAIN_SECONDS)

    async def _fetch(self) -> None:
        room = BUFFER_RECORDS_MAX - self._buffered
        if room <= 0:
            self._drained.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(FULL_SECONDS):
                    await self._drained.wait()
            room = BUFFER_RECORDS_MAX - self._buffered
        async with self._turn:
            await self._hold(is_held=room <= -OVERSHOOT_MAX)
            seconds = POLL_SECONDS if room > 0 else 0.0
            self._accept(await self._thread.call(self._member.fetch, max(1, room), seconds))

    async def _hold(self, *, is_held: bool) -> None:
        """Fetch nothing while the buffer is over-full."""
        if is_held == self._is_held:
            return
        self._is_held = is_held
        await self._thread.call(
            self._member.pause if is_held else self._member.resume, self._reading() - self._paused
        )

    def _accept(self, fetched: Fetched) -> None:
        for number, records in fetched:
            owned = self._owned.get(number)
            if owned is not None and not owned.is_going:
                owned.waiting.append(records)
                self._ready.setdefault(number)
                self._buffered += len(records)
        if self._member.error is not None:
            error, self._member.error = self._member.error, None
            self._fail(self._settings.error(error, f"read {self.topic!r}", topic=self.topic))
        if fetched:
            self._arrived.set()

    def _fail(self, error: PenstockError) -> None:
        """Whoever asks for the next batch hears of it."""
        self._failure = error
        self._arrived.set()
        self._joined.set()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    async def seek(self, to: StartPosition, *, partition: int | None = None) -> None:
        """Go on from another place, durably; without a partition, in all that it has."""
        self._check_usable()
        chosen = sorted(self._reading()) if partition is None else [partition]
        self._check_own(chosen)
        async with self._own_turn():
            resolve = partial(self._member.resolve, clamp=False)
            offsets = await self._called(f"look into {self.topic!r}", resolve, chosen, to)
            await self._commit(offsets, backwards=True)
            await self._go_to(offsets)

    @asynccontextmanager
    async def _own_turn(self) -> AsyncIterator[None]:
        """The pump is between two calls, and soon."""
        self._member.wanted += 1
        try:
            async with self._turn:
                yield
        finally:
            self._member.wanted -= 1

    async def _go_to(self, offsets: Mapping[int, int]) -> None:
        """Deliver from these offsets; the turn is the caller's."""
        here = {number: at for number, at in offsets.items() if number in self._owned}
        await self._called(f"seek in {self.topic!r}", self._member.seek, here)
        for number, at in here.items():
            owned = self._owned.get(number)
            if owned is not None:
                self._drop(number, owned)
                owned.next = at
                owned.since = 0

    async def pause(self, *partitions: int) -> None:
        """Deliver nothing of these partitions until :meth:`resume`; they need not be its own yet."""
        self._check_numbers(partitions)
        self._paused |= set(partitions)
        async with self._own_turn():
            if mine := self._reading() & set(partitions):
                await self._called("pause", self._member.pause, mine)

    async def resume(self, *partitions: int) -> None:
        """Deliver records of these partitions again, as far as they are its own."""
        self._check_numbers(partitions)
        self._paused -= set(partitions)
        self._arrived.set()
        async with self._own_turn():
            if (mine := self._reading() & set(partitions)) and not self._is_held:
                await self._called("resume", self._member.resume, mine)

    def assignment(self) -> MemberAssignment:
        """Which partitions this member reads; the generation counts the changes that it saw."""
        self._check_usable()
        return MemberAssignment(self._generation, self._reading())

    def positions(self) -> dict[int, int]:
        """Partition → offset of the next record that will be delivered, of those it has."""
        self._check_usable()
        return {number: self._owned[number].next for number in sorted(self._reading())}

    def _reading(self) -> frozenset[int]:
        return frozenset(number for number, one in self._owned.items() if not one.is_going)

    # Committing

    async def commit(self, done: StreamBatch | Mapping[int, int] | None = None) -> None:
        """Mark as consumed, at the broker when this returns. Fenced for what it no longer has."""
        self._check_usable()
        if self._closed:
            raise self._is_closed()
        wanted = self.wanted(done)
        if wanted:
            # Half a commit in the air would let the next one overtake it.
            committing = asyncio.ensure_future(self._commit_and_move(wanted))
            committing.add_done_callback(_heard)
            await asyncio.shield(committing)

    def wanted(self, done: StreamBatch | Mapping[int, int] | None) -> dict[int, int]:
        """Partition → offset that a commit of this would write; Fenced for what it no longer has."""
        if done is None:
            return {
                number: one.next for number, one in self._owned.items() if one.next > one.committed
            }
        if isinstance(done, StreamBatch):
            self._check_batch(done)
            done = {done.partition: done.next_offset}
        self._check_own(done)
        return dict(done)

    async def _commit_and_move(self, wanted: Mapping[int, int]) -> None:
        await self._commit(wanted)
        beyond = {
            number: at
            for number, at in wanted.items()
            if (one := self._owned.get(number)) is not None and at > one.next and not one.is_going
        }
        if beyond:
            async with self._own_turn():
                await self._go_to(beyond)

    async def _commit(self, wanted: Mapping[int, int], *, backwards: bool = False) -> None:
        async with self._committing:
            self._check_own(wanted)
            await self._check_offsets(wanted)
            mine = {number: self._owned[number] for number in wanted if number in self._owned}
            moves = {
                number: wanted[number]
                for number, one in mine.items()
                if backwards or wanted[number] > one.committed
            }
            if moves:
                await self._write(moves, mine)
            self.note(moves, mine)

    def note(self, moves: Mapping[int, int], mine: Mapping[int, _Owned] | None = None) -> None:
        """These offsets are committed now."""
        for number, at in moves.items():
            owned = (self._owned if mine is None else mine).get(number)
            if owned is not None:
                owned.committed = at
        self._progress.set()

    async def _write(self, moves: Mapping[int, int], mine: Mapping[int, _Owned]) -> None:
        until = self._loop.time() + COMMIT_SECONDS
        while True:
            for number in moves:
                if self._owned.get(number) is not mine[number]:
                    raise self.fenced(number, "is another member's, or was in between")
            try:
                await self.job(self._member.commit, moves)
                return
            except RuntimeError as error:
                raise self._is_closed() from error
            except KafkaException as error:
                code = error.args[0].code()
                if code in GONE:
                    raise self.fenced(next(iter(moves)), "is another member's") from error
                if code not in AGAIN or self._loop.time() > until or self._closed:
                    what = f"commit to {self.topic!r}"
                    raise self._settings.error(error, what, COMMIT_SECONDS) from error
            await asyncio.sleep(AGAIN_SECONDS)

    async def _check_offsets(self, offsets: Mapping[int, int]) -> None:
        """Whoever commits beyond the end would skip what is produced next."""
        for number, offset in offsets.items():
            owned = self._owned.get(number)
            if owned is None or 0 <= offset <= owned.next:
                continue
            what = f"look for the end of {self.topic!r}"
            _, end = await self._translated(what, self.job(self._member.ends, number))
            if not 0 <= offset <= end:
                raise OffsetOutOfRange(
                    f"offset {offset} of {self.topic}/{number} cannot be committed: use 0 to {end}",
                    topic=self.topic,
                    partition=number,
                    offset=offset,
                    end=end,
                )

    # What the client says; see Hooks in kafka_member. In its thread.

    def gained(self, starts: Mapping[int, int]) -> None:
        """The group gave it these partitions."""
        paused = sorted(starts.keys() & self._paused)
        if paused:
            self._member.pause(paused)
        tell_loop(self._loop, self._gain, dict(starts))

    def release(self, partitions: frozenset[int]) -> None:
        """Let the event loop finish them, for a while."""
        if self._closed:
            return
        clock = self._system.clock
        until = clock.monotonic() + self._release_seconds + GRACE_SECONDS
        asked = asyncio.run_coroutine_threadsafe(self._let_go(partitions), self._loop)
        asked.add_done_callback(lambda _: self._member.put(lambda: None))
        while not asked.done() and clock.monotonic() < until:
            self._member.run_job(AGAIN_SECONDS)
        if not asked.done():
            # The event loop is busy. Whoever commits later must find them gone.
            for number in partitions:
                self._owned.pop(number, None)

    def lost(self, partitions: frozenset[int]) -> None:
        """The group went on without this member."""
        tell_loop(self._loop, self._gone, partitions)

    # The same, on the event loop

    def _gain(self, starts: Mapping[int, int]) -> None:
        for number, at in starts.items():
            self._owned[number] = _Owned(at, at, at if number in self._once else 0)
        self._once |= starts.keys()
        self._count = max(self._count, *(number + 1 for number in starts), 0)
        self._generation += 1
        self._joined.set()

    async def _let_go(self, partitions: frozenset[int]) -> None:
        mine = partitions & self._owned.keys()
        for number in mine:
            self._owned[number].is_going = True
            self._drop(number, self._owned[number])
        try:
            async with asyncio.timeout(self._release_seconds):
                await self._finish(mine)
        except TimeoutError:
            pass
        except PenstockError as error:
            self._fail(error)
        except Exception as error:
            failed = UsageError(f"on_revoke raised {type(error).__name__}: {error}")
            failed.__cause__ = error
            self._fail(failed)
        self._gone(mine)

    async def _finish(self, partitions: frozenset[int]) -> None:
        """Let the hook do it, or wait until what was delivered is committed."""
        if self._on_revoke is not None and partitions:
            await self._on_revoke(partitions)
        else:
            while self._outstanding(partitions) and not self._closed:
                self._progress.clear()
                await self._progress.wait()

    def _gone(self, partitions: Iterable[int]) -> None:
        for number in partitions:
            owned = self._owned.pop(number, None)
            if owned is not None:
                self._drop(number, owned)
        self._generation += 1
        self._progress.set()

    def _outstanding(self, partitions: Iterable[int]) -> bool:
        owned = self._owned
        return any(
            number in owned and owned[number].next > owned[number].committed
            for number in partitions
        )

    def _drop(self, number: int, owned: _Owned) -> None:
        self._buffered -= owned.drop()
        self._ready.pop(number, None)
        self._drained.set()

    # Checks

    async def _called(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        return await self._translated(what, self._thread.call(function, *arguments))

    async def job(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the client in its thread, also while that waits for a partition to be released."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._member.put(partial(settle_by, self._loop, future, function, *arguments))
        self._thread.submit(self._member.run_jobs)
        return await future

    async def _translated(self, what: str, calling: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await calling
        except KafkaException as error:
            raise self._settings.error(error, what, topic=self.topic) from error

    def _check_usable(self) -> None:
        if not self._is_open:
            raise UsageError(
                "open the consumer first: async with transport.subscribe(...) as consumer"
            )

    def _check_numbers(self, partitions: Iterable[int]) -> None:
        self._check_usable()
        for number in partitions:
            if not 0 <= number < self._count:
                raise UnknownPartition(
                    f"topic {self.topic!r} has partitions 0 to {self._count - 1}, not {number}",
                    topic=self.topic,
                    partition=number,
                )

    def _check_batch(self, batch: StreamBatch) -> None:
        if batch.topic != self.topic:
            raise UsageError(
                f"the batch is of {batch.topic!r}, the consumer of {self.topic!r}",
                topic=self.topic,
            )
        owned = self._owned.get(batch.partition)
        if owned is not None and batch.records and batch.records[0].offset < owned.since:
            raise self.fenced(batch.partition, "was another member's since that was delivered")

    def _check_own(self, partitions: Iterable[int]) -> None:
        self._check_numbers(partitions)
        for number in partitions:
            if number not in self._owned:
                raise self.fenced(number, "is another member's, or nobody's")

    def _is_closed(self) -> Closed:
        return Closed(f"the consumer of {self.topic!r} in group {self.group!r} is closed")

    def fenced(self, partition: int, why: str) -> Fenced:
        """The error of a commit of what is not this member's."""
        return Fenced(
            f"partition {partition} of {self.topic!r} {why}: its records come again to whoever "
            f"has it in group {self.group!r}",
            group=self.group,
            generation=self._generation,
            current=self._generation,
            reason="partition",
            topic=self.topic,
            partition=partition,
        )


def _heard(future: asyncio.Future[None]) -> None:
    """Whoever waited may be gone: its error is nobody's then."""
    if not future.cancelled():
        future.exception()
