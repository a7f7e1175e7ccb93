"""Where events come into a bus: the three ways to publish, compiled where the twin is there.

Compiled they take the usual way themselves: an event of which nothing is said, and that nobody needs to know of
before its handler does. Everything else comes to the functions that begin with an underscore.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any

from penstock.bus.delivery import ONE_DONE, Outcome, delivery_of
from penstock.bus.history import EventHistory
from penstock.bus.intake import PUBLISH_TIMEOUT_SECONDS, Intake
from penstock.bus.timers import check_timeout
from penstock.bus.waited import outcome_of
from penstock.messages import DEFAULT_SESSION, NORMAL, kind_for
from penstock.speedups import compiled


class LongWays:
    """What publishing comes to where something is said of the event, or somebody needs to know of it."""

    _intake: Intake
    history: EventHistory

    async def _publish(
        self,
        event: Any,
        session: str,
        priority: int,
        headers: Mapping[str, str] | None,
        correlation_id: str | None,
        durable: bool,
        timeout: float,
    ) -> None:
        intake = self._intake
        envelope = intake.enclose(
            event, session, priority, headers, correlation_id, kind_for(event)
        )
        if durable:
            await self.history.publish(envelope, timeout)
        elif not intake.try_now(envelope):
            await intake.admit(envelope, timeout)

    def _publish_nowait(
        self,
        event: Any,
        session: str,
        priority: int,
        headers: Mapping[str, str] | None,
        correlation_id: str | None,
    ) -> None:
        intake = self._intake
        envelope = intake.enclose(
            event, session, priority, headers, correlation_id, kind_for(event)
        )
        if intake.thread != get_ident() or not intake.try_now(envelope):
            intake.post(envelope)

    async def _publish_and_wait(
        self,
        begun: Any,
        event: Any,
        session: str,
        priority: int,
        headers: Mapping[str, str] | None,
        correlation_id: str | None,
        timeout: float,
    ) -> Outcome:
        """Go on where the twin has called the handler, or begin where it has left all to us."""
        intake = self._intake
        if begun is None:
            check_timeout(timeout)
        else:
            envelope, notes, rest = begun
            return await outcome_of(intake, envelope, notes, rest, timeout)
        envelope = intake.enclose(event, session, priority, headers, correlation_id)
        rest = intake.begin_in_place(envelope)
        if rest is None and envelope.settled:
            return ONE_DONE if envelope.delivery is None else envelope.delivery.outcome()
        # From here on it is noted who is done.
        return await outcome_of(intake, envelope, delivery_of(envelope), rest, timeout)


class PythonBusInlet(LongWays):
    """Part of :class:`~penstock.MessageBus`: publishing."""

    async def publish(
        self,
        event: Any,
        *,
        session: str = DEFAULT_SESSION,
        priority: int = NORMAL,
        headers: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
        durable: bool = False,
        timeout: float = PUBLISH_TIMEOUT_SECONDS,
    ) -> None:
        """Queue an event for its handlers; returns when it is queued.

        When the queue is full this waits for room, up to ``timeout``, or does what the bus's
        ``Overflow`` says. Cancelled while it waits, nothing was queued. With ``durable`` the event
        is on disk when this returns, and is handled at least once whatever happens then; cancelled
        while it is written, it may be published all the same.
        """
        await self._publish(event, session, priority, headers, correlation_id, durable, timeout)

    def publish_nowait(
        self,
        event: Any,
        *,
        session: str = DEFAULT_SESSION,
        priority: int = NORMAL,
        headers: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
    ) -> None:
        """Queue an event without waiting, from any thread; BufferFull when there is no room."""
        self._publish_nowait(event, session, priority, headers, correlation_id)

    async def publish_and_wait(
        self,
        event: Any,
        *,
        session: str = DEFAULT_SESSION,
        priority: int = NORMAL,
        headers: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
        timeout: float = PUBLISH_TIMEOUT_SECONDS,
    ) -> Outcome:
        """Publish an event and wait until all handlers are done with it.

        The handlers run in the calling task when their lane is free, and always when a handler
        calls. If the caller is cancelled or the timeout passes, the event stays published: a
        handler that was interrupted by that is called again.
        """
        return await self._publish_and_wait(
            None, event, session, priority, headers, correlation_id, timeout
        )


def _as_python(inlet: Any) -> Any:
    """Let the functions of the twin look like those in Python."""
    for name in ("publish", "publish_nowait", "publish_and_wait"):
        function, usual = getattr(inlet, name), getattr(PythonBusInlet, name)
        function.__doc__, function.__annotations__ = usual.__doc__, usual.__annotations__
        function.__module__, function.__qualname__ = "penstock.bus.bus", f"MessageBus.{name}"
    return inlet


if TYPE_CHECKING or compiled is None:
    BusInlet = PythonBusInlet
else:

    class BusInlet(LongWays, _as_python(compiled.BusInlet)):
        """The inlet of the twin."""
