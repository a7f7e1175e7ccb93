"""When a recurring event is due next: after an interval, or as a cron line says."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from penstock.errors import InvalidOption, MissingExtra

if TYPE_CHECKING:
    from cronsim import CronSim

INTERVAL_SECONDS_MAX = 10 * 366 * 24 * 3600


class Missed(enum.Enum):
    """What happens to a time that was missed: the bus was down, or the machine slept."""

    FIRE_ONCE = "fire once"
    """It fires once, late, however many times were missed; then the next one as planned."""
    SKIP = "skip"
    """It does not fire; a recurring event goes on with the next time, another one is over."""


@dataclass(frozen=True, slots=True)
class Every:
    """Again and again after an interval. It does not drift: lateness is not added up."""

    interval_ms: int

    def steps(self, late_ms: int) -> int:
        """How many intervals the next time lies behind one that is so much late."""
        return max(0, late_ms) // self.interval_ms + 1

    def next_ms(self, due_ms: int, now_ms: int) -> int:
        """The first time after now on the grid of the last one."""
        return due_ms + self.steps(now_ms - due_ms) * self.interval_ms


@dataclass(frozen=True, slots=True)
class Cron:
    """As a cron line says, in a time zone."""

    line: str
    timezone: str

    def next_ms(self, due_ms: int, now_ms: int) -> int:
        """The first time after now, and after the last one."""
        after = datetime.fromtimestamp(max(due_ms, now_ms) / 1000, zone(self.timezone))
        try:
            return round(next(simulate(self.line, after)).timestamp() * 1000)
        except StopIteration:
            raise InvalidOption(f"{self.line!r} names a day that never comes") from None


Recurrence = Every | Cron


def every(seconds: float) -> Every:
    """An interval; InvalidOption when it is none."""
    if not 0.001 <= seconds <= INTERVAL_SECONDS_MAX:
        raise InvalidOption(
            f"every {seconds} s: use 0.001 to {INTERVAL_SECONDS_MAX} s", option="seconds"
        )
    return Every(round(seconds * 1000))


def cron(line: str, timezone: str) -> Cron:
    """A cron line; InvalidOption when it, or the time zone, is not one."""
    simulate(line, datetime.fromtimestamp(0, zone(timezone)))
    return Cron(line, timezone)


def zone(name: str) -> tzinfo:
    """The time zone of that name."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ValueError, LookupError, OSError) as cause:
        raise InvalidOption(
            f"{name!r} is not a time zone: use a name such as 'Europe/Berlin'", option="timezone"
        ) from cause


def simulate(line: str, after: datetime) -> CronSim:
    """The times that a cron line names, after a time."""
    try:
        from cronsim import CronSim, CronSimError
    except ImportError as cause:
        raise MissingExtra(
            "cron lines need the package cronsim: pip install 'penstock[cron]'", extra="cron"
        ) from cause
    try:
        return CronSim(line, after)
    except CronSimError as cause:
        raise InvalidOption(f"{line!r} is not a cron line: {cause}", option="line") from cause
