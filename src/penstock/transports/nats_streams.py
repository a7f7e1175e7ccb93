"""The streams of the NATS transport: one for each partition of a topic, so that offsets are dense.

Partition 2 of ``orders`` is the stream ``penstock_orders_2`` with the subject ``penstock.orders.2``. Its
first message has sequence 1 and is offset 0. The stream of partition 0 is made last: a topic is
there when that one is.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from penstock.errors import BrokerFailed, InvalidOption, UnknownTopic
from penstock.log.names import check_name
from penstock.log.topic import PARTITIONS_MAX
from penstock.transports.nats_connection import NatsConnection
from penstock.transports.nats_keys import NAME_IN_USE, token
from penstock.transports.options import check_options
from penstock.transports.records import milliseconds

NO_STREAM = 10059
PARTITIONS = "penstock.partitions"
AT_ONCE = 32
SECOND_NS = 1_000_000_000
TOPIC_OPTIONS = frozenset(
    {
        "compression",
        "dedupe_seconds",
        "max_age_seconds",
        "max_bytes",
        "max_records",
        "replicas",
        "storage",
    }
)


class NatsStreams:
    """Makes the streams of topics, and tells what is there."""

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection
        self._prefix = connection.settings.prefix
        self._counts: dict[str, int] = {}

    def stream(self, topic: str, partition: int) -> str:
        """The stream of a partition."""
        return f"{self._prefix}_{token(topic)}_{partition}"

    def subject(self, topic: str, partition: int) -> str:
        """The one subject of that stream."""
        return f"{self._prefix}.{topic}.{partition}"

    async def create(self, topic: str, partitions: int | None, options: Mapping[str, Any]) -> int:
        """Make a topic when it is not there; how many partitions it has."""
        check_name("topic", topic)
        check_options("a topic of the NATS transport", options, TOPIC_OPTIONS)
        count = self._connection.settings.partitions if partitions is None else partitions
        if not 1 <= count <= PARTITIONS_MAX:
            raise InvalidOption(
                f"partitions is {count}: use 1 to {PARTITIONS_MAX}", option="partitions"
            )
        config = self._config(count, options)
        try:
            return await self.look(topic)
        except UnknownTopic:
            pass
        for first in range(1, count, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, count))
            await asyncio.gather(*(self._make(topic, number, config) for number in numbers))
        await self._make(topic, 0, config)
        # Somebody else may have made it meanwhile, with another number of partitions.
        return await self.look(topic)

    def _config(self, partitions: int, options: Mapping[str, Any]) -> dict[str, Any]:
        settings = self._connection.settings
        dedupe = options.get("dedupe_seconds", settings.dedupe_seconds)
        age = options.get("max_age_seconds", 0)
        for name in ("dedupe_seconds", "max_age_seconds", "max_bytes", "max_records", "replicas"):
            _check_number(name, options.get(name, 1))
        if age:
            dedupe = min(dedupe, age)
        return {
            "retention": "limits",
            "discard": "old",
            "storage": options.get("storage", settings.storage),
            "num_replicas": options.get("replicas", settings.replicas),
            "max_age": round(age * SECOND_NS),
            "max_bytes": options.get("max_bytes", -1),
            "max_msgs": options.get("max_records", -1),
            "duplicate_window": round(dedupe * SECOND_NS),
            "compression": options.get("compression", "none"),
            "allow_direct": True,
            "allow_atomic": True,
            "metadata": {PARTITIONS: str(partitions)},
        }

    async def _make(self, topic: str, partition: int, config: Mapping[str, Any]) -> None:
        name = self.stream(topic, partition)
        whole = {**config, "name": name, "subjects": [self.subject(topic, partition)]}
        try:
            await self._connection.api(f"STREAM.CREATE.{name}", whole)
        except BrokerFailed as error:
            # With another configuration: it stays as it is.
            if error.code != NAME_IN_USE:
                raise

    async def delete(self, topic: str) -> None:
        """Remove the streams of a topic, that of partition 0 first: the topic is gone with it."""
        count = await self.look(topic)
        self._counts.pop(topic, None)
        for number in range(count):
            try:
                await self._connection.api(f"STREAM.DELETE.{self.stream(topic, number)}")
            except BrokerFailed as error:
                if error.code != NO_STREAM:
                    raise

    async def count(self, topic: str) -> int:
        """How many partitions a topic has, as it was when somebody asked first."""
        return self._counts.get(topic) or await self.look(topic)

    async def count_or_create(self, topic: str) -> int:
        """As :meth:`count`; makes the topic when it is not there."""
        try:
            return await self.count(topic)
        except UnknownTopic:
            return await self.create(topic, None, {})

    async def look(self, topic: str) -> int:
        """How many partitions a topic has; UnknownTopic when it is not there."""
        self._counts.pop(topic, None)
        info = await self.info(topic, 0)
        text = (info["config"].get("metadata") or {}).get(PARTITIONS, "")
        if not text.isdecimal():
            raise BrokerFailed(
                f"the stream {self.stream(topic, 0)} was not made by Penstock: it does not tell how "
                f"many partitions the topic has ({PARTITIONS} in its metadata)",
                transport="nats",
                topic=topic,
            )
        self._counts[topic] = int(text)
        return int(text)

    async def info(self, topic: str, partition: int) -> dict[str, Any]:
        """What the server says of the stream of a partition."""
        check_name("topic", topic)
        try:
            return await self._connection.api(f"STREAM.INFO.{self.stream(topic, partition)}")
        except BrokerFailed as error:
            if error.code != NO_STREAM:
                raise
            self._counts.pop(topic, None)
            raise UnknownTopic(
                f"there is no topic {topic!r} on this server: create_topic() makes it", topic=topic
            ) from None

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """The first offset that is kept, and the end."""
        state = (await self.info(topic, partition))["state"]
        end = int(state["last_seq"])
        return min(max(int(state["first_seq"]) - 1, 0), end), end

    async def offset_at(self, topic: str, partition: int, time_ms: int) -> int:
        """The first offset that was stored at that time or later; the end when there is none."""
        state = (await self.info(topic, partition))["state"]
        end = int(state["last_seq"])
        # Far times are not asked for: the server counts nanoseconds, and 2999 is too many.
        if not state["messages"] or time_ms > milliseconds(state["last_ts"]):
            return end
        time = datetime.fromtimestamp(max(time_ms, 0) / 1_000, UTC).isoformat()
        found = await self.direct(topic, partition, start_time=time.replace("+00:00", "Z"), batch=1)
        return end if found is None else int(found["Nats-Sequence"]) - 1

    async def direct(self, topic: str, partition: int, **which: Any) -> Mapping[str, str] | None:
        """The headers of the first message that is meant; None when there is none."""
        request = {**which, "next_by_subj": self.subject(topic, partition)}
        message = await self._connection.request(
            f"$JS.API.DIRECT.GET.{self.stream(topic, partition)}", msgspec.json.encode(request)
        )
        headers = message.headers or {}
        return headers if "Nats-Sequence" in headers else None

    async def topics(self) -> list[str]:
        """The names of all topics with this prefix."""
        names: list[str] = []
        while True:
            page = await self._connection.api(
                "STREAM.NAMES", {"subject": f"{self._prefix}.>", "offset": len(names)}
            )
            found = page.get("streams") or []
            names += found
            if not found or len(names) >= page.get("total", 0):
                break
        start, end = f"{self._prefix}_", "_0"
        return sorted(
            one[len(start) : -len(end)].replace("=", ".")
            for one in names
            if one.startswith(start) and one.endswith(end)
        )


def _check_number(name: str, value: object) -> None:
    good = isinstance(value, int | float) and math.isfinite(value) and value > 0
    if not good:
        raise InvalidOption(f"{name} is {value!r}: it is a number above 0", option=name)
