"""RabbitMQ's quorum queues as topics: what is acknowledged is gone, and nothing is read twice.

A topic is the exchange ``penstock:orders``, and each group has queues of its own, one for each partition:
``penstock:orders:billing:2``. A group gets what is produced after its queues were made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from aio_pika import DeliveryMode, ExchangeType, Message
from aio_pika.abc import AbstractChannel, AbstractExchange
from aio_pika.exceptions import (
    AMQPException,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    DeliveryError,
    PublishError,
)

from penstock.errors import InvalidOption, NotSupported, SubscriberBusy
from penstock.log.lag import PartitionLag
from penstock.log.names import check_name
from penstock.transports.assignment import OnRevoke
from penstock.transports.base import Consumer
from penstock.transports.capabilities import Capabilities
from penstock.transports.options import check_options
from penstock.transports.producing import Routing, Rows
from penstock.transports.rabbitmq_amqp import LOST, AmqpConnection
from penstock.transports.rabbitmq_catalogue import QUORUM, Catalogue
from penstock.transports.rabbitmq_connection import PAUSE_SECONDS
from penstock.transports.rabbitmq_mode import Mode
from penstock.transports.rabbitmq_queue_consumer import KEY, NULL, TIME, QueueConsumer
from penstock.transports.rabbitmq_settings import (
    NAME,
    PREFETCH_MAX,
    RabbitSettings,
    unknown_topic,
)
from penstock.transports.records import Produced, StartPosition

CAPABILITIES = Capabilities(
    durable=True,
    shared=True,
    create_topics=True,
    keyed_routing=True,
    pause=True,
    headers=True,
    timestamps=True,
)
"""A quorum queue syncs before it confirms."""
LIMITS = {
    "max_records": "x-max-length",
    "max_bytes": "x-max-length-bytes",
    "replicas": "x-quorum-initial-group-size",
}
"""Options of a topic, and what RabbitMQ calls them."""
QUEUE_NAME_MAX = 255
EXCHANGE_NAME_MAX = 127
HEADER_NAME_BYTES_MAX = 128
_LOST = ConnectionError("no outcome")
PORTION = 500
"""Messages that are on their way at the same time, of one call."""


class QueuesMode(Mode):
    """Topics in quorum queues; see ``RabbitTransport``."""

    capabilities = CAPABILITIES

    def __init__(self, settings: RabbitSettings) -> None:
        self._connection = AmqpConnection(settings)
        super().__init__(settings, self._connection, Routing())
        self._catalogue = Catalogue(self._connection)
        self._channel: AbstractChannel | None = None
        self._exchanges: dict[str, AbstractExchange] = {}
        self._opening = asyncio.Lock()
        self._sent_again = 0

    # Life

    async def close(self) -> None:
        """Nothing waits: what was confirmed is stored."""

    def _times_sent_again(self) -> int:
        return self._sent_again

    # Producing

    async def produce(self, topic: str, rows: Rows) -> Produced:
        """Send in order; what was not confirmed when a connection was lost is sent again."""
        count = await self._count(topic)
        numbers = self._routing.numbers(topic, count, rows)
        messages = [_message(rows, place) for place in range(len(rows.values))]
        for start in range(0, len(messages), PORTION):
            part = slice(start, start + PORTION)
            await self._send(topic, messages[part], numbers[part])
        self._produced += len(messages)
        return Produced(topic, len(messages), {}, True)

    async def _send(self, topic: str, messages: list[Message], numbers: list[int]) -> None:
        left = list(range(len(messages)))
        while True:
            used = self._channel
            outcomes: dict[int, BaseException | None] = {}
            with suppress(*LOST):
                await self._connection.attempt(
                    lambda: self._publish(topic, messages, numbers, left, outcomes)  # noqa: B023
                )
            left = [place for place in left if self._is_open(topic, outcomes.get(place, _LOST))]
            if not left:
                return
            self._sent_again += 1
            if self._channel is used:
                self._channel = None
            await asyncio.sleep(PAUSE_SECONDS)

    async def _publish(
        self,
        topic: str,
        messages: list[Message],
        numbers: list[int],
        places: list[int],
        outcomes: dict[int, BaseException | None],
    ) -> None:
        """Publish all, in order, and note what became of each."""
        exchange = await self._exchange(topic)

        async def one(place: int) -> None:
            try:
                await exchange.publish(messages[place], str(numbers[place]), mandatory=True)
            except BaseException as error:
                outcomes[place] = error
                raise
            outcomes[place] = None

        await asyncio.gather(*map(one, places), return_exceptions=True)

    def _is_open(self, topic: str, outcome: BaseException | None) -> bool:
        """Whether a message has to be sent again; raises what the server said against it."""
        if outcome is None:
            return False
        if isinstance(outcome, (*LOST, asyncio.CancelledError)):
            return True
        if isinstance(outcome, PublishError):
            raise NotSupported(
                f"no group has queues for {topic!r}, so nobody would get the records: name one with "
                "groups=..., or subscribe with start='latest' first",
                transport=NAME,
                topic=topic,
                missing=("replay",),
            )
        if isinstance(outcome, DeliveryError):
            raise self._settings.failed("refused a record", f"a queue of {topic!r} is full")
        raise self._error(topic, outcome)

    async def _exchange(self, topic: str) -> AbstractExchange:
        async with self._opening:
            channel = self._channel
            if channel is None or channel.is_closed:
                channel = self._channel = await self._connection.channel(on_return_raises=True)
                self._exchanges.clear()
            found = self._exchanges.get(topic)
            if found is None:
                found = await channel.get_exchange(self._name(topic), ensure=False)
                self._exchanges[topic] = found
            return found

    def _error(self, topic: str, error: BaseException) -> BaseException:
        if isinstance(error, ChannelNotFoundEntity):
            self._counts.pop(topic, None)
            return unknown_topic(topic)
        if isinstance(error, AMQPException):
            return self._settings.failed("refused a call", str(error))
        return error

    # Consuming

    def subscribe(
        self,
        topic: str,
        group: str,
        start: StartPosition,
        on_revoke: OnRevoke | None,
        among: set[Consumer],
        options: Mapping[str, Any],
    ) -> QueueConsumer:
        check_options("a subscription of RabbitMQ's quorum queues", options, {"prefetch"})
        prefetch = options.get("prefetch", self._settings.prefetch)
        if not isinstance(prefetch, int) or not 1 <= prefetch <= PREFETCH_MAX:
            raise InvalidOption(
                f"prefetch is {prefetch!r}: use 1 to {PREFETCH_MAX}", option="prefetch"
            )
        if start not in ("earliest", "latest"):
            raise NotSupported(
                "a quorum queue has no offsets to start at: use mode=streams",
                transport=NAME,
                missing=("seek",),
            )
        return QueueConsumer(
            self._connection,
            topic,
            group,
            lambda: self._queues(topic, group, start),
            among,
            self._note_consumed,
            prefetch=prefetch,
            lock=self._name(topic, group, "member") if self._settings.ordered else None,
        )

    async def _queues(self, topic: str, group: str, start: StartPosition) -> list[str]:
        """The queues of a group; made now for a new group that starts at the end."""
        count = await self.partitions(topic)
        names = [self._name(topic, group, str(number)) for number in range(count)]
        if not await self._connection.exists(names[-1]):
            if start == "earliest":
                raise NotSupported(
                    f"group {group!r} has no queues for {topic!r}, and what was produced before it has "
                    f"them is gone for it: name it with groups=... when the topic is made, or say "
                    "start='latest'",
                    transport=NAME,
                    topic=topic,
                    missing=("replay",),
                )
            await self._make_group(topic, group, count, {})
        return names

    # Topics

    def _name(self, *parts: str) -> str:
        name = ":".join([self._settings.prefix, *parts])
        limit = QUEUE_NAME_MAX if parts[1:] else EXCHANGE_NAME_MAX
        if len(name) > limit:
            raise InvalidOption(
                f"the name {name[:60]}... is longer than the {limit} characters that RabbitMQ takes: "
                "use a shorter topic or group",
                option="group",
            )
        return name

    async def create_topic(
        self, topic: str, partitions: int | None, options: Mapping[str, Any]
    ) -> None:
        """The queues of the groups first, then the name: a topic that is listed is whole."""
        check_name("topic", topic)
        check_options("a topic of RabbitMQ's quorum queues", options, {"groups", *LIMITS})
        count = self._checked_count(partitions)
        groups = [check_name("group", one) for one in options.get("groups", ())]
        arguments = _arguments(options)
        count = (await self._catalogue.read()).get(topic, count)
        await self._connection.call(
            lambda channel: channel.declare_exchange(
                self._name(topic), ExchangeType.DIRECT, durable=True
            )
        )
        for group in dict.fromkeys([*self._settings.group_names, *groups]):
            await self._make_group(topic, group, count, arguments)
        self._counts[topic] = await self._catalogue.add(topic, count)

    async def _make_group(
        self, topic: str, group: str, count: int, arguments: Mapping[str, Any]
    ) -> None:
        # The server gives the queue to the next reader when all is back that the last one had.
        kind = QUORUM | ({"x-single-active-consumer": True} if self._settings.ordered else {})

        async def make(channel: AbstractChannel) -> None:
            exchange = await channel.get_exchange(self._name(topic), ensure=False)
            for number in range(count):
                name = self._name(topic, group, str(number))
                queue = await channel.declare_queue(
                    name, durable=True, arguments={**kind, **arguments}
                )
                await queue.bind(exchange, str(number))

        try:
            await self._connection.call(make)
        except ChannelPreconditionFailed:
            if arguments:
                # It is there, with other limits, and stays as it is.
                return
            raise self._settings.failed(
                "has another kind of queue", self._name(topic, group)
            ) from None
        except AMQPException as error:
            raise self._error(topic, error) from None

    async def delete_topic(self, topic: str) -> None:
        """Not here: AMQP does not tell which groups have queues."""
        self.capabilities.require(NAME, ["delete_topics"])

    async def topics(self) -> list[str]:
        return sorted(await self._catalogue.read())

    async def partitions(self, topic: str) -> int:
        check_name("topic", topic)
        found = (await self._catalogue.read()).get(topic)
        if found is None:
            self._counts.pop(topic, None)
            raise unknown_topic(topic)
        self._counts[topic] = found
        return found

    # Groups

    async def lag(self, topic: str, group: str) -> list[PartitionLag]:
        """Not in a queue: it tells what waits, but not what others hold without a commit."""
        self.capabilities.require(NAME, ["lag"])
        return []

    async def forget(self, topic: str, group: str) -> None:
        """Remove the queues of a group, with what is in them; SubscriberBusy when it has a member."""
        count = await self.partitions(topic)

        names = [self._name(topic, group, str(number)) for number in range(count)]

        async def remove(channel: AbstractChannel) -> bool:
            # A quorum queue cannot be removed on the condition that nobody reads it.
            found = [await channel.declare_queue(name, passive=True) for name in names]
            if any(one.declaration_result.consumer_count for one in found):
                return False
            for name in names:
                await channel.queue_delete(name)
            return True

        try:
            removed = await self._connection.call(remove)
        except ChannelNotFoundEntity:
            return
        if not removed:
            raise SubscriberBusy(
                f"group {group!r} of {topic!r} has a member: close it first",
                subscriber=group,
                topic=topic,
            )

    async def groups(self, topic: str) -> list[str]:
        self.capabilities.require(NAME, ["list_groups"])
        return []


def _message(rows: Rows, place: int) -> Message:
    value, key, headers, timestamp = rows.row(place)
    found: dict[str, Any] = {}
    for name, data in (headers or {}).items():
        if not 0 < len(name.encode()) <= HEADER_NAME_BYTES_MAX or name in (KEY, NULL, TIME):
            raise InvalidOption(
                f"the header {name[:60]!r} cannot be sent: RabbitMQ takes names of 1 to "
                f"{HEADER_NAME_BYTES_MAX} bytes",
                option="headers",
            )
        found[name] = bytearray(data)
    if key is not None:
        found[KEY] = bytearray(key)
    if value is None:
        found[NULL] = True
    if timestamp is not None:
        found[TIME] = timestamp
    return Message(value or b"", headers=found, delivery_mode=DeliveryMode.PERSISTENT)


def _arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, argument in LIMITS.items():
        if name in options:
            value = options[name]
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidOption(f"{name} is {value!r}: it is a number from 1 on", option=name)
            found[argument] = value
    if "x-max-length" in found or "x-max-length-bytes" in found:
        # Else the server drops what is oldest, read or not.
        found["x-overflow"] = "reject-publish"
    return found
