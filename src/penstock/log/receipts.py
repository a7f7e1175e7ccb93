"""What a publisher gets back: acknowledgements, and the completion that a batch shares."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import PenstockError, UsageError


class Acknowledgement(NamedTuple):
    """Where one record went and what that is worth."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """When it was appended, in milliseconds since 1970, UTC."""
    durable: bool
    """True: survives a power cut. False: survives a crash of the process only, so far."""


@dataclass(frozen=True, slots=True)
class BatchAcknowledgement:
    """Where a batch of records went."""

    topic: str
    count: int
    ranges: Mapping[int, tuple[int, int]]
    """Partition → first offset and the offset after the last one; without those that a broker does not tell."""
    durable: bool


def combined(topic: str, receipts: Sequence[Receipt]) -> BatchAcknowledgement:
    """One acknowledgement for several batches."""
    if len(receipts) == 1:
        return receipts[0].acknowledgement()
    ranges: dict[int, tuple[int, int]] = {}
    for receipt in receipts:
        for partition, (first, end) in receipt.acknowledgement().ranges.items():
            ranges[partition] = (min(first, ranges.get(partition, (first,))[0]), end)
    durable = all(receipt.acknowledgement().durable for receipt in receipts)
    return BatchAcknowledgement(topic, sum(one.count for one in receipts), ranges, durable)


class Placement(NamedTuple):
    """The records of a batch that went to one partition."""

    partition: int
    places: Sequence[int]
    """Their places in the batch."""
    base_offset: int
    timestamp: int
    durable: bool


def tell(error: BaseException) -> None:
    """Note that somebody hears of the error."""
    error.__dict__["heard"] = True


def was_told(error: BaseException) -> bool:
    """Whether somebody has heard of the error."""
    return "heard" in error.__dict__


class Receipt:
    """The shared completion of records that are committed together.

    ``await receipt.wait()`` on the queue's event loop; ``done`` may be read from any thread.
    Cancelling a wait leaves the records on their way: they may be published all the same.
    """

    __slots__ = (
        "_waiters", "all_durable", "count", "done", "errors", "loop", "number", "placements",
        "since", "topic",
    )  # fmt: skip

    def __init__(self, topic: str, loop: asyncio.AbstractEventLoop | None, number: int = 0) -> None:
        self.topic = topic
        self.number = number
        self.since = number - 1
        """The first commit that may hold a record for which this receipt was given out."""
        self.loop = loop
        self.count = 0
        self.done = False
        """Whether the commit is over, well or badly."""
        self.errors: dict[int, BaseException] = {}
        """Partition → why its records were not written."""
        self.placements: list[Placement] = []
        self.all_durable = True
        """Whether nothing that was written before it was still unsynced when it was done."""
        self._waiters: list[asyncio.Future[None]] = []

    async def wait(self) -> BatchAcknowledgement:
        """Wait for the commit; raises what it failed with.

        On an error some of its records may be written all the same, and the error may be that of
        the commit just before it.
        """
        await self._completion()
        self.raise_errors()
        return self.acknowledgement()

    async def wait_by(self, waiter: asyncio.Future[None]) -> BatchAcknowledgement:
        """As :meth:`wait`, with a future of the queue's event loop that may also fail by itself."""
        if self.done:
            waiter.cancel()
        else:
            self._waiters.append(waiter)
            await waiter
        self.raise_errors()
        return self.acknowledgement()

    def acknowledgement(self) -> BatchAcknowledgement:
        """The acknowledgement of the whole batch, after a good commit."""
        ranges: dict[int, tuple[int, int]] = {}
        for placement in self.placements:
            first, _ = ranges.get(placement.partition, (placement.base_offset, 0))
            end = placement.base_offset + len(placement.places)
            ranges[placement.partition] = (first, end)
        durable = self.all_durable and all(placement.durable for placement in self.placements)
        return BatchAcknowledgement(self.topic, self.count, ranges, durable)

    def raise_errors(self) -> None:
        """Raise the first error of the commit, if there was one."""
        for error in self.errors.values():
            tell(error)
            # A new one each time: a traceback must not grow with every wait.
            raise error.again() if isinstance(error, PenstockError) else error

    def resolve(self) -> None:
        """Wake the waiters; on the event loop, after ``done`` was set."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _completion(self) -> None:
        if self.done:
            return
        loop = asyncio.get_running_loop()
        if loop is not self.loop:
            raise UsageError("wait for a receipt on the event loop that the queue was opened on")
        waiter = loop.create_future()
        self._waiters.append(waiter)
        await waiter
