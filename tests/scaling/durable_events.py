"""Events of durable topics, and the bus that keeps them in a log."""

import asyncio

from penstock import ResilientMessageBus, ScalableMessageBus
from penstock.messages import Event, topic


@topic("durable.orders", key="customer")
class Ordered(Event):
    customer: str
    number: int = 0


@topic("durable.orders", key="customer")
class Cancelled(Event):
    customer: str
    number: int = 0


class Base(Event):
    number: int = 0


@topic("durable.derived")
class Derived(Base):
    pass


def make(queue, inner=ResilientMessageBus, **options):
    return ScalableMessageBus(inner(), log=queue, durable=["durable.*"], **options)


async def reached(condition):
    """Wait until something is so; the test's own deadline ends it when it never is."""
    while not condition():
        await asyncio.sleep(0.001)


def numbers(seen):
    return lambda event: seen.append(event.number)
