"""Events for later: at a time, after a while, again and again.

What is guaranteed. ``await bus.schedule.at(...)`` returns when the event is scheduled; when the
bus has a log, it is on disk by then and survives a kill or a power cut. When it falls due, its
firing is recorded first: one atomic change of the journal takes the time from the schedule and
adds the firing under an id of its own. So a time fires exactly once, whatever happens. Then the
event is queued, and its handlers run. When they are done with it, that is recorded too.

If the process dies in between, the event is queued again at the next start, with the same
envelope id and the header ``x-penstock-redelivery``: handlers run at least once, and again only when the
process died while they ran or before their end was on disk. A handler whose effect must happen
once keeps the envelope's id with its effect. A handler that fails is done with the event, as with
any other event: retries and dead letters are the bus's.

Without a log, all of this lives and dies with the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any

from penstock.bus.agenda import Entry
from penstock.bus.encoding import MessageCodec
from penstock.bus.firing import Elsewhere, Firer
from penstock.bus.intake import Intake
from penstock.bus.journal import JournalLog
from penstock.bus.keeper import Keeper
from penstock.bus.recurrence import INTERVAL_SECONDS_MAX, Missed, Recurrence, cron, every
from penstock.bus.schedule_records import store
from penstock.bus.timers import Timers
from penstock.errors import BufferFull, InvalidMessage, InvalidOption, NotPending, RecordTooLarge
from penstock.messages import DEFAULT_SESSION, Command, Event, Priority, check_type

PENDING_MAX = 500_000
EVENT_BYTES_MAX = 1024 * 1024
"""The largest event that can be scheduled on a bus with a log, encoded."""


@dataclass(frozen=True, slots=True)
class ScheduleStatistics:
    """The schedule of a bus."""

    pending: int
    """Events that are scheduled."""
    waiting: int
    """Events that have fired, and wait for room in their lane."""
    held: int
    """Events that have fired, and wait for somebody who listens to them."""
    fired: int
    late: int
    """Times that were missed: the bus was down, the machine slept, or the loop was busy."""
    skipped: int
    """Those of them that did not fire (``Missed.SKIP``)."""
    unreadable: int
    """Events of the journal that did not decode. They stay there."""


class ScheduledEvent:
    """An event that is scheduled."""

    __slots__ = ("_entry", "_schedule")

    def __init__(self, schedule: Schedule, entry: Entry) -> None:
        self._schedule = schedule
        self._entry = entry

    @property
    def id(self) -> str:
        """Unique; the same after a restart."""
        return self._entry.id

    @property
    def event(self) -> Any:
        """The event; InvalidMessage when it comes from a journal and does not decode."""
        return self._schedule.event_of(self._entry)

    @property
    def due(self) -> datetime:
        """When it fires next, in UTC."""
        return self._schedule.due_of(self._entry)

    @property
    def recurring(self) -> bool:
        """Whether it fires again and again."""
        return self._entry.recurrence is not None

    @property
    def pending(self) -> bool:
        """Whether it is still to fire."""
        return self._schedule.is_pending(self.id)

    async def cancel(self) -> bool:
        """As :meth:`Schedule.cancel`."""
        return await self._schedule.cancel(self.id)

    async def reschedule(self, when: datetime) -> None:
        """As :meth:`Schedule.reschedule`."""
        await self._schedule.reschedule(self.id, when)

    def __repr__(self) -> str:
        return f"<ScheduledEvent {self.id} due {self.due.isoformat()}>"


class Schedule:
    """The events of a bus that are due later; ``bus.schedule``. See the module's text.

    Times of ``at`` and ``cron`` are those of the wall clock, and follow it within seconds when it
    is set; ``after`` and ``every`` wait for time to pass. An event never keeps the timer waiting:
    when its lane is full, it is queued as soon as there is room, and a recurring one does not fire
    again before that. At most 500,000 events are pending; then BufferFull.

    On a bus with a log, an event that fires while nobody listens to it waits for a handler: those
    are often registered after the start. Without a log it is unhandled, as any other.
    """

    def __init__(
        self,
        intake: Intake,
        timers: Timers,
        codec: MessageCodec,
        log: JournalLog | None,
        name: str,
    ) -> None:
        self._intake = intake
        self._codec = codec
        self._clock = timers.clock
        self._keeper = Keeper(log, f"{name}.schedule")
        self._firer = Firer(intake, timers, codec, self._keeper)

    # Scheduling

    async def at(
        self,
        event: Any,
        when: datetime,
        *,
        missed: Missed = Missed.FIRE_ONCE,
        session: str = DEFAULT_SESSION,
        priority: int = Priority.NORMAL,
        headers: Mapping[str, str] | None = None,
    ) -> ScheduledEvent:
        """Publish the event at a time; a time that has passed is now.

        Cancelled before it returns, nothing is scheduled.
        """
        entry = self._entry(event, session, priority, headers)
        entry.due_ms, entry.missed = _milliseconds(when), missed
        return await self._add(entry)

    async def after(
        self,
        event: Any,
        seconds: float,
        *,
        missed: Missed = Missed.FIRE_ONCE,
        session: str = DEFAULT_SESSION,
        priority: int = Priority.NORMAL,
        headers: Mapping[str, str] | None = None,
    ) -> ScheduledEvent:
        """Publish the event when so many seconds have passed. Cancelled, nothing is scheduled."""
        if not 0 <= seconds <= INTERVAL_SECONDS_MAX:
            raise InvalidOption(
                f"after {seconds} s: use 0 to {INTERVAL_SECONDS_MAX} s", option="seconds"
            )
        entry = self._entry(event, session, priority, headers)
        self._wait(entry, seconds)
        entry.missed = missed
        return await self._add(entry)

    async def every(
        self,
        event: Any,
        seconds: float,
        *,
        missed: Missed = Missed.FIRE_ONCE,
        session: str = DEFAULT_SESSION,
        priority: int = Priority.NORMAL,
        headers: Mapping[str, str] | None = None,
    ) -> ScheduledEvent:
        """Publish the event every so many seconds, the first time after the first interval.

        It does not drift. Times that were missed fire once, late, or not at all: see ``Missed``.
        """
        recurrence = every(seconds)
        entry = self._entry(event, session, priority, headers, recurrence)
        self._wait(entry, recurrence.interval_ms / 1000)
        entry.missed = missed
        return await self._add(entry)

    async def cron(
        self,
        event: Any,
        line: str,
        *,
        timezone: str = "UTC",
        missed: Missed = Missed.FIRE_ONCE,
        session: str = DEFAULT_SESSION,
        priority: int = Priority.NORMAL,
        headers: Mapping[str, str] | None = None,
    ) -> ScheduledEvent:
        """Publish the event when a cron line says so, in a time zone such as ``Europe/Berlin``.

        Needs the extra ``cron``. Around a change to summer time it does what Debian's cron does.
        """
        recurrence = cron(line, timezone)
        entry = self._entry(event, session, priority, headers, recurrence)
        entry.due_ms = recurrence.next_ms(0, self._clock.time_ms())
        entry.missed = missed
        return await self._add(entry)

    # Looking and changing

    def pending(self) -> list[ScheduledEvent]:
        """What is scheduled, the next one first."""
        entries = sorted(self._firer.entries.values(), key=self.due_of)
        return [ScheduledEvent(self, entry) for entry in entries]

    def is_pending(self, name: str) -> bool:
        """Whether the event of that id is still to fire."""
        return name in self._firer.entries

    async def cancel(self, name: str) -> bool:
        """Do not fire it, or not again; False when it is over. On disk when this returns."""
        entry = self._firer.entries.pop(name, None)
        if entry is None:
            return False
        self._firer.agenda.remove(entry)
        await self._keeper.write({f"s/{name}": None})
        return True

    async def reschedule(self, name: str, when: datetime) -> None:
        """Fire it at another time; NotPending when it is over. On disk when this returns.

        A recurring one goes on from there: its interval counts from the new time.
        """
        entry = self._firer.entries.get(name)
        if entry is None:
            raise NotPending(f"{name} has fired or was cancelled: schedule it anew", id=name)
        entry.due_ms, entry.due_at, entry.was_down = _milliseconds(when), None, False
        if entry.ticket:  # else it is being handed over, and goes to its place after that
            self._firer.agenda.add(entry)
        self._firer.arm()
        if self._keeper.durable:
            await self._keeper.write({f"s/{name}": store(entry)})

    def statistics(self) -> ScheduleStatistics:
        """The figures of this moment."""
        firer = self._firer
        return ScheduleStatistics(
            pending=len(firer.entries),
            waiting=len(firer.handover),
            held=len(firer.held),
            fired=firer.fired,
            late=firer.late,
            skipped=firer.skipped,
            unreadable=firer.unreadable,
        )

    def event_of(self, entry: Entry) -> Any:
        """The event of an entry."""
        envelope = self._firer.open(entry)
        if envelope is None:
            raise InvalidMessage(f"the scheduled event {entry.id} does not decode", id=entry.id)
        return envelope.message

    def due_of(self, entry: Entry) -> datetime:
        """When an entry fires, by the wall clock as it is now."""
        due_ms = float(entry.due_ms)
        if entry.due_at is not None:
            ahead = entry.due_at - self._clock.monotonic()
            due_ms = self._clock.time_ms() + ahead * 1000
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=round(due_ms))

    # For the bus

    def send_elsewhere(self, elsewhere: Elsewhere) -> None:
        """Ask for each event that fires whether it goes to a log instead of a lane."""
        self._firer.elsewhere = elsewhere

    async def open(self) -> None:
        """Take over what was scheduled before; SubscriberBusy when another bus has this name."""
        if self._keeper.durable:
            self._codec.register(Event)
            self._codec.register(Command)
        self._firer.load(await self._keeper.open())

    def pause(self) -> None:
        """Fire nothing more: the bus stops."""
        self._firer.pause()

    async def close(self) -> None:
        """Record what was handled, and let another bus have the journal."""
        self.pause()
        await self._keeper.close()

    def handlers_changed(self) -> None:
        """Somebody listens to more than before."""
        self._firer.handlers_changed()

    @property
    def busy(self) -> bool:
        """Whether something that is due is not queued yet."""
        return self._firer.busy

    async def idle(self) -> None:
        """Return when all that is due is queued."""
        await self._firer.idle()

    # Inside

    def _entry(
        self,
        event: Any,
        session: str,
        priority: int,
        headers: Mapping[str, str] | None,
        recurrence: Recurrence | None = None,
    ) -> Entry:
        nested = self._keeper.durable and self._intake.is_nested()
        if self._intake.refusal is not None and not nested:
            raise self._intake.refusal.again()
        check_type(type(event))
        envelope = self._intake.enclose(event, session, priority, headers)
        return Entry(
            envelope.id,
            0,
            None,
            recurrence=recurrence,
            sealed=self._seal(envelope) if self._keeper.durable else None,
            envelope=envelope,
        )

    def _seal(self, envelope: Any) -> bytes:
        sealed = self._codec.encode_envelope(envelope)
        if len(sealed) > EVENT_BYTES_MAX:
            raise RecordTooLarge(
                f"the event has {len(sealed)} bytes, {EVENT_BYTES_MAX} can be scheduled: keep the "
                "payload elsewhere and schedule a reference to it",
                size=len(sealed),
                limit=EVENT_BYTES_MAX,
            )
        return sealed

    def _wait(self, entry: Entry, seconds: float) -> None:
        entry.due_at = self._clock.monotonic() + seconds
        entry.due_ms = self._clock.time_ms() + ceil(seconds * 1000)

    async def _add(self, entry: Entry) -> ScheduledEvent:
        firer = self._firer
        if len(firer.entries) + len(firer.handover) + len(firer.held) >= PENDING_MAX:
            raise BufferFull(f"{PENDING_MAX} events are scheduled, which is the limit")
        firer.entries[entry.id] = entry
        try:
            if entry.sealed is not None:
                await self._keeper.write({f"s/{entry.id}": store(entry)})
        except BaseException:
            # Nobody has a handle of it, so it must not fire, now or after a restart.
            firer.entries.pop(entry.id, None)
            self._keeper.post({f"s/{entry.id}": None})
            raise
        firer.agenda.add(entry)
        firer.arm()
        return ScheduledEvent(self, entry)


def _milliseconds(when: datetime) -> int:
    if when.tzinfo is None:
        raise InvalidOption("the time needs a time zone, for example datetime.now(UTC)")
    return ceil((when - datetime.fromtimestamp(0, UTC)) / timedelta(milliseconds=1))
