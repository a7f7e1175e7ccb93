"""What the plain bus does when somebody else's code fails: tell, and go on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from penstock.bus.exits import EXITS
from penstock.bus.handlers import Handler
from penstock.bus.log_fields import fields_of
from penstock.messages import Envelope

logger = logging.getLogger("penstock.bus")

ErrorCallback = Callable[[Handler, Envelope, BaseException], None]
"""Called with every error of an event handler."""


class PlainFailures:
    """What the plain bus does when a handler fails: tell, and not call it again."""

    def __init__(self, tell: ErrorCallback) -> None:
        self._tell = tell

    def failed(self, handler: Handler, envelope: Envelope, error: BaseException) -> bool:
        self._tell(handler, envelope, error)
        return False

    def refused(self, handler: Handler, envelope: Envelope) -> None:
        raise AssertionError("the plain bus has no guards")

    def broken(self, part: str, envelope: Envelope, error: BaseException) -> None:
        log_broken(part, envelope, error)


def log_broken(part: str, envelope: Envelope, error: BaseException) -> None:
    """Say that a filter or a middleware failed."""
    logger.error(
        "a %s failed on %s %s",
        part,
        envelope.topic,
        envelope.id,
        exc_info=error,
        extra=fields_of(envelope),
    )


def log_failed(handler: Handler, envelope: Envelope, error: BaseException) -> None:
    """Say that a handler failed."""
    before = None if envelope.delivery is None else envelope.delivery.attempts.get(handler)
    attempt = 1 if before is None else before.count + 1
    logger.error(
        "%s failed on %s %s",
        handler.name,
        envelope.topic,
        envelope.id,
        exc_info=error,
        extra=fields_of(envelope, handler=handler.name, attempt=attempt),
    )


def guarded(
    callback: Callable[..., None], on_exit: Callable[[BaseException], None] | None = None
) -> Callable[..., None]:
    """A callback whose errors are logged and go no further; ``on_exit`` hears when it ends the program."""

    def call(*arguments: Any) -> None:
        try:
            callback(*arguments)
        except Exception:
            logger.exception("a callback of the bus failed")
        except EXITS as error:
            if on_exit is None:
                raise
            on_exit(error)

    return call
