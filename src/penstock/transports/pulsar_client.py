"""The client of the Pulsar transport: its calls as futures, its errors as those of Penstock.

The calls are those of the extension module that the package ``pulsar`` wraps: only there are they without
blocking. Its threads call back; here, that becomes something on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import _pulsar  # type: ignore[import-not-found]
import pulsar  # type: ignore[import-untyped]

from penstock.errors import (
    BrokerFailed,
    Closed,
    PenstockError,
    RecordTooLarge,
    UnknownTopic,
    Unreachable,
    UsageError,
)
from penstock.transports.client_thread import tell_loop
from penstock.transports.pulsar_http import PulsarHttp, decoded
from penstock.transports.pulsar_index import INTERCEPTORS, Position, not_numbered
from penstock.transports.pulsar_settings import COMPRESSIONS, NAME, PulsarSettings

RECEIVE_RECORDS = 1_000
"""What a reader asks for ahead."""
PENDING_RECORDS = 20_000
"""Records of one partition that are on their way; more are sent when those have arrived."""
BATCH_RECORDS, BATCH_BYTES, BATCH_DELAY_MS = 1_000, 512 * 1024, 1
LOOK_SECONDS = 0.5
"""How often it is looked whether there is a connection: the client does not tell."""
CLOSE_SECONDS = 5.0
NO_PARTITION = -1

Ok = _pulsar.Result.Ok
_Result = _pulsar.Result
_GONE = {_Result.TopicNotFound, _Result.TopicTerminated}
_AWAY = {
    _Result.AlreadyClosed,
    _Result.ConnectError,
    _Result.LookupError,
    _Result.NotConnected,
    _Result.ReadError,
    _Result.ServiceUnitNotReady,
    _Result.Timeout,
    _Result.TooManyLookupRequestException,
}
_REFUSED = {
    _Result.AuthenticationError,
    _Result.AuthorizationError,
    _Result.ErrorGettingAuthenticationData,
}


class PulsarConnection:
    """One client, and the brokers' HTTP beside it. Lives on one event loop."""

    def __init__(self, settings: PulsarSettings) -> None:
        self.settings = settings
        self.http = PulsarHttp(settings)
        self.is_connected = False
        self.reconnects = 0
        self.is_deduplicating = False
        self._errors = 0
        self._last_error: str | None = None
        self._client: pulsar.Client | None = None
        self._handles: set[Any] = set()
        self._away: set[Any] = set()
        """Those of them that had no connection when it was looked last."""
        self._is_lost = False
        """None of them has it again yet."""
        self._looking: asyncio.Task[None] | None = None
        self._closed = False

    # Life

    async def open(self) -> None:
        """Find the brokers; Unreachable when they do not answer within ``connect_seconds``."""
        if self._client is not None or self._closed:
            return
        seconds = self.settings.connect_seconds
        until = asyncio.get_running_loop().time() + seconds
        await self._knock(until)
        left = max(0.1, until - asyncio.get_running_loop().time())
        try:
            await self._check_brokers(left)
        except BaseException:
            await self.http.close()
            raise
        self._client = self.settings.client()
        self.is_connected = True
        self._looking = asyncio.create_task(self._look())

    async def _knock(self, until: float) -> None:
        """Whether anybody is there: the client would try for a long time."""
        addresses = urlsplit(self.settings.service_url).netloc.split(",")
        try:
            async with asyncio.timeout_at(until):
                while True:
                    for address in addresses:
                        if await self._answers(address):
                            return
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise self.unreachable("connect", self.settings.connect_seconds) from None

    async def _answers(self, address: str) -> bool:
        host, _, port = address.rpartition(":")
        try:
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except OSError as error:
            self._note(f"{type(error).__name__}: {error}")
            return False
        writer.transport.abort()
        return True

    async def _check_brokers(self, seconds: float) -> None:
        """The namespace is there; offsets are, as far as this client may ask."""
        settings, http = self.settings, self.http
        place = f"{settings.tenant}/{settings.namespace}"
        answer = await http.call(
            "GET",
            f"/admin/v2/namespaces/{place}/deduplication",
            seconds=seconds,
            may=(403, 404),
        )
        if answer.status == 404:
            raise BrokerFailed(
                f"Pulsar at {settings.admin_url} has no namespace {place!r}: make it, or correct the "
                "URL",
                transport=NAME,
                status=404,
            )
        policy = decoded(answer) if answer.status == 200 else False
        answer = await http.call(
            "GET", "/admin/v2/brokers/configuration/runtime", seconds=seconds, may=(401, 403)
        )
        if answer.status == 200:
            has = decoded(answer)
            numbered = str(has.get("brokerEntryMetadataInterceptors", ""))
            if not all(one in numbered for one in INTERCEPTORS):
                raise not_numbered()
            if policy is None:
                policy = has.get("brokerDeduplicationEnabled") == "true"
        self.is_deduplicating = policy is True

    async def close(self) -> None:
        """Let go. Idempotent."""
        client, self._client, self._closed = self._client, None, True
        self.is_connected = False
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        if client is not None:
            closing = calling(client._client.close_async)
            with suppress(TimeoutError):
                await asyncio.wait_for(closing, CLOSE_SECONDS)
            client._client.shutdown()
        await self.http.close()

    def check_open(self) -> None:
        """UsageError before it is opened, Closed after it is closed."""
        if self._closed:
            raise self.closed()
        if self._client is None:
            raise UsageError("open the transport first: async with open_transport(...)")

    @staticmethod
    def closed() -> Closed:
        """The error of whoever comes after the end."""
        return Closed("the Pulsar transport is closed")

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """See whether there is a connection, to each broker that is used.

        The client uses it again for one producer or reader after the other; it is made again with
        the first of them.
        """
        if self._client is None:
            return
        away = {one for one in self._handles if not one.is_connected()}
        connected = not away if self._handles else self.http.is_connected
        if connected or (self._away & self._handles) - away:
            self.reconnects += self._is_lost
            self._is_lost = False
        if not self._is_lost and (away - self._away or self.is_connected > connected):
            self._note("the connection was lost")
            self._is_lost = True
        self._away, self.is_connected = away, connected

    @property
    def errors(self) -> int:
        """Of the connections, and calls that were refused."""
        return self._errors + self.http.errors

    @property
    def last_error(self) -> str | None:
        """The last of them; never a secret."""
        return self._last_error or self.http.last_error

    def _note(self, text: str) -> None:
        self._errors += 1
        self._last_error = self.settings.shown(text)

    # Producers and readers

    async def producer(self, topic: str, *, batching: bool = True) -> Any:
        """A producer to one partition."""
        options = _pulsar.ProducerConfiguration()
        options.schema(_bytes())
        options.send_timeout_millis(max(1, round(self.settings.timeout * 1_000)))
        options.max_pending_messages(2 * PENDING_RECORDS)
        options.block_if_queue_full(False)
        options.batching_enabled(batching)
        options.batching_max_messages(BATCH_RECORDS)
        options.batching_max_allowed_size_in_bytes(BATCH_BYTES)
        options.batching_max_publish_delay_ms(BATCH_DELAY_MS)
        options.compression_type(COMPRESSIONS[self.settings.compression])
        name = self.settings.full(topic)
        return await self._made(
            lambda back: self._native().create_producer_async(name, options, back), topic
        )

    async def reader(self, topic: str, position: Position | None, *, inclusive: bool) -> Any:
        """A reader of one partition, from an entry on, or from the first one."""
        options = _pulsar.ReaderConfiguration()
        options.schema(_bytes())
        options.receiver_queue_size(RECEIVE_RECORDS)
        options.start_message_id_inclusive(inclusive or position is None)
        start = _pulsar.MessageId.earliest
        if position is not None:
            start = _pulsar.MessageId(NO_PARTITION, position.ledger, position.entry, -1)
        name = self.settings.full(topic)
        return await self._made(
            lambda back: self._native().create_reader_async(name, start, options, back), topic
        )

    async def _made(self, make: Callable[[Callable[..., None]], None], topic: str) -> Any:
        """A producer or reader that is closed with the connection, or by :meth:`drop`."""
        making = calling(make)
        try:
            result, made = await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(_drop_late)
            raise
        if result != Ok:
            raise self.error(result, f"use {topic!r}", topic=topic)
        self._handles.add(made)
        return made

    def drop(self, made: Any) -> None:
        """Close a producer or a reader; nobody waits for it."""
        self._handles.discard(made)
        _close(made)

    def _native(self) -> Any:
        self.check_open()
        assert self._client is not None
        return self._client._client

    # Errors

    def error(self, result: Any, what: str, **fields: object) -> PenstockError:
        """What Penstock raises for an error of the client."""
        text = f"could not {what}: {result.name}"
        self._note(text)
        if result in _GONE and "topic" in fields:
            return UnknownTopic(f"there is no topic {fields['topic']!r}: {text}", **fields)
        if result == _Result.MessageTooBig:
            return RecordTooLarge(f"{text}: make it smaller, or raise maxMessageSize", **fields)
        if result in _AWAY:
            return self.unreachable(what, self.settings.timeout)
        if result in _REFUSED:
            text = f"Pulsar at {self.settings.service_url} refuses this client: {text}"
        return BrokerFailed(text, transport=NAME, code=result.name, **fields)

    def unreachable(self, what: str, seconds: float) -> Unreachable:
        """Nobody answered."""
        address = self.settings.service_url
        why = f" ({self.last_error})" if self.last_error else ""
        return Unreachable(
            f"could not {what}: Pulsar at {address} did not answer within {seconds:g} s{why}: start "
            "it, or correct the URL",
            transport=NAME,
            address=address,
            seconds=seconds,
        )


def calling(start: Callable[[Callable[..., None]], None]) -> asyncio.Future[tuple[Any, Any]]:
    """Start a call of the client; what it calls back with: the result, and what it made."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[tuple[Any, Any]] = loop.create_future()

    def back(result: Any, made: Any = None) -> None:
        tell_loop(loop, _settle, future, result, made)

    start(back)
    return future


def _settle(future: asyncio.Future[tuple[Any, Any]], result: Any, made: Any) -> None:
    if not future.done():
        future.set_result((result, made))


def _drop_late(making: asyncio.Future[tuple[Any, Any]]) -> None:
    if not making.cancelled() and making.exception() is None and making.result()[0] == Ok:
        _close(making.result()[1])


def _close(made: Any) -> None:
    with suppress(_pulsar.PulsarException):
        made.close_async(_nobody)


def _nobody(*_: Any) -> None:
    """Nobody waits for it."""


def _bytes() -> Any:
    return pulsar.schema.BytesSchema().schema_info()
