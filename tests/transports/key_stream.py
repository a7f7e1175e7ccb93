"""A stream of keys without a server: what is written comes by, with whatever a stranger puts between."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

import msgspec

from penstock.transports import rabbitmq_keys
from penstock.transports.rabbitmq_keys import KeyLog
from penstock.transports.rabbitmq_records import encoded
from penstock.transports.rabbitmq_settings import settings_from
from penstock.transports.rabbitmq_wire import Chunk

NUMBER = b"stranger"


def entry(*values: Any) -> bytes:
    """A message that holds these."""
    return encoded(msgspec.msgpack.encode(list(values)))


def put(key: str, value: bytes, revision: int, number: bytes = NUMBER) -> bytes:
    """A write of a key with one word."""
    return entry("p", number, [key], value, revision)


def summary(packed: bytes, upto: int, count: int = 1, number: bytes = NUMBER) -> bytes:
    """A part of a summary."""
    return entry("s", number, upto, count, packed)


def packed(*keys: tuple[str, bytes, int]) -> bytes:
    """Keys as a summary holds them."""
    return zlib.compress(msgspec.msgpack.encode([[[key], value, at] for key, value, at in keys]))


class Stream:
    """Reads and writes for one KeyLog."""

    def __init__(self) -> None:
        self.settings = settings_from("rabbitmq://127.0.0.1", {})
        self.first = 0
        self.messages: list[bytes] = []
        self.arrived = asyncio.Event()
        self.errors: list[Exception] = []
        """Raised by the next reads."""

    def add(self, *messages: bytes) -> None:
        self.messages += messages
        self.arrived.set()

    # As a connection

    async def call(self, work: Any, line: Any = None) -> None:
        return None

    async def waiting(self, work: Any) -> Any:
        async with asyncio.timeout(20):
            return await work

    # As a reader and a writer

    async def read(self, offset: int) -> list[Chunk]:
        if self.errors:
            raise self.errors.pop()
        while not self.messages[offset - self.first :]:
            self.arrived.clear()
            await self.arrived.wait()
        return [
            Chunk(at, 7, 1, 1, len(one).to_bytes(4) + one)
            for at, one in enumerate(self.messages, self.first)
            if at >= offset
        ]

    async def send(self, messages: list[bytes]) -> None:
        self.add(*messages)

    async def close(self) -> None:
        return None


def key_log(stream: Stream, monkeypatch: Any) -> KeyLog:
    """A log of keys on the stream."""
    connection: Any = stream
    log = KeyLog(connection, "penstock.orders.groups")
    log._reader = log._writer = connection

    async def bounds(*_: Any) -> tuple[int, int]:
        return stream.first, stream.first + len(stream.messages)

    monkeypatch.setattr(rabbitmq_keys, "bounds", bounds)
    monkeypatch.setattr(rabbitmq_keys, "ANEW_SECONDS", 0.0)
    return log
