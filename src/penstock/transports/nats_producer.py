"""Producing to JetStream in batches that are stored together or not at all.

A batch of one partition has an id that the server knows for ``dedupe_seconds``. When its outcome is not
known (the connection was lost, nobody answered), it is sent again under the same id: the server
stores it once. Then the answer tells that it is there, but not where; that is looked up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence

from nats.aio.msg import Msg
from nats.errors import MaxPayloadError

from penstock.errors import BrokerFailed, RecordTooLarge
from penstock.transports.nats_connection import ATTEMPT_SECONDS, PAUSE_SECONDS, NatsConnection
from penstock.transports.nats_consumer import PullReader
from penstock.transports.nats_records import (
    BATCH_COMMIT,
    BATCH_ID,
    BATCH_SEQUENCE,
    MESSAGE_ID,
    encoded_headers,
)
from penstock.transports.nats_streams import NatsStreams
from penstock.transports.producing import Rows

BATCH_RECORDS_MAX = 1_000
"""The server takes no more in one batch."""
BATCH_BYTES_MAX = 8 * 1024 * 1024
DUPLICATE = 10201
INCOMPLETE = (10176, 10210)
"""A part of the batch did not arrive, or too many batches are on their way."""
ID_BITS = 96
LOOK_MESSAGES = 1_000

Message = tuple[dict[str, str], bytes]


class NatsProducer:
    """Sends batches. In each partition one after the other, so that they stay in order."""

    def __init__(self, connection: NatsConnection, streams: NatsStreams) -> None:
        self._connection = connection
        self._streams = streams
        self._turns: dict[tuple[str, int], asyncio.Lock] = {}
        self._ends: dict[tuple[str, int], int] = {}
        """An offset below which nothing of ours is looked for."""
        self.records = 0
        self.sent_again = 0

    async def send(
        self, topic: str, partition: int, rows: Rows, places: Sequence[int]
    ) -> tuple[int, int]:
        """The rows at these places, in order; the first offset and the one after the last."""
        where = (topic, partition)
        first: int | None = None
        end = 0
        async with self._turns.setdefault(where, asyncio.Lock()):
            if where not in self._ends:
                _, self._ends[where] = await self._streams.bounds(topic, partition)
            for messages in _chunks(rows, places):
                end = await self._store(topic, partition, messages)
                first = end - len(messages) if first is None else first
                self._ends[where] = end
                self.records += len(messages)
        return first or 0, end

    async def _store(self, topic: str, partition: int, messages: list[Message]) -> int:
        """Send a batch until it is stored; the offset behind it."""
        number = self._connection.settings.system.random.getrandbits(ID_BITS)
        message_id = f"{number:024x}"
        for attempt in range(1_000_000):
            if attempt:
                self.sent_again += 1
                await asyncio.sleep(PAUSE_SECONDS)
            try:
                answer = await self._sent(topic, partition, messages, message_id, attempt)
                end = await self._stored(topic, partition, messages, message_id, answer)
            except MaxPayloadError:
                raise self._too_large(topic, messages) from None
            if end is not None:
                return end
        raise AssertionError("the deadline of the caller comes before")

    async def _sent(
        self, topic: str, partition: int, messages: list[Message], message_id: str, attempt: int
    ) -> Msg | None:
        subject = self._streams.subject(topic, partition)
        headers, payload = messages[-1]
        if len(messages) == 1:
            headers = {**headers, MESSAGE_ID: message_id}
        else:
            headers = {
                **headers,
                BATCH_ID: f"{message_id}-{attempt}",
                BATCH_SEQUENCE: str(len(messages)),
                BATCH_COMMIT: "1",
            }

        async def call() -> Msg:
            client = self._connection.client
            if len(messages) > 1:
                await self._open_batch(subject, messages, message_id, headers[BATCH_ID])
            return await client.request(subject, payload, timeout=ATTEMPT_SECONDS, headers=headers)

        return await self._connection.attempt(call)

    async def _open_batch(
        self, subject: str, messages: list[Message], message_id: str, batch_id: str
    ) -> None:
        """All but the last message. The first one carries the id for all."""
        publish = self._connection.client.publish
        for number, (headers, payload) in enumerate(messages[:-1], 1):
            headers[BATCH_ID] = batch_id
            headers[BATCH_SEQUENCE] = str(number)
            if number == 1:
                headers[MESSAGE_ID] = message_id
            await publish(subject, payload, headers=headers)

    async def _stored(
        self,
        topic: str,
        partition: int,
        messages: list[Message],
        message_id: str,
        answer: Msg | None,
    ) -> int | None:
        """The offset behind the batch; None when it has to be sent again."""
        if answer is None:
            # Also when nobody listens to the subject: UnknownTopic when there is no stream.
            await self._streams.info(topic, partition)
            return None
        try:
            return int(self._connection.answer(answer)["seq"])
        except BrokerFailed as error:
            if error.code == DUPLICATE:
                return await self._found(topic, partition, message_id) + len(messages)
            if error.code in INCOMPLETE:
                return None
            raise

    async def _found(self, topic: str, partition: int, message_id: str) -> int:
        """The offset of the message with this id, which the server has."""
        stream = self._streams.stream(topic, partition)
        reader = PullReader(self._connection, stream, "look")
        offset = self._ends[topic, partition]
        try:
            while True:
                for message, where in await reader.read(offset, LOOK_MESSAGES):
                    offset = where.sequence
                    if (message.headers or {}).get(MESSAGE_ID) == message_id:
                        return offset - 1
        finally:
            await reader.close()

    def _too_large(self, topic: str, messages: list[Message]) -> RecordTooLarge:
        largest = max(len(payload) for _, payload in messages)
        limit = self._connection.client.max_payload
        return RecordTooLarge(
            f"a record of {largest} bytes for {topic!r} is larger than this server takes, {limit} "
            "bytes with its headers: make it smaller, or raise max_payload of the server",
            topic=topic,
            size=largest,
            limit=limit,
        )


def _message(
    value: bytes | None,
    key: bytes | None,
    headers: Mapping[str, bytes] | None,
    timestamp: int | None,
) -> Message:
    return encoded_headers(key, value, headers, timestamp), value or b""


def _chunks(rows: Rows, places: Sequence[int]) -> Iterator[list[Message]]:
    """Messages in batches that the server takes."""
    messages: list[Message] = []
    size = 0
    for place in places:
        message = _message(*rows.row(place))
        if messages and (
            len(messages) >= BATCH_RECORDS_MAX or size + len(message[1]) > BATCH_BYTES_MAX
        ):
            yield messages
            messages, size = [], 0
        messages.append(message)
        size += len(message[1])
    if messages:
        yield messages
