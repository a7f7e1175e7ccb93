"""What the tests of the dead letters share: messages, letters, a journal and a queue around it."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Mapping
from typing import Any

from penstock.bus.encoding import MessageCodec
from penstock.errors import StoreFailed
from penstock.messages import Event, topic
from penstock.resilience.dead_letters import (
    DeadLetter,
    DeadLetterOptions,
    DeadLetterQueue,
    LetterCodec,
    Reason,
)
from penstock.system import System
from penstock.testing import VirtualClock


@topic("orders", key="order_id")
class OrderPlaced(Event):
    order_id: str
    total: float = 1.0


class Disk:
    """Journals that outlive their owners. Implements :class:`penstock.bus.journal.Journal`.

    A write can be held back or made to fail.
    """

    def __init__(self) -> None:
        self.facts: dict[str, bytes] = {}
        self.writes = 0
        self.fails = False
        self.open_now = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def open(self) -> Mapping[str, bytes]:
        assert not self.open_now
        self.open_now = True
        return dict(self.facts)

    async def change(self, changes: Mapping[str, bytes | None]) -> None:
        await self.gate.wait()
        self.writes += 1
        if self.fails:
            raise StoreFailed("the disk is broken")
        for key, value in changes.items():
            self.facts.pop(key, None)
            if value is not None:
                self.facts[key] = value

    async def close(self) -> None:
        self.open_now = False


class World:
    """A clock, a seeded source of chance, and queues that share them."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.random = random.Random(3)
        self.disk = Disk()
        self.messages = MessageCodec()
        self.messages.register(OrderPlaced)
        self.published: list[DeadLetter] = []
        self.numbers = itertools.count(1)

    async def republish(self, letter: DeadLetter) -> None:
        self.published.append(letter)

    def codec(self, messages: MessageCodec | None = None) -> LetterCodec:
        messages = messages or self.messages
        return LetterCodec(messages.encode, messages.decode)

    def queue(
        self, *, codec: LetterCodec | None = None, parts: Any = None, **options: Any
    ) -> DeadLetterQueue:
        return DeadLetterQueue(
            DeadLetterOptions(**options),
            System(clock=self.clock, random=self.random),
            codec=codec or self.codec(),
            **({"republish": self.republish} | (parts or {})),
        )

    async def durable(self, **options: Any) -> DeadLetterQueue:
        parts = options.pop("parts", {}) | {"journal": self.disk}
        queue = self.queue(parts=parts, **options)
        await queue.open()
        return queue

    def letter(self, **fields: Any) -> DeadLetter:
        number = next(self.numbers)
        now_ms = self.clock.time_ms()
        usual: dict[str, Any] = {
            "id": f"letter-{number}",
            "topic": "orders",
            "message_type": f"{OrderPlaced.__module__}.OrderPlaced",
            "reason": Reason.FAILED,
            "message": OrderPlaced(f"o-{number}"),
            "handler": "bill",
            "key": f"o-{number}",
            "error_type": "OSError",
            "error": "disk",
            "traceback": "Traceback ...",
            "attempts": 3,
            "first_failed_ms": now_ms,
            "last_failed_ms": now_ms,
        }
        return DeadLetter(**(usual | fields))


def ids(queue: DeadLetterQueue) -> list[str]:
    return [letter.id for letter in queue.list()]
