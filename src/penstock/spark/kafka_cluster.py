"""A Kafka cluster as a pipeline sees it: topics, the offsets of groups, lag. No Spark is needed for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import lru_cache, partial
from typing import TypeVar

from penstock.errors import DeadlineExceeded, UnknownTopic
from penstock.spark.kafka_options import parsed
from penstock.streaming.lag_pressure import GroupLag
from penstock.system import System
from penstock.transports.kafka_admin import EARLIEST, LATEST, KafkaAdmin
from penstock.transports.kafka_settings import KafkaSettings

CONNECT_SECONDS = 10.0
CALL_SECONDS = 120.0
DEFAULT = -1
CLUSTERS_MAX = 8

_T = TypeVar("_T")


class KafkaCluster:
    """Blocking; any thread. Unreachable when no broker answers in time."""

    def __init__(self, url: str) -> None:
        self.address, _, own = parsed(url)
        system = System()
        seconds = float(own.get("connect_seconds", CONNECT_SECONDS))
        self._admin = KafkaAdmin(KafkaSettings.of(url, {})[0], system, seconds)
        # An event loop may run in the caller's thread.
        self._worker = system.worker("penstock-spark-kafka")
        self.is_native = own.get("partitioner", "fnv1a") != "fnv1a"
        """Whether keys go where Kafka's own clients send them."""

    def partitions(self, topic: str) -> int:
        """How many a topic has; UnknownTopic when it is not there."""
        return self.run(lambda: self._admin.count(topic))

    def check_topics(self, topics: Iterable[str]) -> None:
        """UnknownTopic for one that is not there: Spark's connector would say so in many lines."""
        for topic in topics:
            try:
                self.partitions(topic)
            except UnknownTopic as unknown:
                raise UnknownTopic(
                    f"there is no topic {topic!r} in Kafka: make it before it is read, for example with "
                    "create_topic of the transport",
                    topic=topic,
                ) from unknown

    def make_topic(self, topic: str, partitions: int | None = None) -> int:
        """How many partitions a topic has, which is made when it is not there."""
        try:
            return self.partitions(topic)
        except UnknownTopic:
            self.run(lambda: self._admin.create(topic, partitions or DEFAULT, DEFAULT, {}))
            return self.partitions(topic)

    def begin(self, group: str, topics: Iterable[str]) -> None:
        """Let a group that has committed nothing of a topic stand at its first record."""
        for topic in topics:
            self.run(partial(self._begin, group, topic))

    async def _begin(self, group: str, topic: str) -> None:
        count = await self._admin.count(topic)
        if not await self._admin.committed(group, {topic: count}):
            first = await self._admin.offsets(topic, EARLIEST, count)
            await self._admin.commit(group, {(topic, one): at for one, at in first.items()})

    def commit(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Write down how far a group is."""
        self.run(lambda: self._admin.commit(group, offsets))

    def lag(self, group: str, topics: Iterable[str]) -> GroupLag:
        """What a group has not committed of these topics; those that it does not read count nothing."""
        return self.run(lambda: self._lag(group, set(topics)))

    async def _lag(self, group: str, topics: set[str]) -> GroupLag:
        counts = await self._admin.counts()
        asked = {topic: counts[topic] for topic in topics & counts.keys()}
        read = {topic for topic, _ in await self._admin.committed(group, asked)}
        lags = [await self._admin.lag(topic, group) for topic in sorted(read)]
        return GroupLag.of(group, [one for some in lags for one in some])

    def letters_left(self, topic: str, group: str) -> tuple[int, int]:
        """How many records a topic has, and how many of them a group has not read."""
        return self.run(lambda: self._letters_left(topic, group))

    async def _letters_left(self, topic: str, group: str) -> tuple[int, int]:
        try:
            count = await self._admin.count(topic)
        except UnknownTopic:
            return 0, 0
        first = await self._admin.offsets(topic, EARLIEST, count)
        end = await self._admin.offsets(topic, LATEST, count)
        read = await self._admin.committed(group, {topic: count})
        at = {number: max(first[number], 0) for number in first}
        for (_, number), offset in read.items():
            at[number] = max(offset, at[number])
        there = sum(end[number] - first[number] for number in first)
        return there, sum(max(0, end[number] - at[number]) for number in first)

    def run(self, job: Callable[[], Awaitable[_T]]) -> _T:
        """What a coroutine returns or raises; it runs in a thread of its own."""
        answer: Future[_T] = Future()

        def work() -> None:
            try:
                answer.set_result(asyncio.run(_awaited(job)))
            except BaseException as error:
                answer.set_exception(error)

        self._worker.submit(work)
        try:
            return answer.result(CALL_SECONDS)
        except FutureTimeoutError:
            if answer.done():
                raise
            raise DeadlineExceeded(
                f"Kafka at {self.address} did not answer within {CALL_SECONDS:g} s",
                seconds=CALL_SECONDS,
            ) from None


async def _awaited(job: Callable[[], Awaitable[_T]]) -> _T:
    return await job()


@lru_cache(maxsize=CLUSTERS_MAX)
def cluster_at(url: str) -> KafkaCluster:
    """The cluster of a URL, asked over the same connections each time."""
    return KafkaCluster(url)
