"""How far the groups of a pipeline are behind, read from the log: no Spark is needed for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count

from penstock.log.lag import PartitionLag, lag_in
from penstock.log.offsets import OffsetFile
from penstock.spark.group import group_of_use
from penstock.spark.open_log import OpenLog
from penstock.streaming.lag_pressure import GroupLag


def lag_of_group(log: OpenLog, group: str, topics: Iterable[str]) -> GroupLag:
    """What a group has not committed of these topics; those that it does not read count nothing.

    Of a query that reads a topic more than once, it is that of the use which is furthest behind.
    """
    wanted = list(topics)
    lags = [GroupLag.of(group, _lags(log, name, wanted)) for name in _uses(log, group)]
    return max(lags, key=lambda lag: lag.records)


def _uses(log: OpenLog, group: str) -> Iterator[str]:
    yield group
    for use in count(2):
        name = group_of_use(group, use)
        if not any(log.store.list(f"groups/{name}/")):
            return
        yield name


def _lags(log: OpenLog, group: str, topics: Iterable[str]) -> list[PartitionLag]:
    return [one for topic in topics for one in _lags_of_topic(log, group, topic)]


def _lags_of_topic(log: OpenLog, group: str, topic: str) -> Iterator[PartitionLag]:
    state = log.topic(topic)
    files = [
        OffsetFile(log.store, group, topic, number)
        for number in range(0 if state is None else state.partitions_all)
    ]
    if not any(file.read() for file in files):
        return
    now = log.system.clock.time_ms()
    for number, file in enumerate(files):
        yield lag_in(log.reader(topic, number), file, number, now)
