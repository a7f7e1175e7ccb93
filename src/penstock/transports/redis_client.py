"""The connection to a Redis server: it calls again what a lost connection left open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import redis.asyncio as client
from redis import exceptions as failures
from redis.asyncio.connection import BlockingConnectionPool, Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.commands.core import AsyncScript

from penstock.errors import BrokerFailed, Unreachable
from penstock.system import System
from penstock.transports.options import check_options
from penstock.transports.redis_settings import NAME, RedisAddress

CONNECTIONS_MAX = 32
"""Of one transport, at the same time; calls beyond wait for one."""
BACKOFF_SECONDS = (0.05, 2.0)
"""The first pause before another try, and the longest."""
END_SECONDS = 0.1

NATIVE = frozenset(
    {
        "client_name",
        "credential_provider",
        "health_check_interval",
        "socket_connect_timeout",
        "socket_keepalive",
        "socket_keepalive_options",
        "socket_read_size",
        "socket_timeout",
    }
)
"""Options of redis-py's connections that are passed on as they are."""
NATIVE_TLS = frozenset(
    {
        "ssl_ca_certs",
        "ssl_ca_data",
        "ssl_ca_path",
        "ssl_certfile",
        "ssl_ciphers",
        "ssl_keyfile",
        "ssl_min_version",
        "ssl_password",
    }
)
"""Those of ``rediss:`` alone. The server's certificate and its name are always checked."""

AWAY = (
    failures.ConnectionError,
    failures.TimeoutError,
    failures.ReadOnlyError,
    failures.TryAgainError,
    failures.ClusterDownError,
    OSError,
)
"""The server is away, or is a replica for a moment: it may work again soon."""
_REFUSED = (failures.AuthenticationError, failures.AuthorizationError)
"""They are errors of the connection too, and trying again is no use."""


class RedisClient:
    """Calls scripts, again and again while the server is away, until their time is up.

    Every script does the same when it is called twice, so a call whose outcome is unknown is made
    again. A cancelled call may have happened. Lives on one event loop.
    """

    def __init__(
        self,
        address: RedisAddress,
        system: System,
        answer_seconds: float,
        native: Mapping[str, Any],
    ) -> None:
        known = NATIVE | NATIVE_TLS if address.secure else NATIVE
        check_options(f"the client of {address}", native, known)
        self.address = address
        self.system = system
        self.answer_seconds = answer_seconds
        self.connected = False
        self.reconnects = 0
        self.errors = 0
        self.last_error: str | None = None
        self._lost = False
        self._scripts: dict[str, AsyncScript] = {}
        self._calls: set[asyncio.Future[Any]] = set()
        self._redis: Any = client.Redis.from_pool(self._pool(dict(native)))

    def _pool(self, native: dict[str, Any]) -> BlockingConnectionPool:
        address = self.address
        defaults: dict[str, Any] = {
            "socket_timeout": self.answer_seconds,
            "client_name": "penstock",
        }
        if address.secure:
            defaults |= {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
        return BlockingConnectionPool(
            connection_class=SSLConnection if address.secure else Connection,
            max_connections=CONNECTIONS_MAX,
            timeout=None,
            host=address.host,
            port=address.port,
            db=address.database,
            username=address.username,
            password=address.password,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            socket_connect_timeout=self.answer_seconds,
            **{**defaults, **native},
        )

    async def close(self) -> None:
        """Close all connections."""
        self.connected = False
        await end_tasks(self._calls)
        with suppress(failures.RedisError, OSError):
            await self._redis.aclose(close_connection_pool=True)

    async def script(
        self,
        text: str,
        key: str,
        *arguments: Any,
        seconds: float,
        what: str,
        repeated: Callable[[], None] | None = None,
    ) -> Any:
        """The answer of a script on a topic; Unreachable or BrokerFailed when there is none.

        ``repeated`` is called when it is called a second time.
        """
        script = self._scripts.get(text)
        if script is None:
            script = self._scripts[text] = self._redis.register_script(text)
        return await self.again(lambda: script(keys=[key], args=arguments), seconds, what, repeated)

    async def command(self, *words: Any, seconds: float, what: str) -> Any:
        """The answer of a command that may be called twice."""
        return await self.again(lambda: self._redis.execute_command(*words), seconds, what)

    async def again(
        self,
        call: Callable[[], Awaitable[Any]],
        seconds: float,
        what: str,
        repeated: Callable[[], None] | None = None,
    ) -> Any:
        """Call until it works, for so many seconds."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        pause, longest = BACKOFF_SECONDS
        cause: BaseException | None = None
        while True:
            try:
                answer = await self._answer(call, until - loop.time())
                self._works()
                return answer
            except _REFUSED as refused:
                raise self._failed(what, refused) from refused
            except (*AWAY, TimeoutError) as lost:
                self.lose(lost)
                if cause is None and repeated is not None:
                    repeated()
                cause = cause if type(lost) is TimeoutError and cause else lost
            except failures.RedisError as refused:
                raise self._failed(what, refused) from refused
            if loop.time() + pause >= until:
                raise self.unreachable(what, seconds) from cause
            await asyncio.sleep(pause * self.system.random.uniform(0.5, 1.0))
            pause = min(longest, pause * 2)

    async def _answer(self, call: Callable[[], Awaitable[Any]], seconds: float) -> Any:
        """The answer, or TimeoutError. When this is cancelled the call goes on, and ends by itself.

        A task of its own: the client may swallow a cancellation (``asyncio.wait_for`` did, before
        Python 3.12), and gives up its connection when it does not.
        """
        task = asyncio.ensure_future(call())
        self._calls.add(task)
        task.add_done_callback(self._ended)
        done, _ = await asyncio.wait([task], timeout=seconds)
        if not done:
            task.cancel()
            raise TimeoutError
        return task.result()

    def _ended(self, task: asyncio.Future[Any]) -> None:
        self._calls.discard(task)
        if not task.cancelled():
            # Whoever asked may be gone.
            task.exception()

    def unreachable(self, what: str, seconds: float) -> Unreachable:
        """The error of a server that does not answer."""
        return Unreachable(
            f"could not {what}: {self.address} did not answer within {seconds:g} s. Is the server "
            "running, and the URL right? What was on its way may have arrived",
            transport=NAME,
            address=str(self.address),
            seconds=seconds,
        )

    def _failed(self, what: str, cause: Exception) -> BrokerFailed:
        self.note(cause)
        return BrokerFailed(
            f"could not {what}: {self.address} refused it: {cause}", transport=NAME,
            address=str(self.address),
        )  # fmt: skip

    def note(self, error: BaseException) -> None:
        """Count an error."""
        self.errors += 1
        self.last_error = f"{type(error).__name__}: {error}"

    def lose(self, error: BaseException) -> None:
        """The server is away."""
        self.note(error)
        self._lost, self.connected = True, False

    def _works(self) -> None:
        self.reconnects += self._lost
        self._lost, self.connected = False, True

    def pubsub(self) -> Any:
        """A connection that hears notices."""
        return self._redis.pubsub()


async def end_tasks(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel them until they are done: one cancellation may be swallowed by the client."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=END_SECONDS)
