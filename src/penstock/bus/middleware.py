"""Middleware: code around every event, or around every command, in the order of registration."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from penstock.messages import Envelope

Next = Callable[[Envelope], Awaitable[Any]]
"""Passes the message on; the argument may be another envelope than the one that came."""
Middleware = Callable[[Envelope, Next], Awaitable[Any]]
EventMiddleware = Middleware
CommandMiddleware = Middleware


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
