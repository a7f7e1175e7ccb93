"""Retry: the waits, their bounds, and which errors are final."""

from __future__ import annotations

import asyncio
import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import (
    BufferFull,
    CircuitOpen,
    HandlerFailed,
    InvalidMessage,
    InvalidOption,
    NoHandler,
    NonRetryable,
)
from penstock.resilience.retry import NO_RETRY, Retry

CHANCE = random.Random(7)


def handler_failed(cause: BaseException) -> HandlerFailed:
    error = HandlerFailed("bill failed", handler="bill")
    error.__cause__ = cause
    return error


@pytest.mark.acceptance(108)
def test_the_wait_doubles_from_a_tenth_of_a_second_to_ten_seconds():
    retry = Retry(attempts=10, jitter=False)
    delays = [retry.after(OSError(), attempt, 0.0, CHANCE) for attempt in range(1, 10)]
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


@pytest.mark.acceptance(108)
def test_by_default_there_are_three_attempts_in_total():
    retry = Retry()
    assert retry.after(OSError(), 1, 0.0, CHANCE) is not None
    assert retry.after(OSError(), 2, 0.0, CHANCE) is not None
    assert retry.after(OSError(), 3, 0.0, CHANCE) is None
    assert NO_RETRY.after(OSError(), 1, 0.0, CHANCE) is None


@pytest.mark.acceptance(108)
@given(
    delay=st.floats(0, 100),
    factor=st.floats(1, 10),
    more=st.floats(0, 1000),
    attempt=st.integers(2, 1000),
    seed=st.integers(),
)
def test_full_jitter_stays_within_its_bounds(delay, factor, more, attempt, seed):
    retry = Retry(delay=delay, factor=factor, delay_max=delay + more)
    wait = retry.delay_before(attempt, random.Random(seed))
    assert 0.0 <= wait <= retry.delay_before(attempt) <= retry.delay_max


@pytest.mark.acceptance(108)
def test_full_jitter_uses_the_whole_range():
    retry = Retry(delay=1.0, delay_max=1.0)
    waits = [retry.delay_before(2, CHANCE) for _ in range(1000)]
    assert min(waits) < 0.05
    assert max(waits) > 0.95
    assert 0.45 < sum(waits) / len(waits) < 0.55


def test_a_huge_attempt_number_waits_no_longer_than_the_bound():
    assert Retry(attempts=1000, factor=10.0, jitter=False).delay_before(1000) == 10.0
    assert Retry(delay=0.0, factor=10.0).delay_before(1000) == 0.0


def test_the_first_attempt_does_not_wait():
    assert Retry().delay_before(1, CHANCE) == 0.0


def test_no_attempt_begins_after_the_deadline():
    retry = Retry(attempts=100, jitter=False, deadline=1.0)
    assert retry.after(OSError(), 1, 0.9, CHANCE) == 0.1
    assert retry.after(OSError(), 1, 0.91, CHANCE) is None
    assert retry.after(OSError(), 1, 1.5, CHANCE) is None


def test_without_a_deadline_the_attempts_are_the_bound():
    retry = Retry(attempts=5, deadline=None)
    assert retry.after(OSError(), 4, 1e9, CHANCE) is not None
    assert retry.after(OSError(), 5, 0.0, CHANCE) is None


@pytest.mark.acceptance(109)
@pytest.mark.parametrize(
    "error",
    [
        NoHandler("nobody handles it"),
        InvalidMessage("does not decode"),
        msgspec.ValidationError("wrong type"),
        NonRetryable("no use"),
        asyncio.CancelledError(),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_that_stay_are_not_retried(error):
    assert not Retry().retries(error)
    assert Retry().after(error, 1, 0.0, CHANCE) is None


@pytest.mark.acceptance(109)
def test_a_validation_error_of_pydantic_is_known_by_its_name():
    kind = type("ValidationError", (ValueError,), {"__module__": "pydantic_core._pydantic_core"})
    own = type("ValidationError", (ValueError,), {"__module__": "shop.errors"})
    assert not Retry().retries(kind("x"))
    assert Retry().retries(own("x"))


@pytest.mark.parametrize(
    "error", [OSError(), ValueError(), BufferFull("full"), CircuitOpen("open")]
)
def test_other_errors_are_retried(error):
    assert Retry().retries(error)


def test_retry_on_and_give_up_on_choose_by_class():
    retry = Retry(retry_on=(OSError,), give_up_on=(FileNotFoundError,))
    assert retry.retries(ConnectionError())
    assert not retry.retries(FileNotFoundError())
    assert not retry.retries(ValueError())


@pytest.mark.acceptance(109)
def test_a_handler_that_called_a_failing_handler_is_judged_by_the_first_error():
    inner = handler_failed(handler_failed(NonRetryable("no use")))
    assert not Retry().retries(inner)
    assert Retry(retry_on=(OSError,)).retries(handler_failed(OSError()))
    assert not Retry(retry_on=(OSError,)).retries(handler_failed(ValueError()))
    assert Retry().retries(HandlerFailed("without a cause"))


def test_a_group_is_retried_when_each_of_its_errors_is():
    retry = Retry(retry_on=(OSError,))
    assert retry.retries(ExceptionGroup("two", [OSError(), TimeoutError()]))
    assert not retry.retries(ExceptionGroup("two", [OSError(), ValueError()]))
    nested = ExceptionGroup("a", [ExceptionGroup("b", [NonRetryable("no use")])])
    assert not Retry().retries(nested)


@pytest.mark.parametrize(
    "options",
    [
        {"attempts": 0},
        {"attempts": 1001},
        {"delay": -0.1},
        {"delay": math.nan},
        {"delay": math.inf, "delay_max": math.inf},
        {"factor": 0.5},
        {"delay": 1.0, "delay_max": 0.5},
        {"deadline": -1.0},
        {"deadline": math.inf},
        {"retry_on": OSError},
        {"retry_on": ("OSError",)},
        {"retry_on": (NoHandler,)},
        {"give_up_on": [OSError]},
    ],
    ids=str,
)
def test_an_option_outside_its_range_is_refused(options):
    with pytest.raises(InvalidOption) as caught:
        Retry(**options)
    assert caught.value.option in options
