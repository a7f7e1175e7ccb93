"""The process that is killed: it schedules events on a log, and its handler records what fires."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from penstock.bus.bus import MessageBus
from penstock.bus.schedule import ScheduledEvent
from penstock.log.queue import WalMessageQueue
from penstock.messages import Envelope, Event
from penstock.system import OsFiles, System
from tests.crash.file_layers import DyingFiles

FIRED = "fired"
JOURNAL = "journal.bus.schedule"
RECURRING = 1_000_000
"""Numbers from here on recur."""
RECURRING_MAX = 8


class Reminder(Event):
    number: int


class Detailed(Reminder):
    note: str
    parts: tuple[int, ...]


class Fired(msgspec.Struct):
    """What the handler records."""

    id: str
    number: int
    kind: str
    note: str = ""
    parts: tuple[int, ...] = ()


@dataclass
class Orders:
    """What a process is to do."""

    path: str
    seed: int
    first: int
    """The first number of its events."""
    dies: str = ""
    """Before, after or in the middle of a call to the disk; empty: somebody kills it."""
    dies_at: int = 0
    finish: bool = False
    """Schedule nothing; end when everything has fired."""


Say = Callable[..., None]


def event_of(number: int) -> Reminder:
    if number % 2:
        return Reminder(number)
    return Detailed(number, note=f"note {number} ü", parts=(number, 1, 2))


def run(orders: Orders, link: Connection) -> None:
    asyncio.run(work(orders, lambda *words: link.send_bytes(msgspec.json.encode(words))))


async def work(orders: Orders, say: Say) -> None:
    files = DyingFiles(orders.dies, orders.dies_at) if orders.dies else OsFiles()
    async with WalMessageQueue(
        orders.path, system=System(files=files), maintenance_interval=0.02
    ) as queue:
        bus = MessageBus(log=queue)

        @bus.on(Reminder, subclasses=True)
        async def record(event: Reminder, envelope: Envelope) -> None:
            fields = msgspec.structs.asdict(event)
            fired = Fired(id=envelope.id, kind=type(event).__name__, **fields)
            await queue.publish(FIRED, msgspec.json.encode(fired))

        async with bus:
            await queue.change_topic(JOURNAL, segment_bytes_max=20_000)
            say("open")
            await (finish(bus) if orders.finish else schedule(bus, orders, say))


async def schedule(bus: MessageBus, orders: Orders, say: Say) -> None:
    chance = random.Random(orders.seed)
    numbers = iter(range(orders.first, orders.first + 100_000))
    while True:
        batch = [next(numbers) for _ in range(chance.randint(1, 12))]
        adding = (add(bus, chance, number, say) for number in batch)
        handles = await asyncio.gather(*adding)
        for handle in chance.sample(handles, chance.randint(0, len(handles) // 3)):
            if chance.random() < 0.5 and handle.pending:
                await handle.reschedule(soon(chance))
            else:
                say("cancelling", handle.id)
                say("cancelled", handle.id, await handle.cancel())
        await asyncio.sleep(chance.uniform(0, 0.01))


async def add(bus: MessageBus, chance: random.Random, number: int, say: Say) -> ScheduledEvent:
    recurring = sum(handle.recurring for handle in bus.schedule.pending())
    recurs = number % 20 == 0 and recurring < RECURRING_MAX
    say("trying", number)
    adding: Any
    if recurs:
        number += RECURRING
        adding = bus.schedule.every(event_of(number), chance.uniform(0.01, 0.1))
    elif chance.random() < 0.5:
        adding = bus.schedule.after(event_of(number), chance.uniform(0, 0.05))
    else:
        adding = bus.schedule.at(event_of(number), soon(chance))
    handle: ScheduledEvent = await adding
    say("scheduled", number, handle.id)
    return handle


def soon(chance: random.Random) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=chance.uniform(0, 0.05))


async def finish(bus: MessageBus) -> None:
    """Let all fire that is to fire once, and end what recurs."""
    for handle in bus.schedule.pending():
        if handle.recurring:
            await handle.cancel()
    while bus.schedule.pending():
        await asyncio.sleep(0.005)
    await bus.settle()
