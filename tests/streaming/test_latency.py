"""Durations in fixed memory are as exact as they are said to be."""

import random
import statistics

import pytest

from penstock.streaming.latency import LatencyHistogram
from penstock.streaming.transport_statistics import KINDS_MAX, OTHERS, TransportMeter
from penstock.system import System
from penstock.testing import VirtualClock


def meter():
    clock = VirtualClock()
    return TransportMeter("default", System(clock=clock)), clock


@pytest.mark.acceptance(72)
@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
def test_quantiles_are_within_five_percent_of_the_truth(spread):
    chance = random.Random(7)
    truth = sorted(chance.lognormvariate(-6, spread) for _ in range(20_000))
    measured = LatencyHistogram()
    for seconds in truth:
        measured.add(seconds)
    for share in (0.5, 0.95, 0.99):
        exact = statistics.quantiles(truth, n=100)[round(share * 100) - 1]
        assert measured.quantile(share) == pytest.approx(exact, rel=0.05)
    assert measured.longest == truth[-1]
    assert measured.total == pytest.approx(sum(truth))


def test_a_batch_counts_for_each_of_its_records():
    measured = LatencyHistogram()
    measured.add(0.001, 99)
    measured.add(1.0, 1)
    assert measured.count == 100
    assert measured.quantile(0.5) == pytest.approx(0.001, rel=0.05)
    assert measured.quantile(0.999) == pytest.approx(1.0, rel=0.05)


def test_nothing_measured_is_nothing_told():
    assert LatencyHistogram().quantile(0.99) == 0.0


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 1e-12, 1e9])
def test_what_is_out_of_range_does_not_break_it(seconds):
    measured = LatencyHistogram()
    measured.add(seconds)
    assert measured.quantile(0.5) > 0


@pytest.mark.acceptance(72)
def test_the_rate_is_within_five_percent_of_the_truth():
    counts, clock = meter()
    for rate in (50, 400):
        for _ in range(40):
            for _ in range(10):
                clock.advance(0.1)
                counts.sent(rate // 10, 0.01)
                counts.batch_sent()
        assert counts.statistics().publish_rate == pytest.approx(rate, rel=0.05)
    clock.advance(120)
    assert counts.statistics().publish_rate == 0.0


@pytest.mark.acceptance(72)
def test_errors_are_counted_by_kind_and_kinds_have_a_bound():
    counts, _ = meter()
    for number in range(KINDS_MAX + 10):
        counts.not_sent(2, type(f"Error{number}", (Exception,), {})())
    figures = counts.statistics()
    assert figures.failed == 2 * (KINDS_MAX + 10)
    assert figures.errors["Error0"] == 2
    assert figures.errors[OTHERS] == 20
    assert len(figures.errors) == KINDS_MAX + 1
