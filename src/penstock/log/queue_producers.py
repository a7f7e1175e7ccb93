"""The methods of a queue that are about producers and transactions."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable

from penstock.errors import UsageError
from penstock.log.engine import Engine
from penstock.log.names import check_name
from penstock.log.producer import Producer
from penstock.log.transaction import Transaction


class QueueProducers(ABC):
    """Part of :class:`~penstock.WalMessageQueue`."""

    @property
    @abstractmethod
    def _engine(self) -> Engine: ...

    def producer(self, name: str) -> Producer:
        """A producer with a name that outlives crashes; opening it fences the one before it."""
        engine = self._engine
        if engine.around.read_only:
            raise UsageError("the queue was opened read-only")
        made = Producer(engine, name)
        engine.producers.add(made)
        return made

    def transaction(self, name: str, *, number: int | None = None) -> Transaction:
        """A transaction of the producer of this name: ``async with queue.transaction("billing")``.

        The queue opens the producer once, with its first transaction; see :class:`Producer`.
        """
        named = self._engine.named_producers
        if name not in named:
            named[name] = self.producer(name)
        return named[name].transaction(number=number)

    async def forget_producer(self, name: str) -> None:
        """Forget a producer that is not used any more: its numbers and sequences begin anew."""
        transactions = self._engine.around.transactions
        self._engine.named_producers.pop(name, None)
        await asyncio.to_thread(transactions.forget, check_name("producer", name))

    def settle_group(self, group: str) -> None:
        """Finish transactions that move offsets of this group, if their process died. Blocking.

        Consumers of the embedded transport do it before they read where to go on.
        """
        self._engine.around.care.settle_group(group)

    def settle_entries(self, group: str, partitions: Iterable[tuple[str, int]]) -> None:
        """Return when transactions that moved these offsets are wholly in their topics. Blocking.

        Consumers of the embedded transport do it before they read on, so that what they make of later
        records comes later.
        """
        self._engine.around.care.settle_entries(group, partitions)
