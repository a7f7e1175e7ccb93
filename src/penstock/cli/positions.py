"""Where to read from and to: ``start``, ``47``, ``-3``, ``40:50``, ``@1h:``, ``@2026-01-01:2026-02-01``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from penstock import errors

Position = int | datetime | Literal["earliest", "latest"]
OFFSET_MAX = 1 << 62
HELP = (
    "start, end, an offset (47), the last ones (-3), behind the start (+2), a range (40:50), a time "
    "or a range of times: @1h:, @1h:30m, @2026-03-01:2026-04-01, @1767225600000"
)
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
_DURATION = re.compile(r"-?(?:\d{1,12}(?:\.\d{1,6})?(?:ms|s|m|h|d|w))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_EPOCH = re.compile(r"\d{10}|\d{13}")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}


@dataclass(frozen=True)
class Bound:
    """One end: an end of the topic, an offset, a distance from an end, or a time."""

    kind: Literal["start", "end", "offset", "after_start", "before_end", "time"]
    value: int = 0
    """An offset, a distance, or milliseconds since 1970."""

    def position(self, earliest: int, end: int) -> Position:
        """What it means in a partition with these bounds; never outside of them."""
        offset = {
            "start": earliest,
            "end": end,
            "offset": self.value,
            "after_start": earliest + self.value,
            "before_end": end - self.value,
        }.get(self.kind)
        if offset is None:
            return datetime.fromtimestamp(self.value / 1_000, UTC)
        return min(max(offset, earliest), end)

    def for_new_group(self) -> Position:
        """Where a group begins that has not read yet; refused when it is not the same for all partitions."""
        if self.kind == "time":
            return datetime.fromtimestamp(self.value / 1_000, UTC)
        if self.kind == "offset":
            return self.value
        if self.kind in ("start", "end"):
            return "earliest" if self.kind == "start" else "latest"
        raise errors.InvalidOption(
            "a group starts at start, end, an offset or a time: leave out -g to read the last ones",
            option="offset",
        )


@dataclass(frozen=True)
class Range:
    """From where to where; the end is not read any more."""

    first: Bound
    last: Bound | None = None


START = Bound("start")


def parse_range(text: str, now_ms: int) -> Range:
    """What the text means; InvalidOption says what can be said."""
    if text.startswith("@"):
        return _times(text, now_ms)
    first, colon, last = text.partition(":")
    if not colon:
        return Range(_offset(text, text))
    return Range(_offset(first, text) if first else START, _offset(last, text) if last else None)


def parse_seek(text: str, now_ms: int) -> Bound:
    """Where a group is to go on: one place, no range."""
    found = parse_range(text, now_ms)
    if found.last is not None:
        raise errors.InvalidOption(
            f"{text!r} is a range: a group goes on at one place", option="to"
        )
    return found.first


def _offset(text: str, whole: str) -> Bound:
    if text in ("start", "earliest", "beginning"):
        return START
    if text in ("end", "latest"):
        return Bound("end")
    if not _NUMBER.fullmatch(text) or abs(int(text)) > OFFSET_MAX:
        raise _wrong(whole)
    number = int(text)
    if text[0] in "+-":
        return Bound("after_start" if text[0] == "+" else "before_end", abs(number))
    return Bound("offset", number)


def _times(text: str, now_ms: int) -> Range:
    """Times have colons too, so every colon may be the one between them."""
    inner = text[1:]
    whole = _time(inner, now_ms)
    if whole is not None:
        return Range(whole)
    for place, letter in enumerate(inner):
        if letter != ":":
            continue
        first, last = inner[:place], inner[place + 1 :]
        begin = _time(first, now_ms) if first else START
        stop = _time(last, now_ms) if last else None
        if begin is not None and (stop is not None or not last) and (first or last):
            return Range(begin, stop)
    raise _wrong(text)


def _time(text: str, now_ms: int) -> Bound | None:
    """A time as it is written, or a time before now; None when it is neither."""
    if _EPOCH.fullmatch(text):
        return Bound("time", int(text) * (1_000 if len(text) == 10 else 1))
    if _DURATION.fullmatch(text):
        return Bound("time", max(0, now_ms - round(seconds_of(text) * 1_000)))
    if text in ("end", "now"):
        return Bound("time", now_ms)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    if time.tzinfo is None:
        time = time.astimezone()
    return Bound(
        "time", max(0, (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1))
    )


def seconds_of(text: str) -> float:
    """``1h``, ``90s``, ``1d12h`` as seconds; InvalidOption for anything else."""
    if not _DURATION.fullmatch(text):
        raise errors.InvalidOption(
            f"{text!r} is no duration: use 90s, 15m, 1h, 1d12h", option="time"
        )
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))


def parse_time(text: str, now_ms: int) -> int:
    """A time in milliseconds since 1970: as it is written, or that long before now."""
    found = _time(text.removeprefix("@"), now_ms)
    if found is None:
        raise errors.InvalidOption(
            f"{text!r} is no time: use 1h (before now), 2026-03-01, 2026-03-01T12:00:00Z or "
            "milliseconds since 1970",
            option="time",
        )
    return found.value


def _wrong(text: str) -> errors.InvalidOption:
    return errors.InvalidOption(f"{text!r} is no place to read: use {HELP}", option="offset")
