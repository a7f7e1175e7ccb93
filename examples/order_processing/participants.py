"""Stock, cards and shipping: three parts that know nothing of each other, each with a table of its own.

They stand for services. Each call is one transaction, and may be repeated: the order id says what was
done before. `Unsteady` makes them fail, before or after they have done their work.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock import errors

SCHEMA = """
CREATE TABLE IF NOT EXISTS stock (article TEXT PRIMARY KEY, pieces INTEGER);
CREATE TABLE IF NOT EXISTS reservations (order_id TEXT PRIMARY KEY, article TEXT, held INTEGER);
CREATE TABLE IF NOT EXISTS payments (order_id TEXT PRIMARY KEY, cents INTEGER, charged INTEGER);
CREATE TABLE IF NOT EXISTS shipments (order_id TEXT PRIMARY KEY, address TEXT);
CREATE TABLE IF NOT EXISTS sagas (order_id TEXT PRIMARY KEY, state TEXT, reason TEXT);
"""
STOCK = {"teapot": 1_000, "cup": 1_000, "samovar": 3}


class Refused(errors.NonRetryable):
    """No, and trying again is no use: sold out, card blocked, nobody delivers there."""


class Unsteady:
    """Fails one call in six: half of them before the work is done, half of them after."""

    def __init__(self, seed: int | None = None) -> None:
        self._chance = random.Random(seed)
        self.failures = 0

    @contextmanager
    def calls(self, service: str) -> Iterator[None]:
        fails = self._chance.random() < 1 / 6
        before = self._chance.random() < 0.5
        if fails and before:
            self._fail(service)
        yield
        if fails:
            self._fail(service)

    def _fail(self, service: str) -> None:
        self.failures += 1
        raise ConnectionError(f"{service} does not answer")


class Participants:
    """The three of them, in one database file, and what the sagas have decided."""

    def __init__(self, path: str, network: Unsteady) -> None:
        self._database = sqlite3.connect(path)
        self._database.executescript(SCHEMA)
        self._network = network
        with self._database as database:
            for article, pieces in STOCK.items():
                database.execute("INSERT OR IGNORE INTO stock VALUES (?, ?)", (article, pieces))

    # Stock

    def reserve(self, order_id: str, article: str) -> None:
        with self._network.calls("the stock"), self._database as database:
            if self._row("SELECT 1 FROM reservations WHERE order_id = ?", order_id):
                return
            left = self._row("SELECT pieces FROM stock WHERE article = ?", article)
            if left is None or left[0] == 0:
                raise Refused(f"no {article} is left")
            database.execute("UPDATE stock SET pieces = pieces - 1 WHERE article = ?", (article,))
            database.execute("INSERT INTO reservations VALUES (?, ?, 1)", (order_id, article))

    def release(self, order_id: str) -> None:
        with self._network.calls("the stock"), self._database as database:
            held = self._row(
                "SELECT article FROM reservations WHERE order_id = ? AND held = 1", order_id
            )
            if held is not None:
                database.execute("UPDATE stock SET pieces = pieces + 1 WHERE article = ?", held)
                database.execute("UPDATE reservations SET held = 0 WHERE order_id = ?", (order_id,))

    # Cards

    def charge(self, order_id: str, customer: str, cents: int) -> None:
        with self._network.calls("the bank"), self._database as database:
            if customer == "blocked":
                raise Refused("the card is blocked")
            database.execute("INSERT OR IGNORE INTO payments VALUES (?, ?, 1)", (order_id, cents))

    def refund(self, order_id: str) -> None:
        with self._network.calls("the bank"), self._database as database:
            database.execute("UPDATE payments SET charged = 0 WHERE order_id = ?", (order_id,))

    # Shipping

    def ship(self, order_id: str, address: str) -> None:
        with self._network.calls("the carrier"), self._database as database:
            if address == "the moon":
                raise Refused("nobody delivers to the moon")
            database.execute("INSERT OR IGNORE INTO shipments VALUES (?, ?)", (order_id, address))

    # What the sagas have decided

    def decide(self, order_id: str, state: str, reason: str = "") -> None:
        with self._database as database:
            database.execute(
                "INSERT OR REPLACE INTO sagas VALUES (?, ?, ?)", (order_id, state, reason)
            )

    def decided(self, order_id: str) -> tuple[str, str]:
        """The state and the reason; "open" when nothing is decided."""
        row = self._row("SELECT state, reason FROM sagas WHERE order_id = ?", order_id)
        return ("open", "") if row is None else (row[0], row[1])

    def _row(self, statement: str, *values: str) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self._database.execute(statement, values).fetchone()
        return row

    def close(self) -> None:
        self._database.close()
