"""Records as messages of AMQP 1.0, as RabbitMQ keeps them in streams, and back.

The value is the body, and the producer's time the creation time. The key is an annotation, and the
headers are application properties. Messages of other clients are records without a key.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from rstream import amqp_decoder

from penstock.log.records import NO_HEADERS
from penstock.transports.rabbitmq_foreign import DATA, data_of, unpacked
from penstock.transports.rabbitmq_wire import Chunk
from penstock.transports.records import StreamRecord

KEY = b"x-opt-penstock-key"
MARK = b"x-opt-penstock-mark"
MARK_BYTES = 13
_ANNOTATIONS, _PROPERTIES, _HEADERS = b"\x00\x53\x72", b"\x00\x53\x73", b"\x00\x53\x74"
_NULL = b"\x00\x53\x77\x40"
_SYMBOL = b"\xa3"
_KEY_NAME = _SYMBOL + bytes([len(KEY)]) + KEY
_MARK_NAME = _SYMBOL + bytes([len(MARK)]) + MARK + b"\xa0" + bytes([MARK_BYTES])
_TIME = _PROPERTIES + b"\xc0\x13\x0a" + b"\x40" * 9 + b"\x83"
"""A list of ten: nine that are not given, and the creation time."""
_SHORT = 256
_U32 = struct.Struct(">I")
_TIME_BYTES = struct.Struct(">q")


def encoded(
    value: bytes | None,
    key: bytes | None = None,
    headers: Mapping[str, bytes] | None = None,
    timestamp: int | None = None,
    mark: bytes | None = None,
) -> bytes:
    """One record as a message."""
    body = _NULL if value is None else DATA + _binary(value)
    if timestamp is not None:
        time = _TIME + _TIME_BYTES.pack(timestamp)
        body = (time + _map(_HEADERS, _pairs(headers)) if headers else time) + body
    elif headers:
        body = _map(_HEADERS, _pairs(headers)) + body
    if mark is not None:
        found = [_MARK_NAME + mark]
        if key is not None:
            found.append(_KEY_NAME + _binary(key))
        return _map(_ANNOTATIONS, found) + body
    if key is not None:
        return _map(_ANNOTATIONS, [_KEY_NAME + _binary(key)]) + body
    return body


def _pairs(headers: Mapping[str, bytes]) -> list[bytes]:
    return [_binary(name.encode(), b"\xa1", b"\xb1") + _binary(headers[name]) for name in headers]


def _binary(data: bytes, short: bytes = b"\xa0", long: bytes = b"\xb0") -> bytes:
    size = len(data)
    return short + size.to_bytes(1) + data if size < _SHORT else long + size.to_bytes(4) + data


def _map(section: bytes, pairs: list[bytes]) -> bytes:
    data = b"".join(pairs)
    size, count = len(data), 2 * len(pairs)
    if size + 1 < _SHORT and count < _SHORT:
        return section + bytes([0xC1, size + 1, count]) + data
    return section + b"\xd1" + (size + 4).to_bytes(4) + count.to_bytes(4) + data


def entries_of(chunk: Chunk) -> Iterator[bytes]:
    """The messages of a chunk, in order."""
    data, at = chunk.data, 0
    read = _U32.unpack_from
    for _ in range(chunk.entries):
        if data[at] & 0x80:
            # Several that another client compressed together.
            inner, at = unpacked(data, at)
            yield from inner
        else:
            (size,) = read(data, at)
            at += 4
            yield data[at : at + size]
            at += size


def marks_of(chunk: Chunk) -> Iterator[tuple[bytes, int]]:
    """The marks of producers in a chunk, and the offsets of the records that have them."""
    if MARK not in chunk.data:
        return
    for number, message in enumerate(entries_of(chunk)):
        at = message.find(_MARK_NAME)
        if at >= 0:
            start = at + len(_MARK_NAME)
            yield message[start : start + MARK_BYTES], chunk.first + number


def records_of(chunk: Chunk, topic: str, partition: int, start: int) -> list[StreamRecord]:
    """The records of a chunk from an offset on."""
    found = []
    offset = chunk.first
    for message in entries_of(chunk):
        if offset >= start:
            found.append(decoded(message, topic, partition, offset, chunk.time_ms))
        offset += 1
    return found


def decoded(message: bytes, topic: str, partition: int, offset: int, time_ms: int) -> StreamRecord:
    """The record in a message."""
    try:
        key, value, headers, time = _parsed(message)
    except (_OtherForm, IndexError, struct.error, UnicodeDecodeError):
        key, value, headers, time = _parsed_by_client(message)
    return StreamRecord(
        topic, partition, offset, time_ms if time is None else time, key, value, headers
    )


Parsed = tuple[bytes | None, bytes | None, Mapping[str, bytes], int | None]


class _OtherForm(Exception):
    """Not one of the forms that are written here."""


def _parsed(message: bytes) -> Parsed:
    """What :func:`encoded` wrote."""
    key: bytes | None = None
    time: int | None = None
    headers: Mapping[str, bytes] = NO_HEADERS
    at = 0
    while True:
        section = message[at : at + 3]
        at += 3
        if section == DATA:
            value, at = _read_binary(message, at)
            if at != len(message):
                raise _OtherForm
            return key, value, headers, time
        if section == _ANNOTATIONS:
            found, at = _read_map(message, at)
            key = found.get(KEY)
        elif section == _PROPERTIES and message.startswith(_TIME, at - 3):
            (time,) = _TIME_BYTES.unpack_from(message, at - 3 + len(_TIME))
            at += len(_TIME) + 5
        elif section == _HEADERS:
            found, at = _read_map(message, at)
            headers = MappingProxyType({name.decode(): found[name] for name in found})
        elif section == _NULL[:3] and message[at:] == _NULL[3:]:
            return key, None, headers, time
        else:
            raise _OtherForm


def _read_binary(message: bytes, at: int) -> tuple[bytes, int]:
    kind = message[at] if at < len(message) else 0
    if kind in (0xA0, 0xA1, 0xA3):
        start, size = at + 2, message[at + 1]
    elif kind in (0xB0, 0xB1, 0xB3):
        start, size = at + 5, int.from_bytes(message[at + 1 : at + 5])
    else:
        raise _OtherForm
    return message[start : start + size], start + size


def _read_map(message: bytes, at: int) -> tuple[dict[bytes, bytes], int]:
    kind = message[at]
    if kind == 0xC1:
        count, at = message[at + 2], at + 3
    elif kind == 0xD1:
        count, at = int.from_bytes(message[at + 5 : at + 9]), at + 9
    else:
        raise _OtherForm
    found: dict[bytes, bytes] = {}
    for _ in range(count // 2):
        name, at = _read_binary(message, at)
        found[name], at = _read_binary(message, at)
    return found, at


def _parsed_by_client(message: bytes) -> Parsed:
    """What another client wrote; bytes that are no message are a value."""
    try:
        pieces = data_of(message)
        return _read(amqp_decoder(message), pieces)
    except Exception:
        return None, message, NO_HEADERS, None


def _read(found: Any, pieces: list[bytes]) -> Parsed:
    names = found.application_properties or {}
    headers = {as_bytes(name).decode(errors="replace"): as_bytes(names[name]) for name in names}
    created = getattr(found.properties, "creation_time", None)
    time = created if isinstance(created, int) else None
    key = (found.message_annotations or {}).get(KEY)
    value = b"".join(pieces) if pieces else _value(found)
    return key if isinstance(key, bytes) else None, value, MappingProxyType(headers), time


def _value(found: Any) -> bytes | None:
    """The bytes of a message; of other values, which have no bytes, their text."""
    bodies = (found.body, found.sequence, found.value)
    value = next((one for one in bodies if one is not None), None)
    return None if value is None else as_bytes(value)


def as_bytes(value: object) -> bytes:
    """What came as bytes stays; anything else becomes text."""
    return (
        bytes(value) if isinstance(value, bytes | bytearray | memoryview) else str(value).encode()
    )
