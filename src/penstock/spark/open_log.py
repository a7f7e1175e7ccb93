"""A log as Spark's processes read it: no lock, no writer, kept open from one task to the next."""

from __future__ import annotations

import os
from functools import lru_cache

from penstock.errors import InvalidOption, UnknownTopic
from penstock.log.head import Head
from penstock.log.names import PartitionKeys
from penstock.log.reader import PartitionReader
from penstock.log.topic import TopicFile, TopicState, list_topics
from penstock.stores import PersistentBackingStore, open_store
from penstock.system import Files, System

READERS_MAX = 512
LOGS_MAX = 8


class OpenLog:
    """The stores and the readers of one log. Blocking; one thread at a time."""

    def __init__(self, path: str, tier: str | None = None, system: System | None = None) -> None:
        self.system = system or System()
        self.path = path
        self.store = _existing(path, self.system)
        self._tier = None if tier is None else open_store(tier)
        self._readers: dict[PartitionKeys, PartitionReader] = {}

    def topics(self) -> list[str]:
        """The names of all topics."""
        return list_topics(self.store)

    def topic(self, name: str) -> TopicState | None:
        """What a topic is; None when there is none."""
        try:
            return TopicFile(self.store, name).read()
        except UnknownTopic:
            return None

    def reader(self, topic: str, partition: int) -> PartitionReader:
        """The reader of a partition, with what it knows of segments and indexes."""
        keys = PartitionKeys(topic, partition)
        reader = self._readers.pop(keys, None) or PartitionReader(self.store, keys, self._tier)
        while len(self._readers) >= READERS_MAX:
            self._readers.pop(next(iter(self._readers)))
        self._readers[keys] = reader
        return reader

    def forget(self, topic: str, partition: int) -> None:
        """Begin anew with a partition, after an error: its files may be others now."""
        self._readers.pop(PartitionKeys(topic, partition), None)

    def head(self, topic: str, partition: int) -> Head:
        """Where a partition ends."""
        return self.reader(topic, partition).head()


@lru_cache(maxsize=LOGS_MAX)
def open_log(path: str, tier: str | None = None) -> OpenLog:
    """The log at a path, opened once in each process: Spark uses its workers again and again."""
    return OpenLog(path, tier)


def make_folders(path: str, files: Files) -> None:
    """The folder and those above it, when they are not there."""
    if path and not files.exists(path):
        make_folders(os.path.dirname(path), files)
        files.make_directory(path)


def open_state(path: str) -> OpenLog:
    """The same of a directory without topics, which is made when it is not there."""
    if "://" not in path:
        make_folders(path, System().files)
    return open_log(path)


def _existing(path: str, system: System) -> PersistentBackingStore:
    """The store of the log; reading makes no directory."""
    scheme, colon, rest = path.partition(":")
    place = rest if colon and scheme == "file" else path
    if scheme == "memory" and colon:
        raise InvalidOption("option path: memory: is seen by one process only", option="path")
    if (not colon or "/" in scheme or scheme == "file") and not system.files.exists(place):
        raise InvalidOption(
            f"option path: there is no log at {place}. It is the directory that "
            "WalMessageQueue(...) was given, and every executor must see it",
            option="path",
        )
    return open_store(path)
