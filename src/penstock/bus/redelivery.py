"""Events that a bus published in an earlier life and did not finish: handled again after a crash."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import Context

import msgspec

from penstock.bus.event_log import EventRecorder
from penstock.bus.firing import SCHEDULE_HEADER
from penstock.bus.intake import Intake
from penstock.errors import InvalidMessage
from penstock.messages import Envelope

logger = logging.getLogger("penstock.bus")

REDELIVERY_HEADER = "x-penstock-redelivery"
"""On an event that was published before a restart, and may have been handled in part then."""
HELD_MAX = 10_000
START_SECONDS_MAX = 30.0
"""How long ``start`` waits for room for old events, so that new ones come after them."""

InvalidCallback = Callable[[int, bytes, InvalidMessage], None]
"""Called with the position in the log, the record, and why it does not decode."""


class Redelivery:
    """Reads what was not settled and queues it, under the id that it had.

    An event that nobody listens to is held until somebody does: handlers are often registered
    after the start. When the bus stops in good order and nobody came, it counts as unhandled.
    What is scheduled is not redelivered: the schedule does that itself.
    """

    def __init__(
        self, recorder: EventRecorder, intake: Intake, on_invalid: InvalidCallback
    ) -> None:
        self._recorder = recorder
        self._intake = intake
        self._on_invalid = on_invalid
        self._held: list[Envelope] = []
        self._less_held = asyncio.Event()
        self._feeding: asyncio.Task[None] | None = None
        self.redelivered = 0

    @property
    def held(self) -> int:
        """Events that wait for somebody who handles them."""
        return len(self._held)

    async def run(self, start: int, end: int) -> None:
        """Queue the old events; returns when they are queued, or after a while.

        From then on the rest is queued beside new events, as room is made.
        """
        if start >= end:
            return
        early = [one for lane in self._intake.all_lanes() for one in lane.drain()]
        loop = asyncio.get_running_loop()
        self._feeding = loop.create_task(self._feed(start, end), context=Context())
        finished = loop.create_future()
        late = self._intake.timers.call_after(START_SECONDS_MAX, lambda: _finish(finished))
        self._feeding.add_done_callback(self._fed)
        self._feeding.add_done_callback(lambda _: _finish(finished))
        try:
            await finished
        finally:
            late.cancel()
            for envelope in early:  # they were published before the start, but after the old ones
                self._intake.put_back(envelope)
        if not self._feeding.done():
            logger.warning("old events are still being queued: new ones may overtake them")

    def handlers_changed(self) -> None:
        """Queue what somebody listens to now."""
        if not self._held:
            return
        wanted = [envelope for envelope in self._held if self._is_wanted(envelope)]
        if wanted:
            self._held = [envelope for envelope in self._held if not self._is_wanted(envelope)]
            self._less_held.set()
            for envelope in wanted:
                self._give(envelope)

    async def stop(self, *, orderly: bool) -> None:
        """Queue no more. In good order, what nobody wanted is done with."""
        if self._feeding is not None:
            self._feeding.cancel()
            await asyncio.gather(self._feeding, return_exceptions=True)
        if orderly:
            for envelope in self._held:
                self._recorder.settled(envelope)
            self._held.clear()

    # Inside

    async def _feed(self, start: int, end: int) -> None:
        recorder, positions = self._recorder, self._recorder.positions
        async for position, record in recorder.log.read(start, end):
            envelope = self._decode(position, record)
            if envelope is not None and SCHEDULE_HEADER not in envelope.headers:
                positions.reopen(envelope, position)
                positions.read(position + 1)
                await self._hand_over(envelope)
            positions.read(position + 1)
        positions.read(None)

    def _fed(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # The handled position stays where reading ended: nothing is skipped.
            logger.error("old events were not all delivered again", exc_info=error)
            self._recorder.failing = str(error)

    def _decode(self, position: int, record: bytes) -> Envelope | None:
        try:
            old = self._recorder.codec.decode_envelope(record)
        except InvalidMessage as error:
            self._on_invalid(position, record, error)
            return None
        fresh = self._intake.enclose(old.message, old.session, old.priority)
        return msgspec.structs.replace(
            fresh,
            time_ms=old.time_ms,
            headers={**old.headers, REDELIVERY_HEADER: "1"},
            correlation_id=old.correlation_id,
            causation_id=old.causation_id,
            given_id=old.id,
        )

    async def _hand_over(self, envelope: Envelope) -> None:
        if not self._is_wanted(envelope):
            self._held.append(envelope)
            while len(self._held) >= HELD_MAX:
                self._less_held.clear()
                await self._less_held.wait()
            return
        lane = self._intake.lane_of(envelope)
        while lane.queue.room < 1:
            await lane.wait_for_room()
        self._give(envelope)

    def _give(self, envelope: Envelope) -> None:
        self.redelivered += 1
        self._intake.deliver(envelope)

    def _is_wanted(self, envelope: Envelope) -> bool:
        plan = self._intake.dispatch.registry.plan(type(envelope.message), envelope.session)
        return bool(plan.handlers)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
