"""Producing to Redis: batches in pieces, each in one script, each kept once however often it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from redis.crc import key_slot

from penstock.errors import RecordTooLarge
from penstock.log.routing import partitions_of
from penstock.transports import redis_scripts as scripts
from penstock.transports.options import check_columns
from penstock.transports.records import Produced
from penstock.transports.redis_client import RedisClient
from penstock.transports.redis_settings import NAME

PIECE_RECORDS = 1_000
PIECE_BYTES = 1024 * 1024
"""A script keeps the server from everything else: a piece takes it about two milliseconds."""
RECORD_BYTES_MAX = 128 * 1024 * 1024
"""Redis takes no string of more than 512 MiB, unless it is told to."""
LANES = 16
"""Calls of ``produce`` that are under way at the same time; others wait for one to end."""
LANE_MS = 60 * 60 * 1000
"""How long the server remembers the last piece of a lane: longer than anything is sent again."""

Partitions = Callable[[str, float, int], Awaitable[int]]
"""Topic, seconds, and the number that was wrong or 0 → the number of partitions."""


@dataclass(slots=True)
class _Lane:
    """A sequence of pieces, one under way at a time, so that the server knows one that comes again."""

    name: str
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class _Piece:
    """Consecutive records of a batch."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None
    headers: Sequence[Mapping[str, bytes] | None] | None
    times: Sequence[int] | None

    def cut(self, first: int, end: int) -> _Piece:
        """Some of its records."""
        columns = (self.values, self.keys, self.headers, self.times)
        return _Piece(*(None if one is None else one[first:end] for one in columns))  # type: ignore[arg-type]

    def pick(self, places: Sequence[int]) -> _Piece:
        """Those at these places."""
        columns = (self.values, self.keys, self.headers, self.times)
        return _Piece(*(None if one is None else [one[n] for n in places] for one in columns))  # type: ignore[arg-type]

    def packed(self) -> tuple[bytes, bytes]:
        """Lengths, and all bytes: those of the keys, of the values, of the headers."""
        keys = b"".join(one for one in self.keys or () if one is not None)
        values = b"".join(one for one in self.values if one is not None)
        headers = [_header_words(one) for one in self.headers or ()]
        columns = (
            self.times or (),
            _lengths(self.keys or ()),
            _lengths(self.values),
            headers if any(headers) else (),
            len(keys),
            len(keys) + len(values),
        )
        rest = [value for one in self.headers or () if one for value in one.values()]
        return msgspec.msgpack.encode(columns), b"".join((keys, values, *rest))


def _lengths(column: Sequence[bytes | None]) -> list[int]:
    return [-1 if one is None else len(one) for one in column]


def _header_words(headers: Mapping[str, bytes] | None) -> list[str | int]:
    return [word for name, value in (headers or {}).items() for word in (name, len(value))]


class RedisProducer:
    """Sends batches. Each call of :meth:`produce` has a lane to itself. Lives on one event loop."""

    def __init__(
        self, client: RedisClient, partitioner: str, partitions: Partitions, *, durable: bool
    ) -> None:
        self._client = client
        self._partitions = partitions
        self._native = partitioner == "native"
        self._turns: dict[str, int] = {}
        """Where the records without a key go on."""
        producer = f"{client.system.random.getrandbits(96):024x}"
        self._lanes: asyncio.Queue[_Lane] = asyncio.Queue()
        for number in range(LANES):
            self._lanes.put_nowait(_Lane(f"{producer}:{number}"))
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._durable = durable
        self.produced = 0
        self.sent_again = 0

    async def drain(self) -> None:
        """Return when nothing is under way."""
        await self._idle.wait()

    async def produce(
        self,
        topic: str,
        base: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        headers: Sequence[Mapping[str, bytes] | None] | None,
        timestamps: Sequence[int] | None,
        seconds: float,
    ) -> Produced:
        """Send a batch, piece by piece, in order; see ``RedisTransport.produce``."""
        batch = _Piece(values, keys, headers, timestamps)
        _check(topic, batch)
        self._under_way += 1
        self._idle.clear()
        try:
            ranges = await self._send(topic, base, batch, seconds)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()
        return Produced(topic, len(values), ranges, self._durable)

    async def _send(
        self, topic: str, base: str, batch: _Piece, seconds: float
    ) -> dict[int, tuple[int, int]]:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        ranges: dict[int, tuple[int, int]] = {}
        lane = await self._lane(seconds)
        try:
            for piece in pieces(batch):
                left = max(0.0, until - loop.time())
                for number, first, end in await self._send_piece(topic, base, lane, piece, left):
                    ranges[number] = (ranges.get(number, (first,))[0], end)
                self.produced += len(piece.values)
        finally:
            self._lanes.put_nowait(lane)
        return ranges

    async def _lane(self, seconds: float) -> _Lane:
        try:
            async with asyncio.timeout(seconds):
                return await self._lanes.get()
        except TimeoutError:
            raise self._client.unreachable("produce", seconds) from None

    async def _send_piece(
        self, topic: str, base: str, lane: _Lane, piece: _Piece, seconds: float
    ) -> list[tuple[int, int, int]]:
        lane.sequence += 1
        known = 0
        while True:
            known = await self._partitions(topic, seconds, known)
            parts = self._routed(topic, piece, known)
            words: list[Any] = [lane.name, lane.sequence, LANE_MS, known]
            for number, part in parts:
                words += [number, *part.packed()]
            answer = await self._client.script(
                scripts.PRODUCE,
                base,
                *words,
                seconds=seconds,
                what=f"produce to {topic!r}",
                repeated=self._repeated,
            )
            if answer and answer[0] == b"partitions":
                # It was made anew since it was looked at, with another number of them.
                continue
            return [
                (number, int(first), int(first) + len(part.values))
                for (number, part), first in zip(parts, answer, strict=True)
            ]

    def _repeated(self) -> None:
        self.sent_again += 1

    def _routed(self, topic: str, piece: _Piece, count: int) -> list[tuple[int, _Piece]]:
        turn = self._turns.get(topic, 0)
        if count == 1:
            return [(0, piece)] if piece.values else []
        if piece.keys is None:
            chosen: NDArray[np.int64] = (np.arange(len(piece.values)) + turn) % count
            turn = (turn + len(piece.values)) % count
        else:
            chosen, turn = partitions_of(piece.keys, count, turn)
        if self._native and piece.keys is not None:
            slots = [-1 if key is None else key_slot(key) % count for key in piece.keys]
            native = np.array(slots, np.int64)
            chosen = np.where(native >= 0, native, chosen)
        self._turns[topic] = turn
        return [
            (number, piece.pick(np.flatnonzero(chosen == number).tolist()))
            for number in np.unique(chosen).tolist()
        ]


def pieces(batch: _Piece) -> Iterator[_Piece]:
    """The batch in pieces that are neither too many records nor too many bytes."""
    first = size = 0
    keys = batch.keys
    for place, value in enumerate(batch.values):
        own = len(value or b"") + (len(keys[place] or b"") if keys is not None else 0)
        if place > first and (place - first == PIECE_RECORDS or size + own > PIECE_BYTES):
            yield batch.cut(first, place)
            first, size = place, 0
        size += own
    if first < len(batch.values):
        yield batch.cut(first, len(batch.values))


def _check(topic: str, batch: _Piece) -> None:
    check_columns(batch.values, keys=batch.keys, headers=batch.headers, timestamps=batch.times)
    largest = max(map(len, filter(None, batch.values)), default=0)
    if largest > RECORD_BYTES_MAX:
        raise RecordTooLarge(
            f"a value for {topic!r} has {largest} bytes; {NAME} takes {RECORD_BYTES_MAX}",
            topic=topic,
            size=largest,
            limit=RECORD_BYTES_MAX,
        )
