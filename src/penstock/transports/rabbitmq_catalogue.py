"""Which topics there are in quorum queues, and how many partitions they have.

AMQP lists neither queues nor exchanges. So the names stand in messages of one quorum queue: whoever reads
takes them, writes them again as one, and acknowledges those that it took. While it does so it has an
exclusive queue, which only one connection may have: nobody finds the messages gone. When it dies, the
server gives back what it took; then there may be several, and they are put together.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import msgspec
from aio_pika import DeliveryMode, Message
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue
from aio_pika.exceptions import AMQPException
from aiormq.exceptions import ChannelLockedResource

from penstock.transports.rabbitmq_amqp import AmqpConnection
from penstock.transports.rabbitmq_connection import CALL_SECONDS, PAUSE_SECONDS

QUORUM: dict[str, Any] = {"x-queue-type": "quorum"}


class Catalogue:
    """Topic → number of partitions."""

    def __init__(self, connection: AmqpConnection) -> None:
        self._connection = connection
        self._name = f"{connection.settings.prefix}:topics"
        self._turn = asyncio.Lock()

    async def read(self) -> dict[str, int]:
        """All topics."""
        return await self._with_lock({})

    async def add(self, topic: str, partitions: int) -> int:
        """Add a topic unless it is there; how many partitions it has."""
        return (await self._with_lock({topic: partitions}))[topic]

    async def _with_lock(self, new: dict[str, int]) -> dict[str, int]:
        async with self._turn:  # a connection may have its exclusive queue twice
            try:
                async with asyncio.timeout(CALL_SECONDS):
                    while True:
                        with suppress(ChannelLockedResource):
                            return await self._connection.call(
                                lambda channel: self._changed(channel, new)
                            )
                        await asyncio.sleep(PAUSE_SECONDS)
            except TimeoutError:
                why = f"somebody else has the queue {self._name}:lock"
                raise self._connection.settings.unreachable(CALL_SECONDS, why) from None
            except AMQPException as error:
                raise self._connection.settings.failed("refused a call", str(error)) from None

    async def _changed(self, channel: AbstractChannel, new: dict[str, int]) -> dict[str, int]:
        lock = await channel.declare_queue(f"{self._name}:lock", exclusive=True)
        try:
            queue = await channel.declare_queue(self._name, durable=True, arguments=QUORUM)
            taken = await _take(queue)
            found = dict(new)
            for message in taken:
                found |= msgspec.json.decode(message.body, type=dict[str, int])
            await channel.default_exchange.publish(
                Message(msgspec.json.encode(found), delivery_mode=DeliveryMode.PERSISTENT),
                self._name,
            )
            for message in taken:
                await message.ack()
            return found
        finally:
            await lock.delete()


async def _take(queue: AbstractQueue) -> list[AbstractIncomingMessage]:
    """All messages of the queue, not acknowledged."""
    taken: list[AbstractIncomingMessage] = []
    while (message := await queue.get(fail=False)) is not None:
        taken.append(message)
    return taken
