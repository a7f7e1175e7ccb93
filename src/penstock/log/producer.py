"""A named producer on the event loop: transactions, and records with a sequence that come once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from penstock.log.batch import Router
from penstock.log.engine import Engine
from penstock.log.names import check_name
from penstock.log.open_topic import OpenTopic
from penstock.log.producer_file import ProducerLease
from penstock.log.sequences import SequenceAcknowledgement, Sequences
from penstock.log.transaction import Transaction
from penstock.log.transaction_commit import Outcome
from penstock.log.transactions import Transactions
from penstock.log.waiting import begin

_T = TypeVar("_T")
PUBLISH_TIMEOUT_SECONDS = 30.0


@dataclass(slots=True)
class ProducerStatistics:
    """Counts since the producer was made."""

    transactions: int = 0
    repeated: int = 0
    """Transactions that had been committed before."""
    records: int = 0
    """Records of all transactions."""


class Producer:
    """A producer of a queue by its name. ``async with queue.producer("billing") as producer``.

    The name is the identity over crashes and restarts. Opening it fences whoever had it open before,
    in any process: that one gets Fenced when it commits. It is opened by its first use. A fenced
    producer stays fenced; :meth:`open` takes the name over again.
    """

    def __init__(self, engine: Engine, name: str) -> None:
        self.name = check_name("producer", name)
        self._engine = engine
        self._lease: ProducerLease | None = None
        self._opening = asyncio.Lock()
        self._routers: dict[tuple[str, int], Router] = {}
        self._at_work: set[asyncio.Future[Any]] = set()
        self._counts = ProducerStatistics()
        self._sequences = Sequences(self)
        self.committing = asyncio.Lock()
        """One commit at a time: the next one would only wait for the lock, in a thread."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Take the name over. What a process that died had decided is finished first."""
        async with self._opening:
            self._lease = await asyncio.to_thread(self.transactions.open, self.name)

    async def close(self) -> None:
        """Wait for the commits that have begun. Idempotent."""
        while self._at_work:
            await asyncio.wait(self._at_work)

    def transaction(self, *, number: int | None = None) -> Transaction:
        """A new transaction: ``async with producer.transaction() as tx``.

        With a ``number``, which only grows, one that was committed before is not committed again;
        its outcome says ``repeated``. Use numbers for all transactions of a name or for none.
        """
        return Transaction(self, number)

    async def publish(
        self,
        topic: str,
        value: bytes | None,
        *,
        sequence: int,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp: int | None = None,
        timeout: float = PUBLISH_TIMEOUT_SECONDS,
    ) -> SequenceAcknowledgement:
        """Publish a record that stands once, however often it is published with this sequence.

        Sequences only grow, from record to record, over all topics of the producer; gaps are
        allowed. A record whose sequence stands already is acknowledged and not written again. After
        an error publish the same record with the same sequence again, before any later one.
        """
        row = (value, key, headers, timestamp)
        return await self._sequences.publish(topic, row, sequence, timeout)

    async def last_number(self) -> int:
        """The last number, or sequence, that was committed; -1 before the first."""
        return await asyncio.to_thread(self.transactions.last_number, self.name)

    def statistics(self) -> ProducerStatistics:
        """Counts since the producer was made."""
        return ProducerStatistics(
            self._counts.transactions, self._counts.repeated, self._counts.records
        )

    # For transactions

    @property
    def transactions(self) -> Transactions:
        """The blocking half."""
        return self._engine.around.transactions

    def now_ms(self) -> int:
        """The time of the system."""
        return self._engine.around.system.clock.time_ms()

    async def lease(self) -> ProducerLease:
        """The lease; opens the producer when nobody has."""
        if self._lease is None:
            await self.open()
        assert self._lease is not None
        return self._lease

    async def topic(self, name: str) -> OpenTopic:
        """The topic, made when it is not there and may be; with the partitions that it has now.

        Raises RetentionFull when it rejects records.
        """
        opened = self._engine.topics.by_name.get(name) or await self._engine.topics.open(name)
        if opened.writer.refusal is not None:
            raise opened.writer.refusal.again()
        if opened.behind:
            await asyncio.to_thread(opened.catch_up)
        return opened

    def route(self, name: str) -> tuple[OpenTopic, Router]:
        """An open topic and the router to its partitions. From any thread."""
        opened = self._engine.topics.opened(name)
        state = opened.state
        router = self._routers.get((name, state.epoch))
        if router is None:
            turn = self._engine.around.system.random.randrange(state.partitions)
            router = self._routers[name, state.epoch] = Router(state.partitions, turn)
        return opened, router

    def at_work(self, job: Coroutine[Any, Any, _T]) -> asyncio.Future[_T]:
        """Begin a job that goes on when its caller is cancelled; closing waits for it."""
        return begin(self._at_work, job)

    def look_at(self, topics: Iterable[str]) -> None:
        """See what was appended to these, so that readers in this process do. Blocking."""
        for name in topics:
            self._engine.topics.opened(name).refresh()

    def committed(self, outcome: Outcome, topics: Iterable[str]) -> None:
        """Count, and wake the readers in this process."""
        self._counts.transactions += 1
        self._counts.repeated += outcome.repeated
        self._counts.records += outcome.records
        for name in topics:
            self._engine.changes.wake(name)
