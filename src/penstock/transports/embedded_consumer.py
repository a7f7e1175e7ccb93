"""A consumer of the embedded transport: a member of a group on the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from penstock.errors import (
    Fenced,
    OffsetOutOfRange,
    PenstockError,
    SubscriberBusy,
    UnknownPartition,
    UsageError,
)
from penstock.log.deadlines import check_seconds
from penstock.log.group_coordinator import checked_strategy
from penstock.log.group_ports import Bells, Coordinator, OwnWrite
from penstock.log.group_session import GroupSession
from penstock.log.group_state import Partitions, TopicPartition
from penstock.log.names import check_name
from penstock.transports.assignment import MemberAssignment, OnRevoke
from penstock.transports.base import BATCH_RECORDS_MAX, RELEASE_SECONDS, Consumer, check_opened
from penstock.transports.records import StartPosition, StreamBatch

MakeSession = Callable[..., GroupSession]
"""Takes ``reader`` and ``guard``."""


def session_maker(
    coordinator: Coordinator,
    bells: Bells,
    *,
    assignor: str | None = None,
    release_seconds: float = RELEASE_SECONDS,
    member: str | None = None,
) -> MakeSession:
    """A member's part of a group, as the options of a subscription say; they are checked."""
    check_seconds(release_seconds, "release_seconds")
    return partial(
        GroupSession,
        coordinator,
        bells,
        release_seconds=release_seconds,
        strategy=None if assignor is None else checked_strategy(assignor, "assignor"),
        name=None if member is None else check_name("member", member),
    )


class Source(Protocol):
    """Reads those partitions that a member was given; ``GroupSubscription`` says what each call does."""

    topic: str
    name: str
    on_growth: Callable[[], None] | None

    @property
    def partitions(self) -> int: ...
    def enter(self) -> None: ...
    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def next_batch(self, timeout: float | None, records_max: int) -> StreamBatch: ...
    async def start(self, partitions: Iterable[int]) -> None: ...
    async def resolve(self, partitions: Iterable[int], to: StartPosition) -> dict[int, int]: ...
    def ends(self) -> list[int]: ...
    def delivered(self) -> dict[int, int]: ...
    def go_to(self, offsets: Mapping[int, int]) -> None: ...
    def deliver(self, partitions: Iterable[int]) -> None: ...
    def fail(self, error: Exception | None) -> None: ...


NOTHING_HELD: Mapping[int, object] = {}


@dataclass(slots=True)
class _Owned:
    """A partition that the group has given to this member."""

    committed: int
    """What is known to be committed."""
    since: int = 0
    """Offset from which on it was delivered here; 0 unless another member had it in between."""


class EmbeddedConsumer(Consumer):
    """A member of a group on the log; see ``EmbeddedTransport.subscribe`` for its options.

    A partition that is given to it starts at the group's committed offset. One that is to be given
    away delivers nothing more, and may be committed until it is released. When the process was
    away for longer than its lease, the consumer joins again by itself: what was delivered before
    is fenced, and comes again to whoever has the partition then.
    """

    def __init__(
        self,
        subscription: Source,
        make_session: MakeSession,
        on_revoke: OnRevoke | None,
        among: set[EmbeddedConsumer],
    ) -> None:
        self._among = among
        """Those that the transport closes when it is closed."""
        self.topic = subscription.topic
        self.group = subscription.name
        self._subscription = subscription
        self._session = make_session(reader=self, guard=subscription.enter)
        self._on_revoke = on_revoke
        self._opening: asyncio.Future[None] | None = None
        self._is_open = False
        self._closed = False
        self._owned: dict[int, _Owned] = {}
        self._once: set[int] = set()
        """What it has ever owned: records of it may still be in somebody's hands."""
        self._reading: frozenset[int] = frozenset()
        self._paused: frozenset[int] = frozenset()
        self._progress = asyncio.Event()
        self._is_failing = False
        """The group could not be asked last time."""
        self._growing: asyncio.Task[None] | None = None
        subscription.on_growth = self._grew

    # Life

    async def open(self) -> None:
        """Join the group and find the places to start.

        SubscriberBusy when a subscriber of the log has the group's name for itself: it may be
        opened again when that one is gone.
        """
        try:
            await self._opened()
        except SubscriberBusy:
            raise
        except BaseException:
            await asyncio.shield(self.close())
            raise

    async def _opened(self) -> None:
        """Of several who open it, one does it for all; it goes on when they are cancelled."""
        if self._is_open and not self._closed:
            return
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open())
            self._opening.add_done_callback(self._opening_ended)
        await asyncio.shield(self._opening)

    def _opening_ended(self, opening: asyncio.Future[None]) -> None:
        self._opening = None
        if not opening.cancelled():
            # Its callers may be gone.
            opening.exception()

    async def _open(self) -> None:
        self._among.add(self)
        await self._subscription.open()
        count = self._subscription.partitions
        await self._session.start({self.topic: count})
        self._is_open = True
        if self._subscription.partitions > count:
            self._grew()  # while it joined: nobody would tell the group otherwise

    async def close(self) -> None:
        """Leave the group. Commits nothing; who waits for a batch gets Closed. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self._growing is not None:
            self._growing.cancel()
            await asyncio.wait([self._growing])
        # What is delivered from now on could not be committed.
        self._stop_reading(self._reading)
        try:
            await self._session.stop()
        finally:
            self._among.discard(self)
            await self._subscription.close()

    # Reading

    async def next_batch(
        self, timeout: float | None = None, records_max: int = BATCH_RECORDS_MAX
    ) -> StreamBatch:
        """The next records of one of its partitions, at least one."""
        if not self._is_open or self._closed:
            await self._opened()
        loop = asyncio.get_running_loop()
        until = loop.time() + (timeout or 0.0)
        left = timeout
        while True:
            batch = await self._subscription.next_batch(left, records_max)
            if batch.partition in self._reading and self._session.member.is_live:
                return batch
            self._put_back(batch)
            if timeout is not None:
                left = max(0.0, until - loop.time())

    def _put_back(self, batch: StreamBatch) -> None:
        """It was taken away while it was read, or the lease is over: not to be delivered now."""
        if batch.partition in self._owned:
            # It must not count as delivered: it may still be committed here.
            self._subscription.go_to({batch.partition: batch.records[0].offset})
        if batch.partition in self._reading:
            # Nothing at all, until the group says what became of this member.
            self._subscription.deliver(())
            self._session.renew()

    async def seek(self, to: StartPosition, *, partition: int | None = None) -> None:
        """Go on from another place, durably; without a partition, in all that it has."""
        check_opened(self._is_open)
        chosen = sorted(self._reading) if partition is None else [partition]
        self._check_own(chosen)
        offsets = await self._subscription.resolve(chosen, to)
        await self._session.commit(self._keyed(offsets), backwards=True)
        for number in offsets.keys() & self._owned.keys():
            self._owned[number] = _Owned(offsets[number])
        self._subscription.go_to(offsets)

    async def pause(self, *partitions: int) -> None:
        """Deliver nothing of these partitions until :meth:`resume`; they need not be its own yet."""
        self._check_numbers(partitions)
        self._paused |= set(partitions)
        self._deliver()

    async def resume(self, *partitions: int) -> None:
        """Deliver records of these partitions again, as far as they are its own."""
        self._check_numbers(partitions)
        self._paused -= set(partitions)
        self._deliver()

    def assignment(self) -> MemberAssignment:
        """Which partitions this member reads now, and since which generation."""
        check_opened(self._is_open)
        member = self._session.member
        has = self._reading if member.is_live else frozenset[int]()
        return MemberAssignment(member.generation, has)

    def positions(self) -> dict[int, int]:
        """Partition → offset of the next record that will be delivered, of those it has."""
        check_opened(self._is_open)
        delivered = self._subscription.delivered()
        return {number: delivered[number] for number in sorted(self._reading)}

    # Committing

    async def commit(self, done: StreamBatch | Mapping[int, int] | None = None) -> None:
        """Mark as consumed, on the disk when this returns. Fenced for what it no longer has."""
        await self.commit_with(done)

    async def commit_with(
        self,
        done: StreamBatch | Mapping[int, int] | None = None,
        write: OwnWrite | None = None,
        held: Mapping[int, object] = NOTHING_HELD,
    ) -> None:
        """Commit, and call ``write`` before it, in a thread, while nobody else can own anything.

        ``write`` is blocking and makes durable what belongs to the commit. It is called once it is
        certain that the partitions are this member's, and were since :meth:`held` said so; when it raises,
        nothing is committed. What it returns is called when the offsets have moved.
        """
        check_opened(self._is_open)
        wanted = self._wanted(done)
        for number, holding in held.items():
            if self._owned.get(number) is not holding:
                raise self._fenced(number, "was another member's in between")
        if wanted or write is not None:
            moving = None if write is None else _Moving(write)
            try:
                own = None if moving is None else moving.write
                stands = await self._session.commit(self._keyed(wanted), write=own)
            except BaseException:
                if moving is not None and moving.done:
                    self._note(wanted)  # only what comes after it failed, or took too long
                raise
            self._note({number: stands[TopicPartition(self.topic, number)] for number in wanted})

    def held(self, done: StreamBatch | Mapping[int, int] | None = None) -> dict[int, object]:
        """What is to be the same when these partitions are committed; Fenced for a batch from before."""
        if isinstance(done, StreamBatch):
            self._check_batch(done)
            return {done.partition: self._owned.get(done.partition)}
        return {one: self._owned.get(one) for one in (self._reading if done is None else done)}

    def _wanted(self, done: StreamBatch | Mapping[int, int] | None) -> dict[int, int]:
        if done is None:
            delivered = self._subscription.delivered()
            return {
                number: delivered[number]
                for number, owned in self._owned.items()
                if delivered[number] > owned.committed
            }
        if isinstance(done, StreamBatch):
            self._check_batch(done)
            done = {done.partition: done.next_offset}
        self._check_own(done)
        self._check_offsets(done)
        return dict(done)

    def _note(self, committed: Mapping[int, int]) -> None:
        """What is committed is not delivered, or delivered again."""
        delivered = self._subscription.delivered()
        for number, offset in committed.items():
            owned = self._owned.get(number)
            if owned is not None:
                owned.committed = max(owned.committed, offset)
                if offset > delivered[number]:
                    self._subscription.go_to({number: offset})
        self._progress.set()

    # What the group says; see Reader in group_session

    async def take(self) -> None:
        """Read what the member has now."""
        member = self._session.member
        assigned = self._numbers(member.assignment)
        self._reading &= assigned
        self._deliver()
        gained = assigned - self._owned.keys()
        if gained:
            await self._session.recovered(
                frozenset(TopicPartition(self.topic, number) for number in gained)
            )
            await self._subscription.start(gained)
            delivered = self._subscription.delivered()
            for number in gained:
                at = delivered[number]
                self._owned[number] = _Owned(at, at if number in self._once else 0)
            self._once |= gained
        self._reading = assigned
        self._deliver()

    async def revoke(self, partitions: Partitions) -> None:
        """Let the hook finish them, or wait until what was delivered is committed."""
        mine = self._numbers(partitions) & self._owned.keys()
        self._stop_reading(mine)
        if self._on_revoke is not None and mine:
            await self._on_revoke(mine)
            return
        while self._outstanding(mine):
            self._progress.clear()
            await self._progress.wait()

    def released(self, partitions: Partitions) -> None:
        """They are another member's."""
        gone = self._numbers(partitions)
        self._stop_reading(gone)
        for number in gone:
            self._owned.pop(number, None)

    def removed(self) -> None:
        """Everything is another member's."""
        self._owned.clear()
        self._stop_reading(self._reading)
        self._progress.set()

    def failed(self, error: Exception | None) -> None:
        """Whoever asks for the next batch before it works again hears of it."""
        if error is not None or self._is_failing:
            self._subscription.fail(error)
        self._is_failing = error is not None

    def revoke_failed(self, error: Exception) -> None:
        """Whoever asks for the next batch hears of it."""
        self._is_failing = False
        self._subscription.fail(error)

    # Inside

    def _grew(self) -> None:
        """The topic has more partitions: the group shares them out."""
        if self._is_open and not self._closed:
            self._growing = asyncio.create_task(self._grow(self._growing))

    async def _grow(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await before
        try:
            await self._session.resubscribe({self.topic: self._subscription.partitions})
        except Fenced:
            # It joins again by itself, with all partitions that it knows then.
            self._session.renew()
        except PenstockError as error:
            self.failed(error)

    def _stop_reading(self, partitions: frozenset[int]) -> None:
        self._reading -= partitions
        self._deliver()

    def _deliver(self) -> None:
        self._subscription.deliver(self._reading - self._paused)

    def _outstanding(self, partitions: Iterable[int]) -> bool:
        delivered = self._subscription.delivered()
        owned = self._owned
        return any(
            number in owned and delivered[number] > owned[number].committed for number in partitions
        )

    def _numbers(self, partitions: Partitions) -> frozenset[int]:
        return frozenset(one.partition for one in partitions if one.topic == self.topic)

    def _keyed(self, offsets: Mapping[int, int]) -> dict[TopicPartition, int]:
        return {TopicPartition(self.topic, number): at for number, at in offsets.items()}

    def _check_numbers(self, partitions: Iterable[int]) -> None:
        check_opened(self._is_open)
        count = self._subscription.partitions
        for number in partitions:
            if not 0 <= number < count:
                raise UnknownPartition(
                    f"topic {self.topic!r} has partitions 0 to {count - 1}, not {number}",
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
            raise self._fenced(batch.partition, "was another member's since that was delivered")

    def _check_own(self, partitions: Iterable[int]) -> None:
        self._check_numbers(partitions)
        for number in partitions:
            if number not in self._owned:
                raise self._fenced(number, "is another member's, or nobody's")

    def _fenced(self, partition: int, why: str) -> Fenced:
        member = self._session.member
        return Fenced(
            f"partition {partition} of {self.topic!r} {why}: its records come again to whoever "
            f"has it in group {self.group!r}",
            group=self.group,
            member=member.id,
            generation=member.generation,
            current=member.generation,
            reason="partition",
            topic=self.topic,
            partition=partition,
        )

    def _check_offsets(self, offsets: Mapping[int, int]) -> None:
        """Whoever commits beyond the end would skip what is produced next."""
        ends = self._subscription.ends()
        for partition, offset in offsets.items():
            if not 0 <= offset <= ends[partition]:
                raise OffsetOutOfRange(
                    f"offset {offset} of {self.topic}/{partition} cannot be committed: use 0 to "
                    f"{ends[partition]}",
                    topic=self.topic,
                    partition=partition,
                    offset=offset,
                    end=ends[partition],
                )


class _Moving:
    """Calls the owner's ``write``, and knows afterwards whether the offsets have moved."""

    def __init__(self, write: OwnWrite) -> None:
        self._write = write
        self._ending: Callable[[], object] | None = None
        self.done = False

    def write(self) -> Callable[[], object]:
        self._ending = self._write()
        return self._end

    def _end(self) -> None:
        self.done = True
        if self._ending is not None:
            self._ending()
