"""Changing a dead letter before it is replayed. The message as it failed is kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.errors import InvalidMessage, PenstockError, UsageError
from penstock.messages import check_type, dotted_name, marks_of
from penstock.resilience.letter_codec import LetterCodec
from penstock.resilience.letters import DeadLetter, Edit

EDITS_KEPT_MAX = 20


def with_message(
    letter: DeadLetter, message: Any, codec: LetterCodec | None, edit: Edit
) -> DeadLetter:
    """The letter with another message, which is checked as if it had come from the disk."""
    kind: type = type(message)
    check_type(kind)
    if codec is not None:
        message = _checked(codec, dotted_name(kind), message)
    first = not letter.edits or (letter.original is None and letter.original_raw is None)
    return noted(
        letter,
        edit,
        message=message,
        raw=None,
        message_type=dotted_name(kind),
        topic=marks_of(kind).topic,
        original=letter.message if first else letter.original,
        original_raw=letter.raw if first else letter.original_raw,
    )


def noted(letter: DeadLetter, edit: Edit, **fields: Any) -> DeadLetter:
    """The letter with some fields changed, and a note of it; the oldest notes go."""
    edits = (*letter.edits, edit)[-EDITS_KEPT_MAX:]
    return msgspec.structs.replace(letter, edits=edits, **fields)


def changed(message: Any, changes: Mapping[str, Any]) -> Any:
    """A copy of the message with some fields changed."""
    try:
        if isinstance(message, msgspec.Struct):
            return msgspec.structs.replace(message, **changes)
        if dataclasses.is_dataclass(message) and not isinstance(message, type):
            return dataclasses.replace(message, **changes)
        return message.model_copy(update=dict(changes))
    except (TypeError, AttributeError) as error:
        raise UsageError(
            f"the fields {', '.join(changes)} of this letter's message cannot be changed: {error}"
        ) from error


def decoded(letter: DeadLetter, raw: bytes, codec: LetterCodec | None) -> Any:
    """The message of other bytes for the letter."""
    message = None if codec is None else codec.read(letter.message_type, raw).message
    if message is None:
        raise InvalidMessage(
            f"these bytes are no {letter.message_type or 'message'}",
            type=letter.message_type,
            reason="they do not decode",
        )
    return message


def _checked(codec: LetterCodec, message_type: str, message: Any) -> Any:
    try:
        return codec.checked(message_type, message)
    except PenstockError:
        raise
    except Exception as error:
        raise InvalidMessage(
            f"the message would not decode: {error}", type=message_type, reason=str(error)
        ) from error
