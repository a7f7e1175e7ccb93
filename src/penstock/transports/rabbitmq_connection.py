"""Connections to RabbitMQ's streams that come back when they are lost, and places on them.

A connection has 256 numbers for what reads and writes over it, so a transport may have several.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from penstock.errors import Closed, UsageError
from penstock.transports.rabbitmq_settings import RabbitSettings
from penstock.transports.rabbitmq_wire import (
    FRAME_BYTES_MAX,
    STREAM_UNAVAILABLE,
    Link,
    LinkLost,
    Refused,
)

CALL_SECONDS = 30.0
"""How long a call waits for a connection that is lost."""
PAUSE_SECONDS = 0.05
SLOTS_MAX = 200
LOGIN_CODES = (7, 8, 9, 10, 11, 12)

_T = TypeVar("_T")


class RabbitLine:
    """A connection that is made again whenever it is lost. Lives on one event loop."""

    def __init__(self, settings: RabbitSettings, statistics: RabbitCounts) -> None:
        self._settings = settings
        self._counts = statistics
        self._link: Link | None = None
        self._linked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._turn = 0
        self._free = list(range(SLOTS_MAX))[::-1]
        self._closed = False

    @property
    def is_connected(self) -> bool:
        return self._linked.is_set() and not self._closed

    @property
    def is_full(self) -> bool:
        return not self._free

    @property
    def frame_bytes_max(self) -> int:
        return FRAME_BYTES_MAX if self._link is None else self._link.frame_bytes_max

    def take_number(self) -> int:
        return self._free.pop()

    def give_number(self, number: int) -> None:
        self._free.append(number)

    async def open(self) -> None:
        """Connect now; Unreachable after ``connect_seconds``, BrokerFailed when the login is refused."""
        seconds = self._settings.connect_seconds
        try:
            async with asyncio.timeout(seconds):
                await self._connect(refusal_ends=True)
        except TimeoutError:
            raise self._settings.unreachable(seconds, self._counts.last_error) from None
        self._task = asyncio.create_task(self._stay())

    async def close(self) -> None:
        """Let go. Idempotent."""
        self._closed = True
        self._linked.set()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def link(self) -> Link:
        """The connection, when there is one. Closed after the end."""
        while not self._closed:
            link = self._link
            if link is not None and not link.is_lost:
                return link
            self._linked.clear()
            await self._linked.wait()
        raise Closed("the RabbitMQ transport is closed")

    async def _stay(self) -> None:
        while True:
            link = self._link
            assert link is not None
            lost = asyncio.Event()
            link.on_lost.add(lost.set)
            if not link.is_lost:
                await lost.wait()
            self._linked.clear()
            self._counts.note(LinkLost(link.reason), self._settings)
            await self._connect(refusal_ends=False)
            self._counts.reconnects += 1

    async def _connect(self, *, refusal_ends: bool) -> None:
        """Try the servers in turn, with a pause that doubles after each round, until one answers."""
        settings = self._settings
        for attempt in range(1_000_000):
            if attempt:
                await asyncio.sleep(self._pause(attempt // len(settings.hosts)))
            host, port = settings.hosts[self._turn % len(settings.hosts)]
            link = Link(settings)
            try:
                async with asyncio.timeout(settings.answer_seconds):
                    await link.open(host, port, settings.tls_context())
            except Refused as error:
                self._counts.note(error, settings)
                if refusal_ends and error.code in LOGIN_CODES:
                    raise settings.failed("refuses this client", str(error), error.code) from None
            except (OSError, LinkLost, AssertionError, ValueError) as error:
                self._counts.note(error, settings)
            else:
                self._link = link
                self._linked.set()
                return
            self._turn += 1
        raise AssertionError("the deadline of the caller comes before")

    def _pause(self, rounds: int) -> float:
        # Not all clients of a server that is back at the same moment.
        part: float = 0.5 + self._settings.system.random.random() / 2
        longest: float = self._settings.reconnect_seconds_max
        return min(longest, PAUSE_SECONDS * float(2 ** min(rounds, 20))) * part


class RabbitCounts:
    """What went wrong so far, on all lines of a transport."""

    def __init__(self) -> None:
        self.reconnects = 0
        self.errors = 0
        self.last_error: str | None = None

    def note(self, error: Exception, settings: RabbitSettings) -> None:
        """Count an error; its text is kept without secrets."""
        self.errors += 1
        text = str(error) or "no answer"
        named = isinstance(error, LinkLost | Refused)
        self.last_error = settings.hidden(text if named else f"{type(error).__name__}: {text}")


async def in_time(work: Awaitable[_T], settings: RabbitSettings, counts: RabbitCounts) -> _T:
    """Wait for something; Unreachable when that takes too long."""
    try:
        async with asyncio.timeout(CALL_SECONDS):
            return await work
    except TimeoutError:
        raise settings.unreachable(CALL_SECONDS, counts.last_error) from None


@dataclass(frozen=True, slots=True)
class Slot:
    """A number on a line, for one subscription and one publisher."""

    line: RabbitLine
    number: int

    def release(self) -> None:
        """Somebody else may have the number."""
        self.line.give_number(self.number)


class RabbitConnection:
    """The lines of one transport. Calls outlive a lost connection."""

    def __init__(self, settings: RabbitSettings) -> None:
        self.settings = settings
        self.counts = RabbitCounts()
        self._lines: list[RabbitLine] = []
        self._growing = asyncio.Lock()
        self._closed = False

    @property
    def is_connected(self) -> bool:
        """Whether all servers that are needed can be reached, as far as this side knows."""
        return bool(self._lines) and all(one.is_connected for one in self._lines)

    def check_open(self) -> None:
        """UsageError before it is opened, Closed after it is closed."""
        if self._closed:
            raise Closed("the RabbitMQ transport is closed")
        if not self._lines:
            raise UsageError("open the transport first: async with open_transport(...)")

    async def open(self) -> None:
        """Connect. Idempotent."""
        async with self._growing:
            if not self._lines and not self._closed:
                await self._add_line()

    async def _add_line(self) -> RabbitLine:
        line = RabbitLine(self.settings, self.counts)
        try:
            await line.open()
        except BaseException:
            await line.close()
            raise
        self._lines.append(line)
        return line

    async def close(self) -> None:
        """Let go of everything. Idempotent."""
        self._closed = True
        lines, self._lines = self._lines, []
        await asyncio.gather(*(one.close() for one in lines))

    async def slot(self) -> Slot:
        """A number on some line; a new line when all are full."""
        async with self._growing:
            self.check_open()
            line = next((one for one in self._lines if not one.is_full), None)
            line = line or await self._add_line()
            return Slot(line, line.take_number())

    @property
    def frame_bytes_max(self) -> int:
        """The largest frame that the server takes."""
        return min((one.frame_bytes_max for one in self._lines), default=FRAME_BYTES_MAX)

    async def waiting(self, work: Awaitable[_T]) -> _T:
        """Wait for something; Unreachable when that takes too long."""
        return await in_time(work, self.settings, self.counts)

    async def call(
        self, work: Callable[[Link], Awaitable[_T]], line: RabbitLine | None = None
    ) -> _T:
        """Do something on a connection until it is done; it may be done several times.

        Unreachable when that takes too long, BrokerFailed when the server refuses.
        """
        self.check_open()
        return await self.waiting(self._tried(work, line or self._lines[0]))

    async def _tried(self, work: Callable[[Link], Awaitable[_T]], line: RabbitLine) -> _T:
        while True:
            with suppress(LinkLost):
                try:
                    return await work(await line.link())
                except Refused as error:
                    self.counts.note(error, self.settings)
                    if error.code not in STREAM_UNAVAILABLE[:1]:
                        raise
            await asyncio.sleep(PAUSE_SECONDS)
