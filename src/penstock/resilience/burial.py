"""How messages become dead letters, and how they come back to their handler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from penstock.bus.delivery import Attempts, delivery_of
from penstock.bus.dispatch import Dispatch
from penstock.bus.drive import current
from penstock.bus.handlers import Handler
from penstock.bus.intake import Intake
from penstock.bus.registry import Registry
from penstock.errors import Closed
from penstock.hashing import hashable
from penstock.messages import Envelope, dotted_name
from penstock.resilience.dead_letters import DeadLetter, DeadLetterQueue, Reason, event_of
from penstock.resilience.describe import describe
from penstock.resilience.guard import REPLAY_HEADER
from penstock.resilience.letters import DeadLetterCommandEvent, DeadLetterEvent
from penstock.resilience.parking import guard_of

logger = logging.getLogger("penstock.resilience")

TOLD_OF = (DeadLetterEvent, DeadLetterCommandEvent)


class Burial:
    """Writes dead letters for one bus, and takes them out again."""

    def __init__(self, letters: DeadLetterQueue, dispatch: Dispatch, intake: Intake) -> None:
        self.letters = letters
        self._dispatch = dispatch
        self._intake = intake
        letters.on_removed(self._unblock)

    # In

    def bury(
        self,
        handler: Handler,
        envelope: Envelope,
        error: BaseException,
        attempts: Attempts,
        reason: Reason,
    ) -> None:
        """Make a dead letter of an event; the event is not settled before the letter is safe."""
        self._block(handler, envelope)
        self._add(envelope, self._letter(handler.name, envelope, error, attempts, reason))

    def bury_event(
        self, part: str, envelope: Envelope, error: BaseException, attempts: Attempts
    ) -> None:
        """Make a dead letter of an event that a part of the bus kept from all handlers by failing."""
        self._add(envelope, self._letter(part, envelope, error, attempts, Reason.FAILED))

    def _add(self, envelope: Envelope, letter: DeadLetter) -> None:
        if self.letters.waits:
            delivery_of(envelope).open += 1
            saving = self._dispatch.spawn(self._save(letter, envelope))
            # Also where the bus stops and cancels it before it has begun.
            saving.add_done_callback(lambda _: self._dispatch.release(envelope))
        else:
            self._keep(letter, envelope)

    def bury_record(self, topic: str, record: Any, error: Exception) -> None:
        """Make a dead letter of a record that is no message of a known class."""
        told = describe(error)
        now_ms = self._intake.now_ms()
        letter = DeadLetter(
            id=self.letters.next_id(),
            topic=topic,
            message_type=record.headers.get("penstock-type", b"").decode("utf-8", "replace"),
            reason=Reason.NOT_DECODED,
            raw=record.value,
            error_type=told.type,
            error=told.text,
            first_failed_ms=now_ms,
            last_failed_ms=now_ms,
            partition=record.partition,
            offset=record.offset,
        )
        if self.letters.waits:
            self._dispatch.spawn(self._save(letter))
        else:
            self._keep(letter)

    def bury_command(
        self, handler: Handler, envelope: Envelope, error: BaseException, attempts: Attempts
    ) -> None:
        """Make a dead letter of a command, whose caller gets the error as well."""
        letter = self._letter(handler.name, envelope, error, attempts, Reason.FAILED, command=True)
        if self.letters.waits:
            self._dispatch.spawn(self._save(letter, envelope))
        else:
            self._keep(letter, envelope)

    async def bury_stopped(self, envelope: Envelope) -> None:
        """Keep an event that ``stop`` found unfinished, for each handler that is not done with it."""
        error = Closed("the bus was stopped before the handler was done with the event")
        delivery = delivery_of(envelope)
        plan = self._registry.plan(type(envelope.message), envelope.session)
        for handler in plan.handlers:
            if handler not in delivery.done and handler not in delivery.given_up:
                attempts = delivery.attempts.get(handler) or Attempts()
                ended = (handler.name, envelope, error, attempts, Reason.STOPPED)
                await self._save(self._letter(*ended), envelope)

    def _keep(self, letter: DeadLetter, envelope: Envelope | None = None) -> None:
        try:
            self.letters.add_nowait(letter)
        except Exception:
            logger.exception(
                "a message of %s is lost: no room for a dead letter",
                letter.topic,
                extra=_fields(letter),
            )
        else:
            self._tell(letter, envelope)

    def _save(
        self, letter: DeadLetter, envelope: Envelope | None = None
    ) -> Coroutine[Any, Any, None]:
        """Keep a letter, which is done when this returns; what it returns writes it, and tells.

        So a task that is cancelled before it begins, as the bus stops, has lost nothing.
        """
        try:
            self.letters.keep(letter)
        except Exception as error:
            return self._write(letter, envelope, error)
        return self._write(letter, envelope)

    async def _write(
        self, letter: DeadLetter, envelope: Envelope | None, refusal: Exception | None = None
    ) -> None:
        try:
            if refusal is not None:
                raise refusal
            await self.letters.write(letter)
        except Exception:
            logger.exception(
                "the dead letter %s is not on the disk", letter.id, extra=_fields(letter)
            )
        self._tell(letter, envelope)

    def _tell(self, letter: DeadLetter, envelope: Envelope | None) -> None:
        """Publish an event about the letter, as what follows from its message: also while the bus drains."""
        before = current.set(envelope)
        try:
            self._publish_about(letter)
        finally:
            current.reset(before)

    def _publish_about(self, letter: DeadLetter) -> None:
        """Once, if somebody listens; never about such an event."""
        event = event_of(letter)
        listeners = self._registry.plan(type(event), letter.session).handlers
        if not listeners or letter.message_type in map(dotted_name, TOLD_OF):
            return
        try:
            envelope = self._intake.enclose(event, letter.session)
            told = self._intake.offer(envelope, extra=self._intake.options.capacity)
            why: object = "the queue is full"
        except Exception as error:
            # The letter is kept: its event has to be settled, whether the bus stops, or a filter or an observer fails.
            told, why = False, error
        if not told:
            logger.warning("nobody is told of dead letter %s: %s", letter.id, why)

    @property
    def _registry(self) -> Registry:
        return self._dispatch.registry

    # Order of keys

    def _block(self, handler: Handler, envelope: Envelope) -> None:
        guard = guard_of(handler)
        key = hashable(envelope.key)
        if guard.policy.ordered_dead_letters and key is not None:
            guard.blocked[key] = guard.blocked.get(key, 0) + 1
            guard.look()

    def _unblock(self, letter: DeadLetter) -> None:
        handler, key = self._handler_of(letter), hashable(letter.key)
        if handler is None or key not in guard_of(handler).blocked:
            return
        blocked = guard_of(handler).blocked
        blocked[key] -= 1
        if not blocked[key]:
            del blocked[key]
            guard_of(handler).look()

    # Out

    async def send_again(self, letter: DeadLetter) -> asyncio.Future[bool] | None:
        """Send a letter's message to the handler that failed on it; to all if that is gone.

        An event of a durable topic is for its group alone. For such a one, returns what will tell
        whether a handler took it: until then the letter is all that survives a crash.
        """
        envelope = self._intake.enclose(
            letter.message,
            letter.session,
            letter.priority,
            {**letter.headers, REPLAY_HEADER: str(letter.replays)},
            letter.correlation_id,
        )
        handler = self._handler_of(letter)
        if handler is not None:
            plan = self._registry.plan(type(letter.message), letter.session)
            others = {other for other in plan.handlers if other is not handler}
            delivery_of(envelope).done.update(others)
            delivery_of(envelope).meant_for = handler
        if letter.group is None:
            self._intake.admit_nowait(envelope)
            return None
        envelope.group = letter.group
        envelope.log_partition, envelope.offset = letter.partition, letter.offset
        delivery = delivery_of(envelope)
        before = len(delivery.done)
        taken: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        delivery.on_outcome = lambda outcome: taken.set_result(
            bool(outcome.failures) or outcome.handled > before
        )
        self._intake.admit_nowait(envelope)
        return taken

    def _handler_of(self, letter: DeadLetter) -> Handler | None:
        for handler in self._registry.handlers():
            if handler.name == letter.handler and handler.session in (letter.session, "BUS"):
                return handler
        return None

    # A letter

    def _letter(
        self,
        handler: str,
        envelope: Envelope,
        error: BaseException,
        attempts: Attempts,
        reason: Reason,
        *,
        command: bool = False,
    ) -> DeadLetter:
        told = describe(error)
        return DeadLetter(
            id=self.letters.next_id(),
            topic=envelope.topic,
            message_type=dotted_name(type(envelope.message)),
            reason=reason,
            message=envelope.message,
            command=command,
            handler=handler,
            session=envelope.session,
            priority=int(envelope.priority),
            headers=dict(envelope.headers),
            key=envelope.key,
            message_id=envelope.id,
            correlation_id=envelope.correlation,
            causation_id=envelope.causation_id,
            published_ms=envelope.time_ms,
            error_type=told.type,
            error=told.text,
            traceback=told.traceback,
            attempts=attempts.count,
            first_failed_ms=attempts.first_failed_ms,
            last_failed_ms=attempts.last_failed_ms,
            replays=_replays(envelope.headers),
            partition=envelope.partition if envelope.offset is None else envelope.log_partition,
            offset=envelope.offset,
            group=envelope.group,
        )


def _replays(headers: Any) -> int:
    count = headers.get(REPLAY_HEADER, "0")
    return int(count) if count.isdecimal() and len(count) < 20 else 0


def _fields(letter: DeadLetter) -> dict[str, Any]:
    """What log lines about a letter carry."""
    return {
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "handler": letter.handler,
        "attempt": letter.attempts,
    }
