"""Which partition a key belongs to: FNV-1a with 32 bits over the bytes of the key.

It is the same on every machine, in every process and in every version, so a key keeps its partition
across restarts; and a message has the same partition on the bus, in the log and on a transport,
as all of them ask here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import msgspec

from penstock.errors import InvalidOption
from penstock.speedups import compiled

FNV_BASIS = 0x811C9DC5
FNV_PRIME = 0x01000193
HASH_MASK = 0xFFFFFFFF

HASHES_KEPT = 16_384
"""How many hashes of short keys are remembered: a loop over bytes is slow in Python."""
KEPT_KEY_LENGTH_MAX = 64

_json = msgspec.json.Encoder(order="deterministic")


def python_fnv1a(key: bytes) -> int:
    """The 32-bit FNV-1a hash of a key."""
    value = FNV_BASIS
    for byte in key:
        value = (value ^ byte) * FNV_PRIME & HASH_MASK
    return value


fnv1a: Callable[[bytes], int] = python_fnv1a if compiled is None else compiled.fnv1a


def key_hash(key: object) -> int:
    """The hash of a key of any type; see :func:`key_bytes`. Those of short keys are remembered."""
    if key.__class__ is str and len(key) <= KEPT_KEY_LENGTH_MAX:
        return _hash_of_text(key)
    data = key_bytes(key)
    return _hash_of_bytes(data) if len(data) <= KEPT_KEY_LENGTH_MAX else fnv1a(data)


def key_bytes(key: object) -> bytes:
    """The bytes that stand for a key: what is hashed, and the key of the record in a log.

    Bytes stay as they are, text is UTF-8, whole numbers are their decimal digits. Everything else
    (booleans, floats, UUIDs, times, tuples, structs, enums of other values …) is its JSON, with the
    keys of mappings and the members of sets in order. So ``7`` and ``"7"`` are one key, ``1`` and
    ``True`` are two. Raises InvalidOption for what has no such form.
    """
    if isinstance(key, str):
        return _utf8(key)
    if isinstance(key, bytes | bytearray | memoryview):
        return bytes(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return int.__repr__(key).encode()
    try:
        return _json.encode(key)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise _no_key(key) from error


@lru_cache(HASHES_KEPT)
def _hash_of_text(key: str) -> int:
    return fnv1a(_utf8(key))


_hash_of_bytes = lru_cache(HASHES_KEPT)(fnv1a)


def _utf8(key: str) -> bytes:
    try:
        # str.encode and not key.encode: a subclass may have one of its own.
        return str.encode(key)
    except UnicodeEncodeError as error:
        raise _no_key(key) from error


def _no_key(key: object) -> InvalidOption:
    return InvalidOption(
        f"a {type(key).__name__} is not a key, as it has no stable bytes: use bytes, text, a number or "
        "something that msgspec encodes",
        option="key",
    )


def hashable(key: object) -> object:
    """What stands for a key in a dictionary: the key, or its text, which is the same for equal keys."""
    try:
        hash(key)
    except TypeError:
        return repr(key)  # of a list, say
    return key
