"""Batches on the way to the disk: gathered from what publishers handed over, routed as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from penstock.hashing import fnv1a
from penstock.log.arrow_columns import ArrowColumns
from penstock.log.columns import Columns, plain_lengths
from penstock.log.receipts import PublishedRow, Receipt
from penstock.log.routing import partitions_of

Row = tuple[bytes | None, bytes | None, Mapping[str, bytes] | None, int | None]
"""Value, key, headers, timestamp of a record that nobody waits for."""


class Batch:
    """Records that will be one entry of each partition they go to."""

    __slots__ = ("awaited", "columns", "durable", "receipt", "size", "waiting")

    def __init__(
        self,
        columns: Columns,
        receipt: Receipt,
        *,
        size: int,
        durable: bool = False,
        awaited: bool = False,
        waiting: Sequence[tuple[int, PublishedRow]] = (),
    ) -> None:
        self.columns = columns
        self.receipt = receipt
        self.size = size
        self.durable = durable
        self.awaited = awaited or len(waiting) == len(columns)
        """Somebody waits for every record of it, and hears what becomes of them."""
        self.waiting = waiting
        """Places of the records that somebody waits for one by one."""


Item = bytes | Row | PublishedRow | Batch
"""What stands in a writer's queue: a bare value, a row, a row with a waiter, a whole batch."""


def gather(
    items: list[Item], receipt: Receipt, now_ms: int, records_max: int, bytes_max: int
) -> Iterator[Batch]:
    """The batches that the items make, in their order. The list belongs to them then."""
    if len(items) == 1 and isinstance(items[0], Batch):
        yield items[0]
        return
    lengths = plain_lengths(items)
    if lengths is not None:
        columns = Columns(cast("list[bytes]", items), _value_lengths=lengths)
        yield from _in_pieces(columns, receipt, records_max, bytes_max)
    elif Batch in set(map(type, items)):
        yield from _around_batches(items, receipt, now_ms, records_max, bytes_max)
    else:
        waiting = [(at, one) for at, one in enumerate(items) if isinstance(one, PublishedRow)]
        columns = _columns(items, now_ms)
        yield from _in_pieces(columns, receipt, records_max, bytes_max, waiting)


def _around_batches(
    items: list[Item], receipt: Receipt, now_ms: int, records_max: int, bytes_max: int
) -> Iterator[Batch]:
    start = 0
    for place, item in enumerate(items):
        if isinstance(item, Batch):
            yield from gather(items[start:place], receipt, now_ms, records_max, bytes_max)
            yield item
            start = place + 1
    yield from gather(items[start:], receipt, now_ms, records_max, bytes_max)


def _in_pieces(
    columns: Columns,
    receipt: Receipt,
    records_max: int,
    bytes_max: int,
    waiting: Sequence[tuple[int, PublishedRow]] = (),
) -> Iterator[Batch]:
    start = 0
    for piece in split(columns, records_max, bytes_max):
        end = start + len(piece)
        here = waiting
        if piece is not columns:
            here = [(at - start, row) for at, row in waiting if start <= at < end]
        durable = any(row.durable for _, row in here)
        size = piece.byte_size()
        yield Batch(piece, receipt, size=size, durable=durable, waiting=here)
        start = end


def _columns(items: Sequence[Item], now_ms: int) -> Columns:
    """Columns of mixed rows; a column that no row uses is left out."""
    rows = [item.row if isinstance(item, PublishedRow) else _row(item) for item in items]
    values, keys, headers, times = map(list, zip(*rows, strict=True))
    return Columns(
        values,
        keys if keys.count(None) < len(keys) else None,
        [now_ms if time is None else time for time in times]
        if times.count(None) < len(times)
        else None,
        headers if any(headers) else None,
    )


def _row(item: bytes | Row | Batch) -> Row:
    assert not isinstance(item, Batch), "batches are taken out before"
    return (item, None, None, None) if isinstance(item, bytes) else item


class Parcel(NamedTuple):
    """The records of a batch that go to one partition."""

    batch: Batch
    places: Sequence[int]
    columns: Columns


class Router:
    """Sends records to partitions: by key, else in turn."""

    def __init__(self, partitions: int, turn: int = 0) -> None:
        self._partitions = partitions
        self._turn = turn

    def route(self, batch: Batch) -> Iterator[tuple[int, Parcel]]:
        """The parcels of a batch with their partitions."""
        for partition, places, columns in self.split(batch.columns):
            yield partition, Parcel(batch, places, columns)

    def split(self, columns: Columns) -> Iterator[tuple[int, Sequence[int], Columns]]:
        """The partitions, each with the places of its records and the records themselves."""
        if self._partitions == 1:
            yield 0, range(len(columns)), columns
        elif len(columns) == 1:
            yield self._one(columns.keys), range(1), columns
        elif columns.keys is None:
            yield from self._in_turn(columns)
        else:
            yield from self._by_key(columns)

    def _one(self, keys: Sequence[bytes | None] | None) -> int:
        if keys is not None and keys[0] is not None:
            return fnv1a(keys[0]) % self._partitions
        chosen, self._turn = self._turn, (self._turn + 1) % self._partitions
        return chosen

    def _in_turn(self, columns: Columns) -> Iterator[tuple[int, Sequence[int], Columns]]:
        """Every n-th record: slices, no work per record."""
        count = len(columns)
        for start in range(min(self._partitions, count)):
            partition = (self._turn + start) % self._partitions
            places = range(start, count, self._partitions)
            yield partition, places, columns.pick(slice(start, None, self._partitions))
        self._turn = (self._turn + count) % self._partitions

    def _by_key(self, columns: Columns) -> Iterator[tuple[int, Sequence[int], Columns]]:
        if isinstance(columns, ArrowColumns):
            chosen, self._turn = columns.partitions(self._partitions, self._turn)
        else:
            chosen, self._turn = partitions_of(columns.keys or (), self._partitions, self._turn)
        for partition in range(self._partitions):
            places = (chosen == partition).nonzero()[0].tolist()
            if places:
                yield partition, places, columns.take(places)


def split(columns: Columns, records_max: int, bytes_max: int) -> Iterator[Columns]:
    """The columns in pieces within the limits; one record may exceed the bytes alone."""
    if 0 < len(columns) <= records_max:
        yield from _split_bytes(columns, bytes_max)
        return
    for start in range(0, len(columns), records_max):
        yield from _split_bytes(columns.pick(slice(start, start + records_max)), bytes_max)


def _split_bytes(columns: Columns, bytes_max: int) -> Iterator[Columns]:
    if len(columns) <= 1 or columns.byte_size() <= bytes_max:
        yield columns
        return
    middle = len(columns) // 2
    yield from _split_bytes(columns.pick(slice(None, middle)), bytes_max)
    yield from _split_bytes(columns.pick(slice(middle, None)), bytes_max)
