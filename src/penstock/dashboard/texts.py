"""Numbers, times and payloads as text that people read. Nothing here is HTML."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec

SHOWN_BYTES_MAX = 64 * 1024
LINE_MAX = 160
UNITS = ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k"))


def count(number: float) -> str:
    """``12,345`` and ``1.2 M``."""
    for size, unit in UNITS:
        if abs(number) >= size:
            scale = 1_000 if unit == "k" else size
            return f"{number / scale:.1f} {unit}"
    return f"{number:,.0f}"


def plural(number: int, what: str) -> str:
    """``1 record``, ``2 records``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def rate(number: float) -> str:
    """Something per second."""
    return f"{number:.1f}/s" if 0 < number < 10 else f"{count(number)}/s"


def size(number: float) -> str:
    """Bytes."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(number) < 1_024 or unit == "TiB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1_024
    raise AssertionError("the last unit fits all")


def seconds(number: float) -> str:
    """A duration, as exact as is useful: ``450 ms``, ``3.2 s``, ``12 min``, ``5 h 10 min``."""
    if number <= 0:
        return "0 s"
    if number < 1:
        return f"{number * 1_000:.0f} ms"
    if number < 120:
        return f"{number:.1f} s" if number < 10 else f"{number:.0f} s"
    minutes = int(number // 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def time(time_ms: int | None) -> str:
    """A moment in UTC."""
    if not time_ms:
        return "–"
    return f"{datetime.fromtimestamp(time_ms / 1_000, UTC):%Y-%m-%d %H:%M:%S}"


def parse_time(text: str) -> int | None:
    """Milliseconds since 1970 of ``2026-03-01 12:00``, in UTC unless it says otherwise; None: no time."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1_000)


def line(data: bytes | None) -> str:
    """The beginning of some bytes in one line."""
    if data is None:
        return "(none)"
    text = data[: 4 * LINE_MAX].decode("utf-8", "backslashreplace")
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    short = " ".join(plain.split())
    return short if len(short) <= LINE_MAX else short[: LINE_MAX - 1] + "…"


def payload(data: bytes | None) -> str:
    """Bytes to be looked at: JSON is laid out, text stays, other bytes are shown as hexadecimal."""
    if data is None:
        return "(none)"
    cut = data[:SHOWN_BYTES_MAX]
    more = "" if len(cut) == len(data) else f"\n… {len(data) - len(cut):,} bytes more"
    try:
        if not more:
            return json.dumps(json.loads(cut), indent=2, ensure_ascii=False)
    except ValueError:
        pass
    try:
        return cut.decode() + more
    except UnicodeDecodeError:
        return cut.hex(" ", 4) + more


def message_json(message: Any) -> str:
    """A message as JSON that can be edited."""
    return msgspec.json.format(msgspec.json.encode(message, enc_hook=str), indent=2).decode()
