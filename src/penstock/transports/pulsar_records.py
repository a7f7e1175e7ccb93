"""Records as Pulsar messages, and back.

The payload is the value, the partition key is the key, the event time is the producer's time, and headers
are properties: as they are where they are text so that others read them too, else as base64 in a property
of Penstock's own. Messages of other producers are records like any other.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import _pulsar  # type: ignore[import-not-found]
import msgspec

from penstock.log.records import NO_HEADERS
from penstock.transports.records import StreamRecord

OURS = "penstock."
KEY_64 = "penstock.key"
HEADERS_64 = "penstock.headers"
TIME = "penstock.time"


def encoded(
    value: bytes | None,
    key: bytes | None = None,
    headers: Mapping[str, bytes] | None = None,
    timestamp: int | None = None,
) -> Any:
    """One record as a message."""
    builder = _pulsar.MessageBuilder()
    if value is None:
        builder.set_null_value()
    elif isinstance(value, bytes):
        builder.content(value)
    else:
        raise TypeError(f"a value is a {type(value).__name__}, not bytes")
    if key is not None:
        _set_key(builder, key)
    if headers:
        _set_headers(builder, headers)
    if timestamp is not None:
        if timestamp > 0:
            builder.event_timestamp(timestamp)
        else:
            # No event time, for Pulsar.
            builder.property(TIME, str(timestamp))
    return builder.build()


def _set_key(builder: Any, key: bytes) -> None:
    text = _text(key)
    if text:
        builder.partition_key(text)
    else:
        encoded = b64encode(key).decode()
        builder.property(KEY_64, encoded)
        if encoded:
            # Brokers that share or compact by key see one too.
            builder.partition_key(encoded)


def _set_headers(builder: Any, headers: Mapping[str, bytes]) -> None:
    others: dict[str, bytes] = {}
    for name, value in headers.items():
        text = _text(value)
        if text is None or not name or name.startswith(OURS):
            others[name] = value
        else:
            builder.property(name, text)
    if others:
        builder.property(HEADERS_64, b64encode(msgspec.msgpack.encode(others)).decode())


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def decoded(topic: str, partition: int, first: int, messages: Sequence[Any]) -> list[StreamRecord]:
    """The records in messages of one entry, the first with this offset."""
    stored: int = messages[0].publish_timestamp()
    return [
        _decoded(topic, partition, offset, stored, message)
        for offset, message in enumerate(messages, first)
    ]


def _decoded(topic: str, partition: int, offset: int, stored: int, message: Any) -> StreamRecord:
    value: bytes | None = message.data()
    if not value and message.has_null_value():
        value = None
    text: str = message.partition_key()
    key = text.encode() if text else None
    time: int = message.event_timestamp() or stored
    properties: dict[str, str] = message.properties()
    if not properties:
        return StreamRecord(topic, partition, offset, time, key, value)
    if (encoded := properties.pop(KEY_64, None)) is not None:
        key = b64decode(encoded)
    if (given := properties.pop(TIME, None)) is not None:
        time = int(given)
    return StreamRecord(topic, partition, offset, time, key, value, _headers(properties))


def _headers(properties: dict[str, str]) -> Mapping[str, bytes]:
    others = properties.pop(HEADERS_64, None)
    found = {name: value.encode() for name, value in properties.items()}
    if others is not None:
        found |= msgspec.msgpack.decode(b64decode(others), type=dict[str, bytes])
    return MappingProxyType(found) if found else NO_HEADERS


def message_in(body: bytes, count: int, place: int) -> Any:
    """One of the messages of a batch."""
    batch = _pulsar.MessageBatch()
    batch.with_message_id(_pulsar.MessageId.earliest)
    batch.parse_from(body, count)
    return batch.messages()[place]
