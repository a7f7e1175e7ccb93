"""What the parts of the transport suite share: how one is made, and how records are taken from it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence

import pytest

from penstock.transports import Consumer, StreamRecord, Transport

MakeTransport = Callable[..., Transport]
"""Takes the options of the transport, but not the place."""

WAIT_SECONDS = 100.0
"""For what is about to happen: long, as nothing waits that long unless it fails."""


def need(transport: Transport, *capabilities: str) -> None:
    """Skip the test, naming what the transport does not have."""
    for name in capabilities:
        if not getattr(transport.capabilities, name):
            pytest.skip(f"{transport.name} has no capability {name!r}")


async def take(consumer: Consumer, count: int, records_max: int = 10_000) -> list[StreamRecord]:
    """The next records, exactly so many."""
    taken: list[StreamRecord] = []
    async with asyncio.timeout(WAIT_SECONDS):
        while len(taken) < count:
            most = min(records_max, count - len(taken))
            taken += await consumer.next_batch(records_max=most)
    return taken


def values_of(records: Sequence[StreamRecord]) -> list[bytes | None]:
    """The values of records."""
    return [record.value for record in records]


def by_partition(records: Sequence[StreamRecord]) -> dict[int, list[StreamRecord]]:
    """The records of each partition, in order."""
    found: dict[int, list[StreamRecord]] = {}
    for record in records:
        found.setdefault(record.partition, []).append(record)
    return found


def numbered(count: int, start: int = 0) -> list[bytes]:
    """Values that tell their place."""
    return [b"%d" % number for number in range(start, start + count)]


class TransportFixtures:
    """The fixtures of the suite; ``make_transport`` is yours to define."""

    pytestmark = pytest.mark.asyncio

    @pytest.fixture
    def make_transport(self) -> MakeTransport:
        """A callable that makes a transport on one place; see the suite's text."""
        raise NotImplementedError("define the fixture make_transport in your subclass")

    @pytest.fixture
    def topic(self) -> str:
        """The name of a topic that nobody has made."""
        return f"orders-{uuid.uuid4().hex[:12]}"
