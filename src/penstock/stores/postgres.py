"""A store in a PostgreSQL database, through asyncpg."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from hashlib import blake2b
from typing import Any

from penstock.errors import InvalidOption
from penstock.stores.base import (
    PersistentBackingStore,
    StoreCapabilities,
    StoreStatistics,
    check_key,
)
from penstock.stores.gate import (
    Deadline,
    Gate,
    KeyLocks,
    check_position,
    check_prefix,
    check_range,
    lock_timeout,
    no_such_key,
)
from penstock.stores.pieces import PIECE_BYTES_MAX, assemble, split
from penstock.stores.postgres_server import Connection, Server
from penstock.stores.postgres_tables import Tables
from penstock.system import Buffer, System

_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,40}")


class PostgresStore(PersistentBackingStore):
    """Keys and values in the tables of one schema, which is made when absent.

    What survives: ``write``, ``delete`` and ``sync`` return after the server has flushed its log
    to its disk (and to its synchronous standbys, when it has any). ``write_at`` and ``truncate``
    survive a crash of this process at once, and a crash of the server after the next ``sync``.
    Every call is one transaction. When the server runs with ``fsync = off``,
    ``capabilities.durable`` is False.

    When the server crashed or failed over, it may have lost what was not synced. The next
    ``sync`` notices, raises ``Poisoned``, and so does every later change: reopen to go on.

    Every call ends within ``deadline`` seconds: ``DeadlineExceeded`` leaves open whether a change
    happened. A lost connection is made again by the next call; reads are tried again by themselves, a
    change raises ``StoreFailed`` and may have happened. A cancelled asyncio task that waits in
    ``asyncio.to_thread`` does not stop the call.

    Locks belong to a session of this process; the server frees them when the process dies,
    within seconds when its machine vanishes. When that session breaks while a lock is held, the store
    is poisoned, as somebody else may hold the lock by now.

    A server on another machine is talked to over TLS, and its certificate and name are checked
    (``sslmode=verify-full``), unless the DSN or ``PGSSLMODE`` says otherwise. Name who signed it by
    ``sslrootcert``, if the system does not know. The password in the DSN is never shown.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "penstock",
        deadline: float = 30.0,
        connections: int = 4,
        system: System | None = None,
    ) -> None:
        if not _SCHEMA_NAME.fullmatch(schema):
            raise InvalidOption("a schema is at most 41 lower-case letters, digits and '_'")
        if deadline <= 0 or connections < 1:
            raise InvalidOption("deadline is above 0 seconds and connections at least 1")
        self._system = system or System()
        self._schema = schema
        self._locks = KeyLocks()
        self._tables = Tables(schema)
        self._server = Server(dsn, deadline=deadline, connections=connections, system=self._system)
        self._gate = Gate(repr(self))
        try:
            self._life, fsync = self._server.durable(self._tables.open)
        except BaseException:
            self._server.close()
            raise
        self._server.on_lock_lost(self._gate.poison)
        self.capabilities = StoreCapabilities(log=True, shared=True, durable=fsync)

    def __repr__(self) -> str:
        return f"PostgresStore({self._server.place}, schema={self._schema!r})"

    # Whole values

    def write(self, key: str, data: Buffer) -> None:
        check_key(key)
        self._gate.check_write()

        async def work(connection: Connection) -> None:
            async with connection.transaction():
                identifier, _ = await self._tables.lock_or_make(connection, key)
                await self._tables.replace(connection, identifier, 0, split(data), len(data))

        self._server.durable(work)
        self._gate.count_write(len(data))

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        check_key(key)
        check_range(start, length)
        self._gate.check()
        end = None if length is None else start + length
        rows = self._server.read(lambda one: self._tables.pieces(one, key, start, end))
        if rows is None:
            raise no_such_key(key)
        data = assemble(rows, start, end)
        self._gate.count_read(len(data))
        return data

    def delete(self, key: str) -> None:
        check_key(key)
        self._gate.check_write()
        if self._server.durable(lambda one: self._tables.delete(one, key)):
            self._gate.count_delete()

    def list(self, prefix: str = "") -> list[str]:
        possible = check_prefix(prefix)
        self._gate.check()
        return self._server.read(lambda one: self._tables.keys(one, prefix)) if possible else []

    def exists(self, key: str) -> bool:
        return self._find_size(key) is not None

    def size(self, key: str) -> int:
        size = self._find_size(key)
        if size is None:
            raise no_such_key(key)
        return size

    def _find_size(self, key: str) -> int | None:
        check_key(key)
        self._gate.check()
        return self._server.read(lambda one: self._tables.size(one, key))

    # The log's half

    def write_at(self, key: str, position: int, buffers: Sequence[Buffer]) -> None:
        check_key(key)
        self._gate.check_write()
        data = b"".join(buffers)
        self._server.relaxed(lambda one: self._write_at(one, key, position, data))
        self._gate.count_write(len(data))

    async def _write_at(self, one: Connection, key: str, position: int, data: bytes) -> None:
        # Two shapes take one round trip: an append, and an overwrite inside one piece.
        if data and position >= 0:
            if await self._tables.append(one, key, position, split(data, position), len(data)):
                return
            if len(data) <= PIECE_BYTES_MAX and await self._tables.overlay(
                one, key, position, data
            ):
                return
        async with one.transaction():
            identifier, size = await self._tables.lock_or_make(one, key)
            check_position(key, position, size)
            await self._tables.splice(one, identifier, size, position, data)

    def truncate(self, key: str, size: int) -> None:
        check_key(key)
        self._gate.check_write()

        async def work(connection: Connection) -> None:
            async with connection.transaction():
                found = await self._tables.lock(connection, key)
                if found is None:
                    raise no_such_key(key)
                check_position(key, size, found[1])
                await self._tables.truncate(connection, found[0], size)

        self._server.relaxed(work)

    def sync(self, key: str) -> None:
        """Make everything durable that any session committed to the server before.

        The server has one log. A commit of a session with ``synchronous_commit = on`` returns
        after the log is flushed up to its own commit record, and every commit that returned before
        lies in front of that. The message makes the commit write to the log: the server skips the flush of a
        transaction that wrote nothing.

        A commit that returned without a flush can be lost when the server crashes, and the
        server would then flush a log that never had it. So the statement also reads the number
        of the server's life (see :class:`~penstock.stores.postgres_tables.Tables`).
        """
        check_key(key)
        self._gate.check_write()
        row: Any = self._server.durable(lambda one: self._tables.sync(one, key))
        if row["life"] != self._life:
            self._gate.poison(
                "the server crashed or failed over and may have lost what it had not synced"
            )
            self._gate.check_write()
        if not row["found"]:
            raise no_such_key(key)
        self._gate.count_sync()

    def lock(self, key: str, timeout: float) -> AbstractContextManager[None]:
        check_key(key)
        self._gate.check()
        return self._hold(key, timeout)

    @contextmanager
    def _hold(self, key: str, timeout: float) -> Iterator[None]:
        deadline = Deadline(self._system.clock, timeout)
        digest = blake2b(f"penstock {self._schema} {key}".encode(), digest_size=8).digest()
        number = int.from_bytes(digest, "big", signed=True)
        with self._locks.hold(key, timeout):
            if not self._server.lock(number, max(0.0, deadline.remaining())):
                raise lock_timeout(key, timeout)
            try:
                if not self.exists(key):
                    self.write_at(key, 0, [])
                yield
            finally:
                if self._gate.is_open:  # closing ends the session, and the lock with it
                    self._server.unlock(number)

    # The store itself

    def statistics(self) -> StoreStatistics:
        return self._gate.statistics()

    def close(self) -> None:
        if self._gate.close():
            self._server.close()

    def abandon_after_fork(self) -> None:
        self._gate.abandon()
        self._server.abandon_after_fork()
