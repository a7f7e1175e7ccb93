"""Records as NATS messages, and back.

The payload is the value. The key, the producer's time and the headers of a record are headers of the
message: as they are where NATS can carry them so that others read them too, else as base64. Messages
of other producers are records without a key.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec
from nats.aio.msg import Msg

from penstock.log.records import NO_HEADERS
from penstock.transports.records import StreamRecord

KEY = "Penstock-Key"
KEY_64 = "Penstock-Key-64"
NULL = "Penstock-Null"
TIME = "Penstock-Time"
HEADERS_64 = "Penstock-Headers-64"
MESSAGE_ID = "Nats-Msg-Id"
BATCH_ID = "Nats-Batch-Id"
BATCH_SEQUENCE = "Nats-Batch-Sequence"
BATCH_COMMIT = "Nats-Batch-Commit"

_PLAIN = re.compile(rb"[!-~](?:[ -~]*[!-~])?")
_NAME = re.compile(r"(?!(?i:nats-|penstock-|status$|description$))[A-Za-z0-9_-]+")
_OURS = frozenset({KEY, KEY_64, NULL, TIME, HEADERS_64})
_PLAIN_TOKENS, _DOMAIN_TOKENS = 9, 11


def encoded_headers(
    key: bytes | None,
    value: bytes | None,
    headers: Mapping[str, bytes] | None,
    timestamp: int | None,
) -> dict[str, str]:
    """The headers of the message; its payload is the value, or nothing for None."""
    found: dict[str, str] = {}
    if key is not None:
        if _PLAIN.fullmatch(key):
            found[KEY] = key.decode()
        else:
            found[KEY_64] = b64encode(key).decode()
    if value is None:
        found[NULL] = "1"
    if timestamp is not None:
        found[TIME] = str(timestamp)
    if headers:
        _add_headers(found, headers)
    return found


def _add_headers(found: dict[str, str], headers: Mapping[str, bytes]) -> None:
    others: dict[str, bytes] = {}
    for name, value in headers.items():
        if _NAME.fullmatch(name) and _PLAIN.fullmatch(value):
            found[name] = value.decode()
        else:
            others[name] = value
    if others:
        found[HEADERS_64] = b64encode(msgspec.msgpack.encode(others)).decode()


class Delivered(NamedTuple):
    """What the reply subject of a delivered message says."""

    sequence: int
    """In the stream; the first one is 1."""
    consumer_sequence: int
    time_ms: int
    """When the server stored it."""


def delivered(message: Msg) -> Delivered | None:
    """Where a message comes from; None for a status message of the server."""
    tokens = message.reply.split(".")
    if tokens[0] != "$JS" or len(tokens) < _PLAIN_TOKENS:
        return None
    first = 5 if len(tokens) < _DOMAIN_TOKENS else 7
    sequence, consumer_sequence, nanoseconds = tokens[first : first + 3]
    return Delivered(int(sequence), int(consumer_sequence), int(nanoseconds) // 1_000_000)


def decoded(topic: str, partition: int, message: Msg, where: Delivered) -> StreamRecord:
    """The record in a message."""
    headers = message.headers
    if not headers:
        return StreamRecord(topic, partition, where.sequence - 1, where.time_ms, None, message.data)
    key = headers.get(KEY)
    if key is not None:
        key_bytes: bytes | None = key.encode()
    else:
        key_64 = headers.get(KEY_64)
        key_bytes = None if key_64 is None else b64decode(key_64)
    time = headers.get(TIME)
    return StreamRecord(
        topic,
        partition,
        where.sequence - 1,
        where.time_ms if time is None else int(time),
        key_bytes,
        None if NULL in headers else message.data,
        _headers(headers),
    )


def _headers(headers: Mapping[str, str]) -> Mapping[str, bytes]:
    found = {
        name: value.encode()
        for name, value in headers.items()
        if name not in _OURS and not name.startswith("Nats-")
    }
    others = headers.get(HEADERS_64)
    if others is not None:
        found |= msgspec.msgpack.decode(b64decode(others), type=dict[str, bytes])
    return MappingProxyType(found) if found else NO_HEADERS
