"""What must not happen in a history. Each check gives the anomalies that it finds, as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from penstock.testing.history_columns import UNKNOWN, Numbers, place_name
from penstock.testing.history_time import precommitted_reads, time_order, torn_transactions
from penstock.testing.history_view import History

Found = Iterator[str]
Flags = NDArray[np.bool_]


def _pairs(values: Numbers, at: Numbers) -> tuple[Numbers, Numbers]:
    """The different pairs, in the order of the values."""
    order = np.lexsort((at, values))
    values, at = values[order], at[order]
    new = np.ones(len(values), dtype=bool)
    new[1:] = (values[1:] != values[:-1]) | (at[1:] != at[:-1])
    return values[new], at[new]


def duplicates(history: History) -> Found:
    """One value at two places."""
    sent = history.placed
    values, at = _pairs(
        np.concatenate([history.columns.reads["value"], sent["value"]]),
        np.concatenate([history.read_places, history.placed_places]),
    )
    for index in np.flatnonzero(values[1:] == values[:-1]):
        yield (
            f"value {values[index]} is at {place_name(at[index])} and at {place_name(at[index + 1])}"
        )


def inconsistent_offsets(history: History) -> Found:
    """Two values at one place."""
    sent = history.placed
    at, values = _pairs(
        np.concatenate([history.read_places, history.placed_places]),
        np.concatenate([history.columns.reads["value"], sent["value"]]),
    )
    for index in np.flatnonzero(at[1:] == at[:-1]):
        yield f"{place_name(at[index])} has value {values[index]} and value {values[index + 1]}"


def phantoms(history: History) -> Found:
    """Read, and never sent."""
    reads = history.columns.reads
    yield from _told(
        history, ~np.isin(reads["value"], history.columns.sends["value"]), "never sent"
    )


def aborted_reads(history: History) -> Found:
    """Read, though the send was refused or its transaction aborted."""
    reads = history.columns.reads
    yield from _told(
        history, np.isin(reads["value"], history.columns.refused), "refused or aborted"
    )


def _told(history: History, wrong: Flags, why: str) -> Found:
    reads = history.columns.reads
    for index in np.flatnonzero(wrong):
        process = history.columns.processes[reads["process"][index]]
        place = place_name(history.read_places[index])
        yield f"{process} read value {reads['value'][index]} at {place}, which was {why}"


def lost(history: History) -> Found:
    """Acknowledged, below the highest offset that anybody read, and never read by anybody."""
    reads, sent = history.columns.reads, history.placed
    highest = {
        key[0]: int(reads["offset"][mine].max()) for key, mine in _by_key(reads["partition"])
    }
    unseen = np.flatnonzero(~np.isin(sent["value"], history.columns.reads["value"]))
    for index in unseen:
        top = highest.get(int(sent["partition"][index]), UNKNOWN)
        if sent["offset"][index] < top:
            yield (
                f"value {sent['value'][index]} was acknowledged at "
                f"{place_name(history.placed_places[index])} and never read, offset {top} was"
            )


def stale(history: History) -> Found:
    """Acknowledged, and not seen by a group that read to the end afterwards."""
    sent, reads = history.acknowledged, history.columns.reads
    for group in sorted(history.columns.drained):
        seen = reads["value"][reads["group"] == group]
        for index in np.flatnonzero(~np.isin(sent["value"], seen)):
            yield (
                f"group {history.columns.groups[group]} read to the end and never saw value "
                f"{sent['value'][index]} of partition {sent['partition'][index]}"
            )


def missed(history: History) -> Found:
    """A group read around a record that is there, and never read it."""
    reads, known = history.columns.reads, history.known_places
    for (group, _), mine in _by_key(reads["group"], reads["partition"]):
        if group in history.columns.seekers:
            continue
        own = np.unique(history.read_places[mine])
        first, end = np.searchsorted(known, [own[0], own[-1] + 1])
        if end - first > len(own):
            for place in np.setdiff1d(known[first:end], own, assume_unique=True):
                yield f"group {history.columns.groups[group]} never read {place_name(place)}"


def _steps(history: History) -> tuple[Numbers, Numbers, Flags]:
    """Reads that follow each other: one, the next one, and whether one poll has both.

    A session is what one process reads of one partition without a seek or a rebalance in between.
    """
    reads = history.columns.reads
    order = np.argsort(reads["session"], kind="stable")
    one, other = order[:-1], order[1:]
    follow = reads["session"][one] == reads["session"][other]
    one, other = one[follow], other[follow]
    return one, other, reads["operation"][one] == reads["operation"][other]


def _polls(history: History, within: bool, wrong: Callable[[Numbers, Numbers], Flags]) -> Found:
    reads = history.columns.reads
    one, other, same = _steps(history)
    chosen = same if within else ~same
    one, other = one[chosen], other[chosen]
    bad = wrong(history.read_places[one], history.read_places[other])
    for first, second in zip(one[bad], other[bad], strict=True):
        process = history.columns.processes[reads["process"][first]]
        where = "one poll" if within else "its next poll"
        yield (
            f"{process} read {place_name(history.read_places[first])} and then "
            f"{place_name(history.read_places[second])} in {where}"
        )


def nonmonotonic_polls(history: History) -> Found:
    """A poll begins at or before the end of the one before."""
    return _polls(history, False, lambda one, other: other <= one)


def internal_nonmonotonic_polls(history: History) -> Found:
    """Offsets go back, or stay, within one poll."""
    return _polls(history, True, lambda one, other: other <= one)


def poll_skips(history: History) -> Found:
    """A record that is there was passed over between two polls."""
    return _polls(history, False, lambda one, other: history.between(one, other) > 0)


def internal_skips(history: History) -> Found:
    """A record that is there was passed over within one poll."""
    return _polls(history, True, lambda one, other: history.between(one, other) > 0)


def nonmonotonic_sends(history: History) -> Found:
    """A process sent one record after another, and they are the other way round in the log."""
    return _sends(history, within=False)


def internal_nonmonotonic_sends(history: History) -> Found:
    """Records of one send are the other way round in the log."""
    return _sends(history, within=True)


def _sends(history: History, *, within: bool) -> Found:
    sent = history.placed
    order = np.lexsort((np.arange(len(sent["value"])), sent["partition"], sent["process"]))
    one, other = order[:-1], order[1:]
    follow = (sent["process"][one] == sent["process"][other]) & (
        sent["partition"][one] == sent["partition"][other]
    )
    follow &= (sent["operation"][one] == sent["operation"][other]) == within
    back = follow & (sent["offset"][other] <= sent["offset"][one])
    for first, second in zip(one[back], other[back], strict=True):
        yield (
            f"{history.columns.processes[sent['process'][first]]} sent value {sent['value'][first]} "
            f"to {place_name(history.placed_places[first])} and then value {sent['value'][second]} "
            f"to {place_name(history.placed_places[second])}"
        )


def _by_key(*columns: Numbers) -> Iterator[tuple[tuple[int, ...], Numbers]]:
    """Each different row of the columns, and where it stands, in order."""
    order = np.lexsort((*columns[::-1],))
    new = np.zeros(len(order), dtype=bool)
    new[:1] = True
    for column in columns:
        new[1:] |= column[order[1:]] != column[order[:-1]]
    for rows in np.split(order, np.flatnonzero(new)[1:]) if len(order) else ():
        yield tuple(int(column[rows[0]]) for column in columns), rows


class _Floors:
    """How far a group had committed a partition at a time."""

    def __init__(self, commits: dict[str, Numbers]) -> None:
        self._marks: dict[tuple[int, ...], tuple[Numbers, Numbers]] = {}
        for key, mine in _by_key(commits["group"], commits["partition"]):
            rows = mine[np.argsort(commits["at"][mine], kind="stable")]
            tops = np.maximum.accumulate(commits["offset"][rows])
            self._marks[key] = commits["at"][rows], tops

    def before(self, what: dict[str, Numbers], time: str) -> Numbers:
        """For each row the highest offset that was committed before its time; -1 without any."""
        floors = np.full(len(what["group"]), UNKNOWN, dtype=np.int64)
        for key, mine in _by_key(what["group"], what["partition"]):
            if key in self._marks:
                times, tops = self._marks[key]
                index = np.searchsorted(times, what[time][mine], "left") - 1
                floors[mine] = np.where(index >= 0, tops[index], UNKNOWN)
        return floors


def commits_back(history: History) -> Found:
    """A commit was accepted that is below one that was acknowledged before it began."""
    yield from _below(history, history.columns.commits, "committed")


def offsets_back(history: History) -> Found:
    """A member went on, or a poll delivered, below what the group had committed before."""
    yield from _below(history, history.columns.starts, "went on at")
    yield from _below(history, history.columns.reads, "read")


def _below(history: History, what: dict[str, Numbers], did: str) -> Found:
    floors = _Floors(history.columns.commits).before(what, "began")
    seekers = np.array(sorted(history.columns.seekers), dtype=np.int64)
    wrong = (what["offset"] < floors) & ~np.isin(what["group"], seekers)
    for index in np.flatnonzero(wrong):
        place = f"{what['partition'][index]}/{what['offset'][index]}"
        group = history.columns.groups[what["group"][index]]
        yield f"group {group} {did} {place} after it had committed up to {floors[index]}"


def offsets_ahead(history: History) -> Found:
    """A member went on beyond all that its group ever tried to commit."""
    starts = history.columns.starts
    tops = _Floors(history.columns.attempts).before(starts, "at")
    seekers = np.array(sorted(history.columns.seekers), dtype=np.int64)
    wrong = (tops != UNKNOWN) & (starts["offset"] > tops) & ~np.isin(starts["group"], seekers)
    for index in np.flatnonzero(wrong):
        place = f"{starts['partition'][index]}/{starts['offset'][index]}"
        group = history.columns.groups[starts["group"][index]]
        yield f"group {group} went on at {place}, and nobody committed more than {tops[index]}"


def key_order(history: History) -> Found:
    """A group saw records of one key in another order than their producer sent them."""
    reads, sends = history.columns.reads, history.columns.sends
    first = _first_reads(reads)
    order = np.argsort(sends["value"], kind="stable")
    where = np.searchsorted(sends["value"], reads["value"][first], sorter=order)
    sender = order[np.minimum(where, len(order) - 1)] if len(order) else first[:0]
    first = first[: len(sender)]
    counts = (
        (sends["value"][sender] == reads["value"][first])
        & (sends["key"][sender] != UNKNOWN)
        & np.isin(reads["value"][first], history.acknowledged["value"])
    )
    first, sender = first[counts], sender[counts]
    same = (reads["group"][first], sends["key"][sender], sends["process"][sender])
    order = np.lexsort((np.arange(len(first)), *same))
    one, other = order[:-1], order[1:]
    follow = np.ones(len(one), dtype=bool)
    for column in same:
        follow &= column[one] == column[other]
    back = follow & (sends["number"][sender[other]] < sends["number"][sender[one]])
    for index, later in zip(one[back], other[back], strict=True):
        yield (
            f"group {history.columns.groups[reads['group'][first[index]]]} saw value "
            f"{reads['value'][first[later]]} of key {sends['key'][sender[index]]} after value "
            f"{reads['value'][first[index]]}, which was sent later"
        )


def _first_reads(reads: dict[str, Numbers]) -> Numbers:
    """Of each value and group the read that came first, in the order of time."""
    order = np.lexsort((reads["at"], reads["value"], reads["group"]))
    group, value = reads["group"][order], reads["value"][order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (group[1:] != group[:-1]) | (value[1:] != value[:-1])
    first = order[new]
    return first[np.argsort(reads["at"][first], kind="stable")]


CHECKS: dict[str, Callable[[History], Found]] = {
    "lost": lost,
    "stale": stale,
    "missed": missed,
    "duplicate": duplicates,
    "inconsistent offset": inconsistent_offsets,
    "phantom": phantoms,
    "aborted read": aborted_reads,
    "precommitted read": precommitted_reads,
    "torn transaction": torn_transactions,
    "nonmonotonic poll": nonmonotonic_polls,
    "nonmonotonic poll, internal": internal_nonmonotonic_polls,
    "poll skip": poll_skips,
    "poll skip, internal": internal_skips,
    "nonmonotonic send": nonmonotonic_sends,
    "nonmonotonic send, internal": internal_nonmonotonic_sends,
    "order in time": time_order,
    "offset went back": offsets_back,
    "offset went ahead": offsets_ahead,
    "commit went back": commits_back,
    "order of a key": key_order,
}
"""Name of the anomaly → who finds it."""
