"""Messages, a handler that fails, and time that passes, for the tests of the resilient bus."""

import asyncio

from penstock.messages import Command, Event, topic
from penstock.resilience.retry import Retry

PLAIN = Retry(jitter=False)


@topic("orders", key="customer")
class Ordered(Event):
    customer: str
    number: int = 0


class Pay(Command[str]):
    amount: int


async def turns(count=20):
    for _ in range(count):
        await asyncio.sleep(0)


async def let_pass(clock, seconds, step=0.05):
    """Let virtual time pass, and the loop keep up with it."""
    await turns()
    for _ in range(round(seconds / step)):
        clock.advance(step)
        await turns()


def balanced(bus):
    figures = bus.statistics()
    return figures.events_published == (
        figures.events_processed
        + figures.events_failed
        + figures.events_filtered
        + figures.events_unhandled
        + figures.events_dropped
        + figures.events_unsettled
    )


class Flaky:
    """A handler that fails some times, then works."""

    def __init__(self, failures, error=RuntimeError):
        self.failures = failures
        self.error = error
        self.calls = []

    async def __call__(self, message):
        self.calls.append(message)
        if len(self.calls) <= self.failures:
            raise self.error("not now")
        return "done"
