"""What the tests of the streaming manager share."""

import asyncio

from penstock.streaming import StreamEvent, StreamingScalingManager
from penstock.system import System
from penstock.testing import VirtualClock
from penstock.testing.clock import until_idle
from penstock.transports import EmbeddedTransport

WAIT_SECONDS = 120.0


class GatedTransport(EmbeddedTransport):
    """An embedded transport whose produce waits while the gate is closed, and fails when told to."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: Exception | None = None
        self.batches: list[tuple[str, list]] = []

    async def produce(self, topic, values, **columns):
        self.batches.append((topic, list(values)))
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return await super().produce(topic, values, **columns)


def virtual(store="memory:", *, transport=EmbeddedTransport, **options):
    """A manager on a clock that stands still, and the clock."""
    clock = VirtualClock()
    system = System(clock=clock)
    made = transport(store, system=system)
    return StreamingScalingManager(made, system=system, **options), clock


async def take(stream, count):
    """The next events, exactly so many; each is handled as soon as the next one is asked for."""
    taken: list[StreamEvent] = []
    async with asyncio.timeout(WAIT_SECONDS):
        while len(taken) < count:
            taken.append(await anext(stream))
    return taken


def values(events):
    return [event.value for event in events]


async def turns(count=3):
    """Let everything run that is ready."""
    for _ in range(count):
        await until_idle()


async def until(condition):
    """Wait for something that threads or other processes bring about."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():
            await asyncio.sleep(0.005)
