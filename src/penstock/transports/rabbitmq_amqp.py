"""The connection of RabbitMQ's quorum queues: aio-pika's, made again whenever it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection
from aio_pika.exceptions import (
    AMQPConnectionError,
    AMQPException,
    AuthenticationError,
    ChannelInvalidStateError,
    ChannelNotFoundEntity,
    ProbableAuthenticationError,
)

from penstock.bus.drive import was_cancelled
from penstock.errors import Closed, UsageError
from penstock.transports.rabbitmq_connection import PAUSE_SECONDS, RabbitCounts, in_time
from penstock.transports.rabbitmq_settings import RabbitSettings

LOST = (AMQPConnectionError, ChannelInvalidStateError, OSError)
"""What calls raise when the connection is gone; what was on its way may have arrived."""
REFUSED = (AuthenticationError, ProbableAuthenticationError)
GOODBYE_SECONDS = 1.0

_T = TypeVar("_T")


class AmqpConnection:
    """A connection that is there, or tries to be, until it is closed. Lives on one event loop."""

    def __init__(self, settings: RabbitSettings) -> None:
        self.settings = settings
        self.counts = RabbitCounts()
        self._connection: AbstractConnection | None = None
        self._connected = asyncio.Event()
        self._lost: asyncio.Future[None] | None = None
        """Done when the connection of now is lost."""
        self._task: asyncio.Task[None] | None = None
        self._turn = 0
        self._closed = False
        self.on_lost: set[Callable[[], None]] = set()

    # Life

    @property
    def is_connected(self) -> bool:
        """Whether the server can be reached, as far as this side knows."""
        return self._connected.is_set() and not self._closed

    def check_open(self) -> None:
        """UsageError before it is opened, Closed after it is closed."""
        if self._closed:
            raise Closed("the RabbitMQ transport is closed")
        if self._task is None:
            raise UsageError("open the transport first: async with open_transport(...)")

    async def open(self) -> None:
        """Connect; Unreachable when no server answers in time, BrokerFailed when it refuses."""
        if self._task is not None or self._closed:
            return
        seconds = self.settings.connect_seconds
        try:
            async with asyncio.timeout(seconds):
                await self._connect(refusal_ends=True)
        except TimeoutError:
            raise self.settings.unreachable(seconds, self.counts.last_error) from None
        self._task = asyncio.create_task(self._stay())

    async def close(self) -> None:
        """Let go. Idempotent."""
        self._closed = True
        self._connected.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        connection, self._connection = self._connection, None
        if connection is not None:
            await _ended(connection)

    async def _stay(self) -> None:
        while True:
            assert self._lost is not None
            await self._lost
            self._connected.clear()
            for listener in list(self.on_lost):
                listener()
            connection, self._connection = self._connection, None
            if connection is not None:
                await _ended(connection)
            await self._connect(refusal_ends=False)
            self.counts.reconnects += 1

    async def _connect(self, *, refusal_ends: bool) -> None:
        settings = self.settings
        for attempt in range(1_000_000):
            if attempt:
                await asyncio.sleep(self._pause(attempt // len(settings.hosts)))
            host, port = settings.hosts[self._turn % len(settings.hosts)]
            try:
                connection = await self._attempt(host, port)
            except REFUSED as error:
                self.counts.note(error, settings)
                if refusal_ends:
                    raise settings.failed("refuses this client", str(error)) from None
            except (AMQPException, OSError, TimeoutError, asyncio.CancelledError) as error:
                if was_cancelled():
                    # Also when the client was done in the same moment, and tells that instead.
                    raise asyncio.CancelledError from None
                self.counts.note(_plain(error), settings)
            else:
                self._lost = asyncio.get_running_loop().create_future()
                self._connection = connection
                connection.close_callbacks.add(self._on_lost)
                self._connected.set()
                if connection.is_closed:
                    self._set_lost(self._lost)  # before anybody was told
                return
            self._turn += 1
        raise AssertionError("the deadline of the caller comes before")

    async def _attempt(self, host: str, port: int) -> AbstractConnection:
        settings = self.settings
        more: dict[str, Any] = {"heartbeat": max(1, round(settings.heartbeat_seconds))}
        connection: AbstractConnection = await aio_pika.connect(
            host=host,
            port=port,
            login=settings.username,
            password=settings.password,
            virtualhost=settings.vhost,
            ssl=settings.secure,
            ssl_context=settings.tls_context(),
            timeout=settings.answer_seconds,
            client_properties={"connection_name": settings.client_name, "product": "Penstock"},
            **more,
        )
        return connection

    def _on_lost(self, sender: object, error: BaseException | None) -> None:
        if not self._closed and sender is self._connection:
            self.counts.note(_plain(error), self.settings)
            self._set_lost(self._lost)

    @staticmethod
    def _set_lost(lost: asyncio.Future[None] | None) -> None:
        if lost is not None and not lost.done():
            lost.set_result(None)

    def _pause(self, rounds: int) -> float:
        part: float = 0.5 + self.settings.system.random.random() / 2
        longest: float = self.settings.reconnect_seconds_max
        return min(longest, PAUSE_SECONDS * float(2 ** min(rounds, 20))) * part

    # Calls

    async def channel(self, **options: Any) -> AbstractChannel:
        """A new channel, on the connection as soon as there is one."""
        while not self._closed:
            connection = self._connection
            if connection is not None and self._connected.is_set():
                channel: AbstractChannel = await connection.channel(**options)
                return channel
            await self._connected.wait()
        raise Closed("the RabbitMQ transport is closed")

    async def call(self, work: Callable[[AbstractChannel], Awaitable[_T]]) -> _T:
        """Do something on a channel of its own until it is done; it may be done several times.

        Unreachable when that takes too long, BrokerFailed when the server refuses.
        """
        self.check_open()
        return await self.waiting(self._tried(work))

    async def waiting(self, work: Awaitable[_T]) -> _T:
        """Wait for something; Unreachable when that takes too long."""
        return await in_time(work, self.settings, self.counts)

    async def _tried(self, work: Callable[[AbstractChannel], Awaitable[_T]]) -> _T:
        while True:
            with suppress(*LOST):
                return await self.attempt(lambda: self._on_channel(work))
            await asyncio.sleep(PAUSE_SECONDS)

    async def _on_channel(self, work: Callable[[AbstractChannel], Awaitable[_T]]) -> _T:
        channel = await self.channel()
        try:
            return await work(channel)
        finally:
            with suppress(*LOST, AMQPException):
                await channel.close()

    async def attempt(self, work: Callable[[], Awaitable[_T]], seconds: float | None = None) -> _T:
        """Try once, as soon as there is a connection: :meth:`waiting` bounds that.

        One of ``LOST`` when the connection is lost meanwhile, or does not answer in time.
        """
        seconds = seconds or self.settings.answer_seconds
        self.check_open()
        lost = await self._alive()
        # A task of its own: the client cancels what waits when a connection is lost.
        trying: asyncio.Future[_T] = asyncio.ensure_future(work())
        try:
            both: set[asyncio.Future[Any]] = {trying, lost}
            done, _ = await asyncio.wait(both, timeout=seconds, return_when="FIRST_COMPLETED")
            if not done:
                self.counts.note(AMQPConnectionError("no answer"), self.settings)
                self._set_lost(lost)
                raise AMQPConnectionError("no answer")
            if not trying.done() or trying.cancelled():
                raise AMQPConnectionError("the connection was lost")
            return trying.result()
        finally:
            trying.cancel()

    async def _alive(self) -> asyncio.Future[None]:
        """What is done when the connection is lost, as soon as there is one that is not."""
        while True:
            await self._connected.wait()
            self.check_open()
            if self._lost is not None and not self._lost.done():
                return self._lost
            await asyncio.sleep(PAUSE_SECONDS)

    async def exists(self, queue: str) -> bool:
        """Whether there is such a queue."""

        async def look(channel: AbstractChannel) -> bool:
            try:
                await channel.declare_queue(queue, passive=True)
            except ChannelNotFoundEntity:
                return False
            return True

        return await self.call(look)


async def _ended(connection: AbstractConnection) -> None:
    with suppress(*LOST, AMQPException, TimeoutError, asyncio.CancelledError):
        await asyncio.wait_for(connection.close(), GOODBYE_SECONDS)
    if was_cancelled():  # the client cancels what it gives up, too
        raise asyncio.CancelledError


def _plain(error: BaseException | None) -> Exception:
    return error if isinstance(error, Exception) else ConnectionError("the connection was lost")
