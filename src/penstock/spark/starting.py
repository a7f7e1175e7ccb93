"""Where a query starts, and where a batch query ends: from options to offsets."""

from __future__ import annotations

from penstock.errors import InvalidOption, OffsetOutOfRange
from penstock.spark.frontier import Frontier
from penstock.spark.offsets import EARLIEST, LATEST, Offsets, each, offset_in
from penstock.spark.options import Position, SourceOptions


def starting_offsets(frontier: Frontier, options: SourceOptions) -> Offsets:
    """The first offset to read of each partition that is there."""
    first, ends = frontier.bounds()
    if options.starting_ms is None:
        name = "startingOffsets"
        return _resolved(name, options.starting, first, ends, clamp=not options.fail_on_loss)
    found = _at_times(frontier, "startingOffsetsByTimestamp", options.starting_ms, ends)
    if options.late_start == "error":
        for topic, partition, offset in each(found):
            if offset == LATEST:
                raise _nothing_so_young(topic, partition)
    return _resolved("startingTimestamp", found, first, ends, clamp=True)


def ending_offsets(frontier: Frontier, options: SourceOptions) -> Offsets:
    """The offset behind the last one to read of each partition."""
    first, ends = frontier.bounds()
    if options.ending_ms is None:
        name = "endingOffsets"
        return _resolved(name, options.ending, first, ends, clamp=not options.fail_on_loss)
    found = _at_times(frontier, "endingOffsetsByTimestamp", options.ending_ms, ends)
    return _resolved("endingTimestamp", found, first, ends, clamp=True)


def _resolved(
    name: str, position: Position, first: Offsets, ends: Offsets, *, clamp: bool
) -> Offsets:
    if isinstance(position, str):
        return first if position == "earliest" else ends
    _check_complete(name, position, ends)
    return {
        topic: {
            one: _bounded(name, topic, one, position[topic][one], (first, ends), clamp)
            for one in ends[topic]
        }
        for topic in ends
    }


def _bounded(
    name: str, topic: str, partition: int, wanted: int, bounds: tuple[Offsets, Offsets], clamp: bool
) -> int:
    low, high = (offset_in(one, topic, partition) for one in bounds)
    if wanted in (EARLIEST, LATEST):
        return low if wanted == EARLIEST else high
    if clamp:
        return min(max(wanted, low), high)
    if low <= wanted <= high:
        return wanted
    raise OffsetOutOfRange(
        f"option {name} asks for offset {wanted} of {topic}/{partition}, which has {low} to {high}. "
        "Use one of these, -2 (earliest) or -1 (latest), or option failOnDataLoss=false",
        topic=topic,
        partition=partition,
        offset=wanted,
        earliest=low,
    )


def _at_times(frontier: Frontier, name: str, times: int | Offsets, ends: Offsets) -> Offsets:
    """The first offset appended at or after the times; LATEST where nothing is so young."""
    if not isinstance(times, int):
        _check_complete(name, times, ends)
    found: dict[str, dict[int, int]] = {}
    for topic, partition, _ in each(ends):
        time_ms = times if isinstance(times, int) else times[topic][partition]
        offset = frontier.offset_at(topic, partition, time_ms)
        found.setdefault(topic, {})[partition] = LATEST if offset is None else offset
    return found


def _check_complete(name: str, given: Offsets, there: Offsets) -> None:
    """All partitions and no others: one that is left out would be read from anywhere."""
    wanted = {(topic, partition) for topic, partition, _ in each(there)}
    named = {(topic, partition) for topic, partition, _ in each(given)}
    if wanted == named:
        return
    missing = ", ".join(f"{topic}/{one}" for topic, one in sorted(wanted - named))
    unknown = ", ".join(f"{topic}/{one}" for topic, one in sorted(named - wanted))
    says = " and ".join(
        [f"leaves out {missing}"] * bool(missing)
        + [f"names {unknown}, which is not read"] * bool(unknown)
    )
    raise InvalidOption(
        f"option {name} {says}. It has to name each partition that is read, and no other",
        option=name,
    )


def _nothing_so_young(topic: str, partition: int) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        f"option startingTimestamp: no record of {topic}/{partition} was appended then or later. "
        "Use an earlier time, or option startingOffsetsByTimestampStrategy=latest",
        topic=topic,
        partition=partition,
    )
