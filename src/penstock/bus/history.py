"""The history of a bus: its event log, what is delivered again, and replay."""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.bus.encoding import EncodedEnvelope, MessageCodec
from penstock.bus.event_log import EventLogSource, EventLogStatistics, EventRecorder
from penstock.bus.intake import Intake
from penstock.bus.redelivery import InvalidCallback, Redelivery
from penstock.errors import InvalidMessage, InvalidOption, UsageError
from penstock.messages import Envelope, marks_of

if TYPE_CHECKING:
    from penstock.bus.bus import MessageBus

logger = logging.getLogger("penstock.bus")

REPLAY_HEADER = "x-penstock-replay"
"""On an event that is published again by a replay: the id that it had."""


class EventHistory:
    """What a bus with ``event_log=True`` knows of its past; ``bus.history`` is it.

    Every event that is let in is kept, in the order of publishing. After a crash those that were
    not settled are delivered again, at least once, under the id that they had. A bus without an
    event log has an empty history, and refuses to replay.
    """

    def __init__(
        self,
        intake: Intake,
        codec: MessageCodec,
        log: EventLogSource | None,
        name: str,
        *,
        redeliver: bool = True,
    ) -> None:
        self._intake = intake
        self._codec = codec
        self._redeliver = redeliver
        self._recorder: EventRecorder | None = None
        self._redelivery: Redelivery | None = None
        self._invalid = 0
        self._invalid_callbacks: list[InvalidCallback] = []
        if log is not None:
            recorder = EventRecorder(log.event_log(name), codec, intake.timers, intake.deliver)
            self._recorder = intake.recorder = recorder
            self._redelivery = Redelivery(recorder, intake, self._tell_invalid)
            intake.dispatch.on_settled = recorder.settled
        self._backlog = (0, 0)

    # What the bus calls

    async def open(self) -> None:
        """Claim the log; SubscriberBusy when another live bus of that name has it."""
        if self._recorder is not None:
            self._backlog = await self._recorder.open()

    async def deliver_again(self) -> None:
        """Queue what was not settled in an earlier life. The bus runs already."""
        if self._recorder is None or self._redelivery is None:
            return
        if self._redeliver:
            await self._redelivery.run(*self._backlog)
        else:
            self._recorder.positions.read(None)

    async def publish(self, envelope: Envelope, timeout: float) -> None:
        """Publish an event durably: wait for room, write it, then queue it.

        Raises DeadlineExceeded after ``timeout``; the event may be published all the same.
        """
        recorder = self._live()
        async with self._intake.timers.deadline(timeout, f"publish {envelope.topic} durably"):
            if await self._intake.wait_for_admission(envelope):
                await recorder.publish([envelope])

    async def publish_all(self, envelopes: Sequence[Envelope], timeout: float) -> None:
        """Publish events that were let in, durably: all or none."""
        recorder = self._live()
        async with self._intake.timers.deadline(timeout, "publish a group durably"):
            if envelopes:
                await recorder.publish(envelopes)

    def delivers_again(self, envelope: Envelope) -> bool:
        """Whether an event that is not settled comes again when the bus is next started."""
        recorder = self._recorder
        return recorder is not None and self._redeliver and recorder.positions.keeps(envelope)

    def handlers_changed(self) -> None:
        """Somebody listens to more than before."""
        if self._redelivery is not None:
            self._redelivery.handlers_changed()

    async def flush(self) -> None:
        """Return when everything that was published is written."""
        if self._recorder is not None:
            await self._recorder.flush()

    async def close(self, *, orderly: bool = False) -> None:
        """Write down what is handled and let another bus have the log. Idempotent."""
        if self._recorder is not None and self._redelivery is not None:
            await self._redelivery.stop(orderly=orderly)
            await self._recorder.close(self._intake.refusal)

    # What programs call

    def on_invalid(self, callback: InvalidCallback) -> None:
        """Call back with every record that does not decode: its position, bytes and why.

        It is logged too, and stays in the log. Without a callback that is all.
        """
        self._invalid_callbacks.append(callback)

    async def replay(
        self,
        *,
        since: dt.datetime | None = None,
        until: dt.datetime | None = None,
        types: Sequence[type] = (),
        replays: bool = False,
    ) -> AsyncIterator[Envelope]:
        """The events of the log, oldest first, for inspection: nothing is published.

        Those that were published from ``since`` on and before ``until``, of the named classes and
        classes derived from them, up to what was published when the replay began. Events that a
        replay published are left out unless ``replays`` is True. What does not decode is told to
        ``on_invalid``.
        """
        recorder = self._live()
        wanted = _Selection(self._codec, since, until, types, replays=replays)
        await recorder.flush()
        async for position, record in recorder.log.read():
            try:
                encoded = self._codec.read_envelope(record)
                envelope = self._codec.open_envelope(encoded) if wanted.takes(encoded) else None
            except InvalidMessage as error:
                self._tell_invalid(position, record, error)
                continue
            if envelope is not None:
                yield envelope

    async def replay_into(
        self, target: MessageBus | Callable[[Envelope], Any], **selection: Any
    ) -> int:
        """Publish events of the log again, on this bus or another, or hand them to a function.

        They are selected as by :meth:`replay`. On a bus they get a new id, and the header
        ``x-penstock-replay`` with the old one, so that handlers can tell. A function gets the
        envelope, and is awaited if it is async. Returns how many there were. When publishing, or
        the function, raises, the replay ends there.
        """
        count = 0
        async for envelope in self.replay(**selection):
            if callable(target):
                result = target(envelope)
                if inspect.isawaitable(result):
                    await result
            else:
                await _publish_again(target, envelope)
            count += 1
            if count % 100 == 0:
                await asyncio.sleep(0)
        return count

    def statistics(self) -> EventLogStatistics | None:
        """The figures of this moment; None without an event log."""
        recorder, redelivery = self._recorder, self._redelivery
        if recorder is None or redelivery is None:
            return None
        return EventLogStatistics(
            logged=recorder.logged,
            pending=recorder.waiting,
            lost=recorder.lost,
            redelivered=redelivery.redelivered,
            held=redelivery.held,
            invalid=self._invalid,
            unsettled=recorder.positions.open,
            handled_position=recorder.positions.handled(),
            end_position=recorder.positions.end,
            failing=recorder.failing,
        )

    # Inside

    def _live(self) -> EventRecorder:
        if self._recorder is None:
            raise UsageError(
                "this bus keeps no events: give it a log, MessageBus(log=queue, event_log=True)"
            )
        return self._recorder

    def _tell_invalid(self, position: int, record: bytes, error: InvalidMessage) -> None:
        self._invalid += 1
        logger.error("event %d of the log does not decode: %s", position, error)
        for callback in self._invalid_callbacks:
            try:
                callback(position, record, error)
            except Exception:
                logger.exception("a callback for invalid events failed")


def event_log_of(log: object) -> EventLogSource:
    """The log, if it can keep events."""
    if not isinstance(log, EventLogSource):
        raise UsageError("event_log=True needs a log that keeps events: MessageBus(log=queue, ...)")
    return log


class _Selection:
    """Which events of the log a replay wants, by what stands on the envelope."""

    def __init__(
        self,
        codec: MessageCodec,
        since: dt.datetime | None,
        until: dt.datetime | None,
        types: Sequence[type],
        *,
        replays: bool,
    ) -> None:
        self._codec = codec
        self._since, self._until = _milliseconds(since), _milliseconds(until)
        self._types = tuple(types)
        self._topics = {marks_of(kind).topic for kind in types}
        self._replays = replays
        for kind in types:
            codec.register(kind)

    def takes(self, encoded: EncodedEnvelope) -> bool:
        """Whether the event is to be replayed."""
        if REPLAY_HEADER in encoded.headers and not self._replays:
            return False
        if self._since is not None and encoded.time_ms < self._since:
            return False
        if self._until is not None and encoded.time_ms >= self._until:
            return False
        return not self._types or self._is_of_type(encoded)

    def _is_of_type(self, encoded: EncodedEnvelope) -> bool:
        try:
            return issubclass(self._codec.class_of(encoded), self._types)
        except InvalidMessage:
            return encoded.topic in self._topics


def _milliseconds(moment: dt.datetime | None) -> int | None:
    if moment is None:
        return None
    if moment.tzinfo is None:
        raise InvalidOption("the time needs a time zone, for example datetime.now(UTC)")
    return int(moment.timestamp() * 1000)


async def _publish_again(bus: MessageBus, envelope: Envelope) -> None:
    await bus.publish(
        envelope.message,
        session=envelope.session,
        priority=envelope.priority,
        headers={**envelope.headers, REPLAY_HEADER: envelope.id},
        correlation_id=envelope.correlation,
    )
