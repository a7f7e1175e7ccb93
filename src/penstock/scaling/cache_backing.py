"""What stands behind a cache: a store of bytes, and how keys and values become names and bytes."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, NamedTuple, Protocol

from penstock.errors import InvalidOption, KeyNotFound, StorageError
from penstock.scaling.cache_policies import Key, Value


class ByteStore(Protocol):
    """The calls of a store that a cache makes, from threads; ``PersistentBackingStore`` has them.

    ``write`` and ``delete`` are durable when they return. ``read`` raises KeyNotFound. To delete what
    is not there is no error.
    """

    def write(self, key: str, data: bytes) -> None:
        """Set the whole value."""
        ...

    def read(self, key: str) -> bytes:
        """The whole value."""
        ...

    def delete(self, key: str) -> None:
        """Remove the value."""
        ...

    def list(self, prefix: str) -> list[str]:
        """All names that start with the prefix, in order."""
        ...


class Loaded(NamedTuple, Generic[Key, Value]):
    """A value that was read from the store, and how many bytes it has there."""

    key: Key
    value: Value
    size: int


class Preview(NamedTuple, Generic[Key, Value]):
    """What a warm start found, newest first."""

    loaded: list[Loaded[Key, Value]]
    unreadable: int


def _text_name(key: object) -> str:
    if isinstance(key, str):
        return key
    raise InvalidOption(
        f"a key of type {type(key).__name__} needs key_name and key_parse", option="key_name"
    )


def _same_text(name: str) -> Any:
    return name


@dataclass(frozen=True, kw_only=True)  # no slots: CacheBacking[int, str](...) sets an attribute
class CacheBacking(Generic[Key, Value]):
    """Where a cache writes through to.

    All names that begin with ``prefix`` belong to the cache. ``encode`` runs when ``put`` is
    called, ``decode`` in the thread that reads. Keys that are not text need ``key_name`` and
    ``key_parse``, which undoes it: for whole numbers, ``str`` and ``int``.
    """

    store: ByteStore
    prefix: str
    """Ends with a slash."""
    encode: Callable[[Value], bytes]
    decode: Callable[[bytes], Value]
    key_name: Callable[[Key], str] = _text_name
    key_parse: Callable[[str], Key] = _same_text

    def __post_init__(self) -> None:
        if len(self.prefix) < 2 or not self.prefix.endswith("/"):
            raise InvalidOption(
                f"the prefix of a cache is a name with a slash at its end, not {self.prefix!r}: "
                "clear() deletes all that begins with it",
                option="prefix",
            )

    def name_of(self, key: Key) -> str:
        """The name of a key in the store."""
        return f"{self.prefix}{self.key_name(key)}"

    def read(self, key: Key) -> Loaded[Key, Value] | None:
        """The value of a key, None when there is none. What does not decode raises."""
        try:
            data = self.store.read(self.name_of(key))
        except KeyNotFound:
            return None
        return Loaded(key, self.decode(data), len(data))

    def clear(self) -> None:
        """Delete all values. When it raises, some are deleted."""
        for name in self.store.list(self.prefix):
            self.store.delete(name)

    def preview(
        self, entries_max: int, newest: Callable[[Key, Value], Any] | None
    ) -> Preview[Key, Value]:
        """The values with the largest ``newest``, or with the last names; the newest first.

        Values that do not decode are counted and passed over: who asks for one hears of it.
        """
        names = self.store.list(self.prefix)
        unreadable: list[str] = []
        found = self._readable(reversed(names), unreadable)
        if newest is None:
            chosen = list(islice(found, entries_max))
        else:
            chosen = heapq.nlargest(entries_max, found, lambda one: newest(one.key, one.value))
        return Preview(chosen, len(unreadable))

    def _readable(
        self, names: Iterable[str], unreadable: list[str]
    ) -> Iterator[Loaded[Key, Value]]:
        for name in names:
            try:
                found = self.read(self.key_parse(name.removeprefix(self.prefix)))
            except StorageError:
                raise
            except Exception:
                unreadable.append(name)
            else:
                if found is not None:
                    yield found
