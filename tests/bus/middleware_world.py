"""What the tests of middlewares send."""

from __future__ import annotations

import asyncio
import datetime as dt

from penstock.messages import Command, Event, topic


@topic("placed")
class Placed(Event):
    total: float
    at: dt.datetime | None = None


@topic("double")
class Double(Command[int]):
    number: int


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
