"""One container file: a whole store in one SQLite database."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from hashlib import blake2b

from penstock.errors import StoreFailed
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
from penstock.stores.pieces import assemble, splice, split
from penstock.stores.sqlite_file import POSITION_BITS, connect, prepare, translate
from penstock.system import Buffer, System

READERS_MAX = 4
CHECKPOINT_BYTES = 4 * 1024 * 1024
TRANSACTION_BYTES = 4096  # about what a small transaction adds to SQLite's log
LOCK_POLL_SECONDS_MIN = 0.0002
LOCK_POLL_SECONDS_MAX = 0.005

_Rows = list[tuple[int, bytes]]
# SQLite keeps these for as long as the process lives: closing a connection that a forked child
# inherited would touch the parent's file.
_abandoned: list[sqlite3.Connection] = []


class SqliteStore(PersistentBackingStore):
    """A container file, with its write-ahead log, its shared memory and its locks beside it.

    What survives: ``write``, ``delete`` and ``sync`` return after SQLite has synced its
    write-ahead log, so what they promise survives a power cut. ``write_at`` and ``truncate``
    survive a crash of the process, and a power cut after the next ``sync``. Every call is one
    transaction: after a crash it happened as a whole or not at all, also ``write_at``.

    A failed sync poisons the store: the kernel reports a failed write-back once and then calls
    the page clean, so a later sync would promise what is lost. Reads go on; reopen to write again.

    Any number of processes on one machine may share the file; the writer's turn is waited for
    at most ``busy_seconds``, then ``DeadlineExceeded`` is raised and nothing is written. The file
    must lie on a local file system. It is made with mode 0600 in an existing directory; ``<file>.locks``
    is a directory of empty files that carry the locks of :meth:`lock`. Space of deleted
    values is used again; the file does not shrink.

    SQLite has no checksums on its pages. A flipped bit in a value is returned as it is, and is
    found by the log's own checksums; one in SQLite's own structure raises ``DamagedFile``, or is not seen.
    """

    capabilities = StoreCapabilities(log=True, shared=True, durable=True)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        busy_seconds: float = 10.0,
        system: System | None = None,
    ) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self._busy_seconds = busy_seconds
        self._system = system or System()
        self._gate = Gate(repr(self))
        self._locks = KeyLocks()
        self._lock_descriptors: set[int] = set()
        self._write_mutex = threading.Lock()
        self._readers_mutex = threading.Lock()
        self._idle_readers: list[sqlite3.Connection] = []
        with self._translated("open"), self._initial_lock():
            self._writer = prepare(self.path, busy_seconds, self._system.files)
        self._synchronous = ""
        self._since_checkpoint = 0

    def __repr__(self) -> str:
        return f"SqliteStore({self.path!r})"

    # Whole values

    def write(self, key: str, data: Buffer) -> None:
        check_key(key)
        with self._transaction(durable=True) as connection:
            base = _make_key(connection, key)
            _delete_pieces(connection, base, 0)
            _insert_pieces(connection, base, split(data))
            self._since_checkpoint += len(data)
        self._gate.count_write(len(data))

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        check_key(key)
        check_range(start, length)
        end = None if length is None else start + length
        with self._snapshot() as connection:
            rows = _pieces(connection, _base(connection, key), start, end)
        data = assemble(rows, start, end)
        self._gate.count_read(len(data))
        return data

    def delete(self, key: str) -> None:
        check_key(key)
        with self._transaction(durable=True) as connection:
            base = _find_base(connection, key)
            if base is not None:
                _delete_pieces(connection, base, 0)
                connection.execute("DELETE FROM keys WHERE key = ?", (key,))
        if base is not None:
            self._gate.count_delete()

    def list(self, prefix: str = "") -> list[str]:
        possible = check_prefix(prefix)
        # Keys are ASCII: all that start with the prefix lie below prefix + DEL.
        query = "SELECT key FROM keys WHERE key >= ? AND key < ? ORDER BY key"
        with self._snapshot() as connection:
            if not possible:
                return []
            rows = connection.execute(query, (prefix, f"{prefix}\x7f")).fetchall()
        return [key for (key,) in rows]

    def exists(self, key: str) -> bool:
        check_key(key)
        with self._snapshot() as connection:
            return _find_base(connection, key) is not None

    def size(self, key: str) -> int:
        check_key(key)
        with self._snapshot() as connection:
            return _size(connection, _base(connection, key))

    # The log's half

    def write_at(self, key: str, position: int, buffers: Sequence[Buffer]) -> None:
        check_key(key)
        data = b"".join(buffers)
        with self._transaction(durable=False) as connection:
            base = _make_key(connection, key)
            size = _size(connection, base)
            check_position(key, position, size)
            if position < size and data:
                old = _pieces(connection, base, position, position + len(data))
                connection.executemany(
                    "DELETE FROM pieces WHERE place = ?", [(base + at,) for at, _ in old]
                )
                _insert_pieces(connection, base, splice(old, data, position))
            else:
                _insert_pieces(connection, base, split(data, position))
            self._since_checkpoint += len(data)
        self._gate.count_write(len(data))

    def truncate(self, key: str, size: int) -> None:
        check_key(key)
        with self._transaction(durable=False) as connection:
            base = _base(connection, key)
            check_position(key, size, _size(connection, base))
            rest = assemble(_pieces(connection, base, size, size + 1), 0, size)
            start = size - len(rest)
            _delete_pieces(connection, base, start)
            _insert_pieces(connection, base, split(rest, start))

    def sync(self, key: str) -> None:
        """Make everything durable that any process committed to the container before.

        All earlier commits lie in the one write-ahead log, or were moved to the database by a
        checkpoint, which syncs both files. With synchronous=FULL a commit syncs the whole log
        after its last frame is written, so it takes all earlier commits of all processes with it.
        The counter makes the commit write a frame: SQLite skips the sync of a commit that
        changed nothing.
        """
        check_key(key)
        with self._transaction(durable=True) as connection:
            _base(connection, key)
            connection.execute("UPDATE syncs SET count = count + 1")
        self._gate.count_sync()

    def lock(self, key: str, timeout: float) -> AbstractContextManager[None]:
        check_key(key)
        self._gate.check()
        return self._hold(key, timeout)

    # The store itself

    def statistics(self) -> StoreStatistics:
        return self._gate.statistics()

    def close(self) -> None:
        """Release everything. Idempotent.

        The last one to close the container also moves SQLite's log into it.
        """
        with self._write_mutex:
            if not self._gate.close():
                return
            with suppress(sqlite3.Error):
                self._writer.close()
        with self._readers_mutex:
            for connection in self._idle_readers:
                connection.close()
            self._idle_readers.clear()

    def abandon_after_fork(self) -> None:
        _abandoned.extend([self._writer, *self._idle_readers])
        self._idle_readers = []
        self._write_mutex = threading.Lock()
        self._readers_mutex = threading.Lock()
        self._gate.abandon()
        # Closing the child's copies does not release the parent's locks; keeping them would
        # hold those locks when the parent dies.
        for descriptor in self._lock_descriptors:
            self._system.files.close(descriptor)
        self._lock_descriptors.clear()

    # Connections

    @contextmanager
    def _transaction(self, *, durable: bool) -> Iterator[sqlite3.Connection]:
        with self._write_mutex:
            self._gate.check_write()
            with self._translated("write"):
                self._set_synchronous("FULL" if durable else "NORMAL")
                self._writer.execute("BEGIN IMMEDIATE")
                try:
                    yield self._writer
                    self._writer.execute("COMMIT")
                except BaseException:
                    self._roll_back()
                    raise
                self._checkpoint_when_due()

    def _set_synchronous(self, level: str) -> None:
        if self._synchronous != level:
            self._writer.execute(f"PRAGMA synchronous = {level}")
            self._synchronous = level

    def _checkpoint_when_due(self) -> None:
        """Move SQLite's log into the database file now and then.

        SQLite's own automatic checkpoint is off: it hides a failed sync, and the kernel reports
        such a failure only once, so the next ``sync`` would promise what is lost.
        """
        self._since_checkpoint += TRANSACTION_BYTES
        if self._since_checkpoint >= CHECKPOINT_BYTES:
            self._since_checkpoint = 0
            self._writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def _roll_back(self) -> None:
        if self._writer.in_transaction:
            with suppress(sqlite3.Error):
                self._writer.execute("ROLLBACK")

    @contextmanager
    def _snapshot(self) -> Iterator[sqlite3.Connection]:
        """A connection inside a read transaction: all queries see one state.

        Readers have their own connections, so that they do not wait for a writer's sync.
        """
        with self._translated("read"):
            connection = self._take_reader()
            try:
                connection.execute("BEGIN")
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                connection.close()
                raise
            self._return_reader(connection)

    def _take_reader(self) -> sqlite3.Connection:
        with self._readers_mutex:
            self._gate.check()
            if self._idle_readers:
                return self._idle_readers.pop()
        return connect(self.path, self._busy_seconds)

    def _return_reader(self, connection: sqlite3.Connection) -> None:
        with self._readers_mutex:
            if self._gate.is_open and len(self._idle_readers) < READERS_MAX:
                self._idle_readers.append(connection)
                return
        connection.close()

    @contextmanager
    def _translated(self, verb: str) -> Iterator[None]:
        """Turn what SQLite raises into the store's errors."""
        try:
            yield
        except sqlite3.Error as cause:
            name = getattr(cause, "sqlite_errorname", "")
            if "FSYNC" in name:
                self._gate.poison(f"a sync failed ({name})")
            raise translate(cause, verb, self.path) from cause

    # Locks

    @contextmanager
    def _initial_lock(self) -> Iterator[None]:
        """One process at a time makes the container."""
        files = self._system.files
        try:
            with suppress(FileExistsError):
                files.make_directory(f"{self.path}.locks")
        except OSError as cause:
            raise StoreFailed(
                f"cannot make {self.path}.locks: {cause.strerror or cause}", errno=cause.errno
            ) from cause
        with self._file_lock("the container", "container", self._busy_seconds):
            yield

    @contextmanager
    def _hold(self, key: str, timeout: float) -> Iterator[None]:
        deadline = Deadline(self._system.clock, timeout)
        # The hash gives every key a short name; two names never need to be told apart by people.
        name = blake2b(key.encode(), digest_size=16).hexdigest()
        with self._locks.hold(key, timeout), self._file_lock(key, name, deadline.remaining()):
            if not self.exists(key):
                self.write_at(key, 0, [])
            yield

    @contextmanager
    def _file_lock(self, key: str, name: str, timeout: float) -> Iterator[None]:
        files = self._system.files
        try:
            descriptor = files.open(f"{self.path}.locks/{name}", create=True)
        except OSError as cause:
            raise StoreFailed(f"cannot lock {key}: {cause.strerror or cause}", key=key) from cause
        self._lock_descriptors.add(descriptor)
        try:
            self._wait_for(descriptor, key, timeout)
            yield
        finally:
            # In a forked child the descriptor is closed already, and its number may be reused.
            if descriptor in self._lock_descriptors:
                self._lock_descriptors.discard(descriptor)
                files.close(descriptor)

    def _wait_for(self, descriptor: int, key: str, timeout: float) -> None:
        deadline = Deadline(self._system.clock, timeout)
        pause = LOCK_POLL_SECONDS_MIN
        while not self._system.files.try_lock(descriptor):
            if deadline.remaining() <= 0:
                raise lock_timeout(key, timeout)
            self._system.clock.sleep(pause)
            pause = min(pause * 1.5, LOCK_POLL_SECONDS_MAX)


# A value's pieces have the row ids base + position: one tree holds all values in reading order.


def _find_base(connection: sqlite3.Connection, key: str) -> int | None:
    row = connection.execute("SELECT id FROM keys WHERE key = ?", (key,)).fetchone()
    return None if row is None else row[0] << POSITION_BITS


def _base(connection: sqlite3.Connection, key: str) -> int:
    base = _find_base(connection, key)
    if base is None:
        raise no_such_key(key)
    return base


def _make_key(connection: sqlite3.Connection, key: str) -> int:
    base = _find_base(connection, key)
    if base is None:
        identifier = connection.execute("INSERT INTO keys (key) VALUES (?)", (key,)).lastrowid
        assert identifier is not None
        if identifier >= 1 << (63 - POSITION_BITS):
            raise StoreFailed("the container has used up its keys: copy it into a new one")
        base = identifier << POSITION_BITS
    return base


def _size(connection: sqlite3.Connection, base: int) -> int:
    query = (
        "SELECT place - ? + length(data) FROM pieces"
        " WHERE place >= ? AND place < ? ORDER BY place DESC LIMIT 1"
    )
    row = connection.execute(query, (base, base, base + (1 << POSITION_BITS))).fetchone()
    return 0 if row is None else int(row[0])


def _pieces(connection: sqlite3.Connection, base: int, start: int, end: int | None) -> _Rows:
    """The pieces that hold the bytes start..end, with their positions."""
    limit = 1 << POSITION_BITS
    if start >= limit:
        return []
    row = connection.execute(
        "SELECT max(place) FROM pieces WHERE place >= ? AND place <= ?", (base, base + start)
    ).fetchone()
    if row[0] is None:
        return []
    query = "SELECT place - ?, data FROM pieces WHERE place >= ? AND place < ? ORDER BY place"
    last = base + (limit if end is None else min(end, limit))
    return connection.execute(query, (base, row[0], last)).fetchall()


def _delete_pieces(connection: sqlite3.Connection, base: int, start: int) -> None:
    connection.execute(
        "DELETE FROM pieces WHERE place >= ? AND place < ?",
        (base + start, base + (1 << POSITION_BITS)),
    )


def _insert_pieces(
    connection: sqlite3.Connection, base: int, pieces: Sequence[tuple[int, Buffer]]
) -> None:
    if pieces and pieces[-1][0] + len(pieces[-1][1]) > 1 << POSITION_BITS:
        raise StoreFailed(f"a value in the container has at most {1 << POSITION_BITS} bytes")
    connection.executemany(
        "INSERT INTO pieces (place, data) VALUES (?, ?)", [(base + at, data) for at, data in pieces]
    )
