"""The way of batches to the partitions of an epoch, and anew when the epoch is over."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.log.batch import Batch, Parcel, Router
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

    def route(self, batches: Iterable[Batch]) -> Parcels:
        """The parcels of the batches by partition."""
        parcels: Parcels = {}
        for batch in batches:
            for partition, parcel in self._router.route(batch):
                parcels.setdefault(partition, []).append(parcel)
        return parcels

    def route_again(self, astray: Iterable[Parcel]) -> Parcels:
        """The parcels anew, of which another epoch's routing was refused.

        The records of a key were in the parcels of one partition, in order, and are so again.
        """
        parcels: Parcels = {}
        for batch, before, columns in astray:
            for partition, picked, part in self._router.split(columns):
                places = [before[place] for place in picked]
                parcels.setdefault(partition, []).append(Parcel(batch, places, part))
        return parcels
