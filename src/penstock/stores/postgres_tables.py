"""The tables of :class:`~penstock.stores.postgres.PostgresStore` and every statement on them.

``keys`` has a row for each key with the size of its value, ``pieces`` the bytes. Whoever changes
a value first locks its row in ``keys``, so the pieces of a value change one writer at a time;
readers take one statement, which sees one state.

``life`` is an unlogged table with one random number. PostgreSQL empties unlogged tables when it
recovers from a crash, and a standby has them empty, but a clean restart keeps them. So the
number is still there exactly as long as no commit that was not flushed can have been lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.errors import UnsupportedFormat
from penstock.stores.pieces import Piece, splice
from penstock.stores.postgres_server import Connection

VERSION = 1

_SETUP = """
CREATE TABLE IF NOT EXISTS {s}.about (version integer NOT NULL);
CREATE TABLE IF NOT EXISTS {s}.keys (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key text COLLATE "C" NOT NULL UNIQUE,
    size bigint NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS {s}.pieces (
    key_id bigint NOT NULL,
    position bigint NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (key_id, position)
);
ALTER TABLE {s}.pieces ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE UNLOGGED TABLE IF NOT EXISTS {s}.life (single boolean PRIMARY KEY, number text NOT NULL);
INSERT INTO {s}.about SELECT 1 WHERE NOT EXISTS (SELECT FROM {s}.about);
"""

# The condition on the size is looked at again after a wait for the row's lock.
_APPEND = """
WITH target AS (
    UPDATE {s}.keys SET size = size + $5 WHERE key = $1 AND size = $2 RETURNING id
)
INSERT INTO {s}.pieces (key_id, position, data)
SELECT target.id, piece.position, piece.data
FROM target, unnest($3::bigint[], $4::bytea[]) AS piece (position, data)
"""

_OVERLAY = """
WITH target AS (
    SELECT id FROM {s}.keys WHERE key = $1 AND size >= $2 + length($3::bytea) FOR UPDATE
)
UPDATE {s}.pieces AS piece
SET data = overlay(piece.data PLACING $3 FROM ($2 - piece.position + 1)::integer)
FROM target
WHERE piece.key_id = target.id
  AND piece.position = (
      SELECT max(position) FROM {s}.pieces WHERE key_id = target.id AND position <= $2)
  AND piece.position + length(piece.data) >= $2 + length($3)
"""

_PIECES = """
SELECT piece.position, piece.data
FROM {s}.keys AS target
LEFT JOIN {s}.pieces AS piece
  ON piece.key_id = target.id
 AND piece.position >= (
     SELECT max(position) FROM {s}.pieces WHERE key_id = target.id AND position <= $2)
 AND piece.position < $3
WHERE target.key = $1
ORDER BY piece.position
"""

_OVERLAPPED = """
SELECT position, data FROM {s}.pieces
WHERE key_id = $1 AND position < $3
  AND position >= (SELECT max(position) FROM {s}.pieces WHERE key_id = $1 AND position <= $2)
ORDER BY position
"""

_SYNC = """
SELECT (SELECT number FROM {s}.life) AS life,
       EXISTS (SELECT FROM {s}.keys WHERE key = $1) AS found,
       pg_logical_emit_message(true, 'penstock', '')
"""

_POSITION_MAX = 2**63 - 1


class Tables:
    """The statements, for one schema. Each method runs on the session that it is given."""

    def __init__(self, schema: str) -> None:
        self._schema = f'"{schema}"'

    def _sql(self, statement: str) -> str:
        return statement.replace("{s}", self._schema)

    async def open(self, one: Connection) -> tuple[str, bool]:
        """Make what is absent; the number of the server's life, and whether it syncs at all."""
        async with one.transaction():
            # Two processes that make the tables at once would fail in the server's catalogue.
            await one.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", self._schema)
            if not await one.fetchval("SELECT to_regclass($1) IS NOT NULL", self._sql("{s}.about")):
                await self._make(one)
            await self._check_version(one)
            await one.execute(
                self._sql(
                    "INSERT INTO {s}.life VALUES (true, gen_random_uuid()::text)"
                    " ON CONFLICT DO NOTHING"
                )
            )
            life = await one.fetchval(self._sql("SELECT number FROM {s}.life"))
            return life, await one.fetchval("SHOW fsync") == "on"

    async def _make(self, one: Connection) -> None:
        if not await one.fetchval(
            "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", self._schema.strip('"')
        ):
            await one.execute(self._sql("CREATE SCHEMA {s}"))
        await one.execute(self._sql(_SETUP))

    async def _check_version(self, one: Connection) -> None:
        version = await one.fetchval(self._sql("SELECT version FROM {s}.about"))
        if version is None or version > VERSION:
            raise UnsupportedFormat(
                f"the schema {self._schema} has version {version}; this Penstock reads {VERSION}",
                file=self._schema,
                version=version,
            )

    # Whole keys

    async def size(self, one: Connection, key: str) -> int | None:
        size: int | None = await one.fetchval(
            self._sql("SELECT size FROM {s}.keys WHERE key = $1"), key
        )
        return size

    async def keys(self, one: Connection, prefix: str) -> list[str]:
        # Keys are ASCII in byte order: all that start with the prefix lie below prefix + DEL.
        query = "SELECT key FROM {s}.keys WHERE key >= $1 AND key < $2 ORDER BY key"
        rows = await one.fetch(self._sql(query), prefix, f"{prefix}\x7f")
        return [row["key"] for row in rows]

    async def delete(self, one: Connection, key: str) -> bool:
        async with one.transaction():
            found = await self.lock(one, key)
            if found is None:
                return False
            await one.execute(self._sql("DELETE FROM {s}.pieces WHERE key_id = $1"), found[0])
            await one.execute(self._sql("DELETE FROM {s}.keys WHERE id = $1"), found[0])
            return True

    async def sync(self, one: Connection, key: str) -> Any:
        return await one.fetchrow(self._sql(_SYNC), key)

    async def lock(self, one: Connection, key: str) -> tuple[int, int] | None:
        """Lock the key's row; its number and the size of its value, or None."""
        query = self._sql("SELECT id, size FROM {s}.keys WHERE key = $1 FOR UPDATE")
        row = await one.fetchrow(query, key)
        return None if row is None else (row["id"], row["size"])

    async def lock_or_make(self, one: Connection, key: str) -> tuple[int, int]:
        """As :meth:`lock`, making the key when it is absent."""
        while (found := await self.lock(one, key)) is None:
            made = await one.fetchval(
                self._sql(
                    "INSERT INTO {s}.keys (key, size) VALUES ($1, 0)"
                    " ON CONFLICT DO NOTHING RETURNING id"
                ),
                key,
            )
            if made is not None:
                return made, 0
        return found

    # Pieces

    async def pieces(
        self, one: Connection, key: str, start: int, end: int | None
    ) -> list[tuple[int, bytes]] | None:
        """The pieces that hold the bytes start..end; None when the key is absent."""
        last = _POSITION_MAX if end is None else min(end, _POSITION_MAX)
        rows = await one.fetch(self._sql(_PIECES), key, min(start, _POSITION_MAX), last)
        return [(at, data) for at, data in rows if at is not None] if rows else None

    async def append(
        self, one: Connection, key: str, size: int, pieces: Sequence[Piece], added: int
    ) -> bool:
        """Append if the value has exactly that size; whether it had."""
        positions = [at for at, _ in pieces]
        data = [piece for _, piece in pieces]
        status = await one.execute(self._sql(_APPEND), key, size, positions, data, added)
        return bool(status != "INSERT 0 0")

    async def overlay(self, one: Connection, key: str, position: int, data: bytes) -> bool:
        """Overwrite inside one piece; False when the bytes are not all in one."""
        return bool(await one.execute(self._sql(_OVERLAY), key, position, data) != "UPDATE 0")

    async def replace(
        self, one: Connection, identifier: int, start: int, pieces: Sequence[Piece], size: int
    ) -> None:
        """Put the pieces in the place of all from ``start`` on; the row is locked."""
        delete = self._sql("DELETE FROM {s}.pieces WHERE key_id = $1 AND position >= $2")
        await one.execute(delete, identifier, start)
        await self._insert(one, identifier, pieces)
        await one.execute(
            self._sql("UPDATE {s}.keys SET size = $2 WHERE id = $1"), identifier, size
        )

    async def splice(
        self, one: Connection, identifier: int, size: int, position: int, data: bytes
    ) -> None:
        """Overwrite anywhere; the row is locked and the position checked."""
        if not data:
            return
        end = position + len(data)
        overlaps = position < size
        rows = (
            await one.fetch(self._sql(_OVERLAPPED), identifier, position, end) if overlaps else []
        )
        old = [(at, piece) for at, piece in rows]
        delete = "DELETE FROM {s}.pieces WHERE key_id = $1 AND position = ANY($2::bigint[])"
        await one.execute(self._sql(delete), identifier, [at for at, _ in old])
        await self._insert(one, identifier, splice(old, data, position))
        grow = "UPDATE {s}.keys SET size = greatest(size, $2) WHERE id = $1"
        await one.execute(self._sql(grow), identifier, end)

    async def truncate(self, one: Connection, identifier: int, size: int) -> None:
        """Cut the value; the row is locked and the size checked."""
        rows = await one.fetch(self._sql(_OVERLAPPED), identifier, size, size + 1)
        kept = [(at, data[: size - at]) for at, data in rows if at < size]
        start = kept[0][0] if kept else size
        await self.replace(one, identifier, start, kept, size)

    async def _insert(self, one: Connection, identifier: int, pieces: Sequence[Piece]) -> None:
        insert = "INSERT INTO {s}.pieces (key_id, position, data) VALUES ($1, $2, $3)"
        rows = [(identifier, at, data) for at, data in pieces]
        await one.executemany(self._sql(insert), rows)
