"""A dashboard for a log or a broker of other processes."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock import WalMessageQueue, errors
from penstock.dashboard.server import HOST, PORT, Dashboard
from penstock.observe import Observer
from penstock.transports import open_transport

LOOK_SECONDS = 2.0
CONNECT_SECONDS = 10.0
SCHEME = "log:"


def serve(url: str, *, host: str = HOST, port: int = PORT, token: str | None = None) -> None:
    """Show the topics, groups and dead letters of a URL until Ctrl-C or SIGTERM.

    A log (``log:./data``) is read by its files, while others use it. Only what somebody asks for in
    the browser is changed: a seek, a replay, a purge.
    """
    asyncio.run(_serve(url, host, port, token))


async def _serve(url: str, host: str, port: int, token: str | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stop.set)
    async with (
        opened(url) as part,
        Observer(look_seconds=LOOK_SECONDS, durations=False) as observer,
    ):
        observer.watch(part)
        async with Dashboard(observer, host=host, port=port, token=token) as dashboard:
            sys.stdout.write(f"The dashboard is at {dashboard.url} (Ctrl-C ends it)\n")
            sys.stdout.flush()
            await stop.wait()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Any]:
    """What a URL names, to be looked at."""
    if url.startswith(SCHEME):
        async with WalMessageQueue(_store(url), read_only=True) as queue:
            yield queue
        return
    transport = open_transport(url)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await transport.open()
    except TimeoutError as late:
        await transport.close()
        raise errors.Unreachable(
            f"{url.partition(':')[0]}: did not answer within {CONNECT_SECONDS:g} s: is it running, "
            "and is the URL right?",
            transport=transport.name,
        ) from late
    try:
        yield transport
    finally:
        await transport.close()


def _store(url: str) -> str:
    store = url.removeprefix(SCHEME).removeprefix("//")
    if not store:
        raise errors.InvalidOption("log: names no directory: use log:./data", option="url")
    if ":" not in store and not Path(store).exists():
        raise errors.InvalidOption(
            f"there is no log at {store}: make it with `penstock topic create`, or name another one",
            option="url",
        )
    return store
