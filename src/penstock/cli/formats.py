"""Records as bytes for people and pipes: format strings as rpk and kcat have them, and JSON lines."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from penstock import Record, errors
from penstock.cli.harmless import harmless_bytes, harmless_json

Render = Callable[[Record], bytes]
JSON = "json"
DEFAULT = r"%v\n"
_TOKEN = re.compile(r"%(.?)|\\(x[0-9A-Fa-f]{2}|.?)", re.DOTALL)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\", "e": b"\x1b"}

_FIELDS: Mapping[str, Callable[[Record], bytes]] = {
    "k": lambda record: record.key or b"",
    "v": lambda record: record.value or b"",
    "s": lambda record: record.value or b"",
    "K": lambda record: b"%d" % (-1 if record.key is None else len(record.key)),
    "S": lambda record: b"%d" % (-1 if record.value is None else len(record.value)),
    "V": lambda record: b"%d" % (-1 if record.value is None else len(record.value)),
    "o": lambda record: b"%d" % record.offset,
    "p": lambda record: b"%d" % record.partition,
    "t": lambda record: record.topic.encode(),
    "T": lambda record: b"%d" % record.timestamp,
    "d": lambda record: time_text(record.timestamp).encode(),
    "h": lambda record: headers_text(record.headers),
    "%": lambda _: b"%",
}


def renderer(text: str, *, to_terminal: bool = False) -> Render:
    """What writes a record as the text says; InvalidOption for what it does not know.

    What a record holds is written as it is, but ``to_terminal`` without control characters.
    """
    if text == JSON:
        return _safe_line if to_terminal else json_line
    parts = [_safe(one) if to_terminal else one for one in _parse(text)]
    return lambda record: b"".join(
        [one if isinstance(one, bytes) else one(record) for one in parts]
    )


def _safe(part: bytes | Render) -> bytes | Render:
    """The format is the user's own, and may have colours; what fills it is not."""
    return part if isinstance(part, bytes) else lambda record: harmless_bytes(part(record))


def _safe_line(record: Record) -> bytes:
    return harmless_json(json_line(record).decode()).encode()


def _parse(text: str) -> list[bytes | Render]:
    parts: list[bytes | Render] = []
    at = 0
    for match in _TOKEN.finditer(text):
        parts.append(text[at : match.start()].encode("utf-8", "surrogateescape"))
        parts.append(_part(match[1], match[2]))
        at = match.end()
    parts.append(text[at:].encode("utf-8", "surrogateescape"))
    return parts


def _part(field: str | None, escape: str | None) -> bytes | Render:
    if field is not None:
        if field not in _FIELDS:
            raise errors.InvalidOption(
                f"a format has no %{field}: use {', '.join('%' + one for one in _FIELDS)}, or json",
                option="format",
            )
        return _FIELDS[field]
    assert escape is not None, "one of the two matched"
    if len(escape) == 3:
        return bytes.fromhex(escape[1:])
    if escape not in _ESCAPES:
        raise errors.InvalidOption(
            f"a format has no \\{escape}: use \\n, \\t, \\r, \\0, \\e, \\\\ or \\x41",
            option="format",
        )
    return _ESCAPES[escape]


def json_line(record: Record) -> bytes:
    """A record as a line of JSON."""
    return msgspec.json.encode(plain_record(record)) + b"\n"


def plain_record(record: Record) -> dict[str, Any]:
    """A record as JSON has it; bytes that are no text as ``{"base64": "…"}``."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "time": time_text(record.timestamp),
        "key": plain_bytes(record.key),
        "value": plain_bytes(record.value),
        "headers": {name: plain_bytes(value) for name, value in record.headers.items()},
    }


def plain_bytes(data: bytes | None) -> str | dict[str, str] | None:
    """Text when it is text, else its base64."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def short_text(data: bytes | None, length: int = 60) -> str:
    """The beginning of some bytes, in a line for people."""
    if data is None:
        return "-"
    text = data[: length * 4].decode("utf-8", "replace").replace("\n", "\\n")
    return text if len(text) <= length else text[: length - 1] + "…"


def headers_text(headers: Mapping[str, bytes]) -> bytes:
    """Headers as kcat writes them."""
    return b",".join(b"%s=%s" % (name.encode(), value) for name, value in headers.items())


def time_text(milliseconds: int) -> str:
    """A time for people and programs: UTC, with milliseconds."""
    try:
        time = datetime.fromtimestamp(milliseconds / 1_000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
