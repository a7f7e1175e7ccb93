"""Several events, all or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from penstock.bus.intake import Intake, full
from penstock.messages import DEFAULT_SESSION, Envelope, Priority

GROUP_MAX = 10_000


class AtomicGroup:
    """Collects the events of an ``async with bus.atomic()`` block."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._envelopes: list[Envelope] = []

    def publish(
        self,
        event: Any,
        *,
        session: str = DEFAULT_SESSION,
        priority: int = Priority.NORMAL,
        headers: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
    ) -> None:
        """Add an event to the group; nobody sees it before the block has ended well."""
        envelope = self._intake.enclose(event, session, priority, headers, correlation_id)
        if len(self._envelopes) >= GROUP_MAX:
            raise full(envelope)
        self._envelopes.append(envelope)

    def publish_all(self) -> None:
        """Queue the events of the group; BufferFull, and none is queued, when one finds no room."""
        needed = Counter(type(envelope.message) for envelope in self._envelopes)
        for envelope in self._envelopes:
            if (
                self._intake.lane(type(envelope.message)).queue.room
                < needed[type(envelope.message)]
            ):
                raise full(envelope)
        for envelope in self._envelopes:
            self._intake.admit_nowait(envelope)
