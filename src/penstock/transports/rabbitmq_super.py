"""Super streams of RabbitMQ: an exchange that tells other clients which streams are the partitions.

The stream protocol cannot make one before server 3.13, so it is made over AMQP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from aio_pika import ExchangeType
from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import AMQPException

from penstock.transports.rabbitmq_amqp import AmqpConnection
from penstock.transports.rabbitmq_settings import RabbitSettings


async def make_super_stream(
    settings: RabbitSettings, topic: str, stream: Callable[[int], str], count: int
) -> None:
    """Bind the streams of a topic, which are there, to an exchange; one that is there stays."""
    hosts = tuple((host, settings.amqp_port) for host, _ in settings.hosts)
    connection = AmqpConnection(replace(settings, hosts=hosts))

    async def make(channel: AbstractChannel) -> None:
        exchange = await channel.declare_exchange(
            f"{settings.prefix}.{topic}",
            ExchangeType.DIRECT,
            durable=True,
            arguments={"x-super-stream": True},
        )
        for number in range(count):
            queue = await channel.get_queue(stream(number), ensure=False)
            order: dict[str, Any] = {"x-stream-partition-order": number}
            await queue.bind(exchange, str(number), arguments=order)

    try:
        await connection.open()
        await connection.call(make)
    except AMQPException as error:
        raise settings.failed("refused to make a super stream", str(error)) from None
    finally:
        await connection.close()
