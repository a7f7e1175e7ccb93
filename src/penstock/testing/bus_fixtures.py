"""What the parts of the bus suite share: messages, how a bus is made, and the check of its books."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest

from penstock.bus.bus import MessageBus
from penstock.messages import Command, Event, topic
from penstock.system import System
from penstock.testing.clock import VirtualClock, until_idle

MakeBus = Callable[..., MessageBus]
"""Takes the keyword arguments of :class:`MessageBus`."""
Result = TypeVar("Result")


class Ping(Event):
    """An event with a number."""

    number: int = 0


class Pong(Event):
    """Another class, so another lane."""

    number: int = 0


@topic("suite.keyed", key="key")
class Keyed(Event):
    """An event whose order matters within its key."""

    key: str
    number: int = 0


class Ask(Command[int]):
    """A command that returns a number."""

    number: int = 0


class Boom(Exception):
    """What failing handlers of the suite raise."""


class Gate:
    """Where handlers wait until the test lets them go."""

    def __init__(self) -> None:
        self.arrived = 0
        self.passed = 0
        self._open = False
        self._tickets = 0
        self._waiting: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Wait for a ticket, or until the gate is open for all."""
        self.arrived += 1
        if self._tickets:
            self._tickets -= 1
        elif not self._open:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter
        self.passed += 1

    def open(self) -> None:
        """Let everybody through from now on."""
        self._open = True
        self.let_in(len(self._waiting))

    def let_in(self, count: int = 1) -> None:
        """Let that many through; if fewer wait, those who come next."""
        while count and self._waiting:
            waiter = self._waiting.pop(0)
            if not waiter.done():
                waiter.set_result(None)
                count -= 1
        if not self._open:
            self._tickets += count


def check_books(bus: MessageBus) -> None:
    """Every event that was published is in exactly one place."""
    figures = bus.statistics()
    ended = (
        figures.events_processed
        + figures.events_failed
        + figures.events_filtered
        + figures.events_unhandled
        + figures.events_dropped
    )
    assert figures.events_published == ended + figures.events_unsettled, figures
    assert figures.events_unsettled >= 0, figures
    assert figures.timers >= 0, figures
    running = figures.commands_executed - figures.commands_succeeded - figures.commands_failed
    assert running >= 0, figures


class Table:
    """The buses of one test, all on one virtual clock."""

    def __init__(self, make_bus: MakeBus) -> None:
        self.clock = VirtualClock()
        self.system = System(clock=self.clock, random=random.Random(7))  # noqa: S311
        self.buses: list[MessageBus] = []
        self._make = make_bus

    def bus(self, **options: object) -> MessageBus:
        """A new bus; its books are checked when the test has ended."""
        bus = self._make(**{"system": self.system, **options})
        self.buses.append(bus)
        return bus

    async def until(self, awaitable: Awaitable[Result]) -> Result:
        """Await, and let virtual time pass when nothing else happens."""
        return await self.clock.run_until(awaitable)

    async def idle(self) -> None:
        """Let all run that can, without letting time pass."""
        await until_idle()


class BusFixtures:
    """The fixtures of the suite; ``make_bus`` is yours to define."""

    pytestmark = pytest.mark.asyncio

    @pytest.fixture
    def make_bus(self) -> MakeBus:
        """A callable that makes a bus; see the suite's text."""
        raise NotImplementedError("define the fixture make_bus in your subclass")

    @pytest.fixture
    def table(self, make_bus: MakeBus) -> Iterator[Table]:
        """Makes the buses of a test, and checks their books when it has ended."""
        table = Table(make_bus)
        yield table
        for bus in table.buses:
            check_books(bus)
