"""What groups of Kafka committed, asked for as the group itself. It joins none.

The client has a call for this that needs no group, but it ends the process when the broker answers that it does not
coordinate the group: whenever a cluster is new, a broker restarts or partitions move (librdkafka issue 5040). A
consumer that asks for its own group looks for the coordinator instead.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from penstock.transports.kafka_settings import KafkaSettings

CLIENTS_MAX = 8
"""Clients that are kept between questions, and asked at once. Each has threads and connections of its own."""
STABLE_SECONDS = 2.0
"""How long offsets are waited for that a transaction is about to move."""


class GroupOffsets:
    """Asks for committed offsets, with a client for each group; the last few are kept."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._idle: OrderedDict[tuple[str, bool], Consumer] = OrderedDict()
        self._threads = ThreadPoolExecutor(CLIENTS_MAX, "penstock-kafka-offsets")
        self._lock = Lock()
        self._closed = False

    async def committed(
        self, group: str, places: Sequence[TopicPartition], seconds: float
    ) -> list[TopicPartition]:
        """The places with their offsets, or the client's error; none of a topic that is not there.

        Offsets whose transaction is just being ended are waited for; those of one that is still open
        count as they were before it. Cancelled, the question is still asked, and its answer dropped.
        """
        if not places:
            return []
        stable = min(STABLE_SECONDS, seconds / 2)
        try:
            return await self._asked(group, places, stable, stable=True)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._TIMED_OUT:
                raise
        return await self._asked(group, places, seconds - stable, stable=False)

    async def _asked(
        self, group: str, places: Sequence[TopicPartition], seconds: float, *, stable: bool
    ) -> list[TopicPartition]:
        loop = asyncio.get_running_loop()
        ask = partial(self._ask, group, places, seconds, stable=stable)
        return await loop.run_in_executor(self._threads, ask)

    def _ask(
        self, group: str, places: Sequence[TopicPartition], seconds: float, *, stable: bool
    ) -> list[TopicPartition]:
        client = self._take(group, stable)
        try:
            found: list[TopicPartition] = client.committed(list(places), timeout=seconds)
        finally:
            self._give_back(client, group, stable)
        for one in found:
            if one.error is not None and one.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise KafkaException(one.error)
        return found

    def _take(self, group: str, stable: bool) -> Consumer:
        with self._lock:
            kept = self._idle.pop((group, stable), None)
        if kept is not None:
            return kept
        own = {
            "group.id": group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if stable else "read_uncommitted",
        }
        made: Consumer = self._settings.make(Consumer, self._settings.client("consumer") | own)
        return made

    def _give_back(self, client: Consumer, group: str, stable: bool) -> None:
        """Keep it for the next question; one too many is closed."""
        with self._lock:
            spare = self._idle.pop((group, stable), None)
            self._idle[group, stable] = client
            if spare is None and (self._closed or len(self._idle) > CLIENTS_MAX):
                _, spare = self._idle.popitem(last=False)
        if spare is not None:
            spare.close()

    async def close(self) -> None:
        """Let go of the connections; a question that is still asked closes its own."""
        with self._lock:
            self._closed = True
            idle = list(self._idle.values())
            self._idle.clear()
        for one in idle:
            await asyncio.to_thread(one.close)
        self._threads.shutdown(wait=False, cancel_futures=True)
