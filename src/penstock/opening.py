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

BROKERS = ("kafka", "nats", "amqp", "redis", "pulsar")


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
            raise _unknown(url, scheme)
        inner = ResilientMessageBus(name=name, log=queue)
        yield await stack.enter_async_context(ScalableMessageBus(inner, log=queue, **options))


def _queue(url: str, rest: str, defaults: TopicConfig | None) -> WalMessageQueue:
    path = rest.removeprefix("//")
    if not path:
        raise InvalidOption(f"{url!r} names no directory: use log:./data", option="url")
    return WalMessageQueue(path, defaults=defaults)


def _unknown(url: str, scheme: str) -> Exception:
    if scheme in BROKERS:
        return NotSupported(f"{url!r}: the transport for {scheme} is not there yet", scheme=scheme)
    return InvalidOption(
        f"{url!r} has no known scheme: use memory: or log:./data", option="url", scheme=scheme
    )
