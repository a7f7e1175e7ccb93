"""The sliding rate: exact where it was looked at, bounded in memory, never above one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.resilience.rate import POINTS, SlidingRate


def test_counts_since_the_start_while_the_window_is_not_full():
    rate = SlidingRate(60.0, now=100.0)
    rate.look(110.0, 10, 2)
    assert rate.counts(120.0, 15, 3) == (15, 3)


def test_what_left_the_window_does_not_count():
    rate = SlidingRate(60.0, now=0.0)
    rate.look(10.0, 100, 5)
    rate.look(50.0, 200, 7)
    assert rate.counts(70.0, 210, 8) == (110, 3)


def test_between_two_looks_calls_are_taken_to_have_come_evenly():
    rate = SlidingRate(60.0, now=0.0)
    rate.look(40.0, 400, 40)
    assert rate.counts(70.0, 400, 40) == (300, 30)


def test_a_failure_counts_at_the_time_when_it_happened():
    rate = SlidingRate(60.0, now=0.0)
    for number, now in enumerate([100.0, 100.2, 100.5], 1):
        rate.failed(now, number, number)
    assert rate.counts(100.5, 3, 3) == (3, 3)
    rate.failed(1000.0, 4, 4)
    assert rate.counts(1000.0, 4, 4) == (1, 1)
    assert rate.counts(1059.9, 4, 4) == (1, 1)
    assert rate.counts(1060.0, 4, 4) == (0, 0)


def test_nothing_for_longer_than_the_window_leaves_nothing():
    rate = SlidingRate(60.0, now=0.0)
    rate.look(10.0, 100, 5)
    rate.look(20.0, 100, 5)
    assert rate.counts(1000.0, 100, 5) == (0, 0)


def test_a_window_at_the_moment_it_starts_is_empty():
    assert SlidingRate(60.0, 5.0, 100, 10).counts(5.0, 100, 10) == (0, 0)


steps = st.lists(
    st.tuples(st.floats(0, 100), st.integers(0, 500), st.floats(0, 1), st.booleans()), max_size=200
)


@pytest.mark.acceptance(113)
@given(steps=steps)
def test_failures_never_outnumber_calls_and_the_memory_is_bounded(steps):
    rate = SlidingRate(60.0, now=0.0)
    now, calls, failures = 0.0, 0, 0
    for pause, more, share, looks in steps:
        now, calls, failures = now + pause, calls + more, failures + int(more * share)
        if looks:
            rate.look(now, calls, failures)
        in_window, failed = rate.counts(now, calls, failures)
        assert -1e-6 <= failed <= in_window + 1e-6
        assert in_window <= calls + 1e-6
        assert len(rate._points) <= 2 * POINTS + 3
