"""What a partition must hold after all that happened to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from penstock.log.columns import Columns
from penstock.log.frame import Draft, draft
from penstock.log.names import PartitionKeys
from penstock.log.reader import PartitionReader
from penstock.stores.base import PersistentBackingStore

Row = tuple[bytes | None, bytes | None]
"""Key and value of a record."""


class Broken(AssertionError):
    """An invariant does not hold; ``check`` names it."""

    def __init__(self, check: str, detail: object) -> None:
        super().__init__(f"{check}: {detail}")
        self.check = check


def draft_of(rows: Sequence[Row]) -> Draft:
    """One entry with these keys and values."""
    keys = [key for key, _ in rows] if any(key is not None for key, _ in rows) else None
    columns = Columns([value for _, value in rows], keys)
    flags, body = columns.encode()
    return draft(flags, body, len(columns))


def read_rows(
    store: PersistentBackingStore, keys: PartitionKeys, start: int = 0, bytes_max: int = 1 << 20
) -> list[Row]:
    """All durable records from an offset on; Broken when offsets are not dense."""
    cursor = PartitionReader(store, keys).cursor(start)
    rows: list[Row] = []
    while entries := cursor.fetch(bytes_max):
        for entry in entries:
            for record in entry.view().records(keys.topic, keys.partition):
                if record.offset != start + len(rows):
                    raise Broken("I3", f"offset {record.offset} where {start + len(rows)} belongs")
                rows.append((record.key, record.value))
    return rows


@dataclass
class PartitionModel:
    """What was appended to a partition, and what of it must survive."""

    written: list[Row] = field(default_factory=list)
    """Acknowledged, by offset: survives the death of processes."""
    durable: int = 0
    """Every record below was acknowledged as durable."""
    in_flight: list[Row] = field(default_factory=list)
    """Of the call that is running: may be there, wholly, in part, or not."""
    ghosts: list[tuple[int, list[Row]]] = field(default_factory=list)
    """Of calls that failed or died: may be found behind that offset."""
    earliest: int = 0
    """Retention removed everything below."""

    def futures(self) -> Iterator[list[Row]]:
        """Every sequence of which a prefix may be found after a power cut."""
        yield self.written + self.in_flight
        for start, rows in self.ghosts:
            if start >= self.durable:
                yield self.written[:start] + rows
            if start == len(self.written):
                # Another process may have taken them in, and gone on behind them.
                for count in range(1, len(rows) + 1):
                    yield self.written + rows[:count] + self.in_flight

    def abandon(self) -> None:
        """The running call failed or died."""
        if self.in_flight:
            self.ghosts.append((len(self.written), self.in_flight))
            self.in_flight = []

    def catch_up(self, next_offset: int) -> None:
        """Records are there of a call that never returned: take them in."""
        missing = next_offset - len(self.written)
        if missing < 0:
            raise Broken("I1", f"the log went back from {len(self.written)} to {next_offset}")
        for start, rows in reversed(self.ghosts):
            if missing and start == len(self.written) and len(rows) >= missing:
                self.written += rows[:missing]
                return
        if missing:
            raise Broken("I2", f"{missing} records that nobody appended")

    def lose_what_is_not_durable(self) -> None:
        """The page cache is gone: the rest may be there or not."""
        self.ghosts = [(self.durable, future[self.durable :]) for future in self.futures()]
        self.written = self.written[: self.durable]
        self.in_flight = []

    def adopt(self, rows: Sequence[Row]) -> None:
        """Recovery found this and made it durable."""
        self.written = self.written[: self.earliest] + list(rows)
        self.durable = len(self.written)
        self.ghosts = []
        self.in_flight = []

    def check(self, rows: Sequence[Row], at_least: int, start: int) -> None:
        """Whether these records may be what a crash left."""
        end = start + len(rows)
        if end < at_least:
            raise Broken("I1", f"records {end} to {at_least - 1} are lost")
        if list(rows[: self.durable - start]) != self.written[start : self.durable]:
            raise Broken("I1", "a durable record reads back otherwise")
        if not any(list(rows) == future[start:end] for future in self.futures()):
            raise Broken("I2", "records that were never appended in this order")


def expect_broken(check: str, action: Callable[[], object]) -> Broken:
    """The named check must fail."""
    with pytest.raises(Broken) as caught:
        action()
    assert caught.value.check in check.split("|"), caught.value
    return caught.value
