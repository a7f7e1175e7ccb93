"""One call from a URL to a running bus."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from penstock.errors import InvalidOption, NotSupported
from penstock.log.names import place_in
from penstock.log.queue import WalMessageQueue
from penstock.log.topic import TopicConfig
from penstock.resilience.bus import ResilientMessageBus
from penstock.scaling.bus import ScalableMessageBus
from penstock.scaling.log_records import TopicLog
from penstock.streaming.bus_log import TransportLog
from penstock.transports.registry import shared_registry

LOG_OPTIONS = frozenset(
    {
        "auto_create",
        "commit_on",
        "maintenance_interval",
        "offsets",
        "system",
        "tail_cache_bytes",
        "tier",
    }
)
"""Those of the queue that a bus on a log may set."""


@asynccontextmanager
async def open_bus(
    url: str,
    *,
    name: str = "bus",
    defaults: TopicConfig | None = None,
    state: str | os.PathLike[str] | None = None,
    transport_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[ScalableMessageBus]:
    """The usual stack for a URL, started; stopped and closed at the end of the block.

    ``memory:`` keeps events in the process. ``log:./data`` keeps them in a log in that directory:
    ``publish`` returns when the event is on the disk, groups of handlers go on after a crash, and so
    do schedules, approvals and dead letters. ``defaults`` are the settings of new topics.

    ``kafka://``, ``nats://``, ``rabbitmq://``, ``redis://`` and ``pulsar://`` keep events on a
    broker: ``publish`` returns when the broker has acknowledged the event, and each group of handlers
    is a group of the broker, shared by all processes. Dead letters, schedules and approvals are in
    the log in the directory ``state``; without one they are in memory, and end with the process.
    ``transport_options`` go to the transport, beside those in the URL; of ``log:`` to the queue, such
    as ``{"commit_on": "loop"}``.

    Other ``options`` go to :class:`ScalableMessageBus`. Two processes on one log need two names, or
    the same groups would compete for their place. Raises TransportError when a broker does not
    answer in time.
    """
    async with AsyncExitStack() as stack:
        journals, topics = await _opened(stack, url, defaults, state, transport_options)
        inner = ResilientMessageBus(name=name, log=journals)
        yield await stack.enter_async_context(ScalableMessageBus(inner, log=topics, **options))


async def _opened(
    stack: AsyncExitStack,
    url: str,
    defaults: TopicConfig | None,
    state: str | os.PathLike[str] | None,
    options: Mapping[str, Any] | None,
) -> tuple[WalMessageQueue | None, TopicLog | None]:
    """Where the bus keeps what it must remember, and where its topics are."""
    scheme = url.partition(":")[0]
    if scheme == "memory":
        _check_options(scheme, options, frozenset())
        return None, None
    if scheme == "log":
        queue = await stack.enter_async_context(_queue(url, defaults, options))
        return queue, queue
    topics = await stack.enter_async_context(_broker(url, scheme, defaults, options))
    if state is None:
        return None, topics
    return await stack.enter_async_context(WalMessageQueue(state)), topics


def _queue(
    url: str, defaults: TopicConfig | None, options: Mapping[str, Any] | None
) -> WalMessageQueue:
    _check_options("log", options, LOG_OPTIONS)
    return WalMessageQueue(place_in(url), defaults=defaults, **(options or {}))


def _check_options(scheme: str, given: Mapping[str, Any] | None, known: frozenset[str]) -> None:
    for name in given or ():
        if name not in known:
            there = ", ".join(sorted(known)) or "none"
            raise InvalidOption(
                f"{scheme}: has no transport option {name!r}; it has {there}", option=name
            )


def _broker(
    url: str, scheme: str, defaults: TopicConfig | None, options: Mapping[str, Any] | None
) -> TransportLog:
    registry = shared_registry()
    if scheme not in registry.schemes() or ":" not in url:
        raise _unknown(url, registry.schemes())
    partitions = None if defaults is None else defaults.partitions
    if defaults is not None and defaults != TopicConfig(partitions=defaults.partitions):
        raise NotSupported(
            f"of the settings of a topic, {scheme}: takes the number of partitions only; the others "
            "are for log: and are set on the broker itself",
            scheme=scheme,
        )
    return TransportLog(registry.make(url, **(options or {})), partitions=partitions)


def _unknown(url: str, known: tuple[str, ...]) -> InvalidOption:
    """No bus on a URL. The URL is not repeated: it may hold a password."""
    scheme, colon, _ = url.partition(":")
    schemes = sorted({*known, "log", "memory"})
    return InvalidOption(
        f"no bus can be opened on {scheme[:20] + colon!r}: use log:, as in log:./data, or "
        f"{', '.join(f'{one}:' for one in schemes if one != 'log')}",
        option="url",
        scheme=scheme,
        known=schemes,
    )
