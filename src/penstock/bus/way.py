"""The innermost step of the middleware of events: the handlers, and how a middleware sees them fail."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.bus.delivery import Delivery
from penstock.bus.handlers import Handler
from penstock.errors import HandlerFailed
from penstock.messages import Envelope

if TYPE_CHECKING:
    from penstock.bus.dispatch import Dispatch


class Way:
    """The innermost step of the middleware, which calls the handlers; a retry calls it again."""

    def __init__(self, dispatch: Dispatch, delivery: Delivery, handlers: Sequence[Handler]) -> None:
        self._dispatch = dispatch
        self._delivery = delivery
        self._handlers = handlers
        self.reached = False
        self.ended = False
        """Whether all handlers were called."""

    async def call_handlers(self, passed: Envelope) -> None:
        """Call those that are not done; raises HandlersFailed for those that failed."""
        delivery = self._delivery
        if self.reached:
            delivery.failures.clear()
            delivery.given_up = frozenset()
        self.reached = True
        waiting = [handler for handler in self._handlers if delivery.wants(handler)]
        delivery.open += 1
        try:
            rest = self._dispatch.call_from(0, waiting, passed)
            if rest is not None:
                await rest
        except asyncio.CancelledError:
            delivery.open -= 1
            raise
        self.ended = True
        for failure in delivery.failures:
            raise HandlersFailed(failure.handler, delivery) from failure.error


class HandlersFailed(HandlerFailed):
    """What a middleware sees when handlers failed after it passed the event on."""

    def __init__(self, handler: str, delivery: Delivery) -> None:
        names = ", ".join(failure.handler for failure in delivery.failures)
        super().__init__(f"failed: {names}", handler=handler)
