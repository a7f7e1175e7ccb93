"""Questions and orders to Kafka about topics and groups. Nothing here joins a group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewPartitions, NewTopic

from penstock.errors import (
    BrokerFailed,
    DeadlineExceeded,
    InvalidOption,
    NotSupported,
    PenstockError,
    SubscriberBusy,
    UnknownTopic,
    Unreachable,
)
from penstock.log.lag import PartitionLag
from penstock.system import System
from penstock.transports.client_thread import CallThread, heard
from penstock.transports.foreign_names import names_among
from penstock.transports.kafka_offsets import GroupOffsets
from penstock.transports.kafka_settings import FORGOTTEN, KafkaSettings, is_committed

LOOKUP_GROUP = "penstock-lookup"
"""The client wants a name; nothing is ever committed under it."""
GROUPS_AT_ONCE = 32
EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
NOT_READY = {
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    "_WAIT_COORD",
    # A topic that was just made, or made anew.
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION",
}
"""What a broker says of groups and partitions that it will know of in a moment."""
AGAIN_SECONDS = 0.05
NO_SUCH_GROUP = {KafkaError.GROUP_ID_NOT_FOUND}
NO_ANSWER = {KafkaError._TIMED_OUT, KafkaError._TRANSPORT}

_T = TypeVar("_T")


class KafkaAdmin:
    """Topics, partitions, committed offsets and lag. Every call has a deadline."""

    def __init__(self, settings: KafkaSettings, system: System, seconds: float) -> None:
        self._settings = settings
        self._system = system
        self._seconds = seconds
        self._told: str | None = None
        self._client: AdminClient = settings.make(
            AdminClient, settings.client("admin", error_cb=self._noticed)
        )
        self._group_offsets = GroupOffsets(settings, system)
        self._lookup: _Lookup | None = None

    async def close(self) -> None:
        """Let go of the connections."""
        await self._group_offsets.close()
        lookup, self._lookup = self._lookup, None
        if lookup is not None:
            await lookup.close()

    async def names(self) -> list[str]:
        """All topics but those that Kafka keeps for itself."""
        return sorted(name for name in await self.counts() if not name.startswith("__"))

    async def counts(self) -> dict[str, int]:
        """All topics, Kafka's own too, with the number of partitions of each."""
        try:
            found = await asyncio.to_thread(self._client.list_topics, timeout=self._seconds)
        except KafkaException as error:
            if error.args[0].code() in NO_ANSWER:
                raise self._unreachable("list the topics") from None
            raise self._settings.error(error, "list the topics", self._seconds) from error
        return {name: len(one.partitions) for name, one in found.topics.items()}

    async def count(self, topic: str) -> int:
        """How many partitions a topic has; UnknownTopic when it is not there. Makes none."""
        asked = self._client.describe_topics(
            TopicCollection([topic]), request_timeout=self._seconds
        )
        found = await self._answer(asked[topic], f"look at {topic!r}", topic=topic)
        return len(found.partitions)

    async def create(
        self, topic: str, partitions: int, replicas: int, config: Mapping[str, str]
    ) -> None:
        """Make a topic when it is not there."""
        new = NewTopic(topic, partitions, replicas, config=dict(config))
        asked = self._client.create_topics([new], request_timeout=self._seconds)
        try:
            await self._answer(asked[topic], f"make {topic!r}")
        except BrokerFailed as refused:
            if refused.code == "TOPIC_ALREADY_EXISTS":
                return
            if refused.code in {
                "INVALID_CONFIG",
                "INVALID_PARTITIONS",
                "INVALID_REPLICATION_FACTOR",
            }:
                raise InvalidOption(str(refused), option="topic", topic=topic) from refused
            raise
        await self._appeared(topic)

    async def delete(self, topic: str) -> None:
        """Remove a topic, and return when the broker tells of it no more."""
        asked = self._client.delete_topics([topic], request_timeout=self._seconds)
        await self._answer(asked[topic], f"delete {topic!r}", topic=topic)
        async with asyncio.timeout(self._seconds):
            while True:
                if topic not in await self.names():
                    return
                await asyncio.sleep(0.02)

    async def _appeared(self, topic: str) -> None:
        """Brokers hear of a new topic a moment after it was made."""
        async with asyncio.timeout(self._seconds):
            while True:
                try:
                    await self.count(topic)
                except UnknownTopic:
                    await asyncio.sleep(0.02)
                else:
                    return

    async def grow(self, topic: str, partitions: int) -> None:
        """Add partitions; Kafka takes none away."""
        now = await self.count(topic)
        if partitions < now:
            raise NotSupported(
                f"{topic!r} has {now} partitions, and Kafka takes none away: make the topic anew",
                topic=topic,
            )
        if partitions > now:
            new = NewPartitions(topic, partitions)
            asked = self._client.create_partitions([new], request_timeout=self._seconds)
            await self._answer(asked[topic], f"add partitions to {topic!r}", topic=topic)

    async def offsets(self, topic: str, spec: OffsetSpec, count: int) -> dict[int, int]:
        """Partition → offset: the first, the end of what can be read, or from a time on."""
        return await self._again(lambda: self._offsets(topic, spec, count))

    async def _offsets(self, topic: str, spec: OffsetSpec, count: int) -> dict[int, int]:
        asked = self._client.list_offsets(
            {TopicPartition(topic, number): spec for number in range(count)},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=self._seconds,
        )
        found = await self._answers(asked.values(), f"look for offsets of {topic!r}", topic=topic)
        return {place.partition: one.offset for place, one in zip(asked, found, strict=True)}

    async def committed(self, group: str, topics: Mapping[str, int]) -> dict[tuple[str, int], int]:
        """What a group committed of topics, each with the number of its partitions.

        Offsets whose transaction is just being ended are waited for; those of one that is still open
        count as they were before it.
        """
        places = [
            TopicPartition(topic, number)
            for topic, count in topics.items()
            for number in range(count)
        ]
        found = await self._again(lambda: self._committed(group, places))
        return {(one.topic, one.partition): one.offset for one in found if is_committed(one)}

    async def _committed(
        self, group: str, places: Sequence[TopicPartition]
    ) -> Sequence[TopicPartition]:
        what = f"ask for the offsets of {group!r}"
        try:
            async with asyncio.timeout(self._seconds + 1.0):  # others may be asked for before it
                return await self._group_offsets.committed(group, places, self._seconds)
        except TimeoutError:
            raise self._unreachable(what) from None
        except KafkaException as error:
            if error.args[0].code() in NO_ANSWER:
                raise self._unreachable(what) from None
            raise self._settings.error(error, what, self._seconds) from error

    async def commit(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Set how far a group without members is; SubscriberBusy when it has some."""
        places = [TopicPartition(topic, number, at) for (topic, number), at in offsets.items()]

        def ask() -> Future[Any]:
            asked: dict[str, Future[Any]] = self._client.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group, places)], request_timeout=self._seconds
            )
            return asked[group]

        try:
            await self._coordinated(ask, f"commit for {group!r}", group=group)
        except BrokerFailed as refused:
            raise _busy(refused, group) from refused

    async def lag(self, topic: str, group: str) -> Sequence[PartitionLag]:
        """What a group has not committed; one that never did has everything before it."""
        count = await self.count(topic)
        committed, first, end = await asyncio.gather(
            self.committed(group, {topic: count}),
            self.offsets(topic, EARLIEST, count),
            self.offsets(topic, LATEST, count),
        )
        at = first | {number: offset for (_, number), offset in committed.items()}
        waiting = {number: at[number] for number in at if at[number] < end[number]}
        times = await self._times(topic, waiting) if waiting else {}
        now = self._system.clock.time_ms()
        return [
            PartitionLag(number, at[number], end[number], max(0, now - times.get(number, now)))
            for number in range(count)
        ]

    async def _times(self, topic: str, places: Mapping[int, int]) -> dict[int, int]:
        if self._lookup is None:
            self._lookup = _Lookup(self._settings, self._system)
        return await self._lookup.times(topic, places, self._seconds)

    async def groups(self, topic: str) -> list[str]:
        """The groups that have committed something of a topic."""
        count = await self.count(topic)
        asked = self._client.list_consumer_groups(request_timeout=self._seconds)
        listed = (await self._answer(asked, "list the groups")).valid
        gate = asyncio.Semaphore(GROUPS_AT_ONCE)

        async def has_read(group: str) -> bool:
            async with gate:
                return bool(await self.committed(group, {topic: count}))

        told = [one.group_id for one in listed]
        names = names_among(told, transport="kafka", kind="group")
        read = await asyncio.gather(*map(has_read, names))
        return [name for name, has in zip(names, read, strict=True) if has]

    async def forget(self, topic: str, group: str) -> None:
        """Forget what a group without members committed of a topic."""
        count = await self.count(topic)
        held = await self.committed(group, await self.counts())
        is_shared = any(name != topic for name, _ in held)
        asked = (
            await self._mark_forgotten(group, topic, count)
            if is_shared
            else self._client.delete_consumer_groups([group], request_timeout=self._seconds)
        )
        try:
            await self._answer(asked[group], f"forget {group!r}", absent=NO_SUCH_GROUP)
        except BrokerFailed as refused:
            raise _busy(refused, group) from refused

    async def _mark_forgotten(self, group: str, topic: str, count: int) -> dict[str, Future[Any]]:
        """The client can delete only whole groups. Of several topics, one is marked instead."""
        first = await self.offsets(topic, EARLIEST, count)
        places = [TopicPartition(topic, number, first[number], FORGOTTEN) for number in first]
        asked: dict[str, Future[Any]] = self._client.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, places)], request_timeout=self._seconds
        )
        return asked

    async def _coordinated(
        self,
        ask: Callable[[], Future[Any]],
        what: str,
        absent: Iterable[int] = (),
        **fields: object,
    ) -> Any:
        """As :meth:`_answer`, asked again while the broker still loads what it knows of groups."""
        return await self._again(lambda: self._answer(ask(), what, absent, **fields))

    async def _again(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        """Ask again while the broker is not ready for it, until the deadline."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._seconds
        while True:
            try:
                return await ask()
            except BrokerFailed as refused:
                if refused.code not in NOT_READY or loop.time() > until:
                    raise
            await asyncio.sleep(AGAIN_SECONDS)

    async def _answers(
        self, asked: Iterable[Future[Any]], what: str, **fields: object
    ) -> list[Any]:
        return [await self._answer(one, what, (), **fields) for one in asked]

    async def _answer(
        self, asked: Future[_T], what: str, absent: Iterable[int] = (), **fields: object
    ) -> Any:
        """What a call of the client brings; None for an error that means that there is nothing."""
        future = asyncio.wrap_future(asked)
        future.add_done_callback(heard)
        try:
            async with asyncio.timeout(self._seconds + 1.0):
                return await asyncio.shield(future)
        except KafkaException as error:
            code = error.args[0].code()
            if code in absent:
                return None
            if code == KafkaError._TIMED_OUT:
                raise self._unreachable(what) from None
            raise self._settings.error(error, what, self._seconds, **fields) from error
        except TimeoutError:
            raise self._unreachable(what) from None

    def _unreachable(self, what: str) -> Unreachable:
        """No answer, and why, if the client knows: a login that failed, a certificate, no connection."""
        self._told = None
        self._client.poll(0)
        return self._settings.unreachable(what, self._seconds, self._told)

    def _noticed(self, error: KafkaError) -> None:
        """The first error is the cause; that all brokers are down follows from it."""
        if self._told is None:
            self._told = error.str()


def _busy(refused: BrokerFailed, group: str) -> PenstockError:
    """What it means that a group has members; any other refusal is what it is."""
    if refused.code in {"NON_EMPTY_GROUP", "UNKNOWN_MEMBER_ID"}:
        return SubscriberBusy(f"group {group!r} has members: close them first", group=group)
    return refused


class _Lookup:
    """Reads single records, to know their time. It is no member of a group."""

    def __init__(self, settings: KafkaSettings, system: System) -> None:
        self._thread = CallThread(system, "penstock-kafka-lookup")
        own = {
            "group.id": LOOKUP_GROUP,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "queued.min.messages": 1,
            "fetch.wait.max.ms": 10,
        }
        self._client: Consumer = settings.make(Consumer, settings.client("consumer") | own)
        self._clock = system.clock

    async def times(self, topic: str, places: Mapping[int, int], seconds: float) -> dict[int, int]:
        """Partition → time of the first record from an offset on; none where none is left."""
        return await self._thread.call(self._times, topic, dict(places), seconds)

    def _times(self, topic: str, places: dict[int, int], seconds: float) -> dict[int, int]:
        until = self._clock.monotonic() + seconds
        found: dict[int | None, int] = {}
        missing: set[int | None] = set(places)
        client = self._client
        client.assign([TopicPartition(topic, number, at) for number, at in places.items()])
        try:
            while missing:
                message = client.poll(0.1)
                if self._clock.monotonic() > until:
                    raise DeadlineExceeded(
                        f"could not read the oldest records of {topic!r} within {seconds:g} s",
                        topic=topic,
                        seconds=seconds,
                    )
                number = None if message is None else message.partition()
                if message is None or number not in missing:
                    continue
                error = message.error()
                if error is None:
                    found[number] = message.timestamp()[1]
                if error is None or error.code() == KafkaError._PARTITION_EOF:
                    missing.discard(number)
        finally:
            client.unassign()
        return {number: found[number] for number in places if number in found}

    async def close(self) -> None:
        await self._thread.call(self._client.close)
        await self._thread.close()
