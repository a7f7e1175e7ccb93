"""Where single records come in, from any thread: the inlets of a topic and of a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.log.batch import Item
from penstock.log.columns import RECORD_OVERHEAD_BYTES
from penstock.log.published import PublishedRow, Row
from penstock.log.receipts import Receipt
from penstock.speedups import compiled

if TYPE_CHECKING:
    from penstock.log.open_topic import OpenTopic


class PythonTopicInlet:
    """What has gathered for the next commit of a topic, and how much more there is room for.

    It has no lock, which would cost more than all the rest of it. It rests on three
    steps in this order: a publisher appends its record, then looks up the receipt, then asks for
    a commit if none is scheduled; a commit clears ``_scheduled``, then changes the receipt, then
    takes the records. So the receipt that a publisher sees never completes before its record.
    It may be the receipt of a later commit than the record's: so a receipt also has the errors of
    the commits that may have held a record of it, from ``Receipt.since`` on.
    """

    _items: list[Item]
    _receipt: Receipt
    # Bytes since the last commit took over. Two threads may lose an update of each other;
    # every commit starts it anew, so that cannot add up.
    _gathered_bytes: int
    _room: int
    _record_bytes_max: int
    _scheduled: bool
    _lingering: bool
    _loop: asyncio.AbstractEventLoop | None

    def enter(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: Mapping[str, bytes] | None,
        timestamp: int | None,
        durable: bool,
        futures: list[Any],
    ) -> PublishedRow:
        """Add one record, and its future to those of its deadline; who gets it waits for it."""
        if value.__class__ is bytes and key is None and headers is None and timestamp is None:
            item: bytes | Row = value
            size = len(value)
        else:
            item, size = self.pack(value, key, headers, timestamp)
        assert self._loop is not None, "somebody waits on it"
        if self._gathered_bytes + size > self._room or size > self._record_bytes_max:
            self._refuse(size)
        row = PublishedRow.of(item, durable, self._loop)
        self._items.append(row)
        self._gathered_bytes += size + RECORD_OVERHEAD_BYTES
        if not self._scheduled or self._lingering:
            self._schedule()
        futures.append(row)
        return row

    def add_nowait(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp: int | None = None,
    ) -> Receipt:
        """Add one record; the receipt of the commit that will hold it, or of the one after.

        Never waits. Raises BufferFull at the bound; the record was not taken then.
        """
        if value.__class__ is bytes and key is None and headers is None and timestamp is None:
            item: Item = value
            size = len(value)
        else:
            item, size = self.pack(value, key, headers, timestamp)
        if self._gathered_bytes + size > self._room or size > self._record_bytes_max:
            self._refuse(size)
        before = self._receipt
        self._items.append(item)
        self._gathered_bytes += size + RECORD_OVERHEAD_BYTES
        receipt = self._receipt
        if receipt is not before:
            self._join(before, receipt)
        if not self._scheduled or self._lingering:
            self._schedule()
        return receipt

    if TYPE_CHECKING:  # what the writer has

        def pack(
            self,
            value: bytes | None,
            key: bytes | None,
            headers: Mapping[str, bytes] | None,
            timestamp: int | None,
        ) -> tuple[bytes | Row, int]: ...

        def _refuse(self, size: int) -> None: ...

        def _join(self, before: Receipt, receipt: Receipt) -> None: ...

        def _schedule(self) -> None: ...


class PythonQueueInlet:
    """Part of :class:`~penstock.WalMessageQueue`: finds the inlet of a topic that is open."""

    _opened: dict[str, OpenTopic]
    _turn: dict[float, list[Any]]
    """Who else waits since this turn of the loop, by seconds; empty while the queue is not open."""

    def _enter(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Mapping[str, bytes] | None,
        timestamp: int | None,
        durable: bool,
        seconds: float,
    ) -> PublishedRow | None:
        """The record on its way; None when its topic is not open, or its deadline the first of its turn."""
        futures, opened = self._turn.get(seconds), self._opened.get(topic)
        if futures is None or opened is None:
            return None
        return opened.writer.enter(value, key, headers, timestamp, durable, futures)

    def publish_nowait(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp: int | None = None,
    ) -> Receipt:
        """Hand a record over without waiting; from any thread.

        The receipt is shared by all records that are committed together. Raises BufferFull at the
        bound. The topic must be open in this process: ``await queue.create_topic(name)`` first.
        """
        opened = self._opened.get(topic) or self._open_here(topic)
        return opened.writer.add_nowait(value, key, headers, timestamp)

    if TYPE_CHECKING:  # what the queue has

        def _open_here(self, topic: str) -> OpenTopic: ...


if TYPE_CHECKING or compiled is None:
    TopicInlet = PythonTopicInlet
    QueueInlet = PythonQueueInlet
else:
    TopicInlet = compiled.TopicInlet
    QueueInlet = compiled.QueueInlet
