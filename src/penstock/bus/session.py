"""Sessions: handlers that vanish when a block ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar

from penstock.bus.delivery import Outcome
from penstock.bus.handlers import Handler, Target
from penstock.errors import Closed
from penstock.messages import Command, CommandResult

if TYPE_CHECKING:
    from penstock.bus.bus import MessageBus

Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])


class Session:
    """A scope on one bus. Its handlers see what is published through it; those of the bus do too.

    ``async with bus.session("cart-17") as session``. When the block ends, also by an error, its
    handlers are gone; what they have begun is finished.
    """

    def __init__(self, bus: MessageBus, name: str) -> None:
        self._bus = bus
        self.name = name
        self.open = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the handlers of the session. Idempotent."""
        if self.open:
            self.open = False
            self._bus.close_session(self)

    def on(self, *targets: Target, **options: Any) -> Callable[[Function], Function]:
        """As :meth:`MessageBus.on`, for events that are published in this session."""
        return self._live().on(*targets, session=self.name, **options)

    def subscribe(self, target: Target, function: Callable[..., Any], **options: Any) -> Handler:
        """As :meth:`MessageBus.subscribe`, for events that are published in this session."""
        return self._live().subscribe(target, function, session=self.name, **options)

    def handles(self, kind: type, **options: Any) -> Callable[[Function], Function]:
        """As :meth:`MessageBus.handles`, for commands that are executed in this session."""
        return self._live().handles(kind, session=self.name, **options)

    def handle(self, kind: type, function: Callable[..., Any], **options: Any) -> Handler:
        """As :meth:`MessageBus.handle`, for commands that are executed in this session."""
        return self._live().handle(kind, function, session=self.name, **options)

    async def publish(self, event: Any, **options: Any) -> None:
        """As :meth:`MessageBus.publish`, in this session."""
        await self._live().publish(event, session=self.name, **options)

    def publish_nowait(self, event: Any, **options: Any) -> None:
        """As :meth:`MessageBus.publish_nowait`, in this session."""
        self._live().publish_nowait(event, session=self.name, **options)

    async def publish_and_wait(self, event: Any, **options: Any) -> Outcome:
        """As :meth:`MessageBus.publish_and_wait`, in this session."""
        return await self._live().publish_and_wait(event, session=self.name, **options)

    async def execute(self, command: Command[Result], **options: Any) -> CommandResult[Result]:
        """As :meth:`MessageBus.execute`, in this session."""
        return await self._live().execute(command, session=self.name, **options)

    async def send(self, command: Command[Result], **options: Any) -> Result:
        """As :meth:`MessageBus.send`, in this session."""
        return await self._live().send(command, session=self.name, **options)

    def _live(self) -> MessageBus:
        if not self.open:
            raise Closed(f"session {self.name!r} is closed: open a new one with bus.session()")
        return self._bus
