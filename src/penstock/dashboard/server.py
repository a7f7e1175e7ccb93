"""The dashboard as something that is started and closed: a web server in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import Self

import uvicorn

from penstock import System, errors
from penstock.dashboard import site
from penstock.dashboard.board import Board
from penstock.dashboard.gate import Gate
from penstock.dashboard.guard import Guard
from penstock.dashboard.sampler import SAMPLE_SECONDS
from penstock.dashboard.site_state import release
from penstock.observe import Observer

logger = logging.getLogger("penstock.dashboard")

HOST, PORT = "127.0.0.1", 8_420
START_SECONDS = 30.0
DRAIN_SECONDS = 2
BACKLOG = 128
HEADERS_BYTES_MAX = 64 * 1024


class Dashboard:
    """Shows what an observer watches: ``async with Dashboard(observer) as dashboard``.

    It has a thread and an event loop of its own: it answers also while the program's loop is
    blocked, and says so. Dead letters, groups and the like are changed on the program's loop. It
    listens on this machine alone; another ``host`` needs a ``token``, which browsers are asked for
    once. Port 0 takes a free one: :attr:`url` tells it. A process has one dashboard at a time.
    """

    def __init__(
        self,
        observer: Observer,
        *,
        host: str = HOST,
        port: int = PORT,
        token: str | None = None,
        sample_seconds: float = SAMPLE_SECONDS,
        system: System | None = None,
    ) -> None:
        if not 0 < sample_seconds < float("inf"):
            raise errors.InvalidOption(
                "sample_seconds has to be more than 0", option="sample_seconds"
            )
        self._observer = observer
        self._host, self._port = host, port
        self._sample_seconds = sample_seconds
        self._system = system or System()
        self._gate = Gate(host, token, self._system)
        self._server: uvicorn.Server | None = None
        self.url = ""
        """Where it is, once it is started."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Listen. InvalidOption when the address cannot be had."""
        if self._server is not None:
            raise errors.UsageError("the dashboard is started: make another one to start again")
        home = asyncio.get_running_loop()
        board = Board(self._observer, home, self._sample_seconds)
        listening = _listen(self._host, self._port)
        try:
            app = Guard(site.application(board, self._gate), self._gate)
        except BaseException:
            listening.close()
            raise
        self.url = _url(self._host, listening)
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                http="h11",  # the other parser takes headers without end
                h11_max_incomplete_event_size=HEADERS_BYTES_MAX,
                timeout_graceful_shutdown=DRAIN_SECONDS,
                ws_max_size=1 << 20,
            )
        )
        started: asyncio.Future[None] = home.create_future()
        self._ended: asyncio.Future[None] = home.create_future()
        self._worker = self._system.worker("penstock-dashboard")
        self._worker.submit(lambda: self._run(board, listening, home, started))
        await _in_time(started, "start")
        logger.info("the dashboard is at %s", self.url)

    def _run(
        self,
        board: Board,
        listening: socket.socket,
        home: asyncio.AbstractEventLoop,
        started: asyncio.Future[None],
    ) -> None:
        """The thread."""
        error: Exception | None = None
        try:
            asyncio.run(self._serve(board, listening, home, started))
        except Exception as caught:
            logger.exception("the dashboard ended")
            error = caught
        finally:
            listening.close()
            release(board)
        with contextlib.suppress(RuntimeError):  # the loop of the program is closed
            home.call_soon_threadsafe(_settle, started, error)
            home.call_soon_threadsafe(_settle, self._ended, error)

    async def _serve(
        self,
        board: Board,
        listening: socket.socket,
        home: asyncio.AbstractEventLoop,
        started: asyncio.Future[None],
    ) -> None:
        assert self._server is not None, "start() made it"
        sampling = asyncio.ensure_future(board.sampler.run())
        announcing = asyncio.ensure_future(_announce(self._server, home, started))
        try:
            await self._server.serve(sockets=[listening])
        finally:
            for task in (sampling, announcing):
                task.cancel()
            await asyncio.gather(sampling, announcing, return_exceptions=True)
            await board.close()

    async def close(self) -> None:
        """Stop listening, and let go. Idempotent. Browsers say that the connection is lost."""
        if self._server is None:
            return
        self._server.should_exit = True
        await _in_time(self._ended, "close")
        await asyncio.to_thread(self._worker.close)


async def _announce(
    server: uvicorn.Server, home: asyncio.AbstractEventLoop, started: asyncio.Future[None]
) -> None:
    """Tell who started it that it answers."""
    while not server.started:  # noqa: ASYNC110 - the server has no event for it
        await asyncio.sleep(0.01)
    home.call_soon_threadsafe(_settle, started, None)


def _settle(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


async def _in_time(what: asyncio.Future[None], name: str) -> None:
    try:
        async with asyncio.timeout(START_SECONDS):
            await asyncio.shield(what)
    except TimeoutError:
        raise errors.DeadlineExceeded(
            f"the dashboard did not {name} in {START_SECONDS:g} s"
        ) from None


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise errors.InvalidOption(
            f"the dashboard cannot listen on {host}:{port} ({error.strerror or error}): use another "
            "port, or 0 for a free one",
            option="port",
            host=host,
            port=port,
        ) from error


def _url(host: str, listening: socket.socket) -> str:
    port = listening.getsockname()[1]
    return f"http://[{host.strip('[]')}]:{port}/" if ":" in host else f"http://{host}:{port}/"
