"""How far a micro-batch goes: what is there, what the limits allow, what has been lost."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from penstock.errors import OffsetOutOfRange
from penstock.spark.frontier import Frontier
from penstock.spark.offsets import Offsets, each, offset_in
from penstock.spark.options import SourceOptions
from penstock.spark.planning import Range, share

_log = logging.getLogger("penstock.spark")
_WAY_OUT = "Option failOnDataLoss=false goes on with what is there"


def advance(begin: Offsets, ends: Offsets, fail_on_loss: bool) -> Offsets:
    """Everything that is there. Topics that are not read any more stay where they are.

    A partition that has appeared, and is empty, is left out: it would make an empty micro-batch.
    """
    found = {topic: dict(of) for topic, of in begin.items()}
    for topic, partition, end in each(ends):
        start = found.get(topic, {}).get(partition)
        if start is None and end == 0:
            continue
        if start is not None and end < start and fail_on_loss:
            raise _cut_off(topic, partition, start, end)
        found.setdefault(topic, {})[partition] = end
    return found


def admit(begin: Offsets, end: Offsets, frontier: Frontier, options: SourceOptions) -> Offsets:
    """As much of it as the limits of a micro-batch allow, in proportion to what waits."""
    ranges = list(_ranges(begin, end))
    waiting = {(one.topic, one.partition): one.records for one in ranges}
    limit = sum(waiting.values())
    if options.records_max is not None:
        limit = min(limit, options.records_max)
    if options.bytes_max is not None:
        size = sum(frontier.sized(one).bytes for one in ranges)
        if size > options.bytes_max:
            limit = min(limit, max(1, sum(waiting.values()) * options.bytes_max // size))
    if limit >= sum(waiting.values()):
        return end
    shares = share(waiting, limit)
    found = {topic: dict(of) for topic, of in end.items()}
    for one in ranges:
        found[one.topic][one.partition] = one.start + shares[one.topic, one.partition]
    return found


def checked_ranges(
    frontier: Frontier, start: Offsets, end: Offsets, fail_on_loss: bool
) -> Iterator[Range]:
    """The ranges of a micro-batch, without what is gone; that is an error if it is to be one."""
    for one in _ranges(start, end):
        earliest = frontier.earliest(one.topic, one.partition)
        known = one.partition in start.get(one.topic, {})
        there = frontier.end(one.topic, one.partition)
        if one.start < earliest:
            _tell(_gone(one, earliest, known=known), fail_on_loss)
        if one.end > there:
            _tell(_cut_off(one.topic, one.partition, one.end, there), fail_on_loss)
        kept = Range(one.topic, one.partition, max(one.start, earliest), min(one.end, there))
        if kept.records > 0:
            yield frontier.sized(kept)


def _ranges(start: Offsets, end: Offsets) -> Iterator[Range]:
    for topic, partition, stop in each(end):
        begin = offset_in(start, topic, partition)
        if stop > begin:
            yield Range(topic, partition, begin, stop)


def _tell(loss: OffsetOutOfRange, fail_on_loss: bool) -> None:
    if fail_on_loss:
        raise loss
    _log.warning("%s", loss)


def _gone(one: Range, earliest: int, *, known: bool) -> OffsetOutOfRange:
    last = min(one.end, earliest) - 1
    why = (
        "retention removed them before the query read them"
        if known
        else "the query has not seen this partition before, and retention removed its first records"
    )
    return OffsetOutOfRange(
        f"records {one.start} to {last} of {one.topic}/{one.partition} are gone: {why}. It begins "
        f"at {earliest} now. {_WAY_OUT}; option groupId lets retention wait for the query",
        topic=one.topic,
        partition=one.partition,
        offset=one.start,
        earliest=earliest,
    )


def _cut_off(topic: str, partition: int, wanted: int, end: int) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        f"the query has read {topic}/{partition} up to offset {wanted}, but it ends at {end} now: "
        "a power cut took records that were not synced, or the log was made anew under the same "
        f"path. {_WAY_OUT}",
        topic=topic,
        partition=partition,
        offset=wanted,
        end=end,
    )
