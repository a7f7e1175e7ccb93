"""Retry: how often a failed call is made again, how long to wait in between, and when to give up.

A policy is a value. It decides and does not wait: who applies it knows the clock and the timers.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

import msgspec

from penstock.errors import HandlerFailed, InvalidOption, NonRetryable, UsageError
from penstock.resilience.options import ErrorTypes, check_error_types, check_range

ATTEMPTS_MAX = 1_000
CAUSES_MAX = 32
"""How deep a chain of handlers that call handlers is looked into."""

NEVER: ErrorTypes = (
    UsageError,  # the call is wrong, and stays wrong
    msgspec.ValidationError,
    NonRetryable,
    asyncio.CancelledError,
    KeyboardInterrupt,
    SystemExit,
    GeneratorExit,
)
"""Errors that the same call would only meet again, and requests to stop."""


class Chance(Protocol):
    """The part of ``random.Random`` that jitter needs."""

    def uniform(self, a: float, b: float) -> float:
        """A number from a to b, each as likely as any other."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """When and how often a failed call is made again.

    The wait doubles (``factor``) from ``delay`` to ``delay_max``. With jitter, which is the default,
    a wait is drawn evenly from zero to that (full jitter), so that calls that failed together do
    not come back together.

    The last error counts: an error that is not in ``retry_on``, is in ``give_up_on``, or can never
    go away (see ``NEVER``) ends it at once.
    """

    attempts: int = 3
    """Calls in total, the first one included; 1 means no retry."""
    delay: float = 0.1
    """Seconds before the second attempt."""
    factor: float = 2.0
    """What each wait is multiplied with to get the next."""
    delay_max: float = 10.0
    """Seconds that a wait has at most."""
    jitter: bool = True
    deadline: float | None = 60.0
    """Seconds after which no attempt begins; None leaves it to ``attempts``.

    A bus counts them from the first failure, so that a call that succeeds needs no look at the
    clock; a stream, whose calls are timed anyway, from the beginning of the first call.
    """
    retry_on: ErrorTypes = (Exception,)
    give_up_on: ErrorTypes = ()
    """Errors that are final, also when ``retry_on`` has a base class of theirs."""

    def __post_init__(self) -> None:
        check_range("attempts", self.attempts, 1, ATTEMPTS_MAX)
        check_range("delay", self.delay, 0)
        check_range("factor", self.factor, 1)
        check_range("delay_max", self.delay_max, self.delay)
        if self.deadline is not None:
            check_range("deadline", self.deadline, 0)
        check_error_types("retry_on", self.retry_on)
        check_error_types("give_up_on", self.give_up_on)
        for kind in self.retry_on:
            if issubclass(kind, NEVER):
                raise InvalidOption(
                    f"retry_on has {kind.__name__}, which is never retried: raise another error",
                    option="retry_on",
                )

    def after(
        self, error: BaseException, attempt: int, elapsed: float, random: Chance
    ) -> float | None:
        """Seconds to wait before the next attempt, or None to give up.

        ``attempt`` is the number of calls so far, ``elapsed`` the seconds of ``deadline``
        that are over.
        """
        if attempt >= self.attempts or not self.retries(error):
            return None
        delay = self.delay_before(attempt + 1, random)
        if self.deadline is not None and elapsed + delay > self.deadline:
            return None
        return delay

    def delay_before(self, attempt: int, random: Chance | None = None) -> float:
        """Seconds to wait before that attempt; without a source of chance, the bound of the wait."""
        if attempt <= 1:
            return 0.0
        try:
            bound = min(self.delay * self.factor ** (attempt - 2), self.delay_max)
        except OverflowError:
            bound = self.delay_max if self.delay else 0.0
        return random.uniform(0.0, bound) if self.jitter and random is not None else bound

    def retries(self, error: BaseException) -> bool:
        """Whether this kind of error may go away. A group may when each of its errors may."""
        error = _root_of(error)
        if isinstance(error, self.give_up_on) or is_final(error):
            return False
        if isinstance(error, BaseExceptionGroup):
            return all(self.retries(one) for one in error.exceptions)
        return isinstance(error, self.retry_on)


NO_RETRY = Retry(attempts=1)
"""One call, and no other."""


def is_final(error: BaseException) -> bool:
    """Whether the same call would meet the same error again, whatever the policy says."""
    return isinstance(error, NEVER) or _is_invalid_model(type(error))


def _is_invalid_model(kind: type) -> bool:
    """Whether it is pydantic's ValidationError, told by its name: pydantic may not be installed."""
    return any(
        base.__name__ == "ValidationError" and base.__module__.startswith("pydantic")
        for base in kind.__mro__
    )


def _root_of(error: BaseException) -> BaseException:
    """What a handler raised, when the error only says that a handler it called failed."""
    for _ in range(CAUSES_MAX):
        if not isinstance(error, HandlerFailed) or error.__cause__ is None:
            break
        error = error.__cause__
    return error
