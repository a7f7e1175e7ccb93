"""Levels of pressure: their order, their thresholds, and why they do not flap."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidOption
from penstock.messages import marks_of
from penstock.pressure import BackpressureState, BackpressureStateChanged, BackpressureThresholds

NORMAL, WARNING, CRITICAL, SHEDDING = BackpressureState
SHARES = st.floats(0, 1.5, allow_nan=False)
LEVELS = st.sampled_from(list(BackpressureState))


@st.composite
def thresholds(draw):
    warning, critical, shedding = sorted(
        draw(st.lists(st.integers(1, 100), min_size=3, max_size=3, unique=True))
    )
    gap = draw(st.integers(0, warning - 1))
    return BackpressureThresholds(
        warning=warning / 100, critical=critical / 100, shedding=shedding / 100, gap=gap / 100
    )


@pytest.mark.acceptance(4)
def test_the_levels_have_these_names_and_this_order():
    assert [level.name for level in BackpressureState] == [
        "NORMAL",
        "WARNING",
        "CRITICAL",
        "SHEDDING",
    ]
    assert NORMAL < WARNING < CRITICAL < SHEDDING


@pytest.mark.acceptance(64)
@pytest.mark.parametrize(
    ("share", "level"),
    [
        (0.0, NORMAL),
        (0.699, NORMAL),
        (0.70, WARNING),
        (0.849, WARNING),
        (0.85, CRITICAL),
        (0.949, CRITICAL),
        (0.95, SHEDDING),
        (1.0, SHEDDING),
        (1.7, SHEDDING),
    ],
)
def test_the_default_thresholds_are_70_85_and_95_percent(share, level):
    assert BackpressureThresholds().level(share) is level


@pytest.mark.acceptance(64)
@pytest.mark.parametrize(
    ("share", "before", "after"),
    [
        (0.69, WARNING, WARNING),
        (0.65, WARNING, WARNING),
        (0.649, WARNING, NORMAL),
        (0.80, CRITICAL, CRITICAL),
        (0.799, CRITICAL, WARNING),
        (0.90, SHEDDING, SHEDDING),
        (0.899, SHEDDING, CRITICAL),
        (0.5, SHEDDING, NORMAL),
    ],
)
def test_a_level_ends_a_gap_below_where_it_began(share, before, after):
    assert BackpressureThresholds().level(share, before) is after


@pytest.mark.acceptance(64)
@pytest.mark.parametrize(
    "wrong",
    [
        {"warning": 0.9},
        {"critical": 0.7},
        {"shedding": 0.85},
        {"shedding": 1.01},
        {"warning": 0.0},
        {"warning": -1.0},
        {"critical": float("nan")},
        {"gap": -0.01},
        {"gap": 0.7},
        {"gap": float("nan")},
    ],
)
def test_thresholds_out_of_order_are_refused(wrong):
    with pytest.raises(InvalidOption):
        BackpressureThresholds(**wrong)


def test_a_difference_of_marks_is_what_people_mean():
    """0.8 - 0.1 is a little more than 0.7 in floating point."""
    marks = BackpressureThresholds(warning=0.8, critical=0.9, shedding=1.0, gap=0.1)
    assert marks.level(0.7, WARNING) is WARNING


@given(thresholds(), SHARES, LEVELS)
def test_a_level_stays_when_nothing_changes(marks, share, before):
    after = marks.level(share, before)
    assert marks.level(share, after) is after


@given(thresholds(), SHARES, SHARES, LEVELS)
def test_fuller_is_never_a_lower_level(marks, one, other, before):
    low, high = sorted((one, other))
    assert marks.level(low, before) <= marks.level(high, before)


@given(thresholds(), SHARES, LEVELS)
def test_the_band_is_where_the_level_stays(marks, share, level):
    low, high = marks.band(level)
    assert (marks.level(share, level) is level) == (low <= share < high)


@given(thresholds(), st.lists(SHARES, max_size=30))
def test_no_swing_within_the_gap_makes_it_flap(marks, shares):
    """Between a rise and the next fall lies a way of at least the gap."""
    level, turned_at = NORMAL, None
    for share in shares:
        after = marks.level(share, level)
        if after < level and turned_at is not None:
            assert turned_at - share > marks.gap - 1e-6
        if after > level:
            turned_at = share
        level = after


@pytest.mark.acceptance(2, 103)
def test_a_change_says_from_where_to_where_for_whom_and_when():
    change = BackpressureStateChanged(
        previous=NORMAL, current=WARNING, subsystem="bus", time=datetime(2026, 1, 1, tzinfo=UTC)
    )
    assert (change.previous, change.current, change.subsystem) == (NORMAL, WARNING, "bus")
    with pytest.raises(AttributeError):
        change.subsystem = "other"
    encoded = msgspec.json.encode(change)
    assert msgspec.json.decode(encoded, type=BackpressureStateChanged) == change


def test_the_news_of_a_change_is_never_shed_itself():
    assert marks_of(BackpressureStateChanged).critical
