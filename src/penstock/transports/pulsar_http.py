"""The HTTP side of Pulsar's brokers: topics, and what stands where in them.

A few connections are kept. A call that gets no answer is made again until its time is up, so it must be
one that may be made twice.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

import msgspec

from penstock.errors import BrokerFailed, Unreachable
from penstock.transports.pulsar_settings import NAME, PulsarSettings

ATTEMPT_SECONDS = 5.0
"""A call without an answer for so long is made again."""
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.05, 1.0
AT_ONCE = 16
REDIRECTS_MAX = 5
REFUSED = (401, 403)
HEADER_BYTES_MAX = 256 * 1024
BODY_BYTES_MAX = 64 * 1024 * 1024
"""No answer is longer; a list of a million topics is not."""
_BROKEN = (OSError, EOFError, ValueError, asyncio.LimitOverrunError)


class Answer(NamedTuple):
    """What a broker said; the names of headers are in small letters."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def reason(self) -> str:
        """What a broker says of a call that it did not do."""
        with suppress(msgspec.DecodeError, KeyError, TypeError):
            text = str(msgspec.json.decode(self.body)["reason"]).strip()
            return text.splitlines()[0] if text else f"status {self.status}"
        return f"status {self.status}"


class PulsarHttp:
    """Calls of the brokers' HTTP. Lives on one event loop."""

    def __init__(self, settings: PulsarSettings) -> None:
        self._settings = settings
        self._idle: dict[str, list[_Connection]] = {}
        self._places = asyncio.Semaphore(AT_ONCE)
        self._context: ssl.SSLContext | None = None
        self.is_connected = False
        self.errors = 0
        self.last_error: str | None = None

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        idle, self._idle = self._idle, {}
        for connections in idle.values():
            for one in connections:
                one.close()

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        seconds: float | None = None,
        may: tuple[int, ...] = (),
    ) -> Answer:
        """The answer: a good one, or one with a status in ``may``; else BrokerFailed.

        Unreachable when there was none in time. A broker that fails is asked again meanwhile.
        """
        limit = self._settings.timeout if seconds is None else seconds
        until = asyncio.get_running_loop().time() + limit
        data = b"" if body is None else msgspec.json.encode(body)
        pause, answer = PAUSE_SECONDS, None
        while True:
            try:
                async with asyncio.timeout_at(until):
                    async with self._places:
                        answer = await self._attempt(method, path, data)
                    if answer is not None and (answer.status < 500 or answer.status in may):
                        return self._checked(answer, may, path)
                    await asyncio.sleep(pause * self._settings.system.random.uniform(0.5, 1.0))
            except TimeoutError:
                if answer is not None:
                    raise self._failed(answer, path) from None
                raise self.unreachable(limit) from None
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    def _checked(self, answer: Answer, may: tuple[int, ...], path: str) -> Answer:
        if answer.status < 300 or answer.status in may:
            return answer
        raise self._failed(answer, path)

    async def _attempt(self, method: str, path: str, data: bytes) -> Answer | None:
        """An answer; None when the connection was lost or nobody answered."""
        url = self._settings.admin_url
        for _ in range(REDIRECTS_MAX):
            try:
                async with asyncio.timeout(ATTEMPT_SECONDS):
                    answer = await self._exchange(url, method, path, data)
            except (TimeoutError, *_BROKEN) as error:
                self._note(error)
                return None
            self.is_connected = True
            if answer.status not in (302, 307):
                return answer
            # Another broker has the topic.
            parts = urlsplit(urljoin(url, answer.headers.get("location", "")))
            if urlsplit(url).scheme == "https" and parts.scheme != "https":
                return answer
            url = f"{parts.scheme}://{parts.netloc}"
            path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        return None

    async def _exchange(self, url: str, method: str, path: str, data: bytes) -> Answer:
        idle = self._idle.setdefault(url, [])
        while idle:
            connection = idle.pop()
            with suppress(*_BROKEN):
                # The broker may have closed it meanwhile.
                return await self._use(connection, idle, method, path, data)
        return await self._use(await self._connect(url), idle, method, path, data)

    async def _use(
        self, connection: _Connection, idle: list[_Connection], method: str, path: str, data: bytes
    ) -> Answer:
        try:
            answer = await connection.exchange(method, path, data)
        except BaseException:
            connection.close()
            raise
        if answer.headers.get("connection") == "close" or len(idle) >= AT_ONCE:
            connection.close()
        else:
            idle.append(connection)
        return answer

    async def _connect(self, url: str) -> _Connection:
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        if secure and self._context is None:
            self._context = self._settings.tls_context()
        reader, writer = await asyncio.open_connection(
            parts.hostname,
            parts.port or (443 if secure else 80),
            ssl=self._context if secure else None,
            limit=HEADER_BYTES_MAX,
        )
        return _Connection(reader, writer, parts.netloc, self._settings.authorization())

    # Errors

    def _note(self, error: BaseException) -> None:
        self.is_connected = False
        self.errors += 1
        self.last_error = self._settings.shown(f"{type(error).__name__}: {error}")

    def unreachable(self, seconds: float) -> Unreachable:
        """Nobody answered."""
        address = self._settings.admin_url
        why = f" ({self.last_error})" if self.last_error else ""
        return Unreachable(
            f"Pulsar's HTTP at {address} did not answer within {seconds:g} s{why}: start the broker, "
            "or correct the URL; admin_url says where its HTTP is",
            transport=NAME,
            address=address,
            seconds=seconds,
        )

    def _failed(self, answer: Answer, path: str) -> BrokerFailed:
        self.errors += 1
        did = "refuses this client" if answer.status in REFUSED else "refused a call"
        self.last_error = self._settings.shown(answer.reason)
        return BrokerFailed(
            f"Pulsar at {self._settings.admin_url} {did}: {self.last_error} ({path})",
            transport=NAME,
            status=answer.status,
        )


class _Connection:
    """One connection, one exchange after the other."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        host: str,
        authorization: str | None,
    ) -> None:
        self._reader = reader
        self._writer = writer
        head = {"Host": host, "Accept": "*/*", "Content-Type": "application/json"}
        if authorization is not None:
            head["Authorization"] = authorization
        self._head = "".join(f"{name}: {value}\r\n" for name, value in head.items())

    def close(self) -> None:
        self._writer.transport.abort()

    async def exchange(self, method: str, path: str, data: bytes) -> Answer:
        head = f"{method} {path} HTTP/1.1\r\n{self._head}Content-Length: {len(data)}\r\n\r\n"
        self._writer.write(head.encode() + data)
        await self._writer.drain()
        first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
        status = int(first.split()[1])
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines if line)
        }
        return Answer(status, headers, await self._body(method, status, headers))

    async def _body(self, method: str, status: int, headers: Mapping[str, str]) -> bytes:
        if method == "HEAD" or status in (204, 304):
            return b""
        if headers.get("transfer-encoding") != "chunked":
            return await self._read(int(headers.get("content-length", "0")), 0)
        body = bytearray()
        while size := int(await self._reader.readline(), 16):
            body += await self._read(size, len(body))
            await self._reader.readline()
        await self._reader.readline()
        return bytes(body)

    async def _read(self, size: int, before: int) -> bytes:
        if size + before > BODY_BYTES_MAX:
            raise ValueError(f"an answer of more than {BODY_BYTES_MAX} bytes")
        return await self._reader.readexactly(size)


def decoded(answer: Answer) -> Any:
    """What is in the body of an answer."""
    return msgspec.json.decode(answer.body) if answer.body else None


def listed(answer: Answer) -> list[object]:
    """The names in an answer; BrokerFailed when it is no list."""
    try:
        found = decoded(answer)
    except (msgspec.MsgspecError, UnicodeError):
        found = None
    if isinstance(found, list):
        return found
    raise BrokerFailed(
        "Pulsar was asked for names, and answered with something else", transport=NAME
    )
