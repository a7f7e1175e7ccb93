"""Producing to a broker, and letting go of it, as far as the transports of brokers are alike."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import DeadlineExceeded, Unreachable
from penstock.log.deadlines import check_seconds
from penstock.log.names import check_name
from penstock.log.routing import partitions_of
from penstock.transports.base import CLOSE_TIMEOUT_SECONDS, PRODUCE_TIMEOUT_SECONDS, Transport
from penstock.transports.options import check_columns
from penstock.transports.records import Produced

Row = tuple[bytes | None, bytes | None, Mapping[str, bytes] | None, int | None]
"""Value, key, headers, timestamp."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The columns of what is produced; InvalidOption unless there is one of each for every value."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[Mapping[str, bytes] | None] | None = None
    timestamps: Sequence[int] | None = None

    def __post_init__(self) -> None:
        check_columns(self.values, keys=self.keys, headers=self.headers, timestamps=self.timestamps)

    def row(self, place: int) -> Row:
        """What is at a place of each column."""
        return (
            self.values[place],
            None if self.keys is None else self.keys[place],
            None if self.headers is None else self.headers[place],
            None if self.timestamps is None else self.timestamps[place],
        )


class Routing:
    """Which partition each row goes to: that of its key, or the next one in turn."""

    def __init__(self, native: Callable[[bytes], int] | None = None) -> None:
        self._native = native
        """The hash of a key that other clients of the broker use; None: that of Penstock."""
        self._turns: dict[str, int] = {}

    def numbers(self, topic: str, count: int, rows: Rows) -> list[int]:
        """The partition of each row."""
        keys = rows.keys or [None] * len(rows.values)
        chosen, self._turns[topic] = partitions_of(keys, count, self._turns.get(topic, 0))
        numbers: list[int] = chosen.tolist()
        native = self._native
        if native is None:
            return numbers
        return [
            number if key is None else native(key) % count
            for number, key in zip(numbers, keys, strict=True)
        ]

    def places(self, topic: str, count: int, rows: Rows) -> dict[int, list[int]]:
        """Partition → the places of its rows, in order."""
        if count == 1 and rows.values:
            return {0: list(range(len(rows.values)))}
        found: dict[int, list[int]] = {}
        for place, number in enumerate(self.numbers(topic, count, rows)):
            found.setdefault(number, []).append(place)
        return found


class BrokerTransport(Transport):
    """Produces and lets go within a deadline; how a batch is sent is left to each broker."""

    _given_up = "after their lease"
    """When others take over from a member that could not leave."""

    def __init__(self) -> None:
        self._consumers: set[Any] = set()
        """Those that are open."""
        self._producing: set[asyncio.Future[Produced]] = set()
        self._closing = False

    @property
    @abstractmethod
    def _broker(self) -> str:
        """Its name and its address, for errors."""

    @abstractmethod
    def _check_open(self) -> None:
        """Raise Closed or UsageError unless something new may begin."""

    @abstractmethod
    async def _produce(self, topic: str, rows: Rows) -> Produced:
        """Send a batch, however long it takes."""

    @abstractmethod
    def _unacknowledged(self, topic: str, count: int, seconds: float) -> Unreachable:
        """The error of a batch that took too long."""

    @abstractmethod
    async def _disconnect(self) -> None:
        """Let go of the broker at once."""

    async def produce(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Mapping[str, bytes] | None] | None = None,
        timestamps: Sequence[int] | None = None,
        timeout: float = PRODUCE_TIMEOUT_SECONDS,
    ) -> Produced:
        """Send a batch; makes the topic when it is not there, unless ``auto_create`` is off.

        Unreachable when the broker does not acknowledge all of it in time: some of it may be stored
        then, or later. The text of the class tells what is kept once when it is sent again.
        """
        self._check_open()
        check_name("topic", topic)
        check_seconds(timeout)
        rows = Rows(values, keys, headers, timestamps)
        sending = asyncio.ensure_future(self._produce(topic, rows))
        self._producing.add(sending)
        sending.add_done_callback(self._producing.discard)
        try:
            async with asyncio.timeout(timeout):
                return await sending
        except TimeoutError:
            raise self._unacknowledged(topic, len(values), timeout) from None

    async def close(self, timeout: float = CLOSE_TIMEOUT_SECONDS) -> None:
        """Wait for what is being produced, leave the groups, let go. Idempotent."""
        check_seconds(timeout)
        self._closing = True
        try:
            async with asyncio.timeout(timeout):
                await self._finish()
        except DeadlineExceeded:
            # Of a call further down: its message tells more.
            raise
        except TimeoutError:
            raise DeadlineExceeded(
                f"{self._broker} did not let go within {timeout:g} s: what was being produced may have "
                f"been stored, and members that could not leave are given up {self._given_up}",
                seconds=timeout,
            ) from None
        finally:
            await self._disconnect()

    async def _finish(self) -> None:
        """What closing waits for."""
        if self._producing:
            await asyncio.wait(self._producing)
        await asyncio.gather(*(one.close() for one in list(self._consumers)))
