"""Limits are values with defaults; what makes no sense is refused when they are made."""

from dataclasses import FrozenInstanceError, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidOption
from penstock.scaling.limits import BusLimits, ScalingLimits
from penstock.system import System

KINDS = [ScalingLimits, BusLimits]
EACH_LIMIT = [(kind, field.name) for kind in KINDS for field in fields(kind)]


@pytest.mark.acceptance(3)
def test_the_defaults():
    limits = ScalingLimits()
    assert limits.cache_entries_max == 10_000
    assert limits.memory_bytes_max == 104_857_600
    assert limits.concurrent_operations_max == 64
    assert limits.queue_depth_max == 1_000


@pytest.mark.acceptance(9)
def test_the_default_of_topics():
    assert BusLimits().max_topics == 10_000


@pytest.mark.acceptance(3)
@pytest.mark.parametrize(("kind", "name"), EACH_LIMIT)
@pytest.mark.parametrize("value", [0, -1, -(10**9), 1.5, True, None, "7"])
def test_what_is_no_limit_is_refused(kind, name, value):
    with pytest.raises(InvalidOption, match=name) as caught:
        kind(**{name: value})
    assert caught.value.fields["option"] == name
    with pytest.raises(InvalidOption):
        kind().with_(**{name: value})


@pytest.mark.acceptance(6)
@pytest.mark.parametrize(("kind", "name"), EACH_LIMIT)
def test_a_change_makes_another_value(kind, name):
    before = kind()
    after = before.with_(**{name: 7})
    assert getattr(after, name) == 7
    assert before == kind()
    assert after.with_(**{name: getattr(before, name)}) == before


def test_an_unknown_limit_is_refused_by_name():
    with pytest.raises(InvalidOption, match=r"max_threads.*cache_entries_max"):
        ScalingLimits().with_(max_threads=3)


def test_limits_do_not_change_under_their_owner():
    with pytest.raises(FrozenInstanceError):
        ScalingLimits().queue_depth_max = 3  # type: ignore[misc]


@pytest.mark.acceptance(106)
def test_limits_are_sized_from_the_memory_that_is_left():
    system = System(memory_bytes=lambda: 1_000_000)
    limits = ScalingLimits.for_memory(0.25, entry_bytes=1_000, system=system)
    assert limits == ScalingLimits(memory_bytes_max=250_000, cache_entries_max=250)


@pytest.mark.acceptance(106)
@given(st.integers(0, 10**13), st.floats(0.001, 1), st.integers(1, 10**6))
def test_however_little_memory_is_left_the_limits_are_valid(left, share, entry_bytes):
    system = System(memory_bytes=lambda: left)
    limits = ScalingLimits.for_memory(share, entry_bytes=entry_bytes, system=system)
    assert limits.memory_bytes_max <= max(1, left)
    assert limits.cache_entries_max * entry_bytes <= max(limits.memory_bytes_max, entry_bytes)


def test_this_machine_has_memory_for_a_cache():
    assert ScalingLimits.for_memory().memory_bytes_max > 1_000


@pytest.mark.parametrize("share", [0, -0.1, 1.1, float("nan")])
def test_a_share_is_between_nothing_and_everything(share):
    with pytest.raises(InvalidOption):
        ScalingLimits.for_memory(share)
    with pytest.raises(InvalidOption):
        ScalingLimits.for_memory(0.5, entry_bytes=0)
