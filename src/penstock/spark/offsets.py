"""Offsets as Spark keeps them: ``{"orders": {"0": 23, "1": 5}}``, the form of its Kafka source.

They are always written in one order, since Spark compares offsets as text. Where a query reads a topic
more than once, offsets say of which use they are: ``{"#2": {}, "orders": {"0": 23}}``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.log.names import check_name

LATEST = -1
EARLIEST = -2
USE = "#"
"""What the mark of a use begins with; no topic does."""
_OFFSET_MAX = (1 << 63) - 1

Offsets = Mapping[str, Mapping[int, int]]
"""Topic → partition → offset of the next record to be read."""


def parse_offsets(found: Any, low: int = 0) -> dict[str, dict[int, int]]:
    """Offsets from JSON; ValueError says what is wrong with it."""
    if not isinstance(found, dict):
        raise ValueError("it is no object")  # noqa: TRY004 - JSON that is wrong, not a type
    return {
        check_name("topic", topic): _partitions(topic, of, low)
        for topic, of in found.items()
        if not topic.startswith(USE)
    }


def use_of(found: Any) -> int:
    """Of which use of its topics in a query offsets from JSON are; 1 when they do not say."""
    marks = [name for name in found if name.startswith(USE)] if isinstance(found, dict) else []
    number = marks[0].removeprefix(USE) if marks else ""
    return int(number) if number.isascii() and number.isdigit() else 1


def _partitions(topic: str, found: Any, low: int) -> dict[int, int]:
    if not isinstance(found, dict):
        raise ValueError(f"what stands at {topic!r} is no object")  # noqa: TRY004
    partitions = {}
    for number, offset in found.items():
        if not (number.isascii() and number.isdigit() and len(number) < 10):
            raise ValueError(f"{number!r} of {topic!r} is no partition")
        if type(offset) is not int or not low <= offset <= _OFFSET_MAX:
            raise ValueError(f"{offset!r} of {topic!r}, partition {number}, is no offset")
        partitions[int(number)] = offset
    return partitions


def as_json(offsets: Offsets, use: int = 1) -> dict[str, dict[str, int]]:
    """Offsets as Spark writes them down, in order."""
    mark: dict[str, dict[str, int]] = {} if use == 1 else {f"{USE}{use}": {}}
    return mark | {
        topic: {str(number): offsets[topic][number] for number in sorted(offsets[topic])}
        for topic in sorted(offsets)
    }


def each(offsets: Offsets) -> Iterator[tuple[str, int, int]]:
    """Topic, partition and offset of each, in order."""
    for topic in sorted(offsets):
        for number in sorted(offsets[topic]):
            yield topic, number, offsets[topic][number]


def offset_in(offsets: Offsets, topic: str, partition: int, default: int = 0) -> int:
    """The offset of a partition; the default when it is not there."""
    return offsets.get(topic, {}).get(partition, default)
