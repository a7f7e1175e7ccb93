"""What becomes of an event that its publisher waits for."""

from __future__ import annotations

from collections.abc import Awaitable

from penstock.bus.delivery import Delivery, Outcome
from penstock.bus.intake import PUBLISH_TIMEOUT_SECONDS, Intake, wait_for_outcome
from penstock.messages import Envelope


async def outcome_of(
    intake: Intake,
    envelope: Envelope,
    notes: Delivery,
    rest: Awaitable[None] | None,
    timeout: float = PUBLISH_TIMEOUT_SECONDS,
) -> Outcome:
    """Await what is left of an event, or queue it when nothing was begun, and what becomes of it."""
    if rest is None and envelope.settled:
        return notes.outcome()
    async with intake.timers.deadline(timeout, f"handle an event of {envelope.topic}"):
        await (intake.admit(envelope, timeout) if rest is None else rest)
        return await wait_for_outcome(envelope, notes)
