"""Text of others without what makes a terminal do things: records, errors and names may hold anything."""

from __future__ import annotations

_TURNING = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
"""Characters that turn the direction of text around, or begin a line."""
_HIDDEN = dict.fromkeys((*range(32), *range(127, 160), *_TURNING), "�")
_ESCAPED = {code: f"\\u{code:04x}" for code in (*range(127, 160), *_TURNING)}
"""For JSON, which has escaped the first of them already."""


def harmless(value: object) -> object:
    """Text without control characters; numbers as they are."""
    return value.translate(_HIDDEN) if isinstance(value, str) else value


def harmless_lines(text: str) -> str:
    """Text of several lines without control characters."""
    return "\n".join(str(harmless(line.replace("\t", "    "))) for line in text.split("\n"))


def harmless_bytes(data: bytes) -> bytes:
    """The same for what a record holds."""
    return harmless_lines(data.decode("utf-8", "replace")).encode()


def harmless_json(text: str) -> str:
    """A document with all control characters escaped; it means the same."""
    return text.translate(_ESCAPED)
