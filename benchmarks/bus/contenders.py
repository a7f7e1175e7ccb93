"""The two buses of Penstock, a block at a time."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial

from benchmarks.bus.blocks import Ask, Contender, Ping, Step, Tally
from penstock import MessageBus, ResilientMessageBus

BUSES: dict[str, type[MessageBus]] = {"resilient": ResilientMessageBus, "plain": MessageBus}

Use = Callable[[MessageBus, int], Awaitable[None]]


async def publish_each(bus: MessageBus, count: int) -> None:
    """``await bus.publish`` for each, then settle."""
    for number in range(count):
        await bus.publish(Ping(number))
    await bus.settle()


async def publish_and_wait_each(bus: MessageBus, count: int) -> None:
    """``await bus.publish_and_wait`` for each."""
    for number in range(count):
        await bus.publish_and_wait(Ping(number))


async def burst(bus: MessageBus, count: int) -> None:
    """All at once, then settle."""
    for number in range(count):
        bus.publish_nowait(Ping(number))
    await bus.settle()


async def execute_each(bus: MessageBus, count: int) -> None:
    """``await bus.execute`` for each."""
    for number in range(count):
        result = await bus.execute(Ask(number))
        assert result.success


def contender(kind: type[MessageBus], use: Use) -> Contender:
    """A bus with its one handler, used in one way."""

    @asynccontextmanager
    async def opened(tally: Tally) -> AsyncIterator[Step]:
        async with with_handler(kind, tally) as bus:
            yield partial(use, bus)

    return opened


def with_handler(kind: type[MessageBus], tally: Tally) -> AbstractAsyncContextManager[MessageBus]:
    """A bus with defaults that counts its events and commands."""
    bus = kind()
    bus.subscribe(Ping, tally.handle)
    bus.handle(Ask, tally.answer)
    return bus


@contextmanager
def quiet() -> Iterator[None]:
    """Without a line of the log for each dead letter that makes room: that is not measured."""
    logger = logging.getLogger("penstock")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
