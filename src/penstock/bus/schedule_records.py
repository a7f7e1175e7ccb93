"""Scheduled events as the journal has them: ``s/<id>`` is scheduled, ``f/<id>`` has fired."""

from __future__ import annotations

import msgspec

from penstock.bus.agenda import Entry
from penstock.bus.recurrence import Cron, Every, Missed
from penstock.system import Clock


class StoredEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A scheduled event in the journal."""

    envelope: bytes
    due_ms: int
    every_ms: int | None = None
    cron: str | None = None
    timezone: str = "UTC"
    passing: bool = False
    """Whether it waits for time to pass, and not for a time of the wall clock."""
    missed: Missed = Missed.FIRE_ONCE
    fired: int = 0


class StoredFiring(msgspec.Struct, frozen=True):
    """An event in the journal that has fired and is not handled yet."""

    envelope: bytes
    schedule: str
    due_ms: int


_entry = msgspec.msgpack.Decoder(StoredEntry).decode
_firing = msgspec.msgpack.Decoder(StoredFiring).decode


def load_firing(value: bytes) -> StoredFiring:
    """A firing from bytes."""
    return _firing(value)


def load_entry(name: str, value: bytes, clock: Clock) -> Entry:
    """An entry from bytes, on the clocks of this process."""
    stored = _entry(value)
    now_ms = clock.time_ms()
    due_at = clock.monotonic() + (stored.due_ms - now_ms) / 1000
    return Entry(
        name,
        stored.due_ms,
        due_at if stored.passing else None,
        recurrence=_recurrence(stored),
        missed=stored.missed,
        sealed=stored.envelope,
        fired=stored.fired,
        was_down=stored.due_ms < now_ms,
    )


def store(entry: Entry) -> bytes:
    """An entry as bytes."""
    recurrence = entry.recurrence
    assert entry.sealed is not None
    stored = StoredEntry(
        entry.sealed,
        entry.due_ms,
        every_ms=recurrence.interval_ms if isinstance(recurrence, Every) else None,
        cron=recurrence.line if isinstance(recurrence, Cron) else None,
        timezone=recurrence.timezone if isinstance(recurrence, Cron) else "UTC",
        passing=entry.due_at is not None,
        missed=entry.missed,
        fired=entry.fired,
    )
    return msgspec.msgpack.encode(stored)


def _recurrence(stored: StoredEntry) -> Every | Cron | None:
    if stored.every_ms is not None:
        return Every(stored.every_ms)
    return None if stored.cron is None else Cron(stored.cron, stored.timezone)
