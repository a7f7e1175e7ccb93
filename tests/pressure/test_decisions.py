"""What happens to one message, at every level, by every strategy that a bus knows."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BusyError, InvalidOption, LoadShed
from penstock.pressure import (
    BackpressureState,
    BackpressureStrategy,
    BackpressureThresholds,
    PublishDecision,
    PublishRules,
    PublishVerdict,
)
from penstock.pressure.decisions import decide, delay_at, shed

NORMAL, WARNING, CRITICAL, SHEDDING = BackpressureState
MARKS = BackpressureThresholds()
BLOCK, SHED = BackpressureStrategy.BLOCK_PRODUCER, BackpressureStrategy.SHED_LOAD


@pytest.mark.acceptance(65)
def test_a_decision_is_a_value_with_three_constants():
    proceed, warn, reject = PublishDecision.PROCEED, PublishDecision.WARN, PublishDecision.REJECT
    assert (proceed.verdict, proceed.delay, proceed.header) == (PublishVerdict.PROCEED, 0, None)
    assert (warn.verdict, warn.level, warn.header) == (PublishVerdict.PROCEED, WARNING, "warning")
    assert (reject.verdict, reject.level, reject.retry_after) == (
        PublishVerdict.REJECT,
        SHEDDING,
        1.0,
    )
    assert not proceed.rejected
    assert reject.rejected
    assert not warn.delayed
    assert all(decision.why for decision in (proceed, warn, reject))
    with pytest.raises(AttributeError):
        proceed.delay = 1.0  # type: ignore[misc]
    assert decide(NORMAL, 0.1) == proceed


@pytest.mark.acceptance(16)
@pytest.mark.parametrize(
    ("level", "share", "critical", "verdict", "delay"),
    [
        (NORMAL, 0.1, False, "proceed", 0),
        (NORMAL, 0.1, True, "proceed", 0),
        (WARNING, 0.7, False, "proceed", 0),
        (WARNING, 0.7, True, "proceed", 0),
        (CRITICAL, 0.85, False, "delay", 0.05),
        (CRITICAL, 0.85, True, "delay", 0.05),
        (SHEDDING, 0.95, False, "reject", 0),
        (SHEDDING, 0.95, True, "delay", 1.0),
    ],
)
def test_the_decision_table(level, share, critical, verdict, delay):
    decision = decide(level, share, critical=critical)
    assert (decision.verdict, decision.delay, decision.level) == (verdict, delay, level)
    assert decision.header == ("warning" if level is WARNING else None)
    assert decision.headers == ({"X-Backpressure": "warning"} if level is WARNING else {})
    assert decision.retry_after == (1.0 if verdict == "reject" else None)


@pytest.mark.parametrize(
    ("strategy", "level", "critical", "verdict"),
    [
        (BLOCK, WARNING, False, "proceed"),
        (BLOCK, CRITICAL, False, "delay"),
        (BLOCK, SHEDDING, False, "delay"),
        (SHED, WARNING, False, "proceed"),
        (SHED, CRITICAL, False, "reject"),
        (SHED, CRITICAL, True, "delay"),
        (SHED, SHEDDING, False, "reject"),
        (SHED, SHEDDING, True, "delay"),
    ],
)
def test_a_strategy_moves_the_line_between_waiting_and_refusing(strategy, level, critical, verdict):
    assert decide(level, 0.96, strategy=strategy, critical=critical).verdict == verdict


@pytest.mark.acceptance(59)
@pytest.mark.parametrize(
    ("base", "delay"), [(0.050, 0.050), (0.001, 0.010), (0.0, 0.010), (5.0, 1.0), (1.0, 1.0)]
)
def test_the_base_delay_is_kept_within_10_milliseconds_and_1_second(base, delay):
    assert decide(CRITICAL, 0.85, rules=PublishRules(base_delay=base)).delay == delay


@pytest.mark.acceptance(59)
def test_the_delay_grows_with_the_depth():
    delays = [delay_at(share / 1_000, 0.050, MARKS) for share in range(850, 951)]
    assert delays == sorted(set(delays))
    assert delays[0] == pytest.approx(0.050)
    assert delays[50] == pytest.approx((0.050 * 1.0) ** 0.5)
    assert delays[-1] == pytest.approx(1.0)


@given(
    st.floats(0, 2),
    st.floats(0, 100),
    st.tuples(st.integers(1, 100), st.integers(1, 100), st.integers(1, 100)).filter(
        lambda marks: len(set(marks)) == 3
    ),
)
def test_no_delay_is_outside_of_its_bounds(share, base, marks):
    warning, critical, shedding = sorted(mark / 100 for mark in marks)
    thresholds = BackpressureThresholds(
        warning=warning, critical=critical, shedding=shedding, gap=0
    )
    assert 0.010 <= delay_at(share, base, thresholds) <= 1.0


@pytest.mark.parametrize("option", ["base_delay", "retry_after"])
@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_times_that_make_no_sense_are_refused(option, value):
    with pytest.raises(InvalidOption):
        PublishRules(**{option: value})


@pytest.mark.acceptance(60)
def test_the_error_of_a_refusal_says_when_to_retry():
    decision = decide(SHEDDING, 0.97, rules=PublishRules(retry_after=2.5))
    error = shed(decision, "a message of orders", topic="orders")
    assert isinstance(error, LoadShed)
    assert isinstance(error, BusyError)
    assert (error.code, error.retry_after, error.topic) == ("SHED_LOAD", 2.5, "orders")
    assert error.level is SHEDDING
    assert "2.5 s" in str(error)
    assert pickle.loads(pickle.dumps(error)).fields == error.fields
