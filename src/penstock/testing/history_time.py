"""What must not happen in a history when its times are compared, and in its transactions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from penstock.testing.history_columns import Columns, Numbers, place_name
from penstock.testing.history_view import History

Found = Iterator[str]
NEVER = np.iinfo(np.int64).max


class _ByValue:
    """A number for each of some values, to be looked up."""

    def __init__(self, values: Numbers, numbers: Numbers) -> None:
        order = np.argsort(values, kind="stable")
        self._values, self._numbers = values[order], numbers[order]

    def get(self, wanted: Numbers, default: int) -> Numbers:
        """The number of each, or the default."""
        found = np.full(len(wanted), default, dtype=np.int64)
        if len(self._values):
            where = np.minimum(np.searchsorted(self._values, wanted), len(self._values) - 1)
            known = self._values[where] == wanted
            found[known] = self._numbers[where[known]]
        return found


def _visible_from(columns: Columns) -> _ByValue:
    """From when on each record that was sent may be there: when its transaction was to be committed."""
    sends, decided = columns.sends, columns.decided
    transactional = np.isin(sends["value"], decided["value"])
    return _ByValue(
        np.concatenate([sends["value"][~transactional], decided["value"]]),
        np.concatenate([sends["at"][~transactional], decided["at"]]),
    )


def precommitted_reads(history: History) -> Found:
    """Read before its send, or the commit of its transaction, had begun."""
    columns = history.columns
    reads = columns.reads
    begun = _visible_from(columns).get(reads["value"], 0)
    for index in np.flatnonzero(reads["at"] < begun):
        process = columns.processes[reads["process"][index]]
        place = place_name(history.read_places[index])
        yield f"{process} read value {reads['value'][index]} at {place} before it could be there"


def torn_transactions(history: History) -> Found:
    """A group read to the end and saw a part of a transaction."""
    columns = history.columns
    decided, reads = columns.decided, columns.reads
    sizes = np.bincount(decided["operation"])
    for group in sorted(columns.drained):
        seen = np.isin(decided["value"], reads["value"][reads["group"] == group])
        counts = np.bincount(decided["operation"][seen], minlength=len(sizes))
        for number in np.flatnonzero((counts > 0) & (counts < sizes)):
            first = decided["value"][decided["operation"] == number][0]
            yield (
                f"group {columns.groups[group]} saw {counts[number]} of {sizes[number]} records of "
                f"the transaction that began with value {first}"
            )


def time_order(history: History) -> Found:
    """Acknowledged before the send of another began, and behind it in the log."""
    columns = history.columns
    begun = _visible_from(columns).get(history.known_values, 0)
    ended = _ByValue(columns.sent["value"], columns.sent["at"]).get(history.known_values, NEVER)
    for rows in history.partitions():
        yield from _out_of_time(history, rows.start, begun[rows], ended[rows])


def _out_of_time(history: History, first: int, begun: Numbers, ended: Numbers) -> Found:
    """Of one partition: who has somebody behind that was acknowledged before it began."""
    least = np.minimum.accumulate(ended[::-1])[::-1]
    for index in np.flatnonzero(least[1:] < begun[:-1]):
        later = first + index + 1 + int(np.argmin(ended[index + 1 :]))
        one, other = (
            f"value {history.known_values[row]} at {place_name(history.known_places[row])}"
            for row in (first + index, later)
        )
        yield f"{other} was acknowledged before the send of {one} began"
