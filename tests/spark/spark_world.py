"""Logs for Spark to read, and readers of them that need no Java."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.log.queue import WalMessageQueue
from penstock.log.topic import FsyncPolicy, Retention, TopicConfig
from penstock.spark.options import read_options
from penstock.spark.reading import row_schema
from penstock.spark.source import PenstockReader
from penstock.spark.stream import PenstockStreamReader


class LogWorld:
    """A log in a directory, written to by short-lived queues."""

    def __init__(self, path: Any) -> None:
        self.path = str(path)

    def create(self, topic: str, partitions: int = 1, **settings: Any) -> None:
        config = TopicConfig(partitions=partitions, **settings)
        self._run(lambda queue: queue.create_topic(topic, config))

    def publish(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Mapping[str, bytes] | None] | None = None,
        timestamps: Sequence[int] | None = None,
    ) -> None:
        """Publish records durably; without keys they go to the partitions in turn."""
        self._run(
            lambda queue: queue.publish_many(
                topic, values, keys=keys, headers=headers, timestamps=timestamps, durable=True
            )
        )

    def numbers(self, topic: str, first: int, count: int) -> None:
        """Publish numbered records, each with its number as key."""
        names = [b"%d" % number for number in range(first, first + count)]
        self.publish(topic, names, names)

    def repartition(self, topic: str, partitions: int) -> None:
        self._run(lambda queue: queue.repartition(topic, partitions))

    def drop_old(self, topic: str) -> None:
        """Let retention remove every sealed segment."""

        async def drop(queue: WalMessageQueue) -> None:
            keep = Retention(age_ms_max=None, bytes_max=1, protect_subscribers=False)
            await queue.change_topic(topic, retention=keep)
            await queue.maintain()

        self._run(drop)

    def _run(self, job: Any) -> Any:
        async def run() -> Any:
            defaults = TopicConfig(fsync=FsyncPolicy.TIMED)
            async with WalMessageQueue(self.path, defaults=defaults) as queue:
                return await job(queue)

        return asyncio.run(run())

    # Readers without Java

    def batch(self, **options: Any) -> PenstockReader:
        return PenstockReader(self._options(options, stream=False), self._schema(options))

    def stream(self, **options: Any) -> PenstockStreamReader:
        return PenstockStreamReader(self._options(options, stream=True), self._schema(options))

    def rows(self, **options: Any) -> list[dict[str, Any]]:
        """What a batch query gives, in the order of topic, partition and offset."""
        reader = self.batch(**options)
        return rows_of(reader, reader.partitions())

    def _options(self, options: Mapping[str, Any], *, stream: bool) -> Any:
        given = {"path": self.path} | {name: str(value) for name, value in options.items()}
        return read_options(given, stream=stream)

    def _schema(self, options: Mapping[str, Any]) -> Any:
        return row_schema(headers=options.get("includeHeaders") == "true")


def rows_of(reader: Any, tasks: Any) -> list[dict[str, Any]]:
    """The rows of some tasks."""
    rows = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def places(rows: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return [(row["topic"], row["partition"], row["offset"]) for row in rows]


def values(rows: list[dict[str, Any]]) -> list[Any]:
    return [row["value"] for row in rows]
