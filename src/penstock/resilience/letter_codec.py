"""Dead letters as bytes. A letter can be read when the class of its message is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from penstock.decoding import decoder_of
from penstock.resilience.describe import text_of
from penstock.resilience.letters import DeadLetter, Edit, Reason

Encode = Callable[[Any], bytes]
"""A message as bytes."""
Decode = Callable[[str, bytes], Any]
"""The message of a class, given by its dotted name, from bytes."""


class Payload(NamedTuple):
    """A message, or its bytes when there is no message."""

    message: Any
    raw: bytes | None


_decode_letter = decoder_of(DeadLetter)


class LetterCodec:
    """Encodes letters as JSON, and their messages with what it is given."""

    def __init__(self, encode: Encode, decode: Decode) -> None:
        self._encode = encode
        self._decode = decode
        self._encoder = msgspec.json.Encoder(enc_hook=str)

    def encode(self, letter: DeadLetter) -> bytes:
        """The letter as bytes. A message that does not encode is left out, and the letter says so."""
        edits = letter.edits
        try:
            raw = self.payload(letter.message, letter.raw)
            original_raw = self.payload(letter.original, letter.original_raw)
        except Exception as error:
            edits += (Edit(letter.last_failed_ms, "the message was lost", text_of(error)),)
            raw, original_raw = letter.raw, letter.original_raw
        return self._encoder.encode(
            msgspec.structs.replace(
                letter,
                message=None,
                raw=raw,
                original=None,
                original_raw=original_raw,
                edits=edits,
            )
        )

    def payload(self, message: Any, raw: bytes | None) -> bytes | None:
        """The bytes of a message, or those that there are instead."""
        return raw if message is None else self._encode(message)

    def decode(self, letter_id: str, data: bytes) -> DeadLetter:
        """The letter. Bytes that are no letter become one that holds them, to be looked at."""
        try:
            letter = _decode_letter(data)
        except msgspec.MsgspecError as error:
            return _unreadable(letter_id, data, error)
        message, raw = self.read(letter.message_type, letter.raw)
        original, original_raw = self.read(letter.message_type, letter.original_raw)
        return msgspec.structs.replace(
            letter, message=message, raw=raw, original=original, original_raw=original_raw
        )

    def read(self, message_type: str, raw: bytes | None) -> Payload:
        """The message of these bytes; the bytes when they do not decode."""
        if raw is None:
            return Payload(None, None)
        try:
            return Payload(self._decode(message_type, raw), None)
        except Exception:  # what a decoder of somebody else may raise, nobody knows
            return Payload(None, raw)

    def checked(self, message_type: str, message: Any) -> Any:
        """The message as it would come back; raises what is wrong with it."""
        return self._decode(message_type, self._encode(message))


def _unreadable(letter_id: str, data: bytes, error: Exception) -> DeadLetter:
    return DeadLetter(
        id=letter_id,
        topic="",
        message_type="",
        reason=Reason.NOT_DECODED,
        raw=data,
        error_type="InvalidMessage",
        error=f"this is no dead letter that this version can read: {error}",
    )
