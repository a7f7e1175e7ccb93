"""One connection of RabbitMQ's stream protocol. The frames are those of rstream.

rstream's own connection reads 256 bytes at a time and tells nobody when it is lost. This one hands out
chunks as they come, and ends every call that waits when the server is gone.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from rstream import schema
from rstream.encoding import decode_frame, encode_frame
from rstream.exceptions import ServerError

from penstock.transports.rabbitmq_settings import RabbitSettings

FRAME_BYTES_MAX = 1024 * 1024
"""What is sent at most."""
HEARD_BYTES_MAX = 256 * 1024 * 1024
"""No frame that comes is longer. A chunk may be longer than what the server takes at once."""
_CONFIRM, _DELIVER = 3, 8
_PUBLISH = struct.Struct(">IHHBI")
"""Length, key, version, publisher, how many messages."""
_MESSAGE = struct.Struct(">QI")
_CHUNK = struct.Struct(">BBBHIqQQIIII")
_CHUNK_START = 4
STREAM_UNAVAILABLE = (6, 17, 22)
"""Codes of a server that is starting, or of a stream without a leader: it will have one."""
CODES = {
    2: "the stream does not exist",
    5: "the stream exists already",
    6: "the stream is not available",
    8: "the user name or the password is wrong",
    9: "the login failed",
    11: "the user guest may connect from the server's own machine only",
    12: "there is no such virtual host, or this user may not use it",
    16: "this user is not allowed to do that",
    17: "a condition of the server is not met",
    18: "the publisher does not exist",
}

_F = TypeVar("_F", bound=schema.Frame)


class LinkLost(Exception):
    """The connection is gone; what was on its way may have arrived."""


class Refused(Exception):
    """The server answered with an error."""

    def __init__(self, code: int) -> None:
        super().__init__(CODES.get(code, f"code {code}"))
        self.code = code


class Chunk(NamedTuple):
    """Records that the server stored together."""

    first: int
    """Offset of the first record."""
    time_ms: int
    """When the server stored them."""
    entries: int
    records: int
    data: bytes

    @property
    def end(self) -> int:
        return self.first + self.records


class Link:
    """A connection that is open until it is lost or closed; it never comes back."""

    def __init__(self, settings: RabbitSettings) -> None:
        self._settings = settings
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._calls: dict[int, asyncio.Future[schema.Frame]] = {}
        self._tuned: asyncio.Future[schema.Frame] | None = None
        self._number = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._heard = 0.0
        self.is_lost = False
        self.reason = ""
        self.frame_bytes_max = FRAME_BYTES_MAX
        self.on_lost: set[Callable[[], None]] = set()
        self.on_chunk: dict[int, Callable[[Chunk], None]] = {}
        """By the number of the subscription."""
        self.on_confirm: dict[int, Callable[[Sequence[int], int], None]] = {}
        """By the number of the publisher: ids that are settled, and a code that is not 0 for an error."""
        self.on_change: dict[int, tuple[str, Callable[[], None]]] = {}
        """By number: a stream, and what to call when the server has let go of it."""

    # Life

    async def open(self, host: str, port: int, context: ssl.SSLContext | None) -> None:
        """Connect and log in; OSError, LinkLost or Refused."""
        name = self._settings.tls_hostname or None
        self._reader, self._writer = await asyncio.open_connection(
            host, port, ssl=context, server_hostname=name if context else None, limit=2**22
        )
        self._start(self._listen())
        try:
            await self._log_in()
        except BaseException:
            self.abort("the login failed")
            raise

    async def _log_in(self) -> None:
        settings = self._settings
        about = {"product": "Penstock", "connection_name": settings.client_name}
        properties = [schema.Property(*one) for one in about.items()]
        await self.call(schema.PeerProperties, schema.PeerPropertiesResponse, properties=properties)
        await self.call(schema.SaslHandshake, schema.SaslHandshakeResponse)
        self._tuned = asyncio.get_running_loop().create_future()
        secret = f"\0{settings.username}\0{settings.password}".encode()
        await self.call(
            schema.SaslAuthenticate, schema.SaslAuthenticateResponse, mechanism="PLAIN", data=secret
        )
        tune: Any = await self._tuned
        self.frame_bytes_max = min(FRAME_BYTES_MAX, tune.frame_max or FRAME_BYTES_MAX)
        beat = max(1, round(settings.heartbeat_seconds))
        self.send(encode_frame(schema.Tune(self.frame_bytes_max, beat)))
        await self.call(schema.Open, schema.OpenResponse, virtual_host=settings.vhost)
        self._start(self._beat(settings.heartbeat_seconds))

    def _start(self, work: Any) -> None:
        self._tasks.append(asyncio.create_task(work))

    async def close(self) -> None:
        """Say goodbye, and let go."""
        if not self.is_lost:
            with suppress(LinkLost, Refused, TimeoutError):
                async with asyncio.timeout(1.0):
                    await self.call(schema.Close, schema.CloseResponse, code=1, reason="OK")
        self.abort("closed")
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def abort(self, reason: str) -> None:
        """The end: who waits for an answer gets LinkLost."""
        if self.is_lost:
            return
        self.is_lost = True
        self.reason = reason
        self._writer.transport.abort()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        for call in [*self._calls.values(), *([self._tuned] if self._tuned else [])]:
            if not call.done():
                call.set_exception(LinkLost(reason))
                call.exception()
        self._calls.clear()
        for listener in list(self.on_lost):
            listener()

    # Sending

    def send(self, data: bytes) -> None:
        """Bytes of whole frames. LinkLost when it is gone."""
        if self.is_lost:
            raise LinkLost(self.reason)
        self._writer.write(data)

    async def drain(self) -> None:
        """Wait until the server takes more."""
        try:
            await self._writer.drain()
        except OSError as error:
            self.abort(f"{type(error).__name__}: {error}")
            raise LinkLost(self.reason) from None

    async def call(self, request: type[Any], answer: type[_F], **values: Any) -> _F:
        """Ask, and wait for the answer. LinkLost also when it does not come in time."""
        if self.is_lost:
            raise LinkLost(self.reason)
        self._number += 1
        frame = request(correlation_id=self._number, **values)
        waiting = self._calls[self._number] = asyncio.get_running_loop().create_future()
        self.send(encode_frame(frame))
        try:
            async with asyncio.timeout(self._settings.answer_seconds):
                found = await waiting
        except TimeoutError:
            self.abort(f"no answer within {self._settings.answer_seconds:g} s")
            raise LinkLost(self.reason) from None
        finally:
            self._calls.pop(frame.corr_id or 0, None)
        return _checked(found, answer)

    def credit(self, subscription: int, chunks: int) -> None:
        """Ask for so many more chunks."""
        if not self.is_lost:
            self.send(encode_frame(schema.Credit(subscription, chunks)))

    # Listening

    async def _listen(self) -> None:
        reader = self._reader
        loop = asyncio.get_running_loop()
        try:
            while True:
                length = int.from_bytes(await reader.readexactly(4))
                if length > HEARD_BYTES_MAX:
                    raise ValueError(f"a frame of {length} bytes")
                frame = await reader.readexactly(length)
                self._heard = loop.time()
                self._take(frame)
        except asyncio.IncompleteReadError:
            self.abort("the server closed the connection")
        except (OSError, ValueError, struct.error) as error:
            self.abort(f"{type(error).__name__}: {error}")

    def _take(self, frame: bytes) -> None:
        key = int.from_bytes(frame[:2])
        if key == _DELIVER:
            self._take_chunk(frame)
        elif key == _CONFIRM:
            count = int.from_bytes(frame[5:9])
            self._settle(frame[4], struct.unpack_from(f">{count}Q", frame, 9), 0)
        else:
            with suppress(KeyError):  # of a newer server
                self._take_other(decode_frame(frame))

    def _take_chunk(self, frame: bytes) -> None:
        (subscription, _, kind, entries, records, time_ms, _, first, checksum, size, _, _) = (
            _CHUNK.unpack_from(frame, _CHUNK_START)
        )
        start = _CHUNK_START + _CHUNK.size
        data = frame[start : start + size]
        if zlib.crc32(data) != checksum:
            raise ValueError("a chunk does not have its checksum")
        listener = self.on_chunk.get(subscription)
        if listener is not None and kind == 0:
            listener(Chunk(first, time_ms, entries, records, data))

    def _take_other(self, frame: schema.Frame) -> None:
        call = self._calls.get(frame.corr_id or 0)
        if isinstance(frame, schema.Tune) and self._tuned is not None:
            if not self._tuned.done():
                self._tuned.set_result(frame)
        elif isinstance(frame, schema.PublishError):
            for one in frame.errors:
                self._settle(frame.publisher_id, [one.publishing_id], one.response_code)
        elif isinstance(frame, schema.MetadataUpdate):
            self._changed(frame.metadata_info.stream)
        elif isinstance(frame, schema.Close):
            self.abort(f"the server closed the connection: {frame.reason}")
        elif call is not None and not call.done():
            call.set_result(frame)

    def _settle(self, publisher: int, ids: Sequence[int], code: int) -> None:
        listener = self.on_confirm.get(publisher)
        if listener is not None:
            listener(ids, code)

    def _changed(self, stream: str) -> None:
        for name, listener in list(self.on_change.values()):
            if name == stream:
                listener()

    async def _beat(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._heard = loop.time()
        while True:
            self.send(encode_frame(schema.Heartbeat()))
            await asyncio.sleep(seconds / 2)
            if loop.time() - self._heard > 2 * seconds:
                self.abort(f"no word of the server for {2 * seconds:g} s")
                return


def _checked(frame: schema.Frame, kind: type[_F]) -> _F:
    assert isinstance(frame, kind)
    try:
        frame.check_response_code()
    except ServerError:
        codes = [getattr(frame, "response_code", 0)]
        codes += [one.response_code for one in getattr(frame, "metadata", ())]
        raise Refused(max(codes)) from None
    return frame


def publish_frame(publisher: int, messages: Sequence[tuple[int, bytes, Any]]) -> bytes:
    """A frame with messages: each an id, its bytes, and something that does not matter here."""
    parts = [b""]
    pack = _MESSAGE.pack
    for number, data, _ in messages:
        parts.append(pack(number, len(data)))
        parts.append(data)
    size = sum(map(len, parts))
    parts[0] = _PUBLISH.pack(size + _PUBLISH.size - 4, 2, 1, publisher, len(messages))
    return b"".join(parts)
