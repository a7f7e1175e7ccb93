"""Which batches of a commit share entries, and whose the records of an entry are.

An entry costs the same for two records as for sixty: a header, two checksums, a place in the index and in
the tail cache, and again for each reader. So the records that several calls have for a partition
become one entry when they are committed together.

No call is promised less by that. An entry is on the disk wholly or not at all, and so is more now than the
records of one call; but a commit acknowledges nothing before it has written, and synced where one of
its calls asks for it, all that it has for the partition. What is torn was acknowledged to nobody, or is
what the sync policy may lose. An entry stays within the limits of a batch, so damage to one takes
no more with it than damage to one of records that were handed over one by one. The calls keep their
order, each has its records side by side, and hears where they are, or the error of the entry. Who needs
entries of its own does not come here: transactions, and with them records with a sequence, append
by themselves. Arrow's columns stay alone: to join them would copy all their bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.log.batch import Batch, split
from penstock.log.columns import Columns
from penstock.log.receipts import Placement


class Portion(NamedTuple):
    """Records of one batch, side by side in an entry."""

    batch: Batch
    places: Sequence[int]
    """Their places in the batch. They rise."""


class Parcel(NamedTuple):
    """Records that become one entry of a partition: of one batch, or of several, in their order."""

    columns: Columns
    portions: Sequence[Portion]

    def placed(
        self, partition: int, offset: int, timestamp: int, durable: bool
    ) -> Iterator[tuple[Batch, Placement]]:
        """Where the records of each batch are, when the entry begins at this offset."""
        for batch, places in self.portions:
            yield batch, Placement(partition, places, offset, timestamp, durable)
            offset += len(places)


class Limits(NamedTuple):
    """What an entry may have."""

    records_max: int
    bytes_max: int


def shared(batches: Sequence[Batch], limits: Limits, partitions: int) -> Iterator[Parcel]:
    """The batches as parcels, before they go to so many partitions.

    Those of one kind that follow each other are joined, as far as there is room in the
    entries: of each partition one, when the records spread evenly.
    """
    records_max, bytes_max = limits.records_max * partitions, limits.bytes_max * partitions
    run: list[Batch] = []
    records = size = 0
    for batch in batches:
        records += len(batch.columns)
        size += batch.size
        if run and (records > records_max or size > bytes_max or not _alike(run[0], batch)):
            yield _joined(run)
            run, records, size = [], len(batch.columns), batch.size
        run.append(batch)
    if run:
        yield _joined(run)


def _alike(one: Batch, other: Batch) -> bool:
    """Whether their records have the same columns: no entry gets one that a call would not have had."""
    both = one.columns, other.columns
    return all(type(columns) is Columns for columns in both) and both[0].kind() == both[1].kind()


def whole(batch: Batch) -> Parcel:
    """A batch by itself."""
    return Parcel(batch.columns, [Portion(batch, range(len(batch.columns)))])


def _joined(run: Sequence[Batch]) -> Parcel:
    if len(run) == 1:
        return whole(run[0])
    portions = [Portion(batch, range(len(batch.columns))) for batch in run]
    return Parcel(Columns.joined([batch.columns for batch in run]), portions)


def cut(columns: Columns, portions: Sequence[Portion], limits: Limits) -> Iterator[Parcel]:
    """The records of a partition as parcels within the limits, which many of one key may exceed."""
    start = 0
    for piece in split(columns, *limits):
        here = range(start, start + len(piece))
        yield Parcel(piece, portions if piece is columns else portions_at(portions, here))
        start = here.stop


def portions_at(portions: Sequence[Portion], places: Sequence[int]) -> list[Portion]:
    """Whose the records at these places are, which rise: of the portions one after the other."""
    found = []
    start = first = 0
    for batch, before in portions:
        end = start + len(before)
        last = bisect_left(places, end, first)
        if last > first:
            found.append(Portion(batch, _at(before, places[first:last], start)))
        start, first = end, last
    return found


def _at(before: Sequence[int], places: Sequence[int], start: int) -> Sequence[int]:
    if isinstance(places, range):
        return before[places.start - start : places.stop - start : places.step]
    if before == range(len(before)):
        return [place - start for place in places] if start else places
    return [before[place - start] for place in places]
