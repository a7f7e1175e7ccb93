"""Records published one by one, and handled one by one, by a service on a broker."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.durable.stores import library
from benchmarks.frameworks.brokers import BROKERS, GROUP, TOPIC, Broker, Started
from benchmarks.model import Case, Load, Meter, Sample, Scale, Workload
from benchmarks.targets import Target
from penstock import StreamingScalingManager
from penstock.transports import open_transport

PAYLOAD_BYTES = 100
TASKS = 64
HANDLED_SECONDS = 120.0
HANDLED_MAX = 20_000

Handle = Callable[[bytes], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Service:
    """A framework that is connected to a broker."""

    publish: Callable[[bytes], Coroutine[Any, Any, object]]
    """Returns when the broker has acknowledged the record."""
    serve: Callable[[Handle], AbstractAsyncContextManager[None]]
    """Calls a handler with each record of the topic, oldest first, until the end of the block."""


@asynccontextmanager
async def penstock(broker: Started, *, commit_each: bool = False) -> AsyncIterator[Service]:
    """``StreamingScalingManager``, as its documentation shows it."""
    async with open_transport(broker.url) as transport:
        await transport.create_topic(TOPIC, partitions=1)
    async with StreamingScalingManager(broker.url) as streams:

        @asynccontextmanager
        async def serve(handle: Handle) -> AsyncIterator[None]:
            async def work() -> None:
                async with streams.subscribe(TOPIC, GROUP) as events:
                    async for event in events:
                        await handle(event.value or b"")
                        if commit_each:
                            await event.commit()

            task = asyncio.create_task(work())
            try:
                yield
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        yield Service(lambda value: streams.publish(TOPIC, value), serve)


@asynccontextmanager
async def faststream(broker: Started, *, confirmed: bool = False) -> AsyncIterator[Service]:
    """A broker with a subscriber, as its documentation shows it for records that are kept.

    With ``confirmed`` the handler of a record ends when the broker has taken its acknowledgement.
    """
    current = library("faststream").Context("message")
    logging.getLogger("faststream").setLevel(logging.CRITICAL)
    client, subscriber, publish = broker.faststream(confirmed)
    heard: list[Handle] = []

    async def handle(body: bytes) -> None:
        await heard[0](body)

    async def handle_and_confirm(body: bytes, message: Any = current) -> None:
        await heard[0](body)
        assert broker.confirm is not None
        await broker.confirm(message)

    subscriber(handle_and_confirm if confirmed else handle)

    @asynccontextmanager
    async def serve(handle: Handle) -> AsyncIterator[None]:
        heard.append(handle)
        await client.start()
        yield

    await client.connect()
    try:
        yield Service(publish, serve)
    finally:
        await client.stop()


FRAMEWORKS: dict[str, Callable[[Started], AbstractAsyncContextManager[Service]]] = {
    "penstock": penstock,
    "penstock-commit": partial(penstock, commit_each=True),
    "faststream": faststream,
    "faststream-confirmed": partial(faststream, confirmed=True),
}
PUBLISHED = {
    "penstock": f"await streams.publish, {TASKS} tasks",
    "faststream": f"await broker.publish, {TASKS} tasks",
}


def how(broker: str) -> dict[str, dict[str, str]]:
    """What the contenders do, and what they promise."""
    one = BROKERS[broker]
    handled = {
        "penstock": "async for event, handled when the next one is asked for, committed every 5 s",
        "penstock-commit": "one after the other, await event.commit() of each, which waits for the broker",
        "faststream": f"a subscriber, {one.acknowledged}",
    }
    if one.confirmed:
        handled["faststream-confirmed"] = (
            f"a subscriber, {one.confirmed}, which waits for the broker"
        )
    return {"publish": PUBLISHED, "handle": handled}


def cases(scale: Scale, broker: str) -> list[Case]:
    """Publishing and handling, by each framework."""
    load = Load.of(scale, PAYLOAD_BYTES, 1)
    return [
        Case(f"on_{broker}", PAYLOAD_BYTES, point, name, told,
             partial(_run, broker=broker, framework=name, point=point, load=load),
             bound=name == "faststream", durability=BROKERS[broker].durability)
        for point, contenders in how(broker).items()
        for name, told in contenders.items()
    ]  # fmt: skip


def _run(folder: Path, broker: str, framework: str, point: str, load: Load) -> Sample:
    async def work(started: Started) -> Sample:
        async with FRAMEWORKS[framework](started) as service:
            return await (_publish if point == "publish" else _handle)(service, load)

    with BROKERS[broker].start(folder) as started:
        return asyncio.run(work(started))


async def _publish(service: Service, load: Load) -> Sample:
    value = load.values()[0]
    await service.publish(value)
    meter = Meter(load)

    async def publisher() -> None:
        while meter.more():
            meter.records += 1
            await service.publish(value)

    await asyncio.gather(*(publisher() for _ in range(TASKS)))
    return meter.sample()


async def _handle(service: Service, load: Load) -> Sample:
    """The rate from the first record that was handled to the last one."""
    count = max(TASKS, min(HANDLED_MAX, round(load.seconds * HANDLED_MAX)))
    value, times = load.values()[0], []
    for _ in range(0, count, TASKS):
        await asyncio.gather(*(service.publish(value) for _ in range(TASKS)))
    done = asyncio.Event()

    async def handle(body: bytes) -> None:
        assert body == value
        times.append(time.perf_counter())
        if len(times) >= count:
            done.set()

    async with service.serve(handle):
        await asyncio.wait_for(done.wait(), HANDLED_SECONDS)
    return Sample((count - 1) / (times[count - 1] - times[0]), {"records": count})


WORKLOADS = tuple(
    Workload(
        f"on_{broker}",
        f"On {one.title}",
        "64 tasks publish single records and wait for the broker's word; then a service handles records "
        "that lie on the broker. Both frameworks use the same server, with the same settings.",
        partial(cases, broker=broker),
    )
    for broker, one in BROKERS.items()
)


def _targets(broker: str, one: Broker) -> Iterator[Target]:
    """Commits of each record are judged against the FastStream that waits for the broker as well."""
    waits = "faststream-confirmed" if one.confirmed else "faststream"
    for title, point, contender, peer in (
        ("published one by one", "publish", "penstock", "faststream"),
        ("handled one by one", "handle", "penstock", "faststream"),
        ("handled and committed one by one", "handle", "penstock-commit", waits),
    ):
        group = f"on_{broker}/{PAYLOAD_BYTES}/{point}"
        yield Target(
            f"{one.title}, {title}: times FastStream", f"{group}/{contender}", 1, f"{group}/{peer}"
        )


TARGETS = tuple(target for broker, one in BROKERS.items() for target in _targets(broker, one))
