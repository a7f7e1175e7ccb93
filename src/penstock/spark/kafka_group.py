"""A query over Kafka as a consumer group: its offsets are committed to Kafka, so every tool sees its lag.

Spark's checkpoint decides where a query goes on; the group follows it, and nobody joins it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import AbstractContextManager

from penstock.errors import DeadlineExceeded, PenstockError, SubscriberBusy
from penstock.log.names import check_name
from penstock.spark.group import CLAIM_SECONDS
from penstock.spark.kafka_cluster import cluster_at
from penstock.spark.offsets import Offsets, each
from penstock.spark.open_log import OpenLog

_log = logging.getLogger("penstock.spark")


class KafkaGroup:
    """The offsets of a group. Blocking; one thread at a time."""

    def __init__(self, url: str, name: str) -> None:
        self.name = check_name("group", name)
        self._cluster = cluster_at(url)
        self._committed: dict[tuple[str, int], int] = {}
        self._claims: list[AbstractContextManager[None]] = []

    def claim(self, state: OpenLog, topics: Iterable[str]) -> None:
        """Be the one that reads these topics as this group, until :meth:`close`.

        SubscriberBusy when another query still is after ten seconds.
        """
        names = sorted(topics)
        for topic in names:
            self._claim(state, topic)
        self._cluster.begin(self.name, names)

    def commit(self, offsets: Offsets) -> None:
        """Move the group. A broker that fails is told of; it does not stop the query."""
        moved = {
            (topic, number): offset
            for topic, number, offset in each(offsets)
            if self._committed.get((topic, number)) != offset
        }
        if not moved:
            return
        try:
            self._cluster.commit(self.name, moved)
        except PenstockError as failure:
            _log.warning("group %s: the offsets are not committed: %s", self.name, failure)
        else:
            self._committed |= moved

    def close(self) -> None:
        """Let others read as this group. Idempotent."""
        while self._claims:
            self._claims.pop().__exit__(None, None, None)

    def _claim(self, state: OpenLog, topic: str) -> None:
        claim = state.store.lock(f"groups/{self.name}/{topic}.lock", CLAIM_SECONDS)
        try:
            claim.__enter__()
        except DeadlineExceeded:
            self.close()
            raise SubscriberBusy(
                f"group {self.name!r} of {topic!r} is in use by another query: stop that one",
                subscriber=self.name,
                topic=topic,
            ) from None
        self._claims.append(claim)
