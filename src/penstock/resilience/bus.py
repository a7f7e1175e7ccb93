"""The resilient bus: a message bus that tries again, breaks circuits and keeps dead letters."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from penstock.bus.bus import MessageBus
from penstock.bus.commands import HandlerRaised
from penstock.bus.encoding import MessageCodec
from penstock.bus.firing import SCHEDULE_HEADER
from penstock.bus.handlers import Handler
from penstock.bus.intake import QueueOptions
from penstock.bus.journal import JournalLog
from penstock.bus.timers import Deadline
from penstock.errors import InvalidOption, UsageError
from penstock.messages import Envelope
from penstock.resilience.breaker import BreakerOptions, BreakerState, CircuitBreaker
from penstock.resilience.burial import Burial
from penstock.resilience.dead_letters import (
    DeadLetter,
    DeadLetterOptions,
    DeadLetterQueue,
    LetterCodec,
)
from penstock.resilience.guard import HandlerGuard, HandlerPolicy
from penstock.resilience.parking import Parking, guard_of
from penstock.resilience.recovery import Recovery, refusal
from penstock.resilience.retry import NO_RETRY, Retry
from penstock.resilience.tracking import ErrorStatistics, ErrorTracker
from penstock.system import System

OPTIONS = {"retry", "retries", "breaker", "ordered", "pause", "ordered_dead_letters"}

BreakerCallback = Callable[[str, BreakerState, BreakerState], None]
"""Called with a handler's name, the state before and the state now."""


class ResilientMessageBus(MessageBus):
    """A :class:`MessageBus` whose failures do not get lost.

    A handler that raises is called again (``retry``), without holding up its lane. What fails for
    good is kept as a dead letter (``dead_letters``). A handler that fails too often is not called
    for a while (``breaker``). Each of them can be set for one handler:
    ``@bus.on(OrderPlaced, retry=Retry(attempts=5), breaker=None, ordered=True)``; ``retries=5`` is
    short for five attempts after the first.

    ``ordered`` keeps the order of a key through retries: later events of that key wait.
    ``ordered_dead_letters`` keeps it through dead letters too: they follow the first one there.
    ``pause`` makes events wait while the circuit is open, instead of dead-lettering them.
    """

    def __init__(
        self,
        *,
        name: str = "bus",
        queue: QueueOptions | None = None,
        system: System | None = None,
        retry: Retry = Retry(),  # noqa: B008 - a frozen value
        breaker: BreakerOptions | None = BreakerOptions(),  # noqa: B008 - a frozen value
        dead_letters: DeadLetterOptions = DeadLetterOptions(),  # noqa: B008 - a frozen value
        log: JournalLog | None = None,
        codec: MessageCodec | None = None,
        event_log: bool = False,
        redeliver: bool = True,
    ) -> None:
        super().__init__(
            name=name,
            queue=queue,
            system=system,
            log=log,
            codec=codec,
            event_log=event_log,
            redeliver=redeliver,
        )
        self._retry = retry
        self._breaker = breaker
        self._breaker_callbacks: list[BreakerCallback] = []
        self._tracker = ErrorTracker(self._system.clock)
        self._parking = Parking(self._dispatch, self._intake, self._timers)
        letters = self._make_letters(dead_letters)
        self._burial = Burial(letters, self._dispatch, self._intake)
        self._recovery = Recovery(
            self._parking, self._burial.bury, self._burial.bury_event, self._note, self._system
        )
        self._dispatch.failures = self._recovery
        self._commands.around = self._around_command

    def _make_letters(self, options: DeadLetterOptions) -> DeadLetterQueue:
        log, codec = self._log, self._codec
        return DeadLetterQueue(
            options,
            self._system,
            republish=self._send_again,
            codec=LetterCodec(codec.encode, codec.decode),
            journal=None if log is None else log.journal(f"{self.name}.dead-letters"),
        )

    async def _open(self) -> None:
        await self.dead_letters.open()
        await super()._open()

    async def _close(self) -> None:
        await super()._close()
        await self.dead_letters.close()

    async def _halt(self) -> list[Envelope]:
        """Events that are not finished are kept as dead letters when there is a log."""
        undrained = await super()._halt()
        await self.history.flush()
        if self.dead_letters.waits:
            for envelope in undrained:
                # The schedule, the event log and durable topics deliver theirs again.
                again = SCHEDULE_HEADER in envelope.headers or envelope.offset is not None
                if not again and not self.history.delivers_again(envelope):
                    await self._burial.bury_stopped(envelope)
        return undrained

    @property
    def dead_letters(self) -> DeadLetterQueue:
        """What failed for good: look at it, change it, send it back, or throw it away."""
        return self._burial.letters

    def errors(self) -> ErrorStatistics:
        """Failures by handler and by kind of error, with rates, and the latest of them."""
        handlers = list(self._registry.handlers())
        calls: Counter[str] = Counter()
        for handler in handlers:
            calls[handler.name] += handler.handled + handler.failed
        return self._tracker.statistics(calls)

    def breakers(self) -> Mapping[str, CircuitBreaker]:
        """The circuit breakers by handler, with the session where it has one."""
        guards = ((handler, guard_of(handler)) for handler in self._registry.handlers())
        return {
            f"{handler.name}@{handler.session}": guard.breaker
            for handler, guard in guards
            if guard.breaker is not None
        }

    def on_breaker_change(self, callback: BreakerCallback) -> None:
        """Call back when the circuit of any handler opens, is tried, or closes."""
        self._breaker_callbacks.append(callback)

    # Handlers

    def _check_options(self, options: Mapping[str, Any]) -> None:
        unknown = sorted(set(options) - OPTIONS)
        if unknown:
            raise UsageError(
                f"a handler has no option {', '.join(unknown)}: there are {', '.join(sorted(OPTIONS))}"
            )

    def _prepare(self, handler: Handler) -> None:
        policy = self._policy(handler.options)
        breaker = None
        if policy.breaker is not None:
            breaker = CircuitBreaker(policy.breaker, self._system.clock, handler.name)
            breaker.on_change(lambda old, new: self._tell_breaker(handler.name, old, new))
        handler.guard = HandlerGuard(policy, breaker)

    def _policy(self, options: Mapping[str, Any]) -> HandlerPolicy:
        return HandlerPolicy(
            retry=_retry_of(options, self._retry),
            breaker=_breaker_of(options, self._breaker),
            ordered=bool(options.get("ordered")),
            pause=bool(options.get("pause")),
            ordered_dead_letters=bool(options.get("ordered_dead_letters")),
        )

    def _tell_breaker(self, name: str, previous: BreakerState, current: BreakerState) -> None:
        for callback in self._breaker_callbacks:
            callback(name, previous, current)

    # Failures

    def _note(self, handler: Handler, envelope: Envelope, error: BaseException) -> None:
        self._tracker.failed(handler.name, envelope.topic, error)
        self._tell(handler, envelope, error)

    async def _send_again(self, letter: DeadLetter) -> asyncio.Future[bool] | None:
        """Replay a dead letter: a command is executed, an event goes to the handler that failed."""
        if not letter.command:
            return await self._burial.send_again(letter)
        await self.send(letter.message, session=letter.session)
        return None

    def _parked(self) -> list[Envelope]:
        return self._parking.take_out()

    async def _around_command(
        self,
        handler: Handler,
        envelope: Envelope,
        call: Callable[[], Awaitable[Any]],
        deadline: Deadline,
    ) -> Any:
        """Retries and breaker around the handler of a command, within the command's timeout."""
        guard = guard_of(handler)
        while True:
            if not guard.admits(envelope):
                raise refusal(handler)
            try:
                result = await call()
            except HandlerRaised as raised:
                delay = self._delay_after(handler, envelope, raised.error)
                if delay is None:
                    raise
            except asyncio.CancelledError:
                # A handler that takes too long is a failing one; a caller who leaves says nothing.
                guard.failed(TimeoutError()) if deadline.expired else guard.abandoned()
                raise
            except BaseException:
                guard.abandoned()
                raise
            else:
                guard.succeeded()
                return result
            await self._timers.sleep(delay)

    def _delay_after(
        self, handler: Handler, envelope: Envelope, error: BaseException
    ) -> float | None:
        """Note the failure of a command; seconds to the next attempt, None when it is the last."""
        guard = guard_of(handler)
        guard.failed(error)
        self._note(handler, envelope, error)
        attempts = self._recovery.count(handler, envelope)
        elapsed = self._recovery.elapsed(attempts)
        delay = guard.policy.retry.after(error, attempts.count, elapsed, self._system.random)
        if delay is None:
            self._burial.bury_command(handler, envelope, error, attempts)
        return delay


def _retry_of(options: Mapping[str, Any], default: Retry) -> Retry:
    if "retry" in options and "retries" in options:
        raise InvalidOption("give retry or retries, not both", option="retries")
    if "retries" in options:
        return _with_retries(options["retries"])
    chosen = options.get("retry", default)
    if chosen is None:
        return NO_RETRY
    if not isinstance(chosen, Retry):
        raise InvalidOption(
            f"retry={chosen!r}: use Retry(attempts=...), retries=3, or None", option="retry"
        )
    return chosen


def _with_retries(retries: Any) -> Retry:
    if not isinstance(retries, int) or retries < 0:
        raise InvalidOption(f"retries={retries!r}: use a number of 0 or more", option="retries")
    return Retry(attempts=retries + 1)


def _breaker_of(
    options: Mapping[str, Any], default: BreakerOptions | None
) -> BreakerOptions | None:
    chosen = options.get("breaker", default)
    if chosen is None or isinstance(chosen, BreakerOptions):
        return chosen
    raise InvalidOption(f"breaker={chosen!r}: use BreakerOptions(...) or None", option="breaker")
