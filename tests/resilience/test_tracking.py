"""Error tracking: counts, rates, the last errors; bounded, and without keeping anything alive."""

from __future__ import annotations

import gc
import weakref

import pytest

from penstock.errors import InvalidOption
from penstock.resilience.tracking import OTHER, ErrorTracker, TrackingOptions
from penstock.testing import VirtualClock


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def tracker(clock):
    return ErrorTracker(clock)


def raised(error: Exception) -> Exception:
    try:
        raise error
    except type(error) as caught:
        return caught


@pytest.mark.acceptance(113)
def test_failures_are_counted_by_handler_and_by_type(tracker):
    for handler, error in [("bill", OSError()), ("bill", KeyError("x")), ("ship", OSError())]:
        tracker.failed(handler, "orders", error)
    figures = tracker.statistics()
    assert figures.failures == 3
    assert {name: one.failures for name, one in figures.by_handler.items()} == {
        "bill": 2,
        "ship": 1,
    }
    assert {name: one.failures for name, one in figures.by_type.items()} == {
        "OSError": 2,
        "KeyError": 1,
    }


@pytest.mark.acceptance(113)
def test_the_ratio_of_a_handler_is_never_above_one(tracker):
    for _ in range(3):
        tracker.failed("bill", "orders", OSError())
    ratios = [
        tracker.statistics({"bill": calls}).by_handler["bill"].ratio for calls in (12, 3, 2, 0)
    ]
    assert ratios == [0.25, 1.0, 1.0, None]


@pytest.mark.acceptance(113)
def test_the_last_failure_is_known(tracker, clock):
    tracker.failed("bill", "orders", OSError("first"))
    clock.advance(5.0)
    tracker.failed("bill", "refunds", KeyError("second"))
    last = tracker.statistics().by_handler["bill"].last
    assert (last.topic, last.error_type, last.error) == ("refunds", "KeyError", "'second'")
    assert last.time_ms == clock.time_ms()


@pytest.mark.acceptance(113)
def test_rates_are_those_of_the_window(tracker, clock):
    clock.advance(1000.0)
    for _ in range(120):
        tracker.failed("bill", "orders", OSError())
        clock.advance(0.5)
    assert tracker.statistics().failures_per_second == pytest.approx(2.0, rel=0.05)
    assert tracker.statistics().by_type["OSError"].failures_per_second == pytest.approx(
        2.0, rel=0.05
    )
    clock.advance(30.0)
    assert tracker.statistics().failures_per_second == pytest.approx(1.0, rel=0.05)
    clock.advance(30.0)
    assert tracker.statistics().failures_per_second == 0.0


@pytest.mark.acceptance(113)
def test_the_recent_errors_are_bounded(clock):
    tracker = ErrorTracker(clock, TrackingOptions(recent_max=3))
    for number in range(10):
        tracker.failed("bill", "orders", OSError(str(number)))
    assert [one.error for one in tracker.recent()] == ["7", "8", "9"]
    assert tracker.statistics().recent == tracker.recent()


def test_a_flood_of_types_and_handlers_does_not_grow_it(clock):
    tracker = ErrorTracker(clock, TrackingOptions(labels_max=5))
    for number in range(1000):
        tracker.failed(f"handler-{number}", "orders", type(f"Error{number}", (Exception,), {})())
    figures = tracker.statistics()
    for tallies in (figures.by_handler, figures.by_type):
        assert len(tallies) == 6
        assert tallies[OTHER].failures == 995
        assert sum(one.failures for one in tallies.values()) == figures.failures == 1000


def test_an_error_and_what_its_frames_hold_can_go(tracker):
    class Held:
        pass

    def handler():
        held = Held()
        seen.append(weakref.ref(held))
        raise OSError("with a local variable")

    seen: list[weakref.ref[Held]] = []
    try:
        handler()
    except OSError as error:
        tracker.failed("bill", "orders", error)
    gc.collect()
    assert seen[0]() is None
    assert "with a local variable" in tracker.recent()[0].traceback


def test_the_traceback_of_the_same_trouble_is_written_once_a_second(tracker, clock):
    for _ in range(3):
        tracker.failed("bill", "orders", raised(OSError("disk")))
    tracker.failed("ship", "orders", raised(OSError("disk")))
    clock.advance(1.0)
    tracker.failed("bill", "orders", raised(OSError("disk")))
    assert [bool(one.traceback) for one in tracker.recent()] == [True, False, False, True, True]


def test_an_error_that_cannot_be_printed_is_tracked_all_the_same(tracker):
    class Unprintable(Exception):
        def __str__(self):
            raise RuntimeError("no")

    tracker.failed("bill", "orders", raised(Unprintable()))
    assert "cannot be printed" in tracker.recent()[0].error


def test_long_texts_are_cut(tracker):
    tracker.failed("bill", "orders", raised(OSError("x" * 1_000_000)))
    (one,) = tracker.recent()
    assert len(one.error) <= 4_096
    assert len(one.traceback) <= 16_384


@pytest.mark.parametrize(
    "options", [{"recent_max": 0}, {"labels_max": 0}, {"window": 0.0}], ids=str
)
def test_an_option_outside_its_range_is_refused(options):
    with pytest.raises(InvalidOption):
        TrackingOptions(**options)
