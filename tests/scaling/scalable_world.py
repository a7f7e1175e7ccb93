"""Events of the tests of the scalable bus, and a bus that leaves publishers alone."""

import asyncio

from penstock.bus.bus import MessageBus
from penstock.messages import Event, critical, hot_path, topic
from penstock.resilience.bus import ResilientMessageBus
from penstock.scaling.bus import ScalableMessageBus

INNER = [MessageBus, ResilientMessageBus]


@topic("orders", key="customer")
class Ordered(Event):
    customer: str
    number: int = 0


@topic("plain")
class Plain(Event):
    number: int = 0


@hot_path
@topic("ticks", key="symbol")
class Tick(Event):
    symbol: str
    number: int = 0


@critical
@topic("alarms")
class Alarm(Event):
    number: int = 0


class Stuck:
    """A handler that waits, so that its queue fills."""

    def __init__(self):
        self.gate = asyncio.Event()
        self.headers = []

    async def __call__(self, event, envelope):
        self.headers.append(dict(envelope.headers))
        await self.gate.wait()


async def turns(count=20):
    for _ in range(count):
        await asyncio.sleep(0)


def quiet(inner, **options):
    """A bus that leaves publishers alone, for tests about something else."""
    return ScalableMessageBus(inner, backpressure=False, **options)


def in_order(numbers):
    return numbers == sorted(numbers)
