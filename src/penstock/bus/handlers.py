"""A handler as the bus knows it: the function, what it wants, and how it fared."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from penstock.bus.drive import begin
from penstock.errors import InvalidOption, UsageError
from penstock.messages import DEFAULT_SESSION, Envelope, Priority, dotted_name

if TYPE_CHECKING:
    from penstock.bus.lane import Lane

CONCURRENCY_MAX = 10_000

Target = type | str
"""A message class, or a glob over topics such as ``storage.*``."""
Filter = Callable[[Envelope], bool]
"""Decides whether a handler, or the bus, takes a message."""


class Guard(Protocol):
    """Stands in front of a handler and may keep messages from it, as a circuit breaker does."""

    clear: bool
    """Whether it admits everything at the moment, so that nobody needs to ask."""

    def passed(self, count: int) -> None:
        """So many calls were made without asking, while it was clear, and went well."""
        ...

    def admits(self, envelope: Envelope) -> bool:
        """Whether the handler may be called now. After a yes one of the other calls must follow."""
        ...

    def waits(self, envelope: Envelope) -> bool:
        """Whether an earlier event is in the way."""
        ...

    def began(self) -> None:
        """A call was made without asking, while it was clear; what becomes of it follows."""
        ...

    def succeeded(self) -> None:
        """The handler returned."""
        ...

    def abandoned(self) -> None:
        """The call was cancelled from outside and says nothing about the handler."""
        ...


class Batch(Protocol):
    """Collects events for a handler that takes lists; see :mod:`penstock.bus.batching`."""

    def add(self, envelope: Envelope) -> Awaitable[None] | None:
        """Take an event; returns what is to be awaited when that makes the batch full."""
        ...

    async def alone(self, envelope: Envelope) -> None:
        """Handle an event that comes again, for which others may wait: in a batch of its own."""
        ...


@dataclass(slots=True, eq=False)
class Handler:
    """One registered function. ``close()`` removes it from its bus."""

    function: Callable[..., Any]
    target: Target
    name: str = ""
    session: str = DEFAULT_SESSION
    priority: int = Priority.NORMAL
    where: Filter | None = None
    subclasses: bool = False
    concurrency: int = 1
    batch: Batch | None = None
    """Collects events when the function takes a list of them."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What a wrapper around the bus wants to know, such as ``retry``."""
    guard: Guard | None = None
    order: int = 0
    remove: Callable[[Handler], None] | None = None
    handled: int = 0
    """Calls that returned."""
    failed: int = 0
    """Calls that raised."""
    filtered: int = 0
    """Messages that ``where`` kept away."""
    wants_envelope: bool = False
    """Whether the function takes the envelope beside the message."""
    known_to: WeakSet[Lane] = field(default_factory=WeakSet)
    """Lanes that call it without asking who is to be called, until it is closed."""

    def __post_init__(self) -> None:
        self.name = self.name or _name_of(self.function)
        if not 1 <= self.concurrency <= CONCURRENCY_MAX:
            raise InvalidOption(
                f"concurrency {self.concurrency} is outside 1..{CONCURRENCY_MAX}",
                option="concurrency",
            )
        _check(self.function, self.target)
        self.wants_envelope = _positional_parameters(self.function) >= 2

    @property
    def plain(self) -> bool:
        """Whether it takes events one by one, in order, and nothing but the event."""
        special = (self.where, self.batch, self.wants_envelope or None)
        return self.concurrency == 1 and special == (None, None, None)

    @property
    def label(self) -> str:
        """What it listens to, in words."""
        return self.target if isinstance(self.target, str) else dotted_name(self.target)

    def begin(self, envelope: Envelope) -> Any:
        """Call the function; see :func:`penstock.bus.drive.begin`."""
        if self.wants_envelope:
            return begin(self.call_with_envelope, envelope, envelope)
        return begin(self.function, envelope, envelope.message)

    def admits(self, envelope: Envelope) -> bool:
        """Whether the guard, if there is one, lets a message through."""
        return self.guard is None or self.guard.admits(envelope)

    def call_with_envelope(self, envelope: Envelope) -> Any:
        """Call the function with the message and its envelope."""
        return self.function(envelope.message, envelope)

    def close(self) -> None:
        """Remove it from the bus; messages that it has begun are finished. Idempotent."""
        if self.remove is not None:
            self.remove(self)
            self.remove = None
            for lane in self.known_to:
                lane.forget()
            self.known_to.clear()


def _check(function: Callable[..., Any], target: object) -> None:
    if not isinstance(target, type | str):
        raise UsageError(
            f"{target!r} is neither a message class nor a topic pattern: name one to listen to"
        )
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise UsageError(
            f"{_name_of(function)} has a yield, so calling it does nothing: a handler does its work "
            "and returns"
        )


def _positional_parameters(function: Callable[..., Any]) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin may hide its signature
        return 1
    wanted = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if not wanted and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise UsageError(
            f"{_name_of(function)} takes no argument: a handler takes the message, and its "
            "envelope if it wants"
        )
    return sum(p.default is p.empty for p in wanted)


def _name_of(function: Callable[..., Any]) -> str:
    kind = function if hasattr(function, "__qualname__") else type(function)
    return f"{kind.__module__}.{kind.__qualname__}"
