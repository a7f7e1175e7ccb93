"""Firing what is due: recorded first, then handed to the lanes, then marked as handled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import msgspec

from penstock.bus.agenda import Agenda, Entry
from penstock.bus.delivery import Outcome, delivery_of
from penstock.bus.encoding import MessageCodec
from penstock.bus.handover import Handed, Handover
from penstock.bus.intake import Intake
from penstock.bus.keeper import Keeper
from penstock.bus.recurrence import Missed
from penstock.bus.schedule_records import StoredFiring, load_entry, load_firing, store
from penstock.bus.timers import PendingCall, Timers
from penstock.errors import InvalidMessage, PenstockError
from penstock.messages import Envelope

logger = logging.getLogger("penstock.bus")

Elsewhere = Callable[[Envelope, Callable[[], None]], bool]
"""Takes an event that is not for the lanes of this bus, and calls back when it is safe there."""

SCHEDULE_HEADER = "x-penstock-schedule"
"""On a scheduled event: the id of its schedule."""
DUE_HEADER = "x-penstock-due"
"""On a scheduled event: when it was due, in milliseconds since 1970."""
AGAIN_HEADER = "x-penstock-redelivery"
"""On an event that fired before a restart, and may have been handled in part then."""

ROUND_EVENTS = 1_000
ROUND_BYTES = 4 * 1024 * 1024
"""How much fires together: one change of the journal, one turn of the loop."""
MISSED_SECONDS = 5.0
"""An event that is later than this was missed."""
RETRY_SECONDS = 1.0
RETRY_SECONDS_MAX = 60.0


class Firing(NamedTuple):
    """One event at one time."""

    id: str
    schedule: str
    due_ms: int
    envelope: Envelope
    sealed: bytes | None
    entry: Entry | None
    """The schedule, when it recurs."""
    again: bool = False


@dataclass(slots=True)
class Round:
    """What fires together."""

    firings: list[Firing]
    touched: list[Entry]


class Firer:
    """Holds the scheduled events of a bus and fires them. Used on the loop of the bus."""

    def __init__(self, intake: Intake, timers: Timers, codec: MessageCodec, keeper: Keeper) -> None:
        self._intake = intake
        self._timers = timers
        self._codec = codec
        self._keeper = keeper
        self._clock = timers.clock
        self.agenda = Agenda(timers.clock)
        self.handover = Handover(intake, self._wake_idle)
        self.entries: dict[str, Entry] = {}
        """What is pending, by id."""
        self.held: list[tuple[Envelope, Handed]] = []
        """Fired, but nobody listens yet: handlers are often registered after the start."""
        self.fired = self.late = self.skipped = self.unreadable = 0
        self._before: list[tuple[str, StoredFiring]] = []
        """Fired before a restart, and not handled."""
        self._unwritten: Round | None = None
        self._retry_seconds = RETRY_SECONDS
        self._timer: PendingCall | None = None
        self._armed_for = float("inf")
        self._soon: asyncio.Handle | None = None
        self._firing = False
        self._paused = False
        self.elsewhere: Elsewhere | None = None
        self._away = 0
        """Events that are on their way elsewhere."""
        self._idle: list[asyncio.Future[None]] = []

    # Life

    def load(self, held: Mapping[str, bytes]) -> None:
        """Take over what the journal holds. It fires from the next turn of the loop on."""
        for key, value in held.items():
            try:
                self._load(key, value)
            except msgspec.MsgspecError as error:
                self._cannot_read(key, error)
        for _, stored in self._before:
            if stored.schedule in self.entries:
                # It recurs, and goes on when what has fired is in its lane.
                self.agenda.remove(self.entries[stored.schedule])
        self.arm()

    def _load(self, key: str, value: bytes) -> None:
        kind, _, name = key.partition("/")
        if kind == "s":
            entry = self.entries[name] = load_entry(name, value, self._clock)
            self.agenda.add(entry)
        else:
            self._before.append((name, load_firing(value)))

    def pause(self) -> None:
        """Fire nothing more."""
        self._paused = True
        self._disarm()
        self._wake_idle()

    @property
    def busy(self) -> bool:
        """Whether something that is due is not in its lane yet."""
        return bool(self._firing or self._soon or self._away or len(self.handover))

    async def idle(self) -> None:
        """Return when all that is due is in its lane."""
        while self.busy:
            waiter = asyncio.get_running_loop().create_future()
            self._idle.append(waiter)
            await waiter

    def _wake_idle(self) -> None:
        if not self.busy:
            for waiter in self._idle:
                if not waiter.done():
                    waiter.set_result(None)
            self._idle.clear()

    # Waiting

    def arm(self) -> None:
        """Be woken when the next one is due."""
        if self._paused or self._firing or self._soon:
            return
        wait = 0.0 if self._before else self.agenda.wait_seconds()
        if self._unwritten is not None:
            wait = self._retry_seconds
        if wait is None:
            self._disarm()
        elif wait <= 0:
            self._soon = asyncio.get_running_loop().call_soon(self._tick)
        else:
            self._arm_after(wait)

    def _arm_after(self, seconds: float) -> None:
        due = self._clock.monotonic() + seconds
        if due < self._armed_for:
            self._disarm()
            self._armed_for = due
            self._timer = self._timers.call_after(seconds, self._tick)

    def _disarm(self) -> None:
        for call in (self._timer, self._soon):
            if call is not None:
                call.cancel()
        self._timer = self._soon = None
        self._armed_for = float("inf")

    def _tick(self) -> None:
        self._disarm()
        # Not in the context of the handler that happened to schedule the first one.
        Context().run(self._fire)

    # Firing

    def _fire(self) -> None:
        if self._keeper.durable:
            self._firing = True
            self._intake.dispatch.spawn(self._fire_durably())
        else:
            self._hand_over(self._take())
            self.arm()
            self._wake_idle()

    async def _fire_durably(self) -> None:
        try:
            self._deliver_again()
            while (due := self._unwritten or self._take()).touched and not self._paused:
                self._unwritten = due
                await self._keeper.write(self._changes(due))
                self._unwritten = None
                self._retry_seconds = RETRY_SECONDS
                self._hand_over(due)
        except Exception:
            logger.exception("scheduled events cannot be recorded, so they wait")
            self._retry_seconds = min(self._retry_seconds * 2, RETRY_SECONDS_MAX)
        finally:
            self._firing = False
            self.arm()
            self._wake_idle()

    def _take(self) -> Round:
        """The next ones that are due."""
        due = Round([], [])
        size = 0
        while len(due.touched) < ROUND_EVENTS and size < ROUND_BYTES:
            entry = self.agenda.take_due()
            if entry is None:
                break
            try:
                self._take_entry(entry, due)
            except PenstockError as error:  # such as a cron line without its extra
                self._cannot_read(entry.id, error)
            size += len(entry.sealed or b"")
        return due

    def _take_entry(self, entry: Entry, due: Round) -> None:
        late = entry.was_down or self.agenda.late_ms(entry) > MISSED_SECONDS * 1000
        skips = late and entry.missed is Missed.SKIP
        firing = None if skips else self._fire_entry(entry)
        if firing is None and not skips:
            return  # it stays in the journal, for a program that can read it
        self._move_on(entry, again=skips)
        if firing is not None:
            due.firings.append(firing)
        due.touched.append(entry)
        self.late += late
        self.skipped += skips

    def _fire_entry(self, entry: Entry) -> Firing | None:
        envelope = self.open(entry)
        if envelope is None:
            return None
        entry.fired += 1
        return Firing(
            id=f"{entry.id}-{entry.fired}",
            schedule=entry.id,
            due_ms=entry.due_ms,
            envelope=envelope,
            sealed=entry.sealed,
            entry=entry if entry.recurrence is not None else None,
        )

    def _move_on(self, entry: Entry, *, again: bool) -> None:
        """Set an entry to its next time, or forget it.

        One that has fired is in the agenda again when its event is in its lane.
        """
        if entry.recurrence is None:
            del self.entries[entry.id]
            return
        self.agenda.move_on(entry)
        if again:
            self.agenda.add(entry)

    def _changes(self, due: Round) -> dict[str, bytes | None]:
        changes: dict[str, bytes | None] = {}
        for firing in due.firings:
            assert firing.sealed is not None
            stored = StoredFiring(firing.sealed, firing.schedule, firing.due_ms)
            changes[f"f/{firing.id}"] = msgspec.msgpack.encode(stored)
        for entry in due.touched:
            # As it is now: it may have been cancelled or moved since it fell due.
            changes[f"s/{entry.id}"] = store(entry) if entry.id in self.entries else None
        return changes

    # Handing over

    def _hand_over(self, due: Round) -> None:
        for firing in due.firings:
            self._give(firing)

    def _deliver_again(self) -> None:
        before, self._before = self._before, []
        for name, stored in before:
            envelope = self._decode(name, stored.envelope)
            entry = self.entries.get(stored.schedule)
            if envelope is not None:
                self._give(
                    Firing(name, stored.schedule, stored.due_ms, envelope, None, entry, True)
                )
            elif entry is not None:
                self.agenda.add(entry)

    def _give(self, firing: Firing) -> None:
        planned = firing.envelope
        headers = {SCHEDULE_HEADER: firing.schedule, DUE_HEADER: str(firing.due_ms)}
        if firing.again:
            headers[AGAIN_HEADER] = "1"
        envelope = self._intake.enclose(
            planned.message,
            planned.session,
            planned.priority,
            {**planned.headers, **headers},
            planned.correlation_id,
        )
        envelope.given_id = firing.id
        envelope.causation_id = planned.causation_id or firing.schedule
        if self._goes_elsewhere(firing, envelope):
            return
        delivery_of(envelope).on_outcome = partial(self._settled, firing.id)
        handed = partial(self._handed, firing.entry)
        if self._keeper.durable and not self._is_wanted(envelope):
            self.held.append((envelope, handed))
        else:
            self.handover.give(envelope, handed)

    def _goes_elsewhere(self, firing: Firing, envelope: Envelope) -> bool:
        if self.elsewhere is None:
            return False
        self._away += 1
        taken = self.elsewhere(envelope, partial(self._taken_elsewhere, firing))
        self._away -= not taken
        return taken

    def _taken_elsewhere(self, firing: Firing) -> None:
        self._away -= 1
        self._handed(firing.entry)
        self._keeper.post({f"f/{firing.id}": None})
        self._wake_idle()

    def handlers_changed(self) -> None:
        """Hand over what somebody listens to now."""
        if self.held:
            Context().run(self._give_held)

    def _give_held(self) -> None:
        held, self.held = self.held, []
        for envelope, handed in held:
            if self._is_wanted(envelope):
                self.handover.give(envelope, handed)
            else:
                self.held.append((envelope, handed))

    def _is_wanted(self, envelope: Envelope) -> bool:
        kind = type(envelope.message)
        return bool(self._intake.dispatch.registry.plan(kind, envelope.session).handlers)

    def _handed(self, entry: Entry | None) -> None:
        self.fired += 1
        if entry is not None and entry.id in self.entries:
            self.agenda.add(entry)
            self.arm()

    def _settled(self, name: str, _: Outcome) -> None:
        self._keeper.post({f"f/{name}": None})

    # Bytes

    def open(self, entry: Entry) -> Envelope | None:
        """The envelope of an entry; None when it does not decode, which is logged."""
        if entry.envelope is None and entry.sealed is not None:
            entry.envelope = self._decode(entry.id, entry.sealed)
        return entry.envelope

    def _decode(self, name: str, sealed: bytes) -> Envelope | None:
        try:
            return self._codec.decode_envelope(sealed)
        except InvalidMessage as error:
            self._cannot_read(name, error)
            return None

    def _cannot_read(self, name: str, error: Exception) -> None:
        self.unreadable += 1
        logger.error("the scheduled event %s stays in the journal: %s", name, error)
