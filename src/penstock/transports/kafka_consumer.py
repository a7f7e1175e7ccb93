"""A consumer of Kafka: a member of a group, polled in a thread of its own.

A task asks the client for records, whether anybody waits for them or not: so the member takes part in
rebalances. What nobody has asked for yet waits in a bounded buffer. The client's calls about partitions
come in that thread; they ask the event loop, which owns all state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from confluent_kafka import KafkaException

from penstock.errors import Closed, DeadlineExceeded, Fenced, PenstockError, UsageError
from penstock.system import System
from penstock.transports.assignment import MemberAssignment, OnRevoke
from penstock.transports.base import BATCH_RECORDS_MAX, Consumer, check_opened
from penstock.transports.client_thread import heard, tell_loop
from penstock.transports.kafka_admin import KafkaAdmin
from penstock.transports.kafka_calls import MemberCalls
from penstock.transports.kafka_holdings import Holdings, Owned
from penstock.transports.kafka_member import AGAIN, GONE, Fetched, KafkaMember
from penstock.transports.kafka_settings import KafkaSettings
from penstock.transports.records import StartPosition, StreamBatch

BUFFER_RECORDS_MAX = 20_000
FETCH_RECORDS_MAX = 2_000
"""Records that come to the event loop at once."""
OVERSHOOT_MAX = 256
"""Records that a full buffer takes, one by one: asking for one is how a member hears of a rebalance."""
POLL_SECONDS = 0.1
FULL_SECONDS = 0.1
AGAIN_SECONDS = 0.05
COMMIT_SECONDS = 20.0
JOIN_SECONDS = 60.0
GRACE_SECONDS = 2.0
"""For the event loop to say that a partition may go, beyond ``release_seconds``."""

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
        self._drained = asyncio.Event()
        self._owned = Holdings(topic, group, self._drained.set)
        self._once: set[int] = set()
        self._is_held = False
        """The buffer is so full that the client fetches nothing."""
        self._failure: PenstockError | None = None
        self._joined = asyncio.Event()
        self._arrived = asyncio.Event()
        self._progress = asyncio.Event()
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
            self._opening.add_done_callback(heard)
        await asyncio.shield(self._opening)

    async def _open(self) -> None:
        self._owned.count = await self._admin().count(self.topic)
        self._loop = asyncio.get_running_loop()
        self._member = self._make_member(self)
        self.calls = MemberCalls(self._member, self._system)
        self._among.add(self)
        await self.calls.call(self._member.join)
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
            await self.calls.close()

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
            batch = self._owned.take(records_max)
            if batch is not None:
                self._took(len(batch))
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
            if self._owned.ready() is None and self._failure is None:
                raise DeadlineExceeded(
                    f"nothing came from {self.topic!r} within {timeout:g} s",
                    topic=self.topic,
                    seconds=timeout,
                ) from None

    async def _pump(self) -> None:
        """Until it is closed: fetch while there is room, and answer the group when there is none.

        Answers to commits come with the records, so the last one is waited for.
        """
        while not self._closed or self.calls.unanswered:
            try:
                await self._fetch()
            except PenstockError as error:
                self._fail(error)
            except KafkaException as error:
                self._fail(self._settings.error(error, f"read {self.topic!r}", topic=self.topic))
                await asyncio.sleep(AGAIN_SECONDS)

    async def _fetch(self) -> None:
        if not self._owned.should_fill(BUFFER_RECORDS_MAX) and not self.calls.unanswered:
            await self._wait_for_room()
        async with self.calls.turn:
            room = BUFFER_RECORDS_MAX - self._owned.buffered
            await self._hold(is_held=room <= -OVERSHOOT_MAX)
            if self.calls.unanswered and not self._owned.is_filling:
                self._accept(await self.calls.call(self._member.hear))
                return
            seconds = POLL_SECONDS if room > 0 else 0.0
            limit = min(max(1, room), FETCH_RECORDS_MAX)
            self._accept(await self.calls.call(self._member.fetch, limit, seconds))

    async def _wait_for_room(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(FULL_SECONDS):
                while not (self._owned.should_fill(BUFFER_RECORDS_MAX) or self._closed):
                    self._drained.clear()
                    await self._drained.wait()

    async def _hold(self, *, is_held: bool) -> None:
        """Fetch nothing while the buffer is over-full."""
        if is_held == self._is_held:
            return
        self._is_held = is_held
        await self.calls.call(
            self._member.pause if is_held else self._member.resume,
            self._owned.reading() - self._owned.paused,
        )

    def _accept(self, fetched: Fetched) -> None:
        self._owned.accept(fetched)
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
        check_opened(self._is_open)
        chosen = sorted(self._owned.reading()) if partition is None else [partition]
        self._check_own(chosen)
        async with self.calls.own_turn():
            resolve = partial(self._member.resolve, clamp=False)
            offsets = await self._called(f"look into {self.topic!r}", resolve, chosen, to)
            await self._commit(offsets, backwards=True)
            await self._go_to(offsets)

    async def rewind(self, batch: StreamBatch) -> None:
        """Deliver a batch again, unless its partition is another member's, or was since."""
        check_opened(self._is_open)
        with suppress(Fenced):
            self.wanted(batch)
            async with self.calls.own_turn():
                await self._go_to({batch.partition: batch.records[0].offset})

    async def _go_to(self, offsets: Mapping[int, int]) -> None:
        """Deliver from these offsets; the turn is the caller's."""
        here = {number: at for number, at in offsets.items() if number in self._owned}
        await self._called(f"seek in {self.topic!r}", self._member.seek, here)
        for number, at in here.items():
            owned = self._owned.get(number)
            if owned is not None:
                self._owned.empty(number, owned)
                owned.next = at
                owned.since = 0

    async def pause(self, *partitions: int) -> None:
        """Deliver nothing of these partitions until :meth:`resume`; they need not be its own yet."""
        self._check_numbers(partitions)
        self._owned.paused |= set(partitions)
        async with self.calls.own_turn():
            if mine := self._owned.reading() & set(partitions):
                await self._called("pause", self._member.pause, mine)

    async def resume(self, *partitions: int) -> None:
        """Deliver records of these partitions again, as far as they are its own."""
        self._check_numbers(partitions)
        self._owned.paused -= set(partitions)
        self._arrived.set()
        async with self.calls.own_turn():
            if (mine := self._owned.reading() & set(partitions)) and not self._is_held:
                await self._called("resume", self._member.resume, mine)

    def assignment(self) -> MemberAssignment:
        """Which partitions this member reads; the generation counts the changes that it saw."""
        check_opened(self._is_open)
        return MemberAssignment(self._owned.generation, self._owned.reading())

    def positions(self) -> dict[int, int]:
        """Partition → offset of the next record that will be delivered, of those it has."""
        check_opened(self._is_open)
        return {number: self._owned[number].next for number in sorted(self._owned.reading())}

    # Committing

    async def commit(self, done: StreamBatch | Mapping[int, int] | None = None) -> None:
        """Mark as consumed, at the broker when this returns. Fenced for what it no longer has."""
        check_opened(self._is_open)
        if self._closed:
            raise self._is_closed()
        wanted = self.wanted(done)
        if wanted:
            # Half a commit in the air would let the next one overtake it.
            committing = asyncio.ensure_future(self._commit_and_move(wanted))
            committing.add_done_callback(heard)
            await asyncio.shield(committing)

    def wanted(self, done: StreamBatch | Mapping[int, int] | None) -> dict[int, int]:
        """Partition → offset that a commit of this would write; Fenced for what it no longer has."""
        if done is None:
            return {
                number: one.next for number, one in self._owned.items() if one.next > one.committed
            }
        if isinstance(done, StreamBatch):
            self._owned.check_batch(done)
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
            async with self.calls.own_turn():
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

    def note(self, moves: Mapping[int, int], mine: Mapping[int, Owned] | None = None) -> None:
        """These offsets are committed now."""
        for number, at in moves.items():
            owned = (self._owned if mine is None else mine).get(number)
            if owned is not None:
                owned.committed = at
        self._progress.set()

    async def _write(self, moves: Mapping[int, int], mine: Mapping[int, Owned]) -> None:
        until = self._loop.time() + COMMIT_SECONDS
        while True:
            self._owned.check_held({number: mine[number] for number in moves})
            try:
                is_fetching = self._owned.is_filling and not self._closed
                await self.calls.commit(moves, is_fetching=is_fetching)
                return
            except RuntimeError as error:
                raise self._is_closed() from error
            except KafkaException as error:
                code = error.args[0].code()
                if code in GONE:
                    raise self._owned.fenced(next(iter(moves)), "is another member's") from error
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
            _, end = await self._translated(what, self.calls.job(self._member.ends, number))
            if not 0 <= offset <= end:
                raise self._owned.beyond(number, offset, end)

    # What the client says; see Hooks in kafka_member. In its thread.

    def gained(self, starts: Mapping[int, int]) -> None:
        """The group gave it these partitions."""
        paused = sorted(starts if self._is_held else starts.keys() & self._owned.paused)
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
            self._owned[number] = Owned(at, at, at if number in self._once else 0)
        self._once |= starts.keys()
        self._owned.count = max(self._owned.count, *(number + 1 for number in starts), 0)
        self._owned.generation += 1
        self._joined.set()

    async def _let_go(self, partitions: frozenset[int]) -> None:
        mine = partitions & self._owned.keys()
        for number in mine:
            self._owned[number].is_going = True
            self._owned.empty(number, self._owned[number])
        try:
            async with asyncio.timeout(self._release_seconds):
                await self._finish(mine)
        except TimeoutError:
            pass
        except Exception as error:
            failed = UsageError(f"on_revoke raised {type(error).__name__}: {error}")
            failed.__cause__ = error
            self._fail(error if isinstance(error, PenstockError) else failed)
        self._gone(mine)

    async def _finish(self, partitions: frozenset[int]) -> None:
        """Let the hook do it, or wait until what was delivered is committed."""
        if self._on_revoke is not None and partitions:
            await self._on_revoke(partitions)
        else:
            while self._owned.outstanding(partitions) and not self._closed:
                self._progress.clear()
                await self._progress.wait()

    def _gone(self, partitions: Iterable[int]) -> None:
        self._owned.release(partitions)
        self._owned.generation += 1
        self._progress.set()

    # Checks

    async def _called(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        return await self._translated(what, self.calls.call(function, *arguments))

    async def _translated(self, what: str, calling: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await calling
        except KafkaException as error:
            raise self._settings.error(error, what, topic=self.topic) from error

    def _check_numbers(self, partitions: Iterable[int]) -> None:
        check_opened(self._is_open)
        self._owned.check_numbers(partitions)

    def _check_own(self, partitions: Iterable[int]) -> None:
        check_opened(self._is_open)
        self._owned.check_own(partitions)

    def _is_closed(self) -> Closed:
        return Closed(f"the consumer of {self.topic!r} in group {self.group!r} is closed")
