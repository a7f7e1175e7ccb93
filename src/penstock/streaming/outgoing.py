"""From what a program publishes to the bytes of records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.bus.encoding import MessageCodec
from penstock.bus.tracing import Tracing
from penstock.errors import InvalidOption
from penstock.hashing import key_bytes
from penstock.messages import Marks, dotted_name, key_reader, marks_of
from penstock.system import System

Headers = Mapping[str, bytes | str]
_PLAIN = (bytes, bytearray, memoryview, str)
ID_BITS = 128
TYPE, ID = "penstock-type", "penstock-id"
"""Headers of a message, as durable topics of a bus have them."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Records of one topic, as columns."""

    topic: str
    values: list[bytes | None]
    keys: list[bytes | None] | None
    headers: list[dict[str, bytes] | None] | None
    critical: bool = False

    def with_headers(self, added: Mapping[str, str]) -> Outgoing:
        """The same records with more headers."""
        if not added:
            return self
        more = encoded_headers(added)
        present = self.headers or [None] * len(self.values)
        return replace(self, headers=[{**(one or {}), **more} for one in present])


class Encoder:
    """Makes records of bytes, text and messages.

    A message goes through the codec, as on a durable topic of a bus: its class and an id stand in
    headers, and its key is that of its class. So a bus on the same log can read it, and the other
    way round.
    """

    def __init__(self, codec: MessageCodec, system: System) -> None:
        self.codec = codec
        self.tracing: Tracing | None = None
        """Makes spans of what is published and handled, when somebody wants them."""
        self._random = system.random

    def stamped(self, outgoing: Outgoing) -> Outgoing:
        """The records with the trace context in their headers, when there are traces."""
        if self.tracing is None:
            return outgoing
        count = len(outgoing.values)
        return outgoing.with_headers(self.tracing.stamp_topic(outgoing.topic, count))

    def topic_of(self, topic: str | type) -> str:
        """The name of a topic, or that of a class, which is known to the codec from now on."""
        if isinstance(topic, str):
            return topic
        self.codec.register(topic)
        return marks_of(topic).topic

    def one(self, topic: Any, value: Any, key: Any, headers: Headers | None) -> Outgoing:
        """One record. In place of the topic there may be a message, which knows its own."""
        if not isinstance(topic, str | type):
            if value is not None:
                raise InvalidOption("publish(message), or publish(topic, value)", option="value")
            topic, value = _marks(topic).topic, topic
        keys = None if key is None else [key]
        return self.many(topic, [value], keys, None if headers is None else [headers])

    def many(
        self,
        topic: str | type,
        values: Sequence[Any],
        keys: Sequence[Any] | None,
        headers: Sequence[Headers | None] | None,
    ) -> Outgoing:
        """Several records of one topic."""
        name = self.topic_of(topic)
        for option, column in (("keys", keys), ("headers", headers)):
            if column is not None and len(column) != len(values):
                raise InvalidOption(
                    f"{len(column)} {option} for {len(values)} values", option=option
                )
        given = [None if one is None else encoded_headers(one) for one in headers or ()] or None
        found = [None if one is None else key_bytes(one) for one in keys or ()] or None
        if all(value is None or isinstance(value, _PLAIN) for value in values):
            return Outgoing(name, [_plain(value) for value in values], found, given)
        return self._messages(name, values, found, given)

    def _messages(
        self,
        topic: str,
        values: Sequence[Any],
        keys: list[bytes | None] | None,
        headers: list[dict[str, bytes] | None] | None,
    ) -> Outgoing:
        found = keys or [None] * len(values)
        given = headers or [None] * len(values)
        rows = [
            self._message(value, key, row)
            for value, key, row in zip(values, found, given, strict=True)
        ]
        return Outgoing(
            topic,
            [data for data, _, _ in rows],
            [key for _, key, _ in rows],
            [row for _, _, row in rows],
            any(_marks(value).critical for value in values),
        )

    def _message(
        self, value: Any, key: bytes | None, headers: dict[str, bytes] | None
    ) -> tuple[bytes | None, bytes | None, dict[str, bytes] | None]:
        if value is None or isinstance(value, _PLAIN):
            return _plain(value), key, headers
        data = self.codec.encode(value)
        kind: type = value.__class__
        read = key_reader(kind)
        if key is None and read is not None and (own := read(value)) is not None:
            key = key_bytes(own)
        row = {
            TYPE: dotted_name(kind).encode(),
            ID: b"%032x" % self._random.getrandbits(ID_BITS),
            **(headers or {}),
        }
        return data, key, row


def _marks(message: Any) -> Marks:
    kind: type = message.__class__
    return marks_of(kind)


def encoded_headers(headers: Headers) -> dict[str, bytes]:
    """Headers as bytes; text is UTF-8."""
    return {
        name: value.encode() if isinstance(value, str) else bytes(value)
        for name, value in headers.items()
    }


def _plain(value: Any) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else bytes(value)
