"""The event log of a bus: every event on disk, in the order of publishing.

Events are written in the background, many at a time. ``publish`` does not wait for that;
``publish(durable=True)`` does, and its event is handled only when it is on disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from penstock.bus.encoding import MessageCodec
from penstock.bus.positions import HandledPositions
from penstock.bus.timers import PendingCall, Timers
from penstock.errors import BufferFull, Closed, InvalidMessage, RecordTooLarge
from penstock.messages import Envelope

logger = logging.getLogger("penstock.bus")

BATCH_RECORDS_MAX = 10_000
BATCH_BYTES_MAX = 8 * 1024 * 1024
"""What is written together; a group that is larger is written alone."""
PENDING_BYTES_MAX = 64 * 1024 * 1024
"""What may wait for the disk. Beyond that an event is handled but not kept, and counted as lost."""
COMMIT_INTERVAL_SECONDS = 1.0
"""How long after an event was settled that is written down, at the latest."""


class EventLog(Protocol):
    """What the bus needs of a durable log to keep its events. One live owner at a time."""

    batch_bytes_max: int
    """The most that ``append`` takes at once."""

    async def open(self) -> tuple[int, int]:
        """Claim the log: the position below which everything is handled, and the end."""
        ...

    async def append(self, records: Sequence[bytes], *, durable: bool) -> int:
        """Write the records at the end, all or none; the position of the first.

        With ``durable`` they survive a power cut when this returns, else a crash of the process.
        """
        ...

    def read(
        self, start: int | None = None, end: int | None = None
    ) -> AsyncIterator[tuple[int, bytes]]:
        """The records from one position up to another, with their positions."""
        ...

    async def commit(self, position: int) -> None:
        """Everything below the position is handled. Durable when this returns."""
        ...

    async def close(self) -> None:
        """Let another owner have it."""
        ...


@runtime_checkable
class EventLogSource(Protocol):
    """A durable log that can keep the events of buses."""

    def event_log(self, name: str) -> EventLog:
        """The log of that name; it is made when it is first opened."""
        ...


@dataclass(frozen=True, slots=True)
class EventLogStatistics:
    """The event log of a bus."""

    logged: int
    """Events that were written since the bus was started."""
    pending: int
    """Events that wait for the disk."""
    lost: int
    """Events that were published but not written: they do not encode, or the disk fails."""
    redelivered: int
    """Events of an earlier life that were queued again."""
    held: int
    """Events of an earlier life that wait for somebody who handles them."""
    invalid: int
    """Records that do not decode."""
    unsettled: int
    """Events in the log that are not handled yet."""
    handled_position: int
    end_position: int
    failing: str | None
    """Why the last write failed; None when it went well."""


class Unit(NamedTuple):
    """Events that are written together or not at all."""

    records: Sequence[bytes]
    size: int
    behind: Sequence[Envelope] = ()
    """Envelopes that are queued when the records are on disk, and not before."""
    done: asyncio.Future[None] | None = None


class EventRecorder:
    """Writes the events of one bus to its log. Belongs to the loop of the bus.

    ``deliver`` queues an event that is on disk now. It must not raise.
    """

    def __init__(
        self,
        log: EventLog,
        codec: MessageCodec,
        timers: Timers,
        deliver: Callable[[Envelope], None],
    ) -> None:
        self.log = log
        self.codec = codec
        self.positions = HandledPositions()
        self._timers = timers
        self._deliver = deliver
        self._pending: deque[Unit] = deque()
        self._pending_bytes = 0
        self._writing: asyncio.Task[None] | None = None
        self._opened = False
        self._committed = 0
        self._commit_due: PendingCall | None = None
        self._committing: asyncio.Task[None] | None = None
        self._refusal: Closed | None = None
        self._told: set[type] = set()
        """Classes whose events do not encode."""
        self.logged = self.lost = self.waiting = 0
        self.failing: str | None = None

    # Life

    async def open(self) -> tuple[int, int]:
        """Claim the log and begin to write; what is not handled lies between the two positions."""
        handled, end = await self.log.open()
        self.positions.begin(handled, end)
        self._committed = handled
        self._opened = True
        self._wake()
        return handled, end

    async def flush(self) -> None:
        """Return when all that was noted is written, or has failed."""
        while self._writing is not None:
            await asyncio.shield(self._writing)

    async def close(self, refusal: Closed | None) -> None:
        """Write what is left and how far it is handled, and let another bus have the log.

        With a refusal for good: who publishes hears it from now on.
        """
        if self._commit_due is not None:
            self._commit_due.cancel()
            self._commit_due = None
        await self.flush()
        if refusal is not None:
            self._refuse(refusal)
        if self._opened:
            self._opened = False
            if self._committing is not None:
                await asyncio.shield(self._committing)
            await self._commit()
            await self.log.close()

    def _refuse(self, refusal: Closed) -> None:
        """Nobody writes any more: tell who waits."""
        self._refusal = refusal
        while self._pending:
            self._fail([self._pending.popleft()], refusal)

    # Events

    def note(self, envelope: Envelope) -> None:
        """Keep an event that is queued at this moment. Never raises: what cannot be kept is lost."""
        self.note_all([envelope])

    def note_all(self, envelopes: Sequence[Envelope]) -> None:
        """Keep events that are queued at this moment, all of them or none."""
        try:
            unit = self._unit(envelopes)
        except InvalidMessage as error:
            self._cannot_encode(envelopes, error)
            return
        except Exception as error:
            self._lose(len(envelopes), error)
            return
        for envelope in envelopes:
            self.positions.note(envelope)
        self._add(unit)

    async def publish(self, envelopes: Sequence[Envelope]) -> None:
        """Write events, all or none, then queue them; returns when they are on disk.

        When this raises InvalidMessage, RecordTooLarge or BufferFull, or the disk fails, they are
        not published. When it is cancelled they may be published all the same.
        """
        unit = self._unit(envelopes)
        done = asyncio.get_running_loop().create_future()
        for envelope in envelopes:
            self.positions.note(envelope)
        self._add(unit._replace(behind=envelopes, done=done))
        await done

    def settled(self, envelope: Envelope) -> None:
        """All is done with an event."""
        if self.positions.settle(envelope):
            self._commit_later()

    def _unit(self, envelopes: Sequence[Envelope]) -> Unit:
        if self._refusal is not None:
            raise self._refusal.again()
        records = list(map(self.codec.encode_envelope, envelopes))
        size = sum(map(len, records))
        if size > self.log.batch_bytes_max:
            raise RecordTooLarge(
                f"{len(records)} events that belong together have {size} bytes, "
                f"{self.log.batch_bytes_max} are allowed: publish fewer in a group",
                size=size,
                limit=self.log.batch_bytes_max,
            )
        if self._pending_bytes and self._pending_bytes + size > PENDING_BYTES_MAX:
            raise BufferFull(
                f"{self._pending_bytes} bytes of events wait for the disk, which is the limit",
                pending_bytes=self._pending_bytes,
            )
        return Unit(records, size)

    # Writing

    def _add(self, unit: Unit) -> None:
        self._pending.append(unit)
        self._pending_bytes += unit.size
        self.waiting += len(unit.records)
        self._wake()

    def _wake(self) -> None:
        if self._writing is None and self._pending and self._opened:
            # Not in the context of a handler that happens to be the first to publish.
            loop = asyncio.get_running_loop()
            self._writing = loop.create_task(self._write_all(), context=Context())

    async def _write_all(self) -> None:
        try:
            while self._pending:
                await self._write(self._take())
        finally:
            self._writing = None

    def _take(self) -> list[Unit]:
        """The next units, as many as are written together."""
        taken = [self._pending.popleft()]
        size, count = taken[0].size, len(taken[0].records)
        while self._pending:
            size += self._pending[0].size
            count += len(self._pending[0].records)
            if size > BATCH_BYTES_MAX or count > BATCH_RECORDS_MAX:
                break
            taken.append(self._pending.popleft())
        return taken

    async def _write(self, units: list[Unit]) -> None:
        records = [record for unit in units for record in unit.records]
        durable = any(unit.done is not None for unit in units)
        try:
            position = await self.log.append(records, durable=durable)
        except Exception as error:
            self._fail(units, error)
            return
        self._subtract(units)
        self.positions.write(len(records), position)
        self.logged += len(records)
        self.failing = None
        self._commit_later()
        for unit in units:
            for envelope in unit.behind:
                self._deliver(envelope)
            if unit.done is not None and not unit.done.done():
                unit.done.set_result(None)

    def _fail(self, units: list[Unit], error: Exception) -> None:
        self._subtract(units)
        if self._opened:
            self.positions.fail(sum(len(unit.records) for unit in units))
        self._lose(sum(len(unit.records) for unit in units if not unit.behind), error)
        for unit in units:
            for envelope in unit.behind:  # never published, so there is nothing to settle
                self.positions.settle(envelope)
            if unit.done is not None and not unit.done.done():
                unit.done.set_exception(error)

    def _subtract(self, units: list[Unit]) -> None:
        self._pending_bytes -= sum(unit.size for unit in units)
        self.waiting -= sum(len(unit.records) for unit in units)

    def _cannot_encode(self, envelopes: Sequence[Envelope], error: Exception) -> None:
        """Count events that are not kept, and say so once for each class."""
        self.lost += len(envelopes)
        kinds: set[type] = {type(envelope.message) for envelope in envelopes}
        if not kinds <= self._told:
            logger.error("events are not kept in the event log: %s", error)
        self._told |= kinds

    def _lose(self, count: int, error: Exception) -> None:
        """Count events that are not kept, and say so once for each row of failures."""
        self.lost += count
        if self.failing is None:
            logger.error("events are not kept in the event log: %s", error)
        self.failing = str(error)

    # Handled

    def _commit_later(self) -> None:
        if self._commit_due is None and self._opened:
            self._commit_due = self._timers.call_after(COMMIT_INTERVAL_SECONDS, self._commit_soon)

    def _commit_soon(self) -> None:
        self._commit_due = None
        if self._committing is None:
            loop = asyncio.get_running_loop()
            self._committing = loop.create_task(self._commit_in_background(), context=Context())

    async def _commit_in_background(self) -> None:
        try:
            await self._commit()
        finally:
            self._committing = None

    async def _commit(self) -> None:
        handled = self.positions.handled()
        if handled <= self._committed:
            return
        try:
            await self.log.commit(handled)
        except Exception as error:
            logger.error("the handled position of the event log was not written: %s", error)  # noqa: TRY400
        else:
            self._committed = handled
