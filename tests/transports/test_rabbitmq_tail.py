"""Offsets of what was written to a stream of RabbitMQ, while the broker is away for long."""

import asyncio
from typing import Any

import pytest

from penstock.errors import BrokerFailed, Unreachable
from penstock.transports.rabbitmq_writer import Tail


@pytest.fixture
async def tail():
    """One that knows where the stream ends."""
    connection: Any = object()
    tail = Tail(connection, "orders")
    tail._next, tail._used = 7, asyncio.get_running_loop().time()
    return tail


async def test_a_broker_that_is_away_for_long_fails_nobody_who_waits(tail, monkeypatch):
    """Who waits for an offset has a deadline of his own, and may live longer than one attempt."""
    answers = [Unreachable("away"), Unreachable("away"), 41]

    async def read_on() -> None:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        tail._tell(b"mark", answer)

    monkeypatch.setattr(tail, "_read_on", read_on)
    assert await asyncio.wait_for(await tail.expect(b"mark"), 30) == 41
    assert answers == []


async def test_what_no_attempt_can_mend_fails_all_who_wait(tail, monkeypatch):
    async def read_on() -> None:
        raise BrokerFailed("the stream is gone")

    monkeypatch.setattr(tail, "_read_on", read_on)
    waiting = [await tail.expect(mark) for mark in (b"one", b"two")]
    for one in waiting:
        with pytest.raises(BrokerFailed, match="gone"):
            await asyncio.wait_for(one, 30)
