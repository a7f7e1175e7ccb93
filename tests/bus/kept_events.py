"""Events, and ways to look at a bus that keeps them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from penstock.bus.bus import MessageBus
from penstock.bus.event_log import EventLogStatistics
from penstock.messages import Event, topic


@topic("order")
class Order(Event):
    number: int


@topic("paid")
class Paid(Event):
    number: int


class Odd(Event):
    value: Any


async def kept(bus: MessageBus, **selection: Any) -> list[Any]:
    return [envelope.message async for envelope in bus.history.replay(**selection)]


def figures_of(bus: MessageBus) -> EventLogStatistics:
    figures = bus.history.statistics()
    assert figures is not None
    return figures


async def until(condition: Callable[[], object]) -> None:
    """Turn the loop until it is so; the test's deadline is the bound."""
    while not condition():
        await asyncio.sleep(0)


async def crash(bus: MessageBus) -> None:
    """As a kill leaves it: nothing more is handled, and how far that is stays unwritten."""
    recorder = bus.history._recorder
    assert recorder is not None
    await recorder.flush()
    recorder._committed = 1 << 60
    await bus.stop(drain=False)
