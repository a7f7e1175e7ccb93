"""Moving a group to other places, while nobody reads in it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from penstock import errors
from penstock.system import System
from penstock.transports import Consumer, EmbeddedTransport, StartPosition, Transport

ASSIGN_SECONDS = 25.0
"""Less than a dashboard waits for its program."""
POLL_SECONDS = 0.05


async def move_group(
    transport: Transport, topic: str, group: str, to: Mapping[int, StartPosition]
) -> None:
    """Let it go on from there in each partition that is named; SubscriberBusy when it has members."""
    if isinstance(transport, EmbeddedTransport):
        async with transport.queue.subscribe(topic, group) as subscriber:
            for partition, place in to.items():
                await subscriber.seek(place, partition=partition)
        return
    async with transport.subscribe(topic, group, requires=["seek"]) as consumer:
        await assigned(consumer, await transport.partitions(topic))
        for partition, place in to.items():
            await consumer.seek(place, partition=partition)


async def assigned(consumer: Consumer, partitions: int) -> None:
    """Wait until a consumer has all partitions of its topic; SubscriberBusy when others have some."""
    clock = System().clock
    until = clock.monotonic() + ASSIGN_SECONDS
    while len(consumer.assignment().partitions) < partitions:
        if clock.monotonic() > until:
            raise errors.SubscriberBusy(
                f"group {consumer.group!r} of {consumer.topic!r} has other members: stop them first",
                subscriber=consumer.group,
                topic=consumer.topic,
            )
        await asyncio.sleep(POLL_SECONDS)
