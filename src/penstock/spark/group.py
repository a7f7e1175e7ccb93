"""A query as a consumer group: how far it has come stands in the log, as for every other group.

Spark's own checkpoint decides where a query goes on. The group's offsets follow it, so that lag is
seen, in records and seconds, and retention waits for the query.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager

from penstock.errors import DeadlineExceeded, PenstockError, SubscriberBusy
from penstock.log.names import check_name
from penstock.log.offsets import OffsetFile
from penstock.log.topic import TopicFile
from penstock.spark.offsets import Offsets, each
from penstock.spark.open_log import OpenLog

CLAIM_SECONDS = 10.0
"""How long a query waits for the one before, which is being stopped, to let go of the group."""

_log = logging.getLogger("penstock.spark")


def group_of_use(group: str, use: int) -> str:
    """The group as which a query reads its topics the second time, or the third."""
    return group if use == 1 else f"{group}.{use}"


class Group:
    """The offsets of a group. Blocking; one thread at a time."""

    def __init__(self, log: OpenLog, name: str) -> None:
        self.name = check_name("group", name)
        self._log = log
        self._claims: dict[str, AbstractContextManager[None]] = {}
        self._registered: set[str] = set()
        self._committed: dict[tuple[str, int], int] = {}

    def claim(self, topic: str) -> None:
        """Be the one that reads the topic as this group, until the process ends.

        SubscriberBusy when another query or subscription still is after ten seconds.
        """
        if topic in self._claims:
            return
        claim = self._log.store.lock(f"groups/{self.name}/{topic}.lock", CLAIM_SECONDS)
        try:
            claim.__enter__()
        except DeadlineExceeded:
            raise SubscriberBusy(
                f"group {self.name!r} of {topic!r} is in use by another query or subscription: "
                "stop that one, or use another groupId; a query that reads the topic twice needs another "
                "groupUse for the second time, as a pipeline gives it when frame() is called twice",
                subscriber=self.name,
                topic=topic,
            ) from None
        self._claims[topic] = claim

    def begin(self, offsets: Offsets, *, register: bool = True) -> None:
        """A new query starts here, wherever an earlier one of the group stood."""
        now = self._log.system.clock.time_ms()
        for topic, partition, offset in each(offsets):
            self.claim(topic)
            self._file(topic, partition).reset(offset, now)
            self._committed[topic, partition] = offset
        if register:
            for topic in offsets:
                self._register(topic, offsets)

    def commit(self, offsets: Offsets, *, register: bool = True) -> None:
        """Move the group forward. A store that fails is told of; it does not stop the query."""
        moved = [one for one in each(offsets) if self._committed.get(one[:2], -1) < one[2]]
        try:
            for topic, partition, offset in moved:
                self._commit(topic, partition, offset)
            for topic in {one[0] for one in moved if register} - self._registered:
                self._register(topic, offsets)
        except PenstockError as failure:
            _log.warning("group %s: the offsets are not committed: %s", self.name, failure)

    def _commit(self, topic: str, partition: int, offset: int) -> None:
        now = self._log.system.clock.time_ms()
        self._file(topic, partition).commit(offset, now)
        self._committed[topic, partition] = offset

    def _register(self, topic: str, offsets: Offsets) -> None:
        """Let retention wait for the group. The offsets are there already."""
        file = TopicFile(self._log.store, topic)
        if self.name not in file.read().subscribers:
            file.add_subscriber(self.name, dict(offsets[topic]))
        self._registered.add(topic)

    def _file(self, topic: str, partition: int) -> OffsetFile:
        return OffsetFile(self._log.store, self.name, topic, partition)
