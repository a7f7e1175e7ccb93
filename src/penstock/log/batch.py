"""Batches on the way to the disk: gathered from what publishers handed over, routed as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np

from penstock.hashing import fnv1a
from penstock.log.arrow_columns import ArrowColumns
from penstock.log.columns import Columns, plain_lengths
from penstock.log.published import PublishedRow, Row, plain_values
from penstock.log.receipts import Receipt
from penstock.log.routing import partitions_of, turns


class Batch:
    """Records that are handed over together: each partition has those that go to it in one entry, alone or with others."""

    __slots__ = ("_durable", "awaited", "columns", "receipt", "rows", "size")

    def __init__(
        self,
        columns: Columns,
        receipt: Receipt,
        *,
        size: int,
        durable: bool = False,
        awaited: bool = False,
        rows: Sequence[PublishedRow | None] = (),
    ) -> None:
        self.columns = columns
        self.receipt = receipt
        self.size = size
        self._durable = durable
        self.awaited = awaited
        """Somebody waits for every record of it, and hears what becomes of them."""
        self.rows = rows
        """In the place of each record that somebody waits for alone: who that is. Empty when there are none."""

    @property
    def durable(self) -> bool:
        """Whether some record of it has to be, whatever the policy of the topic says."""
        return self._durable or any(row is not None and row.durable for row in self.rows)


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
    elif (values := plain_values(items)) is not None:
        columns = Columns(values, _value_lengths=plain_lengths(values))
        published = cast("list[PublishedRow]", items)
        yield from _in_pieces(columns, receipt, records_max, bytes_max, published)
    elif Batch in set(map(type, items)):
        yield from _around_batches(items, receipt, now_ms, records_max, bytes_max)
    else:
        rows = [one if isinstance(one, PublishedRow) else None for one in items]
        columns = _columns(items, now_ms)
        yield from _in_pieces(columns, receipt, records_max, bytes_max, rows)


def ungathered(items: Sequence[Item], receipt: Receipt) -> list[Batch]:
    """The items as they came, when they could not be gathered: everybody who waits for one can be told."""
    batches = [one for one in items if isinstance(one, Batch)]
    rows = [one for one in items if isinstance(one, PublishedRow)]
    receipt.count = len(items) - len(batches)
    awaited = len(rows) == receipt.count > 0
    return [Batch(Columns([]), receipt, size=0, awaited=awaited, rows=rows), *batches]


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
    rows: Sequence[PublishedRow | None] = (),
) -> Iterator[Batch]:
    start = 0
    for piece in split(columns, records_max, bytes_max):
        end = start + len(piece)
        here = rows if piece is columns else rows[start:end]
        awaited = len(here) > 0 and None not in set(here)
        yield Batch(piece, receipt, size=piece.byte_size(), awaited=awaited, rows=here)
        start = end


def _columns(items: Sequence[Item], now_ms: int) -> Columns:
    """Columns of mixed rows; a column that no row uses is left out."""
    rows = [_row(item.row if isinstance(item, PublishedRow) else item) for item in items]
    values, keys, headers, times = map(list, zip(*rows, strict=True))
    return Columns(
        values,
        keys if keys.count(None) < len(keys) else None,
        [now_ms if time is None else time for time in times]
        if times.count(None) < len(times)
        else None,
        headers if any(headers) else None,
    )


def _row(item: Item) -> Row:
    assert not isinstance(item, Batch | PublishedRow), "these are taken out before"
    return (item, None, None, None) if isinstance(item, bytes) else item


class Router:
    """Sends records to partitions: by key, else in turn."""

    def __init__(self, partitions: int, turn: int = 0) -> None:
        self.partitions = partitions
        self._turn = turn

    def split(self, columns: Columns) -> Iterator[tuple[int, Sequence[int], Columns]]:
        """The partitions, each with the places of its records and the records themselves."""
        if self.partitions == 1:
            yield 0, range(len(columns)), columns
        elif len(columns) == 1:
            yield self._one(columns.keys), range(1), columns
        elif columns.keys is None:
            yield from self._in_turn(columns)
        else:
            yield from self._by_key(columns)

    def _one(self, keys: Sequence[bytes | None] | None) -> int:
        if keys is not None and keys[0] is not None:
            return fnv1a(keys[0]) % self.partitions
        chosen, self._turn = self._turn, (self._turn + 1) % self.partitions
        return chosen

    def _in_turn(self, columns: Columns) -> Iterator[tuple[int, Sequence[int], Columns]]:
        """Every n-th record: slices, no work per record."""
        count = len(columns)
        together, after = turns(self.partitions, count, self._turn)
        for start in range(min(together, count)):
            partition = (self._turn + start) % self.partitions
            places = range(start, count, together)
            yield partition, places, columns.pick(slice(start, None, together))
        self._turn = after

    def _by_key(self, columns: Columns) -> Iterator[tuple[int, Sequence[int], Columns]]:
        if isinstance(columns, ArrowColumns):
            chosen, self._turn = columns.partitions(self.partitions, self._turn)
        else:
            chosen, self._turn = partitions_of(columns.keys or (), self.partitions, self._turn)
        # Sorted once and cut: to look for each partition's records would take partitions × records.
        order = chosen.astype(np.uint16).argsort(kind="stable").tolist()
        ordered = columns.take(order)
        start = 0
        for partition, count in enumerate(np.bincount(chosen).tolist()):
            if count:
                part = slice(start, start + count)
                yield partition, order[part], ordered.pick(part)
                start += count


def split(columns: Columns, records_max: int, bytes_max: int) -> Sequence[Columns]:
    """The columns in pieces within the limits; one record may exceed the bytes alone."""
    if 0 < len(columns) <= records_max and columns.byte_size() <= bytes_max:
        return (columns,)
    return tuple(_pieces(columns, records_max, bytes_max))


def _pieces(columns: Columns, records_max: int, bytes_max: int) -> Iterator[Columns]:
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
