"""A consumer of the Redis transport: a member of a group, and the records that it reads ahead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import (
    Closed,
    InvalidOption,
    NotSupported,
    OffsetOutOfRange,
    PenstockError,
    TransportError,
    UnknownPartition,
)
from penstock.log.places import check_one_partition
from penstock.log.records import NO_HEADERS
from penstock.transports import redis_scripts as scripts
from penstock.transports.embedded_consumer import EmbeddedConsumer
from penstock.transports.reading import arrival
from penstock.transports.records import StartPosition, StreamBatch, StreamRecord
from penstock.transports.redis_groups import CALL_SECONDS, RedisGroup
from penstock.transports.redis_settings import NAME

if TYPE_CHECKING:
    from penstock.transports.redis import RedisTransport

AHEAD_RECORDS = 5_000
"""Asked for at once, of all partitions together: a script keeps the server from everything else. More is
asked for of a partition when less than half as many are left of it."""
AHEAD_BYTES = 2 * 1024 * 1024
"""The same in bytes; one record may be larger."""
ASK_PARTITIONS = 50
"""How many partitions are asked for at once."""
POLL_SECONDS = 1.0
"""How often a member that has nothing to read looks, should a notice be lost."""

_decode_columns = msgspec.msgpack.Decoder(
    tuple[list[int], list[int], list[int], list[tuple[int, list[int]]], int, int]
).decode
_decode_offsets = msgspec.msgpack.Decoder(list[int]).decode


@dataclass(slots=True)
class _Place:
    """Where a member is in a partition."""

    delivered: int = 0
    """Offset of the next record that will be delivered."""
    fetched: int = 0
    """Offset of the next record that will be asked for."""
    moves: int = 0
    """What was asked for before the last move is not wanted any more."""
    ahead: list[StreamRecord] = field(default_factory=list)
    used: int = 0
    """How many of those were delivered."""

    def move(self, offset: int) -> None:
        self.delivered = self.fetched = offset
        self.moves += 1
        self.ahead, self.used = [], 0

    def take(self, records_max: int) -> list[StreamRecord]:
        taken = self.ahead[self.used : self.used + records_max]
        self.used += len(taken)
        self.delivered = taken[-1].offset + 1
        return taken

    def put(self, records: list[StreamRecord]) -> None:
        self.ahead = self.ahead[self.used :] + records
        self.used = 0
        self.fetched = records[-1].offset + 1

    @property
    def left(self) -> int:
        return len(self.ahead) - self.used


class RedisSource:
    """The records of those partitions that a member was given, read ahead by a task.

    A notice tells that something was produced; a member that hears none looks once a second. While
    the server is away nothing comes, and the task goes on where it was when it is back.
    """

    def __init__(self, transport: RedisTransport, group: RedisGroup, start: StartPosition) -> None:
        self.topic = group.topic
        self.name = group.group
        self.on_growth: Callable[[], None] | None = None
        self._transport = transport
        self._group = group
        self._start = start
        self._base = transport.key_of(self.topic)
        self._places: list[_Place] = []
        self._given: frozenset[int] = frozenset()
        self._turn = 0
        self._wanted = asyncio.Event()
        self._came = asyncio.Event()
        self._trouble: Exception | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    # Life

    @property
    def partitions(self) -> int:
        """How many the topic has."""
        return len(self._places)

    def enter(self) -> None:
        """A group is registered with its state."""

    async def open(self) -> None:
        """Find the topic, and listen to what happens in it. UnknownTopic when it is not there."""
        self._check_open()
        self._transport.check_open()
        if self._task is not None:
            return
        count = await self._transport.partitions(self.topic)
        check_one_partition(self._start, count)
        self._places = [_Place() for _ in range(count)]
        await self._transport.notices.follow(self._news, self._wanted.set, CALL_SECONDS)
        await self._group.listen(self._transport.notices)
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Read no more."""
        self._closed = True
        self._came.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._transport.notices.forget(self._news, self._wanted.set)
        await self._group.stop_listening(self._transport.notices)

    @property
    def _news(self) -> str:
        return f"{self._base}:news"

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the consumer of {self.name!r} is closed: subscribe again")
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            raise trouble.again() if isinstance(trouble, PenstockError) else trouble

    # Places

    def ends(self) -> list[int]:
        """Not known here: the script that commits looks at them."""
        raise NotSupported("the ends of the partitions are not known here", transport=NAME)

    def delivered(self) -> dict[int, int]:
        """Partition → offset of the next record that will be delivered, for all partitions."""
        return {number: place.delivered for number, place in enumerate(self._places)}

    async def start(self, partitions: Iterable[int]) -> None:
        """Go to the committed offsets; those of a new group are written now."""
        wanted = sorted(partitions)
        found = await self._look(wanted, "begin", self._start)
        for number, (committed, at, earliest, end, _) in zip(wanted, found, strict=True):
            if committed < 0:
                self._check_range(number, at, earliest, end)
            self._places[number].move(committed if committed >= 0 else at)
        self._wanted.set()

    async def resolve(self, partitions: Iterable[int], to: StartPosition) -> dict[int, int]:
        """The offsets that a position means in these partitions; nothing moves."""
        wanted = list(partitions)
        check_one_partition(to, len(wanted))
        for number in wanted:
            if not 0 <= number < len(self._places):
                raise UnknownPartition(
                    f"topic {self.topic!r} has partitions 0 to {len(self._places) - 1}, not {number}",
                    topic=self.topic,
                    partition=number,
                )
        found = await self._look(wanted, "look", to)
        for number, (_, at, earliest, end, _) in zip(wanted, found, strict=True):
            self._check_range(number, at, earliest, end)
        return {number: one[1] for number, one in zip(wanted, found, strict=True)}

    async def _look(
        self, partitions: list[int], what: str, to: StartPosition
    ) -> list[tuple[int, int, int, int, int]]:
        words = [self.name, what, *start_words(to), *partitions]
        found = await self._transport.client.script(
            scripts.PLACES, self._base, *words, seconds=CALL_SECONDS, what="find the place"
        )
        return [tuple(map(int, one)) for one in found]  # type: ignore[misc]

    def _check_range(self, number: int, at: int, earliest: int, end: int) -> None:
        if not earliest <= at <= end:
            raise OffsetOutOfRange(
                f"offset {at} of {self.topic}/{number} is "
                f"{'gone' if at < earliest else 'not written yet'}: use {earliest} to {end}, "
                "'earliest' or 'latest'",
                topic=self.topic,
                partition=number,
                offset=at,
                earliest=earliest,
                end=end,
            )

    def go_to(self, offsets: Mapping[int, int]) -> None:
        """Go on from these offsets, in memory."""
        for number, offset in offsets.items():
            self._places[number].move(offset)
        self._wake()

    def deliver(self, partitions: Iterable[int]) -> None:
        """Deliver these partitions from where they are, and hold all others."""
        before, self._given = self._given, frozenset(partitions)
        for number in before - self._given:
            place = self._places[number]
            place.move(place.delivered)
        self._wake()

    def fail(self, error: Exception | None) -> None:
        """Let whoever reads know, once; None: what went wrong before works again."""
        self._trouble = error
        self._came.set()

    def _wake(self) -> None:
        self._wanted.set()
        self._came.set()

    # Reading

    async def next_batch(self, timeout: float | None, records_max: int) -> StreamBatch:
        """The next records of some partition, at least one. The partitions take turns."""
        if records_max < 1:
            raise InvalidOption("records_max is at least 1", option="records_max")
        look = partial(self._take, records_max)
        return await arrival(self.topic, look, self._came, timeout)

    def _take(self, records_max: int) -> StreamBatch | None:
        self._check_open()
        for _ in range(len(self._places)):
            self._turn = (self._turn + 1) % len(self._places)
            place = self._places[self._turn]
            if self._turn in self._given and place.left:
                records = place.take(records_max)
                if place.left < AHEAD_RECORDS // 2:
                    self._wanted.set()
                # Several may wait for records: what is left is for the others.
                self._came.set()
                return StreamBatch(self.topic, self._turn, records, place.delivered)
        return None

    async def _run(self) -> None:
        while True:
            self._wanted.clear()
            try:
                if await self._fetch():
                    continue
            except Exception as error:
                # Whoever reads hears of it; it is tried again, as the cause may go away.
                self.fail(error)
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._wanted.wait()

    async def _fetch(self) -> bool:
        """Read what there is of all that have room; whether anything came."""
        wanted = [one for one in sorted(self._given) if self._places[one].left < AHEAD_RECORDS // 2]
        came = [
            await self._fetch_some(wanted[first : first + ASK_PARTITIONS])
            for first in range(0, len(wanted), ASK_PARTITIONS)
        ]
        return any(came)

    async def _fetch_some(self, numbers: list[int]) -> bool:
        asked = {number: (self._places[number], self._places[number].moves) for number in numbers}
        words = [word for number in numbers for word in (number, self._places[number].fetched)]
        share = len(numbers)
        found = await self._transport.client.script(
            scripts.READ, self._base, AHEAD_RECORDS // share, AHEAD_BYTES // share, *words,
            seconds=CALL_SECONDS, what=f"read {self.topic!r}",
        )  # fmt: skip
        for number, *answer in found:
            place, moves = asked[number]
            # What was asked for before a seek, or before it was given away, is not wanted.
            if place.moves == moves:
                records = records_of(self.topic, number, *answer)
                place.put(records)
                self._transport.consumed += len(records)
        if found:
            self._came.set()
        return bool(found)


def start_words(to: StartPosition) -> tuple[str, int]:
    """A position as the script takes it."""
    if isinstance(to, datetime):
        if to.tzinfo is None:
            raise InvalidOption(f"the time {to} needs a time zone", option="start")
        return "time", -(-int(to.timestamp() * 1_000_000) // 1_000)
    if isinstance(to, int):
        return "offset", to
    if to not in ("earliest", "latest"):
        raise InvalidOption(
            f"{to!r} is no position: use an offset, a time, 'earliest' or 'latest'", option="start"
        )
    return to, 0


def records_of(
    topic: str, partition: int, offsets: bytes, columns: bytes, data: bytes
) -> list[StreamRecord]:
    """The records of one answer: lengths in columns, and all the bytes in one string."""
    numbers = _decode_offsets(offsets)
    times, keys, values, headers, value_at, header_at = _decode_columns(columns)
    if len(numbers) < len(times):
        numbers = range(numbers[0], numbers[0] + len(times))  # type: ignore[assignment]
    found = _headers(headers, data, header_at)
    key_at = 0
    records = []
    for n, (offset, time, key_size, value_size) in enumerate(
        zip(numbers, times, keys, values, strict=True)
    ):
        key = value = None
        if key_size >= 0:
            key = data[key_at : key_at + key_size]
            key_at += key_size
        if value_size >= 0:
            value = data[value_at : value_at + value_size]
            value_at += value_size
        own = found.get(n, NO_HEADERS) if found else NO_HEADERS
        records.append(StreamRecord(topic, partition, offset, time, key, value, own))
    return records


def _headers(
    columns: list[tuple[int, list[int]]], data: bytes, at: int
) -> dict[int, Mapping[str, bytes]]:
    found: dict[int, Mapping[str, bytes]] = {}
    for place, lengths in columns:
        own = found[place] = {}
        for name_size, size in zip(lengths[::2], lengths[1::2], strict=True):
            name = data[at : at + name_size].decode("utf-8", "surrogateescape")
            at += name_size
            own[name] = data[at : at + size]
            at += size
    return found


class RedisConsumer(EmbeddedConsumer):
    """A member of a group on Redis; see ``RedisTransport.subscribe`` for its options.

    It is the embedded transport's consumer on another source: the same order, the same fencing.
    """

    async def close(self) -> None:
        """Leave the group. If the server is away, the others notice when the lease is over."""
        with suppress(TransportError):
            await super().close()

    def _check_offsets(self, offsets: Mapping[int, int]) -> None:
        """The script looks at the ends; nothing is written when one is wrong."""
