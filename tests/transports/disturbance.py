"""What transports are put through while something is wrong with the broker or with the way to it."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from penstock.errors import DeadlineExceeded, Fenced
from penstock.testing.transport_fixtures import WAIT_SECONDS, numbered, take, values_of

Got = Counter[bytes | None]
Read = Callable[[Got, int], Awaitable[None]]
TIMES = 3


async def produced_and_read(
    transport: Any,
    topic: str,
    disturb: Callable[[], Any],
    read: Read,
    *,
    batches: int,
    size: int,
    seconds: float,
) -> Got:
    """Produce, disturbed in the middle, beside who reads until it has all; every produce is acknowledged in the end."""
    await transport.create_topic(topic, partitions=2)
    got: Got = Counter()
    total = batches * size
    reading = asyncio.ensure_future(read(got, total))
    disturbing = None
    for start in range(0, total, size):
        if start == total // 2:
            disturbing = asyncio.create_task(disturb())
        await transport.produce(topic, numbered(size, start), timeout=seconds)
    assert disturbing is not None
    await disturbing
    async with asyncio.timeout(seconds):
        await reading
    return got


async def cut_and_heal(way: Any, transport: Any) -> None:
    """Cut the way to the broker a few times, each until it is noticed, and heal it until that is."""
    for _ in range(TIMES):
        way.cut()
        while transport.statistics().connected:
            await asyncio.sleep(0.001)
        way.heal()
        while not transport.statistics().connected:
            await asyncio.sleep(0.001)


async def check_that_who_is_cut_off_is_fenced(
    way: Any, far: Any, near: Any, topic: str, insist: Callable[[Any], Any] | None = None
) -> None:
    """For longer than its lease: the other member goes on, what the first one had comes again, and its commit is refused."""
    await near.create_topic(topic, partitions=1)
    await near.produce(topic, numbered(5))
    async with far.subscribe(topic, "billing", lease_seconds=0.5) as zombie:
        batch = await zombie.next_batch(WAIT_SECONDS)
        way.cut()
        async with near.subscribe(topic, "billing") as other:
            assert values_of(await take(other, 5)) == numbered(5)
            await other.commit()
            assert zombie.assignment().partitions == frozenset()
            way.heal()
            with pytest.raises(Fenced):
                await (insist(lambda: zombie.commit(batch)) if insist else zombie.commit(batch))


async def check_that_commits_count_once(
    proxy: Any, far: Any, near: Any, topic: str, *, rounds: int, records: int
) -> None:
    """Whoever makes them, and whatever becomes of their answers."""
    await near.create_topic(topic, partitions=4)
    acknowledged: Got = Counter()

    async def read(transport: Any) -> None:
        for _ in range(rounds):
            async with transport.subscribe(topic, "billing") as consumer:
                for _ in range(5):
                    with suppress(DeadlineExceeded, Fenced):
                        batch = await consumer.next_batch(0.2, records_max=9)
                        await consumer.commit(batch)
                        acknowledged.update(values_of(batch.records))

    readers = [asyncio.create_task(read(one)) for one in (far, near, far)]
    for start in range(0, records, 20):
        await near.produce(topic, numbered(20, start))
        if start % 100 == 60:
            proxy.drop()
    await asyncio.gather(*readers)
    async with near.subscribe(topic, "billing") as last:
        while sum(one.records for one in await near.lag(topic, "billing")):
            with suppress(DeadlineExceeded):
                batch = await last.next_batch(0.2)
                await last.commit(batch)
                acknowledged.update(values_of(batch.records))
    assert acknowledged == Counter(numbered(records))
