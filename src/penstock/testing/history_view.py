"""A history as the checks look at it: what is known of the log."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from penstock.testing.history_columns import OFFSET_BITS, UNKNOWN, Columns, Numbers, places


class History:
    """The columns of a history, and what several checks need of them."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        reads, sent = columns.reads, columns.sent
        self.read_places = places(reads["partition"], reads["offset"])
        known = sent["offset"] != UNKNOWN
        valid = ~np.isin(sent["value"], columns.refused)
        self.acknowledged = {name: column[valid] for name, column in sent.items()}
        """What was sent for good."""
        self.placed = {name: column[known & valid] for name, column in sent.items()}
        """Those of them whose offsets are known."""
        self.placed_places = places(self.placed["partition"], self.placed["offset"])
        self.known_places, first = np.unique(
            np.concatenate([self.read_places, self.placed_places]), return_index=True
        )
        """Where a record is, for certain, in the order of the log."""
        self.known_values = np.concatenate([reads["value"], self.placed["value"]])[first]
        """The records that are there."""

    def between(self, first: Numbers, second: Numbers) -> Numbers:
        """How many records are known to be between two places of a partition."""
        up_to = np.searchsorted(self.known_places, second, "left")
        from_on = np.searchsorted(self.known_places, first, "right")
        return np.asarray(up_to - from_on, dtype=np.int64)

    def partitions(self) -> Iterator[slice]:
        """Where each partition stands in the known places."""
        numbers = self.known_places >> OFFSET_BITS
        edges = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
        for first, end in pairwise(edges):
            yield slice(first, end)
