"""Decoders of classes, made by one thread at a time.

msgspec finds out what a class is made of when it first decodes one. Two threads that are the first to do
so, for a class with others inside, crash the process (0.22). Whatever decodes into a class gets its decoder
here, at best when its module is imported.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

CLASSES_KNOWN_MAX = 4_096

_T = TypeVar("_T")
_making = threading.Lock()


def decoder_of(
    kind: type[_T], make: Callable[..., Any] = msgspec.json.Decoder, **options: Any
) -> Callable[[bytes | str], _T]:
    """What makes objects of a class from JSON, or from what ``make`` decodes."""
    with _making:
        decode: Callable[[bytes | str], _T] = make(kind, **options).decode
    return decode


@lru_cache(CLASSES_KNOWN_MAX)
def prepare(kind: type) -> None:
    """Have msgspec know what a class is made of, before it is used without a decoder."""
    decoder_of(kind)
