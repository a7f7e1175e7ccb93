"""Producing to Pulsar: a producer for each partition, and the offsets of what it sent.

What is on its way when the connection is lost is sent again by the client, in order and under the same
numbers: a namespace that removes duplicates keeps it once. Then the broker does not say where it is;
that is looked up by the number.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from penstock.errors import BrokerFailed, RecordTooLarge, UsageError
from penstock.system import System
from penstock.transports.client_thread import CallThread, heard, tell_loop
from penstock.transports.producing import Rows
from penstock.transports.pulsar_client import PENDING_RECORDS, Ok, PulsarConnection
from penstock.transports.pulsar_index import EntryFacts, Position, PulsarIndex
from penstock.transports.pulsar_places import Places, Run, Span
from penstock.transports.pulsar_records import encoded
from penstock.transports.pulsar_settings import NAME

INLINE_RECORDS = 20
"""So few are sent on the event loop: a thread would take longer."""
CHUNK_RECORDS = 5_000


class Acknowledgements:
    """Waits until all messages of a chunk were acknowledged or failed."""

    def __init__(self, count: int, first: int, since: Position | None) -> None:
        self.count = count
        self.first = first
        """What the producer numbered the first of them with."""
        self.since = since
        """An entry before all of them; None: there may be none."""
        self.span: Span | None = None
        """Where they are; None: the broker has not told."""
        self._loop = asyncio.get_running_loop()
        self.all: asyncio.Future[None] = self._loop.create_future()
        self.got: list[tuple[Any, Any]] = []

    def __call__(self, result: Any, message_id: Any) -> None:
        """In a thread of the client."""
        self.got.append((result, message_id))
        if len(self.got) == self.count:
            tell_loop(self._loop, self._settle)

    def _settle(self) -> None:
        if not self.all.done():
            self.all.set_result(None)

    def failure(self) -> Any:
        """The first error; None: all of them are stored."""
        return next((result for result, _ in self.got if result != Ok), None)

    def runs(self) -> list[Run]:
        """The messages of each entry, in order; none unless the broker told where all of them are."""
        found: list[Run] = []
        for result, one in self.got:
            if result != Ok or one.ledger_id() < 0:
                return []
            position = Position(one.ledger_id(), one.entry_id())
            if found and found[-1].position == position:
                found[-1] = Run(position, found[-1].place, found[-1].messages + 1)
            else:
                found.append(Run(position, max(0, one.batch_index()), 1))
        return found


class PartitionProducer:
    """Sends to one partition, in the order of the calls."""

    def __init__(
        self, connection: PulsarConnection, index: PulsarIndex, topic: str, thread: CallThread
    ) -> None:
        self._connection = connection
        self._index = index
        self._topic = topic
        self._thread = thread
        self._turn = asyncio.Lock()
        self._handing: asyncio.Future[None] | None = None
        """What the thread was given last."""
        self._room = asyncio.Event()
        self._pending = 0
        self._native: Any = None
        self._sent = 0
        """By this client's producer so far: the number of its next message."""
        self._name = ""
        self._is_worn = False
        """A message was refused, so the numbers of the next ones are not known."""
        self._since: Position | None = None
        """The last entry that is known: what is sent now comes behind it."""
        self._places = Places(self._first_of)

    async def send(self, rows: Rows, places: Sequence[int]) -> tuple[int, int]:
        """The rows at these places, in order; the first offset and the one after the last."""
        waiting: list[Acknowledgements] = []
        for start in range(0, len(places), CHUNK_RECORDS):
            chunk = places[start : start + CHUNK_RECORDS]
            async with self._turn:
                await self._wait_for_room(len(chunk))
                waiting.append(await self._send(rows, chunk))
        ranges = []
        for one in waiting:
            await asyncio.shield(one.all)
            self._check(one, rows, places)
            ranges.append(await self._range(one))
        return ranges[0][0], ranges[-1][1]

    async def _wait_for_room(self, count: int) -> None:
        while self._pending + count > PENDING_RECORDS:
            self._room.clear()
            await self._room.wait()
        if self._handing is not None:
            # Whoever it is for may be gone; it goes before us all the same.
            await asyncio.wait([self._handing])

    async def _send(self, rows: Rows, chunk: Sequence[int]) -> Acknowledgements:
        if self._is_worn and not self._pending:
            self.close()
        if self._native is None:
            await self._open()
        acks = Acknowledgements(len(chunk), self._sent, self._since)
        self._sent += len(chunk)
        self._pending += len(chunk)
        acks.all.add_done_callback(partial(self._arrived, acks, self._places))
        handing = self._hand_over(rows, chunk, acks)
        if len(chunk) <= INLINE_RECORDS:
            await handing
        else:
            # What is begun is finished, in order, also when whoever wanted it is cancelled.
            self._handing = asyncio.ensure_future(handing)
            self._handing.add_done_callback(heard)
            await asyncio.shield(self._handing)
        return acks

    async def _hand_over(self, rows: Rows, chunk: Sequence[int], acks: Acknowledgements) -> None:
        send = self._native.send_async
        try:
            if len(chunk) <= INLINE_RECORDS:
                _send_all(send, rows, chunk, acks)
            else:
                await self._thread.call(_send_all, send, rows, chunk, acks)
        except UsageError:
            # None of them was sent.
            self._sent -= len(chunk)
            acks.all.cancel()
            raise

    async def _open(self) -> None:
        self._since = await self._index.last()
        native = await self._connection.producer(self._topic)
        self._sent = native.last_sequence_id() + 1
        self._name, self._is_worn = native.producer_name(), False
        self._places = Places(self._first_of)
        self._native = native

    def _arrived(
        self, acks: Acknowledgements, places: Places, settled: asyncio.Future[None]
    ) -> None:
        """In the order in which they were sent; their caller may be gone."""
        self._pending -= acks.count
        self._room.set()
        if settled.cancelled():
            return
        if runs := acks.runs():
            acks.span = places.note(runs)
            if places is self._places:
                self._since = runs[-1].position
        else:
            places.forget()

    def _check(self, acks: Acknowledgements, rows: Rows, places: Sequence[int]) -> None:
        failure = acks.failure()
        if failure is None:
            return
        error = self._connection.error(failure, f"send to {self._topic!r}", topic=self._topic)
        if isinstance(error, RecordTooLarge):
            self._is_worn = True
            size = max(len(rows.values[place] or b"") for place in places)
            raise RecordTooLarge(
                f"a record of {size} bytes for {self._topic!r} is larger than this broker takes: make "
                "it smaller, or raise maxMessageSize of the broker",
                topic=self._topic,
                size=size,
            )
        # The client gives up what is behind it too: the next one begins anew.
        self.close()
        raise error

    # Where it is

    async def _range(self, acks: Acknowledgements) -> tuple[int, int]:
        return await (self._found(acks) if acks.span is None else acks.span.offsets())

    async def _first_of(self, position: Position) -> int:
        return (await self._index.peek(position)).first

    async def _found(self, acks: Acknowledgements) -> tuple[int, int]:
        """The offsets of messages that the broker had already, by their numbers."""
        first: int | None = None
        name = self._name
        async for facts in self._entries(acks.since):
            mine = acks.first <= facts.sequence + (facts.end - facts.first) - 1
            if facts.producer != name or not mine:
                continue
            if first is None:
                first = facts.first + max(0, acks.first - facts.sequence)
            last = acks.first + acks.count - 1 - facts.sequence
            if last < facts.end - facts.first:
                return first, facts.first + last + 1
        raise BrokerFailed(
            f"{acks.count} records for {self._topic!r} are stored, but nobody knows where",
            transport=NAME,
        )

    async def _entries(self, since: Position | None) -> AsyncIterator[EntryFacts]:
        """The entries behind one."""
        ledgers = await self._index.ledgers()
        for number in range(ledgers.count):
            position = ledgers.at(number)
            if since is None or position > since:
                yield await self._index.peek(position)

    def close(self) -> None:
        """Let go of the client's producer."""
        native, self._native = self._native, None
        if native is not None:
            self._connection.drop(native)


def _send_all(send: Any, rows: Rows, places: Sequence[int], acks: Acknowledgements) -> None:
    """All of them, or none when one of them is no record."""
    try:
        messages = [encoded(*rows.row(place)) for place in places]
    except (TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"not a record: {error}") from error
    for message in messages:
        send(message, acks)


class PulsarProducers:
    """The producers of one transport."""

    def __init__(self, connection: PulsarConnection, system: System) -> None:
        self._connection = connection
        self._system = system
        self._thread: CallThread | None = None
        self._all: dict[str, PartitionProducer] = {}

    def of(self, topic: str) -> PartitionProducer:
        """The producer to a partition, by the broker's name of it."""
        found = self._all.get(topic)
        if found is None:
            if self._thread is None:
                self._thread = CallThread(self._system, "penstock-pulsar")
            index = PulsarIndex(self._connection.settings, self._connection.http, topic)
            found = PartitionProducer(self._connection, index, topic, self._thread)
            self._all[topic] = found
        return found

    def forget(self, topics: Sequence[str]) -> None:
        """They may be gone: make the producers anew when they are needed."""
        for topic in topics:
            if (found := self._all.pop(topic, None)) is not None:
                found.close()

    async def close(self) -> None:
        """Let go of all of them."""
        for one in self._all.values():
            one.close()
        self._all.clear()
        if self._thread is not None:
            await self._thread.close()
