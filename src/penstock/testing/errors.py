"""Errors of handlers that a test has to face."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from penstock.bus.handlers import Handler
    from penstock.messages import Envelope


class BusError(NamedTuple):
    """One call of a handler that raised."""

    handler: str
    envelope: Envelope
    error: BaseException


class BusErrors:
    """Every error that a handler raised, retried or not: ``bus.on_error(errors.note)``."""

    def __init__(self) -> None:
        self.seen: list[BusError] = []
        self._expected: tuple[type[BaseException], ...] = ()

    def note(self, handler: Handler, envelope: Envelope, error: BaseException) -> None:
        """Keep an error."""
        self.seen.append(BusError(handler.name, envelope, error))

    def expect(self, *kinds: type[BaseException]) -> None:
        """Errors of these kinds do not fail the test, neither those before nor those to come."""
        self._expected += kinds

    @property
    def unexpected(self) -> list[BusError]:
        """What fails the test."""
        return [one for one in self.seen if not isinstance(one.error, self._expected)]

    def raise_unexpected(self) -> None:
        """Raise what was not expected: the error itself, or a group when there are several."""
        errors = {id(one.error): one for one in self.unexpected}
        for one in errors.values():
            one.error.add_note(f"raised by {one.handler} on {one.envelope.topic}")
        found = [one.error for one in errors.values()]
        if len(found) == 1:
            raise found[0]
        if found:
            raise BaseExceptionGroup("handlers failed in this test", found)
