"""The process that is killed: it publishes events with an event log, and its handlers record them."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

import msgspec

from penstock.bus import event_log
from penstock.bus.bus import MessageBus
from penstock.bus.intake import QueueOptions
from penstock.errors import BufferFull
from penstock.log.queue import WalMessageQueue
from penstock.messages import Envelope, Event
from penstock.system import OsFiles, System
from tests.crash.file_layers import DyingFiles

HANDLED = "handled"
EVENTS = "bus.bus.events"


class Step(Event):
    number: int
    group: int = 0


class Leap(Step):
    pass


class Handled(msgspec.Struct):
    """What a handler records."""

    id: str
    number: int
    kind: str
    group: int


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
    """Publish nothing; end when everything is handled."""


Say = Callable[..., None]


def run(orders: Orders, link: Connection) -> None:
    asyncio.run(work(orders, lambda *words: link.send_bytes(msgspec.json.encode(words))))


async def work(orders: Orders, say: Say) -> None:
    event_log.COMMIT_INTERVAL_SECONDS = 0.005
    files = DyingFiles(orders.dies, orders.dies_at) if orders.dies else OsFiles()
    async with WalMessageQueue(
        orders.path, system=System(files=files), maintenance_interval=0.02
    ) as queue:
        bus = MessageBus(log=queue, event_log=True, queue=QueueOptions(capacity=50))

        @bus.on(Step, subclasses=True)
        async def record(event: Step, envelope: Envelope) -> None:
            handled = Handled(envelope.id, event.number, type(event).__name__, event.group)
            await queue.publish(HANDLED, msgspec.json.encode(handled))

        bus._codec.register(Leap)
        async with bus:
            await queue.change_topic(EVENTS, segment_bytes_max=20_000)
            say("open")
            if orders.finish:
                await bus.settle()
            else:
                publishers = [
                    publish(bus, orders, kind, place, say) for place, kind in enumerate(KINDS)
                ]
                await asyncio.gather(*publishers, publish_groups(bus, orders, say))


KINDS = (Step, Leap)


async def publish(bus: MessageBus, orders: Orders, kind: type[Step], place: int, say: Say) -> None:
    """One event after the other, most of them confirmed."""
    chance = random.Random(orders.seed + place)
    for number in range(orders.first, orders.first + 100_000):
        durable = chance.random() < 0.8
        say("trying", kind.__name__, number)
        await bus.publish(kind(number), durable=durable)
        if durable:
            say("confirmed", kind.__name__, number)
        elif chance.random() < 0.5:
            await asyncio.sleep(0)


async def publish_groups(bus: MessageBus, orders: Orders, say: Say) -> None:
    """Groups of both classes; their numbers are below zero, so that they stay apart."""
    chance = random.Random(orders.seed + 100)
    for group in range(orders.first, orders.first + 100_000):
        members = [
            chance.choice(KINDS)(-(group * 10 + member), group)
            for member in range(chance.randint(1, 6))
        ]
        say("grouping", group, len(members))
        try:
            async with bus.atomic(durable=True) as events:
                for event in members:
                    events.publish(event)
        except BufferFull:
            say("refused", group)
        else:
            say("grouped", group)
        await asyncio.sleep(chance.uniform(0, 0.002))
