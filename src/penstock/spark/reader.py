"""The group as which a query reads, wherever its offsets are kept: in a log, or in Kafka."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from penstock.spark.group import Group, group_of_use
from penstock.spark.kafka_options import is_kafka
from penstock.spark.kafka_topics import path_of
from penstock.spark.offsets import Offsets
from penstock.spark.open_log import OpenLog, open_log


class Reader(Protocol):
    """The group of a query."""

    def claim(self, state: OpenLog, topics: Iterable[str]) -> None:
        """Be the only one that reads as this group, until it is closed."""

    def commit(self, offsets: Offsets) -> None:
        """Move the group."""

    def close(self) -> None:
        """The query has ended."""


class LogReader:
    """A query over a log: the source claims and commits; what comes after its last look is committed here."""

    def __init__(self, path: str, group: str) -> None:
        self._path, self._name = path, group
        self._log = open_log(path)
        self._group = Group(self._log, group)
        self._further: dict[int, LogReader] = {}

    def of_use(self, use: int) -> LogReader:
        """The group of the second use of a topic in the query, or of the third."""
        if use == 1:
            return self
        if use not in self._further:
            self._further[use] = LogReader(self._path, group_of_use(self._name, use))
        return self._further[use]

    def claim(self, state: OpenLog, topics: Iterable[str]) -> None:
        """Nothing: the source does it, in a process of its own."""

    def commit(self, offsets: Offsets) -> None:
        """Move the group forward; offsets may be those of a source of another kind."""
        there = {one: of for one, of in offsets.items() if self._log.topic(one)}
        self._group.commit(there, register=False)

    def close(self) -> None:
        """Nothing is held."""


def reader_of(path: str, group: str) -> Reader:
    """The group of a query over a log, or over Kafka."""
    if not is_kafka(path):
        return LogReader(path_of(path), group)
    from penstock.spark.kafka_group import KafkaGroup

    return KafkaGroup(path, group)
