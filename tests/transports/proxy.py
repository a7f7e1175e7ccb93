"""A TCP proxy between a client and a broker: it cuts, delays, swallows.

::

    async with Proxy("127.0.0.1", broker_port) as proxy:
        transport = open_transport(f"nats://{proxy.address}")
        proxy.cut()  # every connection is reset, new ones are refused
        proxy.heal()
        proxy.delay = 0.05  # every chunk waits so long, in both directions
        proxy.swallow = "down"  # half open: what the broker says does not arrive, nothing is closed
        proxy.drop()  # every connection is reset, new ones are welcome

It lives on the event loop of the test.
"""

import asyncio
from contextlib import suppress
from typing import Literal, Self

CHUNK_BYTES = 64 * 1024


class Proxy:
    """Forwards connections to one address; its attributes may be changed while it does."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refusing = False
        self.delay = 0.0
        """Seconds that each chunk waits."""
        self.swallow: Literal["", "up", "down", "both"] = ""
        """Which direction is lost on the way, while the connection looks alive."""
        self.connections = 0
        """How many there were so far."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._server is not None
        self._server.close()
        self._refusing = True
        while self._tasks:
            # They end by themselves when their connections are gone.
            self.drop()
            await asyncio.wait(self._tasks, timeout=0.1)

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Reset all connections, and every new one until :meth:`heal`."""
        self._refusing = True
        self.drop()

    def heal(self) -> None:
        """Forward everything again."""
        self._refusing = False
        self.swallow = ""
        self.delay = 0.0

    def drop(self) -> None:
        """Reset all connections that there are."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._refusing:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        self.connections += 1
        ends = {writer, far_writer}
        self._writers |= ends
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._forward(reader, far_writer, "up"))
                both.create_task(self._forward(far_reader, writer, "down"))
        finally:
            self._writers -= ends
            for one in ends:
                one.transport.abort()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str
    ) -> None:
        with suppress(OSError):
            while chunk := await reader.read(CHUNK_BYTES):
                if self.delay:
                    await asyncio.sleep(self.delay)
                if self.swallow in (direction, "both"):
                    continue
                writer.write(chunk)
                await writer.drain()
        # One end is closed: so is the other.
        writer.transport.abort()
