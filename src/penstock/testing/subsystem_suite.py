"""The conformance suite of subsystems that scale: figures, limits, pressure.

A subsystem of your own passes when a subclass in your tests does::

    class TestMySubsystem(ScalableSubsystemConformance):
        @pytest.fixture
        async def subsystem(self):
            async with MySubsystem() as subsystem:
                yield subsystem

``subsystem`` gives one that is open and has nothing to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import FrozenInstanceError, asdict, dataclass
from typing import Any, cast

import msgspec
import pytest

from penstock.errors import InvalidOption
from penstock.pressure.states import BackpressureState
from penstock.scaling.contracts import ScalableSubsystem
from penstock.scaling.limits import Limits

Subsystem = ScalableSubsystem[Limits]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignLimits(Limits):
    """Limits that no subsystem knows."""

    legs_max: int = 4


def changed_limits(limits: Limits) -> list[Limits]:
    """Each limit lowered to 1, doubled, and as it was."""
    return [
        limits.with_(**{name: value})
        for name, now in asdict(limits).items()
        for value in (1, now * 2, now)
    ]


class ScalableSubsystemConformance:
    """All tests of subsystems that scale. Subclass it and say how to make one."""

    @pytest.fixture
    def subsystem(self) -> Subsystem:
        """A subsystem that is open and has nothing to do."""
        raise NotImplementedError("define the fixture subsystem in your subclass")

    async def test_it_has_the_members_of_the_contract(self, subsystem: Subsystem) -> None:
        assert isinstance(subsystem, ScalableSubsystem)

    async def test_the_metrics_are_plain_figures_by_name(self, subsystem: Subsystem) -> None:
        metrics = subsystem.get_scaling_metrics()
        assert isinstance(metrics, Mapping)
        assert metrics
        assert all(metrics), "each figure has a name"
        assert msgspec.json.decode(msgspec.json.encode(dict(metrics)), type=dict[str, Any])

    async def test_the_metrics_belong_to_who_asked(self, subsystem: Subsystem) -> None:
        first = subsystem.get_scaling_metrics()
        names = set(first)
        if isinstance(first, dict):
            cast("dict[str, Any]", first).clear()
        assert set(subsystem.get_scaling_metrics()) == names

    async def test_the_limits_are_a_value(self, subsystem: Subsystem) -> None:
        limits = subsystem.current_limits
        assert isinstance(limits, Limits)
        name, now = next(iter(asdict(limits).items()))
        with pytest.raises(FrozenInstanceError):
            setattr(limits, name, now + 1)
        assert subsystem.current_limits == limits

    async def test_limits_change_while_it_runs(self, subsystem: Subsystem) -> None:
        for limits in changed_limits(subsystem.current_limits):
            subsystem.reconfigure_limits(limits)
            assert subsystem.current_limits == limits
            assert subsystem.get_scaling_metrics()

    async def test_the_same_limits_change_nothing(self, subsystem: Subsystem) -> None:
        limits = subsystem.current_limits
        subsystem.reconfigure_limits(limits)
        assert subsystem.current_limits == limits
        assert subsystem.current_backpressure_state is BackpressureState.NORMAL

    @pytest.mark.parametrize("wrong", [ForeignLimits(), None, {}, 7])
    async def test_limits_of_another_kind_are_refused(
        self, subsystem: Subsystem, wrong: Any
    ) -> None:
        limits = subsystem.current_limits
        with pytest.raises(InvalidOption):
            subsystem.reconfigure_limits(wrong)
        assert subsystem.current_limits == limits

    async def test_with_nothing_to_do_there_is_no_pressure(self, subsystem: Subsystem) -> None:
        assert subsystem.current_backpressure_state is BackpressureState.NORMAL
