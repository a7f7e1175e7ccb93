"""The keys of groups on Pulsar, which has none; see :class:`penstock.transports.kv_groups.KeyValue`.

The keys of a topic's groups are a log: a topic ``<topic>~groups`` of one partition. Whoever wants to change
a key appends that, with the revision that it saw. Everybody reads the log in the same order, and so comes to
the same answer: the change counts when the key is still at that revision. Nothing is decided before the
log has it.

Now and then somebody appends a snapshot of all keys as they were at an offset, and then moves the log's
subscription there: readers begin at it, and the broker removes what is before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import _pulsar  # type: ignore[import-not-found]
import msgspec

from penstock.errors import PenstockError
from penstock.transports.broker_groups import Listener
from penstock.transports.client_thread import heard
from penstock.transports.kv_groups import Entry, Key
from penstock.transports.pulsar_client import Ok, PulsarConnection, calling
from penstock.transports.pulsar_http import decoded
from penstock.transports.pulsar_index import Position, PulsarIndex, Start, mark_of
from penstock.transports.pulsar_reader import PartitionReader

SUFFIX = "~groups"
"""No topic of Penstock has a name like that."""
KEEPER = "penstock"
"""The subscription that keeps what nobody has consumed; of a log, what its snapshot does not cover."""
EARLIEST = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
THERE = (409, 412)
"""There is one, or somebody else makes it right now."""
SNAPSHOT_RECORDS = 500
CLOCK_SECONDS = 60.0
"""How long the difference to the broker's clock is good for."""
PAUSE_SECONDS = 0.2
ID_BITS = 63


class Put(msgspec.Struct, frozen=True, array_like=True, tag="put"):
    """Write a key if it is at this revision."""

    id: int
    key: Key
    value: bytes
    revision: int


class Delete(msgspec.Struct, frozen=True, array_like=True, tag="delete"):
    """Remove a key."""

    id: int
    key: Key


class Ring(msgspec.Struct, frozen=True, array_like=True, tag="ring"):
    """Call those who follow a key; without one, nobody: it asks for the time."""

    id: int
    key: Key


class Snapshot(msgspec.Struct, frozen=True, array_like=True, tag="snapshot"):
    """All keys, as they were behind the record with that offset."""

    id: int
    upto: int
    version: int
    keys: list[tuple[Key, bytes, int]]


_T = TypeVar("_T")
Record = Put | Delete | Ring | Snapshot
_decode = msgspec.msgpack.Decoder(Put | Delete | Ring | Snapshot).decode


class Read(NamedTuple):
    """A record of the log; None: it is not one of ours."""

    offset: int
    position: Position
    record: Record | None


class Outcome(NamedTuple):
    """What became of a record of ours, and where it is."""

    revision: int | None
    position: Position


class KeyState:
    """What the keys are, when all records up to an offset are applied."""

    def __init__(self) -> None:
        self.entries: dict[Key, Entry] = {}
        self.version = 0
        """Grows with every change, so that no revision comes twice."""

    def apply(self, record: Record) -> int | None:
        """The revision that the key has by it; None: nothing has changed."""
        if isinstance(record, Put):
            before = self.entries.get(record.key)
            if (0 if before is None else before.revision) != record.revision:
                return None
            self.version += 1
            self.entries[record.key] = Entry(record.value, self.version)
            return self.version
        if isinstance(record, Delete) and self.entries.pop(record.key, None) is not None:
            self.version += 1
        return None

    def restore(self, snapshot: Snapshot) -> None:
        """Become what was then."""
        self.version = snapshot.version
        self.entries = {key: Entry(value, at) for key, value, at in snapshot.keys}

    def snapshot(self, number: int, upto: int) -> Snapshot:
        """What is now."""
        keys = [(key, one.value, one.revision) for key, one in self.entries.items()]
        return Snapshot(number, upto, self.version, keys)


class GroupLog:
    """The log with the keys of one topic's groups. Lives on one event loop."""

    def __init__(self, connection: PulsarConnection, topic: str) -> None:
        self._connection = connection
        self._settings = connection.settings
        self._topic = topic + SUFFIX
        self._path = self._settings.path(self._topic)
        self._index = PulsarIndex(self._settings, connection.http, self._topic)
        self._reader = PartitionReader(connection, self._index, self._topic, _reads)
        self._producer: Any = None
        self._opening = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None
        self._state = KeyState()
        self._known = False
        """Whether the state is that of the log, up to the position."""
        self._before: list[Read] = []
        """What was read while it was not."""
        self._target: Position | None = None
        self._expected: int | None = None
        """The offset of the next record."""
        self._position: Position | None = None
        """Of the last record that is applied."""
        self._progress = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[Outcome]] = {}
        self._listeners: dict[Key, set[Listener]] = {}
        self._snapshot_at = 0
        self._truncating: asyncio.Task[None] | None = None
        self._asking: asyncio.Future[Position | None] | None = None
        self._ahead_ms = 0
        self._clock_until: float | None = None
        self._trouble: PenstockError | None = None

    # Life

    async def open(self) -> None:
        """Make the log when it is not there, and follow it."""
        async with self._opening:
            if self._following is None:
                await make_keeper(self._connection, self._topic)
                self._following = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Follow it no longer."""
        tasks = [one for one in (self._following, self._truncating) if one is not None]
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._reader.close()
        self._drop_producer()

    # Keys

    async def entries(self) -> dict[Key, Entry]:
        """All keys; never older than the last change that somebody was told of."""
        await self._in_time(self._caught_up(), "read the groups")
        return self._state.entries

    async def change(self, make: Callable[[int], Record]) -> Outcome:
        """Append a record, and say what became of it."""
        return await self._in_time(self._append(make), "change a group")

    async def time_ms(self) -> int:
        """The broker's time."""
        clock = self._settings.system.clock
        if self._clock_until is None or clock.monotonic() >= self._clock_until:
            before = clock.time_ms()
            outcome = await self.change(lambda number: Ring(number, ()))
            after = clock.time_ms()
            stored = (await self._index.peek(outcome.position)).stored_ms
            self._ahead_ms = stored - (before + after) // 2
            self._clock_until = clock.monotonic() + CLOCK_SECONDS
        return clock.time_ms() + self._ahead_ms

    def listen(self, key: Key, listener: Listener) -> None:
        """Call it for each ring of the key."""
        self._listeners.setdefault(key, set()).add(listener)

    def ignore(self, key: Key, listener: Listener) -> None:
        """Call it no longer."""
        self._listeners.get(key, set()).discard(listener)

    async def _in_time(self, doing: Awaitable[_T], what: str) -> _T:
        seconds = self._settings.timeout
        try:
            async with asyncio.timeout(seconds):
                return await doing
        except TimeoutError:
            if self._trouble is not None:
                raise self._trouble.again() from None
            raise self._connection.unreachable(what, seconds) from None

    # Appending

    async def _append(self, make: Callable[[int], Record]) -> Outcome:
        record = make(self._settings.system.random.getrandbits(ID_BITS))
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting[record.id] = outcome
        try:
            self._hasten(record, await self._send(record))
            return await outcome
        finally:
            self._waiting.pop(record.id, None)

    def _hasten(self, record: Record, position: Position) -> None:
        """Apply a record that comes right behind what is applied, before it is read."""
        if self._known and self._position is not None and self._expected is not None:
            ledger, entry = self._position
            if position == Position(ledger, entry + 1):
                self._take(Read(self._expected, position, record))

    async def _send(self, record: Record) -> Position:
        """Where it is."""
        builder = _pulsar.MessageBuilder()
        builder.content(msgspec.msgpack.encode(record))
        async with self._opening:
            if self._producer is None:
                self._producer = await self._connection.producer(self._topic, batching=False)
        producer = self._producer
        result, where = await calling(lambda back: producer.send_async(builder.build(), back))
        if result != Ok:
            if self._producer is producer:
                self._drop_producer()
            raise self._connection.error(result, "write the groups", topic=self._topic)
        return Position(where.ledger_id(), where.entry_id())

    def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            self._connection.drop(producer)

    # Following

    async def _caught_up(self) -> None:
        """Wait until all that the broker has now is applied."""
        last = await self._last()
        while not self._known or (last is not None and self._is_behind(last)):
            self._progress.clear()
            await self._progress.wait()

    def _is_behind(self, last: Position) -> bool:
        return self._position is None or self._position < last

    async def _last(self) -> Position | None:
        """The last record at this moment; those who ask at the same time share an answer."""
        if self._asking is not None:
            # It may have been answered before something that this caller knows of.
            await asyncio.wait([self._asking])
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._ask_last())
            self._asking.add_done_callback(heard)
        return await asyncio.shield(self._asking)

    async def _ask_last(self) -> Position | None:
        found = decoded(await self._connection.http.call("GET", f"{self._path}/lastMessageId"))
        if found["entryId"] >= 0:
            return Position(found["ledgerId"], found["entryId"])
        # The last ledger is new and empty.
        return await self._index.last()

    async def _follow(self) -> None:
        while True:
            try:
                await self._begin()
                while await self._read_on():
                    self._trouble = None
            except PenstockError as error:
                self._trouble = error
            await asyncio.sleep(PAUSE_SECONDS)

    async def _begin(self) -> None:
        """Read from the snapshot on, or from the first record when there is none."""
        self._known, self._before, self._expected = False, [], None
        self._state, self._position = KeyState(), None
        ledgers = await self._index.ledgers()
        self._target = ledgers.at(ledgers.count - 1) if ledgers.count else None
        start = None
        if self._target is not None and KEEPER in ledgers.cursors:
            mark = mark_of(ledgers.cursors[KEEPER])
            start = mark if mark >= ledgers.at(0) else None
        await self._reader.begin(Start(start, False, None))
        if self._target is None or (start is not None and start >= self._target):
            self._position = self._target
            self._replay(-1)

    async def _read_on(self) -> bool:
        """Whether the log goes on where it was; else a part of it was removed, or it was made anew.

        What is passed over was ours, and is applied.
        """
        for read in await self._reader.read():
            if not self._known or read.offset == (self._expected or read.offset):
                self._take(read)
            elif self._position is None or read.position > self._position:
                return False
        return True

    def _take(self, read: Read) -> None:
        self._expected = read.offset + 1
        if self._known:
            self._apply(read)
            return
        self._before.append(read)
        record = read.record
        if isinstance(record, Snapshot) and record.upto + 1 >= self._before[0].offset:
            self._state.restore(record)
            self._replay(record.upto)
        elif self._target is not None and read.position >= self._target:
            self._replay(-1)

    def _replay(self, upto: int) -> None:
        """The state is known up to an offset: apply what was read behind it."""
        before, self._before, self._known = self._before, [], True
        self._snapshot_at = before[0].offset if before else 0
        for read in before:
            if read.offset > upto:
                self._apply(read)
            else:
                # Whoever waits for it looks again.
                self._settle(read, None)
        self._progress.set()

    def _apply(self, read: Read) -> None:
        record = read.record
        self._position = read.position
        self._progress.set()
        if record is None:
            return
        self._settle(read, self._state.apply(record))
        if isinstance(record, Snapshot):
            self._snapshot_at = read.offset
        elif isinstance(record, Ring):
            for listener in list(self._listeners.get(record.key, ())):
                listener()

    def _settle(self, read: Read, revision: int | None) -> None:
        record = read.record
        waiting = None if record is None else self._waiting.get(record.id)
        if waiting is None or waiting.done():
            return
        waiting.set_result(Outcome(revision, read.position))
        if read.offset - self._snapshot_at >= SNAPSHOT_RECORDS and self._truncating is None:
            self._truncating = asyncio.create_task(self._truncate())

    async def _truncate(self) -> None:
        """Append a snapshot, and let the broker remove what is before it."""
        try:
            async with asyncio.timeout(self._settings.timeout):
                upto, position = (self._expected or 0) - 1, self._position
                await self._append(lambda number: self._state.snapshot(number, upto))
                assert position is not None, "there are records"
                await self._connection.http.call(
                    "POST",
                    f"{self._path}/subscription/{KEEPER}/resetcursor",
                    {"ledgerId": position.ledger, "entryId": position.entry, "partitionIndex": -1},
                )
        except (PenstockError, TimeoutError):
            # Another one comes.
            return
        finally:
            self._truncating = None


class PulsarKeys:
    """The keys of all groups: a log for each topic, opened when it is needed."""

    def __init__(self, connection: PulsarConnection) -> None:
        self._connection = connection
        self._logs: dict[str, GroupLog] = {}

    async def close(self) -> None:
        """Follow none of them any longer."""
        logs, self._logs = list(self._logs.values()), {}
        await asyncio.gather(*(one.close() for one in logs))

    async def forget(self, topic: str) -> None:
        """Follow that of a topic no longer: it goes away."""
        log = self._logs.pop(topic, None)
        if log is not None:
            await log.close()

    async def of(self, topic: str) -> GroupLog:
        """The log of a topic's groups."""
        log = self._logs.get(topic)
        if log is None:
            log = self._logs[topic] = GroupLog(self._connection, topic)
        await log.open()
        return log


class TopicKeys:
    """The keys of the groups of one topic."""

    def __init__(self, keys: PulsarKeys, topic: str) -> None:
        self._keys = keys
        self._topic = topic

    async def get(self, key: Key) -> Entry | None:
        return (await self._entries()).get(key)

    async def put(self, key: Key, value: bytes, revision: int) -> int | None:
        log = await self._keys.of(self._topic)
        return (await log.change(lambda number: Put(number, key, value, revision))).revision

    async def delete(self, key: Key) -> None:
        log = await self._keys.of(self._topic)
        await log.change(lambda number: Delete(number, key))

    async def keys(self, under: Key) -> Iterable[Key]:
        return [key for key in await self._entries() if key[: len(under)] == under]

    async def time_ms(self) -> int:
        return await (await self._keys.of(self._topic)).time_ms()

    async def ring(self, key: Key) -> None:
        log = await self._keys.of(self._topic)
        await log.change(lambda number: Ring(number, key))

    async def follow(self, key: Key, listener: Listener) -> Callable[[], Awaitable[None]]:
        log = await self._keys.of(self._topic)
        log.listen(key, listener)

        async def end() -> None:
            log.ignore(key, listener)

        return end

    async def _entries(self) -> dict[Key, Entry]:
        return await (await self._keys.of(self._topic)).entries()


async def make_keeper(connection: PulsarConnection, topic: str) -> None:
    """Let the broker keep what is in a topic, and the topic itself, when nobody uses it."""
    path = connection.settings.path(topic)
    keeper = f"{path}/subscription/{KEEPER}"
    answer = await connection.http.call("PUT", keeper, EARLIEST, may=(404, *THERE))
    if answer.status == 404:
        # It does not make topics by itself.
        await connection.http.call("PUT", path, may=(409,))
        await connection.http.call("PUT", keeper, EARLIEST, may=THERE)


def _reads(first: int, messages: Sequence[Any]) -> list[Read]:
    """What is in messages of one entry."""
    where = messages[0].message_id()
    position = Position(where.ledger_id(), where.entry_id())
    return [
        Read(offset, position, _record(message.data()))
        for offset, message in enumerate(messages, first)
    ]


def _record(data: bytes) -> Record | None:
    """None: something else wrote it."""
    try:
        found: Record = _decode(data)
    except msgspec.MsgspecError:
        return None
    return found
