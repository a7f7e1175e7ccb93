"""What the entries of a stream of keys say, with bounds on all that a stranger may have written there.

Nothing here waits or talks to a server. Whoever may write to the stream may write anything: what does not have
the form of an entry is passed over, by everybody alike, and warned of once.
"""

from __future__ import annotations

import logging
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple, cast

import msgspec

from penstock.decoding import decoder_of
from penstock.transports.broker_groups import Listener
from penstock.transports.kv_groups import Entry, Key
from penstock.transports.rabbitmq_records import encoded
from penstock.transports.rabbitmq_wire import Chunk

PUT, DELETE, RING, LOOK, SUMMARY = "p", "d", "r", "l", "s"
ID_BYTES = 8
KEYS_MAX = 200_000
KEYS_BYTES_MAX = 16 * 1024 * 1024
"""Of all keys and their values. A write that would make them more does not hold."""
UNPACKED_BYTES_MAX = 32 * 1024 * 1024
"""Of a summary: the most keys, and what stands around them."""
PARTS_MAX = 1_024
PARTS_BYTES_MAX = 32 * 1024 * 1024
"""Of all summaries that are not whole yet. The oldest are given up for newer ones."""
SUMMARIES_MAX = 16
EARLY_BYTES_MAX = 32 * 1024 * 1024
EARLY_EXTRA_BYTES = 200
"""What an entry takes beside its bytes."""
SUB_ENTRY = 0x80
"""Marks several messages that a client packed together; nobody packs entries."""
_log = logging.getLogger("penstock.transports.rabbitmq")

Number = Annotated[bytes, msgspec.Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Part = Annotated[str, msgspec.Meta(max_length=1_024)]
Words = Annotated[tuple[Part, ...], msgspec.Meta(max_length=16)]


class Put(msgspec.Struct, tag=PUT, array_like=True, frozen=True):
    """Write a key, if it is at this revision."""

    number: Number
    key: Words
    value: bytes
    revision: Offset


class Delete(msgspec.Struct, tag=DELETE, array_like=True, frozen=True):
    """Remove a key."""

    number: Number
    key: Words


class Ring(msgspec.Struct, tag=RING, array_like=True, frozen=True):
    """Call those who follow a key."""

    number: Number
    key: Words


class Look(msgspec.Struct, tag=LOOK, array_like=True, frozen=True):
    """Nothing: whoever wrote it waits until it comes by."""

    number: Number
    key: Words


class SummaryPart(msgspec.Struct, tag=SUMMARY, array_like=True, frozen=True):
    """A part of all keys as they were before an offset."""

    number: Number
    upto: Offset
    count: Annotated[int, msgspec.Meta(ge=1, le=PARTS_MAX)]
    part: bytes


class KeptKey(msgspec.Struct, array_like=True, frozen=True):
    """A key in a summary."""

    key: Words
    value: bytes
    revision: Offset


Change = Put | Delete | Ring | Look
_Kept = Annotated[list[KeptKey], msgspec.Meta(max_length=KEYS_MAX)]
_decode: Callable[[bytes], Change | SummaryPart] = cast(
    "Any", decoder_of(cast("Any", Change | SummaryPart), msgspec.msgpack.Decoder)
)
_decode_kept: Callable[[bytes], list[KeptKey]] = cast(
    "Any", decoder_of(cast("Any", _Kept), msgspec.msgpack.Decoder)
)


class Came(NamedTuple):
    """An entry came by: the number that it has, and the new revision when it is a write that holds."""

    number: bytes
    revision: int | None
    time_ms: int


class _Early(NamedTuple):
    offset: int
    time_ms: int
    entry: Change
    size: int


class _Misfit(Exception):
    """Not what an entry or a summary may be."""


class KeyTable:
    """The keys as they are after the entries that were taken, in their order."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._warned: set[str] = set()
        self.listeners: dict[Key, set[Listener]] = {}
        self.restart(0)

    def restart(self, first: int) -> None:
        """Know nothing; ``first`` is the offset of the first entry that will come."""
        self._first = first
        self._whole = first == 0
        self._keys: dict[Key, Entry] = {}
        self._keys_bytes = 0
        self._early: deque[_Early] = deque()
        self._early_bytes = 0
        self._early_from = first
        self._summaries: OrderedDict[bytes, list[SummaryPart]] = OrderedDict()
        self._parts_bytes = 0
        self.bytes = 0
        """Of entries since the last summary."""

    # Entries

    def take(self, offset: int, time_ms: int, message: bytes) -> list[Came]:
        """Do what a message says; the entries that came by. Nothing for what is no entry."""
        self.bytes += len(message)
        try:
            entry = _entry_of(message)
            if isinstance(entry, SummaryPart):
                return self._take_part(entry)
        except _Misfit as misfit:
            self._warn(str(misfit))
            return []
        if not self._whole:
            self._keep(_Early(offset, time_ms, entry, len(message) + EARLY_EXTRA_BYTES))
            return []
        return [Came(entry.number, self._apply(offset, entry), time_ms)]

    def _keep(self, early: _Early) -> None:
        """For when the keys are known, which is when a summary has come."""
        self._early.append(early)
        self._early_bytes += early.size
        while self._early_bytes > EARLY_BYTES_MAX:
            lost = self._early.popleft()
            self._early_bytes -= lost.size
            self._early_from = lost.offset + 1

    def _apply(self, offset: int, entry: Change) -> int | None:
        """Do what an entry says; the new revision when it is a write that holds."""
        if isinstance(entry, Put):
            return self._put(offset, entry)
        if isinstance(entry, Delete):
            self._remove(entry.key)
        elif isinstance(entry, Ring):
            for listener in list(self.listeners.get(entry.key, ())):
                listener()
        return None

    def _put(self, offset: int, entry: Put) -> int | None:
        before = self._keys.get(entry.key)
        if (0 if before is None else before.revision) != entry.revision:
            return None
        if not self.has_room(entry.key, entry.value):
            self._warn(f"more than {KEYS_MAX} keys or {KEYS_BYTES_MAX} bytes of them")
            return None
        self._remove(entry.key)
        self._keys[entry.key] = Entry(entry.value, offset + 1)
        self._keys_bytes += _size(entry.key, entry.value)
        return offset + 1

    def _remove(self, key: Key) -> None:
        before = self._keys.pop(key, None)
        if before is not None:
            self._keys_bytes -= _size(key, before.value)

    # Summaries

    def summary(self) -> bytes:
        """All keys, packed."""
        whole = [[list(key), *entry] for key, entry in self._keys.items()]
        return zlib.compress(msgspec.msgpack.encode(whole))

    def _take_part(self, part: SummaryPart) -> list[Came]:
        if self._whole:
            # Only how many there were matters then.
            part = msgspec.structs.replace(part, part=b"")
        parts = self._summaries.setdefault(part.number, [])
        parts.append(part)
        self._parts_bytes += len(part.part)
        if len({(one.upto, one.count) for one in parts}) > 1:
            self._drop_summary(part.number)
            raise _Misfit("parts of a summary that do not belong together")
        if len(parts) == part.count:
            self._drop_summary(part.number)
            self.bytes = 0
            return self._begin_with(part.upto, b"".join(one.part for one in parts))
        while len(self._summaries) > SUMMARIES_MAX or self._parts_bytes > PARTS_BYTES_MAX:
            self._drop_summary(next(iter(self._summaries)))
        return []

    def _drop_summary(self, number: bytes) -> None:
        self._parts_bytes -= sum(len(one.part) for one in self._summaries.pop(number))

    def _begin_with(self, upto: int, data: bytes) -> list[Came]:
        if self._whole or upto < self._first:
            return []
        if upto < self._early_from:
            raise _Misfit("a summary that came too late")
        kept = _unpacked(data)
        self._keys = {one.key: Entry(one.value, one.revision) for one in kept}
        self._keys_bytes = sum(_size(key, entry.value) for key, entry in self._keys.items())
        self._whole = True
        early, self._early, self._early_bytes = self._early, deque(), 0
        return [
            Came(one.entry.number, self._apply(one.offset, one.entry), one.time_ms)
            for one in early
            if one.offset >= upto
        ]

    # Keys

    def has_room(self, key: Key, value: bytes) -> bool:
        """Whether a key may be written."""
        before = self._keys.get(key)
        count = len(self._keys) + (before is None)
        more = _size(key, value) - (0 if before is None else _size(key, before.value))
        return count <= KEYS_MAX and self._keys_bytes + more <= KEYS_BYTES_MAX

    def entry(self, key: Key) -> Entry | None:
        """What a key held when the last entry came by."""
        return self._keys.get(key)

    def under(self, under: Key) -> list[Key]:
        """All keys that begin so."""
        return [key for key in self._keys if key[: len(under)] == under]

    def _warn(self, what: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            _log.warning("the stream %r holds %s: it is passed over", self._stream, what)


def messages_of(chunk: Chunk) -> Iterator[tuple[int, bytes]]:
    """The messages of a chunk that may be entries, and their offsets.

    What a client packed together is not unpacked. A chunk that ends too early ends there.
    """
    data, at, offset = chunk.data, 0, chunk.first
    for _ in range(chunk.entries):
        if at >= len(data):
            return
        if data[at] & SUB_ENTRY:
            offset += int.from_bytes(data[at + 1 : at + 3])
            at += 11 + int.from_bytes(data[at + 7 : at + 11])
        else:
            start = at + 4
            at = start + int.from_bytes(data[at:start])
            yield offset, data[start:at]
            offset += 1


def _entry_of(message: bytes) -> Change | SummaryPart:
    try:
        return _decode(_body_of(message))
    except (msgspec.MsgspecError, UnicodeError):
        raise _Misfit("messages that are no entries") from None


def _body_of(message: bytes) -> bytes:
    """The value, in the one form that entries are written in.

    The decoder of the client would read any form, and take minutes and gigabytes for forty bytes of some.
    """
    short = message[3:4] == b"\xa0"
    start = 5 if short else 8
    body = message[start:]
    if message[:start] != encoded(body)[:start]:
        raise _Misfit("messages that are no entries")
    return body


def _unpacked(data: bytes) -> list[KeptKey]:
    """The keys of a summary, which is never unpacked beyond its bound."""
    unpacker = zlib.decompressobj()
    try:
        whole = unpacker.decompress(data, UNPACKED_BYTES_MAX)
        if unpacker.unconsumed_tail or not unpacker.eof:
            raise _Misfit(f"a summary that is cut off, or larger than {UNPACKED_BYTES_MAX} bytes")
        return _decode_kept(whole)
    except (zlib.error, msgspec.MsgspecError, UnicodeError):
        raise _Misfit("a summary that cannot be read") from None


def _size(key: Key, value: bytes) -> int:
    return len(value) + sum(len(one.encode()) for one in key)
