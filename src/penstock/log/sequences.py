"""Records with a sequence: each stands once. Those that wait together are one transaction."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import PenstockError, TransactionPending, UsageError
from penstock.log.checks import record_size
from penstock.log.deadlines import check_seconds, within
from penstock.log.producer_file import NUMBER_MAX
from penstock.log.published import Row

if TYPE_CHECKING:
    from penstock.log.producer import Producer

TOGETHER_MAX = 10_000
WAITING_MAX = 100_000
"""Records that wait for their commit; then publishers wait for room."""


class SequenceAcknowledgement(NamedTuple):
    """The record with this sequence stands, durably."""

    sequence: int
    repeated: bool
    """It stood already, so it was not written again."""


class _Waiting(NamedTuple):
    sequence: int
    topic: str
    row: Row
    future: asyncio.Future[SequenceAcknowledgement]


class Sequences:
    """The records of a producer that come with a sequence. Lives on one event loop.

    The number of a transaction is the highest sequence in it, so what was committed is known from
    one number. That holds because sequences are committed in their order: when a commit fails, all
    that wait behind it fail too, and none above the first that failed is taken before that one.
    """

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._waiting: deque[_Waiting] = deque()
        self._running: asyncio.Future[None] | None = None
        self._last: int | None = None
        """What is known to be committed; None when it has to be looked up."""
        self._failed: int | None = None
        """The lowest sequence that failed: nothing above it is taken before it."""
        self._room = asyncio.Semaphore(WAITING_MAX)

    async def publish(
        self, topic: str, row: Row, sequence: int, timeout: float
    ) -> SequenceAcknowledgement:
        """See ``Producer.publish``."""
        check_seconds(timeout)
        record_size(*row)
        if not 0 <= sequence <= NUMBER_MAX:
            raise UsageError(f"sequence is {sequence}; it is 0 to {NUMBER_MAX}")
        waiting = self._producer.at_work(self._publish(topic, row, sequence))
        return await within(timeout, asyncio.shield(waiting), f"publish sequence {sequence}")

    async def _publish(self, topic: str, row: Row, sequence: int) -> SequenceAcknowledgement:
        async with self._room:
            self._check_failed(sequence)
            loop = asyncio.get_running_loop()
            future: asyncio.Future[SequenceAcknowledgement] = loop.create_future()
            self._waiting.append(_Waiting(sequence, topic, row, future))
            if self._running is None:
                self._running = self._producer.at_work(self._run())
            return await future

    def _check_failed(self, sequence: int) -> None:
        if self._failed is None:
            return
        if sequence > self._failed:
            raise UsageError(
                f"sequence {self._failed} of producer {self._producer.name!r} failed and was not "
                f"published again: {sequence} would leave it out. Go on with {self._failed}",
                producer=self._producer.name,
                sequence=self._failed,
            )
        self._failed = None

    async def _run(self) -> None:
        try:
            while self._waiting:
                # All that came until now, in the order in which it came.
                count = min(len(self._waiting), TOGETHER_MAX)
                await self._commit([self._waiting.popleft() for _ in range(count)])
        finally:
            self._running = None

    async def _commit(self, together: list[_Waiting]) -> None:
        fresh = together
        try:
            fresh = _rising(together, await self._known())
            if fresh:
                await self._commit_fresh(fresh)
        except BaseException as error:
            self._fail(together, fresh, error)
            return
        written = set(map(id, fresh))
        for one in together:
            acknowledgement = SequenceAcknowledgement(one.sequence, id(one) not in written)
            if not one.future.done():
                one.future.set_result(acknowledgement)

    async def _commit_fresh(self, fresh: list[_Waiting]) -> None:
        number = fresh[-1].sequence
        async with self._producer.transaction(number=number) as transaction:
            for one in fresh:
                value, key, headers, timestamp = one.row
                await transaction.publish(
                    one.topic, value, key=key, headers=headers, timestamp=timestamp
                )
        self._last = number

    async def _known(self) -> int:
        """The last sequence that stands."""
        if self._last is None:
            await self._producer.lease()
            self._last = await self._producer.last_number()
        return self._last

    def _fail(self, together: list[_Waiting], fresh: list[_Waiting], error: BaseException) -> None:
        """Fail these and all behind them: a later one must not overtake them."""
        self._last = None
        behind = list(self._waiting)
        self._waiting.clear()
        # One that is committed and late stands already: whoever publishes it again hears so.
        unwritten = behind if isinstance(error, TransactionPending) else [*fresh, *behind]
        self._failed = min((one.sequence for one in unwritten), default=None)
        for one in (*together, *behind):
            if not one.future.done():
                again = error.again() if isinstance(error, PenstockError) else error
                one.future.set_exception(again)


def _rising(together: list[_Waiting], last: int) -> list[_Waiting]:
    """Those that are above all before them."""
    fresh = []
    for one in together:
        if one.sequence > last:
            fresh.append(one)
            last = one.sequence
    return fresh
