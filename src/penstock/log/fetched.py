"""What was read from the disk and checked; records are made of it as they are asked for.

A thread waits for the disk, checks and decompresses. The records are made where they are used: both need
the interpreter lock, and the processor that uses them has them in its cache then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from operator import length_hint

from penstock.log.columns import ColumnView
from penstock.log.frame import OFFSET_MAX, Entry
from penstock.log.names import PartitionKeys
from penstock.log.one_by_one import OneByOne
from penstock.log.reader import Cursor
from penstock.log.records import Record

FETCH_BYTES = 2 * 1024 * 1024
ITERATED_RECORDS = 1_000
"""Made at a time for who takes one after the other: few enough for the cache of the processor."""
FETCHED_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of the records of one fetch after decompression, unless a single entry has more."""
LATER_RECORDS_MAX = 16_384
LATER_BYTES_MAX = 4 * 1024 * 1024
"""Larger entries, and those with headers, are made into records by the thread: it must not stop the loop for long."""

Part = ColumnView | list[Record]


class Fetched:
    """Records of one partition, in order; most of them are not made yet."""

    __slots__ = ("_first", "_keys", "_parts", "_stop")

    def __init__(self, keys: PartitionKeys, parts: Sequence[Part], first: int = 0) -> None:
        self._keys = keys
        self._parts = [part for part in reversed(parts) if part and last_offset(part) >= first]
        self._first = first
        self._stop = OFFSET_MAX

    def __bool__(self) -> bool:
        """Whether there are more records."""
        return bool(self._parts)

    def next_offset(self) -> int:
        """The offset behind the last record; there must be one."""
        return last_offset(self._parts[0]) + 1

    def before(self, stop: int) -> Fetched:
        """The same without the records from an offset on."""
        self._stop = stop
        self._parts = [part for part in self._parts if first_offset(part) < stop]
        return self

    def take(self, records_max: int) -> list[Record]:
        """The next records: of whole entries, about so many, at least of one; none when all are taken."""
        parts = self._parts
        taken: list[Record] = []
        used: list[Part] = []
        while parts and (not taken or len(taken) + len(parts[-1]) <= records_max):
            try:
                made = self._made(parts[-1])
            except Exception:
                # That part comes again, and what was made before it is not lost.
                if taken:
                    break
                raise
            except BaseException:
                # A signal: who is interrupted has taken nothing.
                parts.extend(reversed(used))
                raise
            taken += made
            used.append(parts.pop())
        return taken

    def _made(self, part: Part) -> list[Record]:
        first, stop = self._first, self._stop
        records = made(self._keys, part)
        if records[0].offset < first or records[-1].offset >= stop:
            return [record for record in records if first <= record.offset < stop]
        return records


class AtHand(OneByOne):
    """Part of :class:`~penstock.Subscription`: what was read and not delivered yet."""

    def __init__(self) -> None:
        self._records: Iterator[Record] = iter(())
        self._current: Record | None = None
        self._made: list[Record] = []
        """All that were made last: given out as they are where nobody has taken from them."""
        self._fetched: Fetched | None = None

    def _has_more(self) -> bool:
        """Whether there may be records at hand."""
        return bool(self._fetched) or length_hint(self._records) > 0

    def _put(self, fetched: Fetched | None) -> None:
        """These are at hand now, and nothing else."""
        self._fetched, self._made, self._records = fetched, [], iter(())

    def _make(self, records_max: int) -> bool:
        """Make about so many more records; whether there were any."""
        self._made = self._fetched.take(records_max) if self._fetched else []
        self._records = iter(self._made)
        return bool(self._made)

    def _take(self, records_max: int) -> list[Record]:
        """The next records; none when all are taken."""
        if not length_hint(self._records) and not self._make(records_max):
            return []
        made, self._made = self._made, []
        if length_hint(self._records) == len(made) <= records_max:
            self._records = iter(())
            return made
        return list(islice(self._records, records_max))


def made(keys: PartitionKeys, part: Part) -> list[Record]:
    """The records of a part."""
    return part if isinstance(part, list) else part.records(keys.topic, keys.partition)


def first_offset(part: Part) -> int:
    """The offset of the first record of a part that has any."""
    return part[0].offset if isinstance(part, list) else part.first_offset()


def last_offset(part: Part) -> int:
    """The offset of the last record of a part that has any."""
    return part[-1].offset if isinstance(part, list) else part.last_offset()


def fetch(cursor: Cursor, bytes_max: int = FETCH_BYTES) -> Fetched:
    """The next records from the disk, or none at the durable end.

    Decompresses no more than about FETCHED_BYTES_MAX: the cursor is put back to what was read
    and not used. If it raises, the cursor stays where it was.
    """
    start = cursor.offset
    try:
        while entries := cursor.fetch(bytes_max):
            used = _portion(entries)
            if len(used) < len(entries):
                cursor.seek(entries[len(used)].header.base_offset)
            found = Fetched(cursor.keys, [_part(cursor.keys, one) for one in used], start)
            if found:
                return found
            # Compaction took the rest of that entry: there may be more behind it.
    except BaseException:
        cursor.seek(start)
        raise
    return Fetched(cursor.keys, ())


def _portion(entries: Sequence[Entry]) -> Sequence[Entry]:
    """The first entries, as many as are not too large once they are decompressed."""
    size = 0
    for count, entry in enumerate(entries):
        size += entry.header.body_length
        if count and size > FETCHED_BYTES_MAX:
            return entries[:count]
    return entries


def _part(keys: PartitionKeys, entry: Entry) -> Part:
    view = entry.view(copy=False)
    later = view.count <= LATER_RECORDS_MAX and len(view.body) <= LATER_BYTES_MAX
    return view if later and view.header_counts is None else made(keys, view)
