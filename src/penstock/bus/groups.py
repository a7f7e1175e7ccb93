"""Several events, all or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from penstock.bus.history import EventHistory
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
        intake = self._intake
        queued = self._pass()
        recorder, intake.recorder = intake.recorder, None
        try:
            for envelope in queued:
                intake.queue(envelope)
        finally:
            intake.recorder = recorder
        if recorder is not None and queued:
            recorder.note_all(queued)

    async def publish_durably(self, history: EventHistory, timeout: float) -> None:
        """Write the events of the group as one, then queue them."""
        await history.publish_all(self._pass(), timeout)

    def _pass(self) -> list[Envelope]:
        """The events that the filters let in, when there is room for all of them."""
        intake = self._intake
        intake.check_open()
        passing = {envelope.sequence: intake.passes(envelope) for envelope in self._envelopes}
        queued = [envelope for envelope in self._envelopes if passing[envelope.sequence]]
        self._check_room(queued)
        for envelope in self._envelopes:
            if not passing[envelope.sequence]:
                intake.settle_filtered(envelope)
        return queued

    def _check_room(self, envelopes: list[Envelope]) -> None:
        extra = self._intake.options.capacity if self._intake.is_nested() else 0
        lanes = [self._intake.lane_of(envelope) for envelope in envelopes]
        needed = Counter(lanes)
        for envelope, lane in zip(envelopes, lanes, strict=True):
            if not lane.queue.has_room_for(needed[lane], extra):
                raise full(envelope)


@asynccontextmanager
async def grouped(
    intake: Intake, history: EventHistory | None, timeout: float
) -> AsyncIterator[AtomicGroup]:
    """A group for the length of a block; with a history it is written there when the block has ended well."""
    group = AtomicGroup(intake)
    yield group
    if history is not None:
        await group.publish_durably(history, timeout)
    else:
        group.publish_all()
