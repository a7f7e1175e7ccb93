"""Messages as bytes: JSON or MessagePack, checked against their class when they come back.

Bytes come from disks, networks and older versions of a program. Decoding therefore never trusts
them: what does not fit its class raises InvalidMessage with the reason, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from penstock.bus.formats import (
    DECODERS,
    Format,
    adapter,
    format_named,
    format_of,
    is_pydantic,
    pydantic_decoder,
    refuse_nan,
)
from penstock.decoding import decoder_of
from penstock.errors import InvalidMessage, InvalidOption
from penstock.messages import (
    DEFAULT_SESSION,
    NO_HEADERS,
    Envelope,
    Priority,
    check_type,
    dotted_name,
    marks_of,
)

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""The largest message that is encoded or decoded, unless the codec is told otherwise."""
ENVELOPE_BYTES_MAX = 64 * 1024
"""What an encoded envelope may have beside its message: names, headers, identifiers."""
SEQUENCE = re.compile("0|[1-9][0-9]{0,18}")


class EncodedEnvelope(msgspec.Struct, frozen=True, omit_defaults=True):
    """An envelope as it is stored. It can be looked at when its payload does not decode."""

    type: str
    """The dotted name of the message's class."""
    topic: str
    """Its topic; finds the class again when that has moved to another module."""
    id: str
    time_ms: int
    payload: msgspec.Raw
    """The encoded message."""
    session: str = DEFAULT_SESSION
    priority: int = int(Priority.NORMAL)
    headers: dict[str, str] = {}
    correlation_id: str | None = None
    causation_id: str | None = None


_DECODERS = {
    Format.JSON: decoder_of(EncodedEnvelope),
    Format.MESSAGEPACK: decoder_of(EncodedEnvelope, msgspec.msgpack.Decoder),
}


class MessageCodec:
    """Encodes messages, and decodes those whose classes it knows.

    Events and commands, dataclasses and pydantic models. A class is known when it was registered,
    when a message of it was encoded, or when it is derived from one that is known. ``encode_hook``
    and ``decode_hook`` are msgspec's, for field types of your own. A field comes back as the type
    that it is declared with. Fields that a class does not have (any more) are passed over.
    """

    def __init__(
        self,
        format: Format | str = Format.JSON,  # noqa: A002 - it is the word for it
        *,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        encode_hook: Callable[[Any], Any] | None = None,
        decode_hook: Callable[[type, Any], Any] | None = None,
    ) -> None:
        if message_bytes_max < 1:
            raise InvalidOption(
                f"message_bytes_max {message_bytes_max}: use 1 or more", option="message_bytes_max"
            )
        self.format = format_named(format)
        self.message_bytes_max = message_bytes_max
        self._decode_hook = decode_hook
        self._encoders: dict[Format, Any] = {
            Format.JSON: msgspec.json.Encoder(enc_hook=encode_hook),
            Format.MESSAGEPACK: msgspec.msgpack.Encoder(enc_hook=encode_hook),
        }
        self._encoder = self._encoders[self.format]
        self._by_name: dict[str, type] = {}
        self._by_topic: dict[str, dict[str, type]] = {}
        self._names: dict[type, tuple[str, str]] = {}
        """Dotted name and topic, of classes that were seen."""
        self._decoders: dict[tuple[type, Format], Callable[[bytes], Any]] = {}

    # Classes

    def register(self, kind: type, *names: str) -> None:
        """Make a class known, by its dotted name, its topic, and names that it had in the past.

        Of two classes with one name the later one counts. Several classes may share a topic; they
        are then found by their dotted names alone.
        """
        name, topic = dotted_name(kind), marks_of(kind).topic
        if self._by_name.get(name) is not kind:
            check_type(kind)
            self._by_name[name] = kind
            self._by_topic.setdefault(topic, {})[name] = kind
            self._names[kind] = (name, topic)
        for former in names:
            self._by_name[former] = kind

    def name_of(self, message: Any) -> str:
        """What :meth:`decode` wants to hear as the type of this message: its dotted name."""
        return dotted_name(type(message))

    def type_of(self, name: str) -> type:
        """The class of that dotted name or topic; InvalidMessage when it is not known."""
        kind = self._find(name)
        if kind is None:
            raise InvalidMessage(
                f"no message class {name!r} is known: import it and register it with "
                "codec.register(), or register a handler for it",
                type=name,
                topic=name,
                reason="the class is not known",
            )
        return kind

    def _find(self, name: str) -> type | None:
        kind = self._by_name.get(name) or self._only_one_of(name)
        return kind if kind is not None else self._find_derived(name)

    def _only_one_of(self, topic: str) -> type | None:
        kinds = self._by_topic.get(topic, {})
        return next(iter(kinds.values())) if len(kinds) == 1 else None

    def _find_derived(self, name: str) -> type | None:
        """A class derived from a known one, by its dotted name, or by a topic that only it has."""
        derived = list(_derived(list(self._by_name.values())))
        named = [kind for kind in derived if dotted_name(kind) == name][-1:]
        found = named or [kind for kind in derived if _own_topic(kind) == name]
        if len(found) != 1:
            return None
        self.register(found[0])
        return found[0]

    # Messages

    def encode(self, message: Any) -> bytes:
        """The message as bytes; InvalidMessage when it cannot be said in this format."""
        kind: type = message.__class__
        if kind not in self._names:
            self.register(kind)
        try:
            return self._checked(message, self._encode(kind, message))
        except Exception as error:
            raise _invalid(kind, "does not encode", error) from error

    def _checked(self, message: Any, data: bytes) -> bytes:
        self._check_size(len(data))
        if format_of(data) is not self.format:
            raise ValueError("it is a plain value: a message has fields")
        if b"null" in data and self.format is Format.JSON:
            refuse_nan(message)
        return data

    def decode(self, type_name: str, data: bytes) -> Any:
        """The message of that class; InvalidMessage when the bytes are not one."""
        return self._decode(self.type_of(type_name), data, self.format)

    def _encode(self, kind: type, message: Any) -> bytes:
        if not is_pydantic(kind):
            encoded = self._encoder.encode(message)
        elif self.format is Format.JSON:
            encoded = adapter(kind).dump_json(message, round_trip=True)
        else:
            plain = adapter(kind).dump_python(message, mode="json", round_trip=True)
            encoded = self._encoder.encode(plain)
        return encoded  # type: ignore[no-any-return]  # encoders are of several kinds

    def _decode(self, kind: type, data: bytes, format: Format) -> Any:  # noqa: A002
        try:
            self._check_size(len(data))
            return self._decoder(kind, format)(data)
        except Exception as error:
            raise _invalid(kind, "does not decode", error) from error

    def _decoder(self, kind: type, format: Format) -> Callable[[bytes], Any]:  # noqa: A002
        decoder = self._decoders.get((kind, format))
        if decoder is None:
            if is_pydantic(kind):
                decoder = pydantic_decoder(kind, format)
            else:
                decoder = decoder_of(kind, DECODERS[format], dec_hook=self._decode_hook)
            self._decoders[kind, format] = decoder
        return decoder

    def _check_size(self, size: int) -> None:
        if size > self.message_bytes_max:
            raise ValueError(f"it has {size} bytes, the limit is {self.message_bytes_max}")

    # Envelopes

    def encode_envelope(self, envelope: Envelope) -> bytes:
        """A whole envelope as bytes, the message included; InvalidMessage when that cannot be."""
        return self.encode_sealed(self.seal(envelope))

    def encode_sealed(self, encoded: EncodedEnvelope) -> bytes:
        """An envelope as bytes, in the format that its payload has."""
        try:
            payload = bytes(encoded.payload)
            data: bytes = self._encoders[format_of(payload)].encode(encoded)
            _check_envelope_size(len(data) - len(payload))
        except Exception as error:
            raise _invalid_envelope(encoded.topic, "does not encode", error) from error
        return data

    def seal(self, envelope: Envelope) -> EncodedEnvelope:
        """The envelope with its message encoded."""
        payload = msgspec.Raw(self.encode(envelope.message))
        name, topic = self._names[envelope.message.__class__]
        return EncodedEnvelope(
            name,
            topic,
            envelope.id,
            envelope.time_ms,
            payload,
            envelope.session,
            int(envelope.priority),
            _checked_headers(topic, envelope.headers) if envelope.headers else {},
            envelope.correlation_id,
            envelope.causation_id,
        )

    def read_envelope(self, data: bytes) -> EncodedEnvelope:
        """What stands on an envelope, in either format; its message is not decoded yet."""
        try:
            self._check_size(len(data) - ENVELOPE_BYTES_MAX)
            encoded: EncodedEnvelope = _DECODERS[format_of(data)](data)
        except Exception as error:
            raise _invalid_envelope("", "does not decode", error) from error
        return encoded

    def open_envelope(self, encoded: EncodedEnvelope) -> Envelope:
        """The envelope with its message; InvalidMessage when that does not decode."""
        payload = bytes(encoded.payload)
        message = self._decode(self.class_of(encoded), payload, format_of(payload))
        return _envelope(encoded, message)

    def class_of(self, encoded: EncodedEnvelope) -> type:
        """The class of its message, by name or else by topic; InvalidMessage when not known."""
        return self._find(encoded.type) or self.type_of(encoded.topic)

    def decode_envelope(self, data: bytes) -> Envelope:
        """A whole envelope from bytes, in either format."""
        return self.open_envelope(self.read_envelope(data))


def _derived(kinds: list[type]) -> Iterator[type]:
    """The classes that are derived from these, near and far."""
    seen: set[type] = set()
    while kinds:
        derived: list[type] = type.__subclasses__(kinds.pop())
        for kind in derived:
            if kind not in seen:
                seen.add(kind)
                kinds.append(kind)
                yield kind


def _own_topic(kind: type) -> str | None:
    topic: str | None = kind.__dict__.get("__penstock_marks__", {}).get("topic")
    return topic


def _envelope(encoded: EncodedEnvelope, message: Any) -> Envelope:
    if not encoded.id or encoded.priority not in set(Priority):
        error = ValueError(f"no bus gives the id {encoded.id!r} or the priority {encoded.priority}")
        raise _invalid_envelope(encoded.topic, "is wrong", error)
    origin, _, sequence = encoded.id.rpartition("-")
    usual = SEQUENCE.fullmatch(sequence) is not None
    return Envelope(
        message,
        int(sequence) if usual else 0,
        encoded.time_ms,
        origin if usual else "",
        encoded.session,
        encoded.priority,
        encoded.headers or NO_HEADERS,
        encoded.correlation_id,
        encoded.causation_id,
        given_id=None if usual else encoded.id,
    )


def _checked_headers(topic: str, headers: Mapping[str, str]) -> dict[str, str]:
    try:
        return msgspec.convert(dict(headers), dict[str, str])
    except Exception as error:
        raise _invalid_envelope(topic, "has headers that are not text", error) from error


def _check_envelope_size(size: int) -> None:
    if size > ENVELOPE_BYTES_MAX:
        raise ValueError(f"{size} bytes beside the message, the limit is {ENVELOPE_BYTES_MAX}")


def _invalid(kind: type, what: str, error: Exception) -> InvalidMessage:
    name, reason = dotted_name(kind), str(error) or type(error).__name__
    return InvalidMessage(
        f"a message of {name} {what}: {reason}",
        type=name,
        topic=marks_of(kind).topic,
        reason=reason,
    )


def _invalid_envelope(topic: str, what: str, error: Exception) -> InvalidMessage:
    reason = str(error) or type(error).__name__
    return InvalidMessage(
        f"an envelope {f'of {topic} ' if topic else ''}{what}: {reason}", topic=topic, reason=reason
    )
