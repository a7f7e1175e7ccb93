"""The connection of the NATS transport: one client, calls that outlive a lost connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, TypeVar

import msgspec
from nats.aio.client import Client, Server
from nats.aio.msg import Msg
from nats.errors import (
    ConnectionClosedError,
    Error,
    MaxPayloadError,
    NoRespondersError,
    OutboundBufferLimitError,
)

from penstock.errors import (
    BrokerFailed,
    Closed,
    MissingExtra,
    NotSupported,
    Unreachable,
    UsageError,
)
from penstock.transports.nats_settings import NatsSettings

ATTEMPT_SECONDS = 5.0
"""A call without an answer for so long is made again; all of them may be."""
CONNECT_SECONDS = 2.0
"""One attempt to connect."""
PAUSE_SECONDS = 0.05
API_LEVEL_MIN = 2
"""Batches that are stored together or not at all came with server 2.12."""
SIGNED = {"user_credentials", "nkeys_seed_str"}
"""Secrets that the client signs with, by a package that it does not bring."""
NOT_READY = frozenset({10008, 10009, 10023, 10039, 10076})
"""JetStream is starting, or a stream has no leader: it will."""

_T = TypeVar("_T")

_LATE = (Error, OSError, TimeoutError, AttributeError, AssertionError)
"""What closing raises when nobody is there: after a TLS connection that was cut, or before any."""


class NatsConnection:
    """A client that is connected, or tries to be, until it is closed. Lives on one event loop."""

    def __init__(self, settings: NatsSettings) -> None:
        self.settings = settings
        self._client: Client | None = None
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connected = asyncio.Event()
        self._lost: asyncio.Future[None] | None = None
        self._refused: asyncio.Future[None] | None = None
        self._attempts = 0
        self.on_lost: set[Callable[[], None]] = set()
        """Called whenever the connection is lost."""
        self.epoch = 0
        """Grows with every connection that is lost: what was on its way may not have arrived."""
        self.reconnects = 0
        self.errors = 0
        self.last_error: str | None = None

    # Life

    @property
    def is_connected(self) -> bool:
        """Whether the server can be reached, as far as this side knows."""
        return self._connected.is_set()

    @property
    def client(self) -> Client:
        """The client; UsageError before it is opened, Closed after it is closed."""
        if self._closed:
            raise self.closed()
        if self._client is None:
            raise UsageError("open the transport first: async with open_transport(...)")
        return self._client

    async def open(self) -> None:
        """Connect; Unreachable when no server answers in time, BrokerFailed when it refuses."""
        if self._client is not None or self._closed:
            return
        self._check_packages()
        self._loop = asyncio.get_running_loop()
        self._lost, self._refused = self._loop.create_future(), self._loop.create_future()
        client = Client()
        connecting = asyncio.ensure_future(self._connect(client))
        try:
            async with asyncio.timeout(self.settings.connect_seconds):
                await asyncio.wait({connecting, self._refused}, return_when="FIRST_COMPLETED")
                if not connecting.done():
                    raise self._failed("refuses this client", self.last_error or "")
                await connecting
                self._client = client
                self._connected.set()
                await self._check_server()
        except TimeoutError:
            raise await self._given_up(client, connecting) from None
        except BaseException:
            await self._given_up(client, connecting)
            raise

    def _check_packages(self) -> None:
        if SIGNED & self.settings.secrets.keys() and find_spec("nkeys") is None:
            raise MissingExtra(
                "NKEY seeds and files of credentials need a package more: pip install nkeys",
                extra="nats",
            )

    async def _connect(self, client: Client) -> None:
        settings = self.settings
        # The client knows no fractions in its types, and takes them.
        await client.connect(
            servers=list(settings.servers),
            name=settings.client_name,
            error_cb=self._on_error,
            disconnected_cb=self._on_lost,
            reconnected_cb=self._on_connected,
            closed_cb=self._on_closed,
            connect_timeout=min(CONNECT_SECONDS, settings.connect_seconds),  # type: ignore[arg-type]
            reconnect_time_wait=PAUSE_SECONDS,  # type: ignore[arg-type]
            max_reconnect_attempts=-1,
            ping_interval=settings.ping_interval,  # type: ignore[arg-type]
            reconnect_to_server_handler=self._next_server,
            tls=settings.tls_context(),
            tls_hostname=settings.tls_hostname or None,
            **settings.secrets,  # type: ignore[arg-type]
        )

    async def _given_up(self, client: Client, connecting: asyncio.Future[None]) -> Unreachable:
        self._client = None
        self._connected.clear()
        while not connecting.done():
            # Again, as a cancellation that meets an answer is lost (wait_for of Python 3.11).
            connecting.cancel()
            await asyncio.wait({connecting}, timeout=PAUSE_SECONDS)
        if not connecting.cancelled():
            connecting.exception()  # it was told, or does not matter any more
        with suppress(*_LATE):
            await asyncio.wait_for(client.close(), 1.0)
        return self._unreachable(self.settings.connect_seconds)

    async def _check_server(self) -> None:
        info = await self.api("INFO", timeout=self.settings.connect_seconds)
        if info.get("api", {}).get("level", 0) < API_LEVEL_MIN:
            raise NotSupported(
                "this NATS server is too old: 2.12 or newer is needed, for batches that are stored "
                "together or not at all",
                transport="nats",
            )

    async def close(self) -> None:
        """Let go. Idempotent."""
        client, self._client, self._closed = self._client, None, True
        self._connected.set()
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)
        if client is not None:
            with suppress(*_LATE):
                await asyncio.wait_for(client.close(), ATTEMPT_SECONDS)

    # What the client tells

    async def _on_error(self, error: Exception) -> None:
        self.last_error = self._note(error)
        refused = self._refused
        if "authoriz" in self.last_error.lower() and refused is not None and not refused.done():
            # The client would try for ever, and the server go on refusing.
            refused.set_result(None)

    def _note(self, error: Exception) -> str:
        self.errors += 1
        text = f"{type(error).__name__}: {error}"
        for secret in self.settings.secrets.values():
            text = text.replace(secret, "***")
        self.last_error = text
        return text

    async def _on_lost(self) -> None:
        if self._closed:
            return
        self._connected.clear()
        self.epoch += 1
        lost, self._lost = self._lost, asyncio.get_running_loop().create_future()
        if lost is not None and not lost.done():
            lost.set_result(None)
        for listener in list(self.on_lost):
            listener()

    async def _on_connected(self) -> None:
        self._attempts = 0
        self.reconnects += 1
        self._connected.set()

    async def _on_closed(self) -> None:
        if not self._closed:
            self._connected.clear()

    def _next_server(
        self, servers: list[Server], info: Mapping[str, Any]
    ) -> tuple[Server | None, float]:
        """The servers in turn; a pause that doubles after each round."""
        left = getattr(self._client, "_transport", None)
        if left is not None:
            # The client leaves the socket of an attempt that failed after connecting open.
            left.close()
        number, self._attempts = self._attempts, self._attempts + 1
        if number == 0:
            return servers[0], 0.0
        longest = self.settings.reconnect_seconds_max
        # Not all clients of a server that is back at the same moment.
        part = 0.5 + self.settings.system.random.random() / 2
        pause = min(longest, PAUSE_SECONDS * 2 ** min(number // len(servers), 20)) * part
        return servers[number % len(servers)], pause

    # Calls

    async def api(
        self, call: str, request: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """A call of JetStream's API; BrokerFailed when the server refuses it."""
        payload = b"" if request is None else msgspec.json.encode(request)
        message = await self.request(f"$JS.API.{call}", payload, timeout=timeout)
        return self.answer(message)

    def answer(self, message: Msg) -> dict[str, Any]:
        """What the server answered; BrokerFailed when that is a refusal."""
        try:
            found: dict[str, Any] = msgspec.json.decode(message.data)
        except msgspec.DecodeError as cause:
            raise self._failed("answered something else", repr(message.data[:80])) from cause
        if error := found.get("error"):
            raise self._failed(
                "refused a call", str(error.get("description")), code=error.get("err_code", 0)
            )
        return found

    async def request(
        self,
        subject: str,
        payload: bytes,
        headers: dict[str, str] | None = None,
        *,
        timeout: float | None = None,
    ) -> Msg:
        """Ask until there is an answer; Unreachable when there is none in time.

        The call may be made several times: it must be one that may be.
        """
        seconds = self.settings.timeout if timeout is None else timeout
        until = asyncio.get_running_loop().time() + seconds
        while True:
            try:
                async with asyncio.timeout_at(until):
                    message = await self.attempt(
                        lambda: self.client.request(
                            subject, payload, timeout=ATTEMPT_SECONDS, headers=headers
                        )
                    )
            except TimeoutError:
                raise self._unreachable(seconds) from None
            if message is not None and not self._is_not_ready(message):
                return message
            await asyncio.sleep(PAUSE_SECONDS)

    def _is_not_ready(self, message: Msg) -> bool:
        if b'"error"' not in message.data:
            return False
        error = msgspec.json.decode(message.data).get("error") or {}
        return error.get("err_code") in NOT_READY

    async def attempt(self, call: Callable[[], Awaitable[_T]]) -> _T | None:
        """Wait for a connection, then call; None when the connection was lost or nobody answered.

        A connection on which nothing at all came while the call waited is made anew.
        """
        while not self._connected.is_set():
            await self._connected.wait()
        client, lost = self.client, self._lost
        assert lost is not None
        before = client.stats["in_msgs"]
        calling: asyncio.Future[_T] = asyncio.ensure_future(call())
        try:
            waiting: set[asyncio.Future[Any]] = {calling, lost}
            await asyncio.wait(waiting, return_when="FIRST_COMPLETED")
            return await calling if calling.done() else None
        except (NoRespondersError, ConnectionClosedError, OutboundBufferLimitError):
            return None
        except MaxPayloadError:
            raise
        except TimeoutError as error:
            self._note(error)
            if client.stats["in_msgs"] == before:
                await client.force_reconnect()
            return None
        except (Error, OSError) as error:
            self._note(error)
            return None
        finally:
            calling.cancel()

    # Errors

    @staticmethod
    def closed() -> Closed:
        """The error of whoever comes after the end."""
        return Closed("the NATS transport is closed")

    def _unreachable(self, seconds: float) -> Unreachable:
        why = f" ({self.last_error})" if self.last_error else ""
        return Unreachable(
            f"NATS at {self.settings.address} did not answer within {seconds:g} s{why}: start it "
            "with JetStream, or correct the URL",
            transport="nats",
            address=self.settings.address,
            seconds=seconds,
        )

    def _failed(self, did: str, why: str, code: int = 0) -> BrokerFailed:
        self.errors += 1
        self.last_error = why
        return BrokerFailed(
            f"NATS at {self.settings.address} {did}: {why}",
            transport="nats",
            code=code,
            description=why,
        )
