"""Middleware: code around every event, or around every command, in the order of registration."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from penstock.messages import Envelope

Next = Callable[[Envelope], Awaitable[Any]]
"""Passes the message on; the argument may be another envelope than the one that came."""
Middleware = Callable[[Envelope, Next], Awaitable[Any]]
EventMiddleware = Middleware
CommandMiddleware = Middleware


class MessageObserver(Protocol):
    """Sees every message twice: when it is published, and when it is handled."""

    def stamp(self, message: Any) -> Mapping[str, str]:
        """Headers for a message that is published."""
        ...

    async def middleware(self, envelope: Envelope, call_next: Next) -> Any:
        """Around the handling of a message."""
        ...


def chain(middleware: Sequence[Middleware], innermost: Next) -> Next:
    """One function that runs through all of them and ends at the innermost."""
    following = innermost
    for layer in reversed(middleware):
        following = _bind(layer, following)
    return following


def _bind(layer: Middleware, following: Next) -> Next:
    def call(envelope: Envelope) -> Awaitable[Any]:
        return layer(envelope, following)

    return call
