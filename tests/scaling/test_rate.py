"""A rate is what came in the last seconds, whatever the total says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidOption
from penstock.scaling.rate import RateMeasure
from penstock.system import System
from penstock.testing import VirtualClock


def measure_on(clock, **options):
    return RateMeasure(system=System(clock=clock), **options)


def observed(clock, measure, total, rate, seconds):
    for _ in range(seconds):
        clock.advance(1)
        total += rate
        measure.observe(total)
    return total


@pytest.mark.acceptance(78)
def test_the_rate_follows_what_comes_and_not_the_total():
    clock = VirtualClock()
    measure = measure_on(clock, total=10**12)
    total = observed(clock, measure, 10**12, 1_000, 60)
    assert measure.per_second() == pytest.approx(1_000)
    total = observed(clock, measure, total, 5_000, 15)
    assert measure.per_second() == pytest.approx(3_000)
    observed(clock, measure, total, 5_000, 15)
    assert measure.per_second() == pytest.approx(5_000)


def test_silence_is_a_rate_of_zero():
    clock = VirtualClock()
    measure = measure_on(clock)
    observed(clock, measure, 0, 1_000, 60)
    clock.advance(15)
    assert measure.per_second() == pytest.approx(500)
    clock.advance(16)
    assert measure.per_second() == 0


def test_the_first_seconds_are_not_diluted_by_a_window_that_was_not_there():
    clock = VirtualClock()
    measure = measure_on(clock)
    assert measure.per_second() == 0
    observed(clock, measure, 0, 1_000, 3)
    assert measure.per_second() == pytest.approx(1_000)


def test_a_counter_that_begins_anew_begins_the_measure_anew():
    clock = VirtualClock()
    measure = measure_on(clock)
    observed(clock, measure, 10**9, 1_000, 60)
    measure.observe(0)
    assert measure.per_second() == 0
    observed(clock, measure, 0, 200, 10)
    assert measure.per_second() == pytest.approx(200)


@given(st.lists(st.integers(0, 1_000), min_size=1, max_size=120))
def test_it_is_what_was_counted_in_the_window(counts):
    clock = VirtualClock()
    measure = measure_on(clock)
    total = 0
    for count in counts:
        total = observed(clock, measure, total, count, 1)
    window = counts[-30:]
    assert measure.per_second() == pytest.approx(sum(window) / len(window))


def test_memory_is_bounded_however_often_it_is_told():
    clock = VirtualClock()
    measure = measure_on(clock)
    for total in range(20_000):
        clock.advance(0.001)
        measure.observe(total)
    assert len(measure._sliding._points) <= 125
    assert measure.per_second() == pytest.approx(1_000, rel=0.01)


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_a_window_that_cannot_be_is_refused(seconds):
    with pytest.raises(InvalidOption):
        RateMeasure(window_seconds=seconds)
