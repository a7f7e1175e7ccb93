"""Middleware that comes with the bus: logging, timing, validation, rate limits, retries.

``bus.use(Timing())`` puts one around every event and every command; ``bus.use(..., commands=False)``
around events alone. The first one that is used is the outermost. A middleware is any async function
of an envelope and ``following``, which passes the envelope, or another one, on. What a handler
raises comes through it as HandlerFailed with the handler's error as its cause.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import decimal
import logging
import uuid
from collections.abc import Callable
from typing import Any

import msgspec

from penstock.bus.delivery import Delivery
from penstock.bus.formats import adapter, is_pydantic
from penstock.bus.middleware import Next
from penstock.bus.timers import Timers
from penstock.bus.timing import Ending, Timing, TimingStatistics
from penstock.decoding import prepare
from penstock.errors import HandlerFailed, InvalidMessage, InvalidOption, RateLimited
from penstock.messages import Command, Envelope
from penstock.system import Clock, OsClock

__all__ = [
    "Ending",
    "Logging",
    "RateLimit",
    "RetryMiddleware",
    "Timing",
    "TimingStatistics",
    "Validation",
]

WAIT_SECONDS_MAX = 30.0
ATTEMPTS_MAX = 1_000
NANOSECOND = 1e-9

BUILTIN_TYPES = (
    bytes,
    bytearray,
    dt.datetime,
    dt.date,
    dt.time,
    dt.timedelta,
    uuid.UUID,
    decimal.Decimal,
)
"""What a field holds as an object, not as the text that stands for it."""


# --------------------------------------------------------------------------------- looking on


class Logging:
    """Logs every message when it is done: at ``level``, or as a warning when something failed.

    The fields topic, message_id, session, correlation_id, ending and seconds are in ``extra``.
    """

    def __init__(
        self,
        logger: logging.Logger | None = None,
        *,
        level: int = logging.DEBUG,
        clock: Clock | None = None,
    ) -> None:
        self._logger = logger or logging.getLogger("penstock.bus.messages")
        self._level = level
        self._now = (clock or OsClock()).monotonic

    async def __call__(self, envelope: Envelope, following: Next) -> Any:
        begin = self._now()
        try:
            result = await following(envelope)
        except asyncio.CancelledError:
            self._log(self._level, envelope, Ending.CANCELLED, begin)
            raise
        except Exception as error:
            self._log(logging.WARNING, envelope, Ending.FAILED, begin, error)
            raise
        self._log(self._level, envelope, Ending.OK, begin)
        return result

    def _log(
        self,
        level: int,
        envelope: Envelope,
        ending: Ending,
        begin: float,
        error: Exception | None = None,
    ) -> None:
        if not self._logger.isEnabledFor(level):
            return
        seconds = self._now() - begin
        extra = {
            "topic": envelope.topic,
            "message_id": envelope.id,
            "session": envelope.session,
            "correlation_id": envelope.correlation,
            "ending": str(ending),
            "seconds": seconds,
        }
        why = f": {error}" if error is not None else ""
        text = "%s %s %s after %.6f s%s"
        self._logger.log(
            level, text, envelope.topic, envelope.id, ending, seconds, why, extra=extra
        )


# ------------------------------------------------------------------------------- stepping in


class Validation:
    """Lets only those messages through whose fields have the types that their class declares.

    Python does not check them when a message is made. A ``validator`` of yours is asked after that,
    or alone with ``fields=False``, as messages need whose fields hold objects that msgspec does not
    know. It says no by raising or by returning False. What does not pass is InvalidMessage: the
    command's error, or a failure of the event.
    """

    def __init__(
        self, validator: Callable[[Any], object] | None = None, *, fields: bool = True
    ) -> None:
        self._validator = validator
        self._fields = fields

    async def __call__(self, envelope: Envelope, following: Next) -> Any:
        self.check(envelope)
        return await following(envelope)

    def check(self, envelope: Envelope) -> None:
        """Raise InvalidMessage when the message is not valid."""
        try:
            if self._fields:
                check_fields(envelope.message)
            if self._validator is not None and self._validator(envelope.message) is False:
                raise ValueError("the validator said no")
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise InvalidMessage(
                f"a message of {envelope.topic} is not valid: {reason}",
                topic=envelope.topic,
                reason=reason,
            ) from error


def check_fields(message: Any) -> None:
    """Raise when a field of a message has another type than its class declares."""
    kind: type = message.__class__
    if is_pydantic(kind):
        fields = adapter(kind).dump_python(message, round_trip=True, warnings=False)
        adapter(kind).validate_python(fields, by_alias=True, by_name=True)
    else:
        prepare(kind)
        fields = msgspec.to_builtins(message, builtin_types=BUILTIN_TYPES)
        msgspec.convert(fields, kind, builtin_types=BUILTIN_TYPES)


class RateLimit:
    """Lets ``rate`` messages a second through on average, and ``burst`` of them at once.

    ``wait`` says what happens to one too many: True delays it, which holds up its lane but no
    other; False raises RateLimited with ``retry_after``. By default events wait and commands are
    refused, so that their result has the code RATE_LIMITED. Nobody waits longer than ``wait_max``
    seconds; who would have to is refused at once. Who is cancelled while it waits gives its place
    back.
    """

    def __init__(
        self,
        rate: float,
        burst: int = 1,
        *,
        wait: bool | None = None,
        wait_max: float = WAIT_SECONDS_MAX,
        clock: Clock | None = None,
    ) -> None:
        if not 0 < rate < float("inf") or burst < 1 or not wait_max >= 0:
            raise InvalidOption(
                f"a rate of {rate} a second with a burst of {burst} and {wait_max} s to wait: use "
                "a rate above 0, a burst of 1 or more, and no time below 0",
                option="rate",
            )
        self._rate = rate
        self._burst = float(burst)
        self._wait = wait
        self._wait_max = wait_max
        self._timers = Timers(clock or OsClock())
        self._tokens = self._burst
        self._seen = self._timers.clock.monotonic()

    async def __call__(self, envelope: Envelope, following: Next) -> Any:
        delay = self._take(self._may_wait(envelope), envelope.topic)
        if delay > 0:
            try:
                await self._timers.sleep(delay)
            except asyncio.CancelledError:
                self._tokens += 1.0
                raise
        return await following(envelope)

    def _may_wait(self, envelope: Envelope) -> bool:
        return not isinstance(envelope.message, Command) if self._wait is None else self._wait

    def _take(self, may_wait: bool, topic: str) -> float:
        """Take a token, if need be one of the future; returns the seconds until it is there."""
        now = self._timers.clock.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._seen) * self._rate)
        self._seen = now
        delay = (1.0 - self._tokens) / self._rate
        if delay < NANOSECOND:  # no clock is finer; it is the rounding of the sums above
            delay = 0.0
        if delay > (self._wait_max if may_wait else 0.0):
            raise RateLimited(
                f"more than {self._rate:g} messages a second: try {topic} again in {delay:.3f} s",
                retry_after=delay,
                topic=topic,
            )
        self._tokens -= 1.0
        return delay


class RetryMiddleware:
    """Calls what failed again, at once or after a delay that doubles, and meanwhile holds up the lane.

    For the plain bus; ResilientMessageBus retries without holding up anything. Of an event only
    those handlers are called again that have not succeeded. A failure is tried again when the
    handler's error is one of ``retry_on``.
    """

    def __init__(
        self,
        attempts: int = 3,
        *,
        delay: float = 0.0,
        delay_max: float = 10.0,
        retry_on: tuple[type[BaseException], ...] = (Exception,),
        clock: Clock | None = None,
    ) -> None:
        if not 1 <= attempts <= ATTEMPTS_MAX or not 0 <= delay <= delay_max:
            raise InvalidOption(
                f"{attempts} attempts, {delay} s up to {delay_max} s apart: use 1..{ATTEMPTS_MAX} "
                "attempts and 0 <= delay <= delay_max",
                option="attempts",
            )
        self._attempts = attempts
        self._delay = delay
        self._delay_max = delay_max
        self._retry_on = retry_on
        self._timers = Timers(clock or OsClock())

    async def __call__(self, envelope: Envelope, following: Next) -> Any:
        for attempt in range(1, self._attempts):
            try:
                return await following(envelope)
            except Exception as error:
                if not any(isinstance(one, self._retry_on) for one in causes(envelope, error)):
                    raise
            if self._delay:
                await self._timers.sleep(min(self._delay * 2 ** (attempt - 1), self._delay_max))
        return await following(envelope)


def causes(envelope: Envelope, error: Exception) -> list[BaseException]:
    """The errors of the handlers behind what a middleware sees; the error itself when it is its own."""
    if not isinstance(error, HandlerFailed):
        return [error]
    delivery: Delivery | None = envelope.delivery
    failures = [failure.error for failure in delivery.failures] if delivery is not None else []
    return failures or [error.__cause__ or error]
