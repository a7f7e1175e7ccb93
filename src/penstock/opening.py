"""One call from a URL to a running bus."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from penstock.errors import InvalidOption, NotSupported
from penstock.log.queue import WalMessageQueue
from penstock.log.topic import TopicConfig
from penstock.resilience.bus import ResilientMessageBus
from penstock.scaling.bus import ScalableMessageBus
from penstock.transports.registry import shared_registry

WITH_A_BUS = ("log", "memory")
"""Schemes that a bus can be opened on."""


@asynccontextmanager
async def open_bus(
    url: str, *, name: str = "bus", defaults: TopicConfig | None = None, **options: Any
) -> AsyncIterator[ScalableMessageBus]:
    """The usual stack for a URL, started; stopped and closed at the end of the block.

    ``memory:`` keeps events in the process. ``log:./data`` keeps them in a log in that directory:
    ``publish`` returns when the event is on the disk, groups of handlers go on after a crash, and so
    do schedules, approvals and dead letters. ``defaults`` are the settings of new topics.

    ``options`` go to :class:`ScalableMessageBus`. Two processes on one log need two names, or the
    same groups would compete for their place.
    """
    scheme, _, rest = url.partition(":")
    async with AsyncExitStack() as stack:
        queue = None
        if scheme == "log":
            queue = await stack.enter_async_context(_queue(url, rest, defaults))
        elif scheme != "memory":
            raise _refusal(url)
        inner = ResilientMessageBus(name=name, log=queue)
        yield await stack.enter_async_context(ScalableMessageBus(inner, log=queue, **options))


def _queue(url: str, rest: str, defaults: TopicConfig | None) -> WalMessageQueue:
    path = rest.removeprefix("//")
    if not path:
        raise InvalidOption(f"{url!r} names no directory: use log:./data", option="url")
    return WalMessageQueue(path, defaults=defaults)


def _refusal(url: str) -> Exception:
    """Why there is no bus on a URL. The URL is not repeated: it may hold a password."""
    scheme, colon, _ = url.partition(":")
    known = shared_registry().schemes()
    use = " or ".join(f"{one}:" for one in WITH_A_BUS)
    if colon and scheme in known:
        return NotSupported(
            f"{scheme}: has a transport, which carries streams (penstock.transports.open_transport), "
            f"but cannot carry a bus yet: use {use}",
            scheme=scheme,
        )
    others = [f"{one}:" for one in known if one not in WITH_A_BUS]
    there_are = (
        f"; {', '.join(others)} have transports for streams, but no bus yet" if others else ""
    )
    return InvalidOption(
        f"no bus can be opened on {scheme[:20] + colon!r}: use {use}, as in log:./data{there_are}",
        option="url",
        scheme=scheme,
        known=known,
    )
