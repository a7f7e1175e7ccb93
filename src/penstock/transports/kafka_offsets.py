"""What groups of Kafka committed, asked for as the group itself. It joins none.

The client has a call for this that needs no group, but it ends the process when the broker answers that it does not
coordinate the group: whenever a cluster is new, a broker restarts or partitions move (librdkafka issue 5040). A
consumer that asks for its own group looks for the coordinator instead.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from penstock.system import System
from penstock.transports.client_thread import CallThread
from penstock.transports.kafka_settings import KafkaSettings

THREADS = 4
"""As many groups are asked for at once."""
CLIENTS_MAX = 2
"""Clients that a thread keeps between questions. Each has threads and connections of its own."""
STABLE_SECONDS = 2.0
"""How long offsets are waited for that a transaction is about to move."""


class GroupOffsets:
    """Asks for committed offsets, with a client for each group; the last few are kept."""

    def __init__(self, settings: KafkaSettings, system: System) -> None:
        self._settings, self._system = settings, system
        self._askers: dict[int, _Asker] = {}

    async def committed(
        self, group: str, places: Sequence[TopicPartition], seconds: float
    ) -> list[TopicPartition]:
        """The places with their offsets, or the client's error; none of a topic that is not there.

        Offsets whose transaction is just being ended are waited for; those of one that is still open
        count as they were before it. Cancelled, the question is still asked, and its answer dropped.
        """
        if not places:
            return []
        asker = self._asker(hash(group) % THREADS)
        return await asker.thread.call(asker.committed, group, places, seconds)

    def _asker(self, number: int) -> _Asker:
        if number not in self._askers:
            self._askers[number] = _Asker(self._settings, self._system)
        return self._askers[number]

    async def close(self) -> None:
        """Let go of the connections, when the questions are answered."""
        while self._askers:
            _, one = self._askers.popitem()
            await one.thread.call(one.close)
            await one.thread.close()


class _Asker:
    """A thread, and the clients that live there."""

    def __init__(self, settings: KafkaSettings, system: System) -> None:
        self.thread = CallThread(system, "penstock-kafka-offsets")
        self._settings = settings
        self._clients: OrderedDict[tuple[str, bool], Consumer] = OrderedDict()

    def committed(
        self, group: str, places: Sequence[TopicPartition], seconds: float
    ) -> list[TopicPartition]:
        stable = min(STABLE_SECONDS, seconds / 2)
        try:
            return self._ask(self._client(group, stable=True), places, stable)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._TIMED_OUT:
                raise
        return self._ask(self._client(group, stable=False), places, seconds - stable)

    def _ask(
        self, client: Consumer, places: Sequence[TopicPartition], seconds: float
    ) -> list[TopicPartition]:
        found: list[TopicPartition] = client.committed(list(places), timeout=seconds)
        for one in found:
            if one.error is not None and one.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise KafkaException(one.error)
        return found

    def _client(self, group: str, *, stable: bool) -> Consumer:
        client = self._clients.pop((group, stable), None) or self._make(group, stable)
        self._clients[group, stable] = client
        while len(self._clients) > CLIENTS_MAX:
            _, oldest = self._clients.popitem(last=False)
            oldest.close()
        return client

    def _make(self, group: str, stable: bool) -> Consumer:
        own = {
            "group.id": group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if stable else "read_uncommitted",
        }
        made: Consumer = self._settings.make(Consumer, self._settings.client("consumer") | own)
        return made

    def close(self) -> None:
        while self._clients:
            _, client = self._clients.popitem()
            client.close()
