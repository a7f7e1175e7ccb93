"""The way of batches to the partitions of an epoch, and anew when the epoch is over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from penstock.log.batch import Batch, Router
from penstock.log.columns import Columns
from penstock.log.sharing import Limits, Parcel, cut, portions_at, shared, whole
from penstock.system import System

Parcels = dict[int, list[Parcel]]
"""What goes to each partition, in order."""
ROUTES_MAX = 100
"""How often records may be sent anew before it counts as a fault: an epoch lasts longer."""


class Routing:
    """Sends records to the partitions of one epoch. A key has one partition in it."""

    def __init__(self, epoch: int, partitions: int, system: System) -> None:
        self.epoch = epoch
        self._router = Router(partitions, system.random.randrange(partitions))

    def route(self, batches: Sequence[Batch], limits: Limits) -> Parcels:
        """The parcels of the batches by partition."""
        if len(batches) == 1 and self._router.partitions == 1:
            # As most commits are: nothing is joined, and there is nowhere else to go.
            return {0: [whole(batches[0])]}
        return self._sent(shared(batches, limits, self._router.partitions), limits)

    def route_again(self, astray: Iterable[Parcel], limits: Limits) -> Parcels:
        """The parcels anew, of which another epoch's routing was refused.

        The records of a key were in the parcels of one partition, in order, and are so again.
        """
        return self._sent(astray, limits)

    def _sent(self, parcels: Iterable[Parcel], limits: Limits) -> Parcels:
        sent: Parcels = {}
        for parcel in parcels:
            for partition, places, columns in self._router.split(parcel.columns):
                mine = sent.setdefault(partition, [])
                mine += _parts(parcel, places, columns, limits)
        return sent


def _parts(
    parcel: Parcel, places: Sequence[int], columns: Columns, limits: Limits
) -> Iterator[Parcel]:
    """What one partition gets of a parcel."""
    portions = parcel.portions
    if columns is not parcel.columns:
        portions = portions_at(portions, places)
    if len(portions) > 1:
        yield from cut(columns, portions, limits)
    else:
        # Of one batch, which is within the limits.
        yield Parcel(columns, portions)
