"""The formats of messages, and the ways of pydantic."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from penstock.errors import InvalidOption
from penstock.messages import TYPES_CACHED


class Format(enum.StrEnum):
    """How a message is written."""

    JSON = "json"
    """Readable, and other languages have it. Cannot say NaN and infinity; such a message is refused."""
    MESSAGEPACK = "messagepack"
    """Smaller, and says everything."""


def format_named(name: Format | str) -> Format:
    """The format of that name."""
    try:
        return Format(name)
    except ValueError:
        known = ", ".join(repr(str(one)) for one in Format)
        raise InvalidOption(f"no format {name!r}: use {known}", option="format") from None


def format_of(data: bytes) -> Format:
    """Messages and envelopes are maps or lists, whose first byte tells the formats apart."""
    return Format.JSON if data[:1] < b"\x80" else Format.MESSAGEPACK


DECODERS: Mapping[Format, Any] = {
    Format.JSON: msgspec.json.Decoder,
    Format.MESSAGEPACK: msgspec.msgpack.Decoder,
}


def refuse_nan(message: Any) -> None:
    """JSON writes NaN and infinity as null, which would come back as something else, or not."""
    waiting = [_plain(message)]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list | tuple | set | frozenset):
            waiting += value
        elif isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"JSON has no {value}: use MessageCodec('messagepack')")


def _plain(message: Any) -> Any:
    if is_pydantic(type(message)):
        return adapter(message.__class__).dump_python(message)
    # What only a hook can encode has no NaN of its own in this place.
    return msgspec.to_builtins(message, enc_hook=repr)


# -------------------------------------------------------------------------------- pydantic


def is_pydantic(kind: type) -> bool:
    """Whether it is a model, or a dataclass, of pydantic. Does not import pydantic."""
    return hasattr(kind, "__pydantic_validator__")


@lru_cache(TYPES_CACHED)
def adapter(kind: type) -> Any:
    """What encodes and decodes a class of pydantic."""
    # Who has a class of pydantic has pydantic; nobody else pays for this import.
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def pydantic_decoder(kind: type, format: Format) -> Callable[[bytes], Any]:  # noqa: A002
    """What decodes a class of pydantic."""

    def from_json(data: bytes) -> Any:
        return adapter(kind).validate_json(data, by_alias=True, by_name=True)

    def from_messagepack(data: bytes) -> Any:
        # By way of JSON, because pydantic's rules for strings in JSON are the ones to apply.
        return from_json(msgspec.json.encode(msgspec.msgpack.decode(data)))

    return from_json if format is Format.JSON else from_messagepack
