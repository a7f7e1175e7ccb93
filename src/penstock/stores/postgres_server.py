"""A PostgreSQL server as blocking calls: asyncpg on an event loop in a thread of its own.

Three kinds of sessions, because ``synchronous_commit`` and advisory locks belong to a session:
durable ones, relaxed ones (a commit returns before its log is flushed), and one that holds locks.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar
from urllib.parse import urlsplit

from penstock.errors import (
    Closed,
    DeadlineExceeded,
    InvalidOption,
    MissingExtra,
    PenstockError,
    StoreFailed,
)
from penstock.stores.gate import Deadline
from penstock.stores.postgres_tls import HINT, tls_of
from penstock.system import System

T = TypeVar("T")
Connection = Any  # asyncpg carries no type information
Work = Callable[[Connection], Awaitable[T]]

LOCK_POLL_SECONDS_MIN = 0.001
LOCK_POLL_SECONDS_MAX = 0.02
CLOSE_SECONDS = 5.0
_HIDDEN = "a DSN that is not shown"


class Server:
    """Runs work on sessions of one server. Thread-safe.

    Every call ends within ``deadline`` seconds. A session that broke is thrown away and the next
    call makes a new one; work that only reads is tried once more by itself.
    """

    def __init__(self, dsn: str, *, deadline: float, connections: int, system: System) -> None:
        self._asyncpg = _asyncpg()
        self._dsn = _checked(dsn)
        self._tls = _tls(dsn)
        self.place = _place(dsn)
        self._deadline = deadline
        self._system = system
        self._on_lock_lost: Callable[[str], None] = lambda _: None
        self._loop = asyncio.new_event_loop()
        self._durable = _Sessions(self, connections, "on")
        self._relaxed = _Sessions(self, connections, "off")
        self._locker = _Sessions(self, 1, "on")
        self._held: set[int] = set()
        self._sockets: dict[int, Connection] = {}
        self._worker = system.worker("penstock-postgres")
        self._worker.submit(self._loop.run_forever)

    def on_lock_lost(self, report: Callable[[str], None]) -> None:
        """Call ``report`` when the session that holds locks breaks."""
        self._on_lock_lost = report

    def durable(self, work: Work[T]) -> T:
        """Run work whose commit returns after the server's log is flushed to its disk."""
        return self._call(self._durable.run(work))

    def relaxed(self, work: Work[T]) -> T:
        """Run work whose commit may return before the server's log is flushed."""
        return self._call(self._relaxed.run(work))

    def read(self, work: Work[T]) -> T:
        """Run work that changes nothing; tried again when the session broke."""
        return self._call(self._relaxed.run(work, tries=2))

    def lock(self, number: int, timeout: float) -> bool:
        """Take the advisory lock; False when it was not free in time."""
        return self._call(self._acquire(number, timeout), timeout + self._deadline)

    def unlock(self, number: int) -> None:
        """Release the advisory lock. When the session broke, the server released it already."""
        try:
            self._call(self._locker.run(_statement("SELECT pg_advisory_unlock($1)", number)))
        except (StoreFailed, DeadlineExceeded):
            # The broken session was thrown away, and its locks with it.
            return
        finally:
            self._held.discard(number)

    def close(self) -> None:
        """End all sessions and the thread."""
        self._held.clear()
        try:
            self._call(self._end(), CLOSE_SECONDS)
        except PenstockError:
            return  # the server does not answer: it ends the sessions when the sockets close
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._worker.close()
            self._loop.close()

    def abandon_after_fork(self) -> None:
        """Point the child's copies of the sockets elsewhere: the parent's death must end them."""
        null = self._system.files.open("/dev/null")
        for descriptor in self._sockets:
            os.dup2(null, descriptor, inheritable=False)
        self._system.files.close(null)

    # On the loop

    def _call(self, coroutine: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        limit = self._deadline if seconds is None else seconds
        future = asyncio.run_coroutine_threadsafe(self._limited(coroutine, limit), self._loop)
        try:
            return future.result()
        except CancelledError:
            raise Closed(f"the store at {self.place} was closed during this call") from None
        except BaseException:
            future.cancel()  # for one that came from outside, as Ctrl-C does
            raise

    async def _limited(self, coroutine: Coroutine[Any, Any, T], seconds: float) -> T:
        try:
            async with asyncio.timeout(seconds):
                return await coroutine
        except DeadlineExceeded:
            raise  # it is a TimeoutError too
        except TimeoutError as cause:
            raise self._too_late(seconds) from cause

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for sessions in (self._durable, self._relaxed, self._locker):
            await sessions.close()

    def _too_late(self, seconds: float) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"the PostgreSQL server at {self.place} did not answer within {seconds:g} s; "
            "a change may still happen",
            seconds=seconds,
        )

    async def _acquire(self, number: int, timeout: float) -> bool:
        # Asking again and again, not waiting inside the server: one session serves all locks, and
        # a cancelled wait could leave a lock behind that nobody knows of.
        deadline = Deadline(self._system.clock, timeout)
        pause = LOCK_POLL_SECONDS_MIN
        attempt = _statement("SELECT pg_try_advisory_lock($1)", number)
        while not await self._locker.run(attempt, tries=2):
            if deadline.remaining() <= 0:
                return False
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LOCK_POLL_SECONDS_MAX)
        self._held.add(number)
        return True

    async def connect(self, synchronous_commit: str) -> Connection:
        """A new session."""
        settings = {
            "application_name": "penstock",
            "synchronous_commit": synchronous_commit,
            "statement_timeout": str(max(1, int(self._deadline * 1000))),
            # A machine that vanished must not keep its locks for the two hours of the default.
            "tcp_keepalives_idle": "10",
            "tcp_keepalives_interval": "5",
            "tcp_keepalives_count": "3",
        }
        connection = await self._asyncpg.connect(
            self._dsn, timeout=self._deadline, server_settings=settings, **self._tls
        )
        descriptor = connection._transport.get_extra_info("socket").fileno()
        self._sockets[descriptor] = connection
        connection.add_termination_listener(self._ended(descriptor))
        return connection

    def _ended(self, descriptor: int) -> Callable[[Connection], None]:
        def listener(connection: Connection) -> None:
            if self._sockets.get(descriptor) is connection:
                del self._sockets[descriptor]
            if self._held and self._locker.owns(connection):
                self._on_lock_lost("the session that held its locks broke")

        return listener

    def translate(self, cause: Exception) -> PenstockError:
        """The store's error for one of asyncpg's, without secrets."""
        if isinstance(cause, TimeoutError | self._asyncpg.QueryCanceledError):
            return self._too_late(self._deadline)
        code = getattr(cause, "sqlstate", None) or type(cause).__name__
        text = str(cause) if isinstance(cause, self._asyncpg.PostgresError | OSError) else ""
        if self._tls and isinstance(cause, OSError) and "SSL" in f"{type(cause)}{text}".upper():
            text = f"{text}: {HINT}"
        return StoreFailed(
            f"the PostgreSQL server at {self.place} failed: {code} {text}".rstrip(), code=code
        )

    def is_answer(self, cause: Exception) -> bool:
        """Whether the server answered with an error and the session is still good."""
        gone = self._asyncpg.PostgresConnectionError | self._asyncpg.AdminShutdownError
        gone |= self._asyncpg.CrashShutdownError
        return isinstance(cause, self._asyncpg.PostgresError) and not isinstance(cause, gone)


class _Sessions:
    """A few sessions of one kind. Used on the loop only."""

    def __init__(self, server: Server, limit: int, synchronous_commit: str) -> None:
        self._server = server
        self._free = asyncio.Semaphore(limit)
        self._idle: list[Connection] = []
        self._synchronous_commit = synchronous_commit
        self._connection: Connection = None

    async def run(self, work: Work[T], tries: int = 1) -> T:
        """Run the work on a free session; with ``tries`` again when the session broke."""
        async with self._free:
            for left in reversed(range(tries)):
                try:
                    return await self._attempt(work)
                except _Broken as broken:
                    if not left:
                        cause = broken.cause
                        raise self._server.translate(cause) from _without_secrets(cause)
        raise AssertionError("unreachable")

    async def _attempt(self, work: Work[T]) -> T:
        connection = None
        try:
            connection = await self._take()
            result = await work(connection)
        except PenstockError:
            self._idle.append(connection)
            raise
        except Exception as cause:
            if connection is not None and self._server.is_answer(cause):
                self._idle.append(connection)
                raise self._server.translate(cause) from cause
            self._drop(connection)
            raise _Broken(cause) from None
        except BaseException:
            self._drop(connection)
            raise
        self._idle.append(connection)
        return result

    async def _take(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        self._connection = await self._server.connect(self._synchronous_commit)
        return self._connection

    def owns(self, connection: Connection) -> bool:
        """Whether this was the last session made here."""
        return self._connection is connection

    def _drop(self, connection: Connection) -> None:
        if connection is not None:
            connection.terminate()

    async def close(self) -> None:
        """End the idle sessions."""
        while self._idle:
            connection = self._idle.pop()
            try:
                await connection.close(timeout=CLOSE_SECONDS / 2)
            except Exception:
                connection.terminate()


class _Broken(Exception):
    """The session broke; what the work did is not known."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause


def _statement(query: str, *arguments: object) -> Work[Any]:
    return lambda connection: connection.fetchval(query, *arguments)


def _asyncpg() -> Any:
    try:
        import asyncpg
    except ImportError as cause:
        raise MissingExtra(
            "the PostgreSQL store needs asyncpg: pip install penstock[postgres]", extra="postgres"
        ) from cause
    return asyncpg


def _checked(dsn: str) -> str:
    if dsn.startswith(("postgresql://", "postgres://")):
        return dsn
    # The text itself is not repeated: it may hold a password.
    raise InvalidOption("a PostgreSQL DSN starts with postgresql:// or postgres://")


def _tls(dsn: str) -> dict[str, Any]:
    try:
        return tls_of(dsn)
    except ValueError:
        return {"ssl": True}  # the client refuses the DSN, and says why without it


def _place(dsn: str) -> str:
    """Host and database of the DSN: what may be shown."""
    try:
        parts = urlsplit(dsn)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return _HIDDEN
    # A password with an unescaped / or # ends up in the wrong part, and so does the @ after it.
    if "@" in parts.path + parts.query + parts.fragment:
        return _HIDDEN
    return f"{parts.hostname or 'localhost'}{port}{parts.path}"


def _without_secrets(cause: Exception) -> Exception | None:
    """The cause when its text comes from the server or the system, which know no password."""
    import asyncpg

    return cause if isinstance(cause, asyncpg.PostgresError | OSError | TimeoutError) else None
