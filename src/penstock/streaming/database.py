"""Checkpoints in the user's own database, written in the transaction that holds the effects.

The table has one row for each group, topic and partition: the offset to go on with, the generation
of the group that claimed it, and an epoch that counts the claims. Whoever reads a partition claims
its row first. A save changes the row only if it still has the claim's epoch and offset. So a
consumer that was replaced while it was away changes nothing: its save raises Fenced, and the
transaction around it is rolled back with all its effects.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.errors import Fenced, InvalidName, UsageError
from penstock.log.names import check_name
from penstock.log.subscription import RecordBatch
from penstock.streaming.database_connection import (
    Answer,
    at_once,
    commit,
    is_conflict,
    is_idle,
    roll_back,
    run,
)

TABLE = "penstock_checkpoints"
CLAIM_TRIES = 10
"""How often a claim is tried while others change the row under it."""

_TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?")
_DEFINITION = """CREATE TABLE IF NOT EXISTS {table} (
    consumer_group VARCHAR(255) NOT NULL,
    topic VARCHAR(255) NOT NULL,
    topic_partition BIGINT NOT NULL,
    next_offset BIGINT NOT NULL,
    generation BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    PRIMARY KEY (consumer_group, topic, topic_partition)
)"""
_REASONS = {
    "gone": "it has no row in the table",
    "generation": "a newer generation of the group has taken it over",
    "epoch": "another consumer has taken it over",
    "offset": "the database is at another offset",
    "busy": "others take it over again and again",
}
_KEY = "consumer_group = ? AND topic = ? AND topic_partition = ?"


@dataclass(frozen=True, slots=True)
class DatabaseClaim:
    """The right to go on in one partition, until somebody else claims it."""

    topic: str
    partition: int
    next_offset: int
    """The record to go on with: all below it have taken effect."""
    generation: int
    epoch: int


class DatabaseCheckpoints:
    """Where a group is, in a table of the user's database.

    Connections are the user's own: sqlite3, aiosqlite, psycopg (blocking or asyncio), asyncpg, or any
    PEP 249 driver. :func:`exactly_once` reads topics with it. On a blocking connection the calls
    block, as the user's own statements do.
    """

    def __init__(self, group: str, *, table: str = TABLE) -> None:
        if not _TABLE_NAME.fullmatch(table):
            raise InvalidName(
                f"{table[:80]!r} is not the name of a table: use letters, digits and '_', with a "
                "schema in front if you like",
                kind="table",
                name=table,
            )
        self.group = check_name("group", group)
        self.table = table

    @property
    def definition(self) -> str:
        """The statement that makes the table, for those who keep their schema elsewhere."""
        return _DEFINITION.replace("{table}", self.table)

    async def create(self, connection: Any) -> None:
        """Make the table when it is not there; part of your transaction if one is open."""
        alone = is_idle(connection) is not False
        try:
            await self._run(connection, _DEFINITION)
        except Exception as error:
            # PostgreSQL says so when two processes make a table at the same time.
            if not (alone and is_conflict(error)):
                raise
            await roll_back(connection)
            await self._run(connection, _DEFINITION)
        if alone:
            await commit(connection)

    async def positions(self, connection: Any, topic: str) -> dict[int, int]:
        """Partition → the offset to go on with, as the connection's transaction sees it."""
        answer = await self._run(
            connection,
            "SELECT topic_partition, next_offset FROM {table} "
            "WHERE consumer_group = ? AND topic = ? ORDER BY topic_partition",
            self.group,
            topic,
        )
        return dict(row[:2] for row in answer.rows)

    async def claim(
        self, connection: Any, topic: str, partition: int, *, start: int, generation: int = 0
    ) -> DatabaseClaim:
        """Take a partition over, in a transaction of its own; it begins at ``start`` when it is new.

        From now on saves of earlier claims raise Fenced. Raises Fenced itself when a newer
        generation has claimed it. When it is cancelled it may or may not have happened; claim again.
        """
        check_idle(connection)
        claim = DatabaseClaim(topic, partition, start, generation, 1)
        try:
            for _ in range(CLAIM_TRIES):
                if claimed := await self._try_claim(connection, claim):
                    await commit(connection)
                    return claimed
                await roll_back(connection)
        except BaseException:
            await roll_back(connection)
            raise
        raise self.fenced(claim, None, "busy")

    async def save(
        self, connection: Any, batch: RecordBatch, claim: DatabaseClaim
    ) -> DatabaseClaim:
        """Write that a batch has taken effect, in the transaction of the connection; commits nothing.

        Gives the claim to save the next batch with. Raises Fenced, and changes nothing, when the row
        is no longer as the claim says; roll your transaction back then.
        """
        check_fits(batch, claim)
        answer = await self._run(
            connection,
            "UPDATE {table} SET next_offset = ? WHERE {key} AND next_offset = ? AND epoch = ?",
            batch.next_offset,
            *self._key(claim),
            claim.next_offset,
            claim.epoch,
        )
        if answer.changed != 1:
            row = await self.row(connection, claim)
            raise self.fenced(claim, row)
        return replace(claim, next_offset=batch.next_offset)

    def save_blocking(
        self, connection: Any, batch: RecordBatch, claim: DatabaseClaim
    ) -> DatabaseClaim:
        """As :meth:`save`, for a blocking connection in a thread of your own."""
        return at_once(self.save(connection, batch, claim))

    async def forget(self, connection: Any, topic: str) -> None:
        """Remove the rows of a topic, when its log was made anew; commits nothing."""
        await self._run(
            connection,
            "DELETE FROM {table} WHERE consumer_group = ? AND topic = ?",
            self.group,
            topic,
        )

    async def row(self, connection: Any, claim: DatabaseClaim) -> DatabaseClaim | None:
        """What the row of a claim says now, as the connection's transaction sees it."""
        answer = await self._run(
            connection,
            "SELECT next_offset, generation, epoch FROM {table} WHERE {key}",
            *self._key(claim),
        )
        return DatabaseClaim(claim.topic, claim.partition, *answer.rows[0]) if answer.rows else None

    def fenced(
        self, claim: DatabaseClaim, row: DatabaseClaim | None, reason: str | None = None
    ) -> Fenced:
        """The error of a claim that no longer holds, as the row is now."""
        reason = reason or _reason(claim, row)
        return Fenced(
            f"group {self.group!r} may not go on in {claim.topic}/{claim.partition} at offset "
            f"{claim.next_offset}: {_REASONS[reason]}. Roll back, and begin again from the database",
            group=self.group,
            topic=claim.topic,
            partition=claim.partition,
            generation=claim.generation,
            current=row.generation if row else None,
            reason=reason,
        )

    # Inside

    async def _run(self, connection: Any, text: str, *values: object) -> Answer:
        # The name of the table was checked; values never become part of the text.
        text = text.replace("{table}", self.table).replace("{key}", _KEY)
        return await run(connection, text, *values)

    def _key(self, claim: DatabaseClaim) -> Sequence[object]:
        return self.group, claim.topic, claim.partition

    async def _try_claim(self, connection: Any, new: DatabaseClaim) -> DatabaseClaim | None:
        """The claim, or None when the row changed between the look and the claim."""
        row = await self.row(connection, new)
        if row is None:
            return new if await self._insert(connection, new) else None
        if row.generation > new.generation:
            raise self.fenced(new, row)
        wanted = replace(row, generation=new.generation, epoch=row.epoch + 1)
        answer = await self._run(
            connection,
            "UPDATE {table} SET generation = ?, epoch = ? WHERE {key} "
            "AND next_offset = ? AND epoch = ?",
            wanted.generation,
            wanted.epoch,
            *self._key(row),
            row.next_offset,
            row.epoch,
        )
        return wanted if answer.changed == 1 else None

    async def _insert(self, connection: Any, new: DatabaseClaim) -> bool:
        values = (*self._key(new), new.next_offset, new.generation, new.epoch)
        try:
            await self._run(connection, "INSERT INTO {table} VALUES (?, ?, ?, ?, ?, ?)", *values)
        except Exception as error:
            if is_conflict(error):
                return False
            raise
        return True


def check_idle(connection: Any) -> None:
    """Raise UsageError when a transaction is open."""
    if is_idle(connection) is False:
        raise UsageError(
            "a transaction is open on the connection: commit it or roll it back before you ask for "
            "the next batch"
        )


def check_fits(batch: RecordBatch, claim: DatabaseClaim) -> None:
    """Raise UsageError unless the batch goes on where the claim is."""
    first = batch.records[0].offset if batch.records else batch.next_offset
    of_claim = (batch.topic, batch.partition) == (claim.topic, claim.partition)
    if not of_claim or not claim.next_offset <= first < batch.next_offset:
        raise UsageError(
            f"offsets {first} to {batch.next_offset} of {batch.topic}/{batch.partition} do not go on "
            f"at offset {claim.next_offset} of {claim.topic}/{claim.partition}",
            topic=batch.topic,
            partition=batch.partition,
        )


def _reason(claim: DatabaseClaim, row: DatabaseClaim | None) -> str:
    if row is None:
        return "gone"
    if row.generation > claim.generation:
        return "generation"
    return "offset" if row.epoch == claim.epoch else "epoch"
