"""What other clients write into streams of RabbitMQ: looked at before it is unpacked or decoded.

A few bytes may claim to be very much: a packed batch, or an array of a billion values without a byte each.
What is larger than it can be is not taken apart.
"""

from __future__ import annotations

import struct
import zlib

from penstock.errors import BrokerFailed

UNPACKED_BYTES_MAX = 64 * 1024 * 1024
"""Of a batch that a client packed; clients send frames of a megabyte."""
DEPTH_MAX = 32
GZIP_WINDOW = 31
DATA = b"\x00\x53\x75"
_BINARIES = {b"\xa0": 1, b"\xb0": 4}
"""Constructor → how many bytes its length takes."""
_HEAD = struct.Struct(">HII")
"""Of a batch: how many messages, their bytes, and the bytes that they are packed into."""
_SIZES = struct.Struct(">II")
_PLAIN, _GZIP = 0, 1
_FIXED = {0x40: 0, 0x50: 1, 0x60: 2, 0x70: 4, 0x80: 8, 0x90: 16}
"""High half of a constructor → the bytes of its value."""


class Unsound(ValueError):
    """Not a message of AMQP 1.0, or one that claims to be larger than it is."""


def unpacked(data: bytes, at: int) -> tuple[list[bytes], int]:
    """The messages of a batch that a client packed, and where it ends; ``at`` is its first byte."""
    try:
        count, told, size = _HEAD.unpack_from(data, at + 1)
        start = at + 1 + _HEAD.size
        whole = _unpack((data[at] & 0x70) >> 4, data[start : start + size], told)
        return _cut(whole, count), start + size
    except (struct.error, zlib.error, Unsound) as cause:
        raise BrokerFailed(
            f"another client packed records in a way that is not read here ({cause}): seek behind them, "
            "and let it send single messages or pack them with gzip"
        ) from cause


def _unpack(codec: int, data: bytes, told: int) -> bytes:
    if told > UNPACKED_BYTES_MAX:
        raise Unsound(f"{told} bytes, at most {UNPACKED_BYTES_MAX} are unpacked")
    if codec == _PLAIN:
        whole = data
    elif codec == _GZIP:
        whole = zlib.decompressobj(GZIP_WINDOW).decompress(data, told + 1)
    else:
        raise Unsound(f"compression {codec}")
    if len(whole) != told:
        raise Unsound("its size is not what it says")
    return whole


def _cut(whole: bytes, count: int) -> list[bytes]:
    found, at = [], 0
    for _ in range(count):
        size = int.from_bytes(whole[at : at + 4])
        at += 4 + size
        if at > len(whole):
            raise Unsound("it is cut off")
        found.append(whole[at - size : at])
    return found


def data_of(message: bytes) -> list[bytes]:
    """The sections of bytes in a message, of which the client's decoder gives the last one alone.

    Unsound when something in the message has more parts than bytes, or nests too deep.
    """
    found, at = [], 0
    while at < len(message):
        end = _skip(message, at, 0)
        if message[at : at + 3] == DATA and message[at + 3 : at + 4] in _BINARIES:
            found.append(message[at + 4 + _BINARIES[message[at + 3 : at + 4]] : end])
        at = end
    return found


def _skip(message: bytes, at: int, depth: int) -> int:
    """Where the value ends whose constructor is here."""
    kind, at = _constructor(message, at, depth)
    return _skip_value(message, kind, at, depth)


def _constructor(message: bytes, at: int, depth: int) -> tuple[int, int]:
    if depth > DEPTH_MAX or at >= len(message):
        raise Unsound("cut off, or nested too deep")
    if message[at]:
        return message[at], at + 1
    return _constructor(message, _skip(message, at + 1, depth + 1), depth + 1)


def _skip_value(message: bytes, kind: int, at: int, depth: int) -> int:
    group = kind & 0xF0
    if group in _FIXED:
        return _within(message, at + _FIXED[group])
    if group in (0xA0, 0xB0):
        width = 1 if group == 0xA0 else 4
        return _within(message, at + width + int.from_bytes(message[at : at + width]))
    if group >= 0xC0:
        return _skip_many(message, group, at, depth)
    raise Unsound(f"a value of kind {kind:#04x}")


def _skip_many(message: bytes, group: int, at: int, depth: int) -> int:
    """A list, a map or an array: its size is that of its parts and of their number."""
    width = 1 if group in (0xC0, 0xE0) else 4
    inside = at + width
    end = _within(message, inside + int.from_bytes(message[at:inside]))
    count = int.from_bytes(message[inside : inside + width])
    inside += width
    if count > max(0, end - inside):
        raise Unsound("more parts than bytes")
    if group < 0xE0:
        for _ in range(count):
            inside = _skip(message, inside, depth + 1)
    elif count:
        kind, inside = _constructor(message, inside, depth + 1)
        for _ in range(count):
            inside = _skip_value(message, kind, inside, depth + 1)
    if inside > end:
        raise Unsound("its parts are larger than it")
    return end


def _within(message: bytes, end: int) -> int:
    if end > len(message):
        raise Unsound("cut off")
    return end
