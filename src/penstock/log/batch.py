"""Batches on the way to the disk: filled record by record, routed as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from penstock.log.columns import Columns
from penstock.log.receipts import Receipt
from penstock.log.routing import fnv1a, partitions_of


class Batch:
    """Records that will be committed together, as lists of columns. Not thread-safe."""

    __slots__ = ("durable", "headers", "keys", "receipt", "size", "timestamps", "values")

    def __init__(self, receipt: Receipt) -> None:
        self.receipt = receipt
        self.size = 0
        self.durable = False
        self.values: list[bytes | None] = []
        # A column that no record uses is never made.
        self.keys: list[bytes | None] | None = None
        self.headers: list[Mapping[str, bytes] | None] | None = None
        self.timestamps: list[int | None] | None = None

    def add(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: Mapping[str, bytes] | None,
        timestamp: int | None,
    ) -> int:
        """Add a record; returns its place in the batch."""
        values = self.values
        place = len(values)
        values.append(value)
        if key is not None or self.keys is not None:
            self.keys = _with(self.keys, place, key)
        if headers is not None or self.headers is not None:
            self.headers = _with(self.headers, place, headers)
        if timestamp is not None or self.timestamps is not None:
            self.timestamps = _with(self.timestamps, place, timestamp)
        return place

    def columns(self, now_ms: int) -> Columns:
        """The batch as columns; records without a timestamp among others with one get this one."""
        times = self.timestamps
        filled = None if times is None else [now_ms if one is None else one for one in times]
        return Columns(self.values, self.keys, filled, self.headers)


_Item = TypeVar("_Item")


def _with(column: list[_Item | None] | None, place: int, item: _Item | None) -> list[_Item | None]:
    """The column with the item at its end, made when it was not there."""
    if column is None:
        column = [None] * place
    column.append(item)
    return column


class Parcel(NamedTuple):
    """The records of a batch that go to one partition."""

    batch: Batch
    places: Sequence[int]
    columns: Columns


class Router:
    """Sends the records of a batch to partitions: by key, else in turn."""

    def __init__(self, partitions: int, turn: int = 0) -> None:
        self._partitions = partitions
        self._turn = turn

    def route(self, batch: Batch, now_ms: int) -> Iterator[tuple[int, Parcel]]:
        """The parcels of a batch with their partitions."""
        columns = batch.columns(now_ms)
        if self._partitions == 1:
            yield 0, Parcel(batch, range(len(columns)), columns)
        elif len(columns) == 1:
            yield self._one(batch.keys), Parcel(batch, range(1), columns)
        elif batch.keys is None:
            yield from self._in_turn(batch, columns)
        else:
            yield from self._by_key(batch, columns, batch.keys)

    def _one(self, keys: Sequence[bytes | None] | None) -> int:
        if keys is not None and keys[0] is not None:
            return fnv1a(keys[0]) % self._partitions
        chosen, self._turn = self._turn, (self._turn + 1) % self._partitions
        return chosen

    def _in_turn(self, batch: Batch, columns: Columns) -> Iterator[tuple[int, Parcel]]:
        """Every n-th record: slices, no work per record."""
        count = len(columns)
        for start in range(min(self._partitions, count)):
            partition = (self._turn + start) % self._partitions
            places = range(start, count, self._partitions)
            part = columns.pick(slice(start, None, self._partitions))
            yield partition, Parcel(batch, places, part)
        self._turn = (self._turn + count) % self._partitions

    def _by_key(
        self, batch: Batch, columns: Columns, keys: Sequence[bytes | None]
    ) -> Iterator[tuple[int, Parcel]]:
        chosen, self._turn = partitions_of(keys, self._partitions, self._turn)
        for partition in range(self._partitions):
            places = (chosen == partition).nonzero()[0].tolist()
            if places:
                yield partition, Parcel(batch, places, columns.take(places))


def split(columns: Columns, records_max: int, bytes_max: int) -> Iterator[Columns]:
    """The columns in pieces within the limits; one record may exceed the bytes alone."""
    for start in range(0, len(columns), records_max):
        yield from _split_bytes(columns.pick(slice(start, start + records_max)), bytes_max)


def _split_bytes(columns: Columns, bytes_max: int) -> Iterator[Columns]:
    if len(columns) <= 1 or columns.byte_size() <= bytes_max:
        yield columns
        return
    middle = len(columns) // 2
    yield from _split_bytes(columns.pick(slice(None, middle)), bytes_max)
    yield from _split_bytes(columns.pick(slice(middle, None)), bytes_max)
