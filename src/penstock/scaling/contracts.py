"""What every subsystem offers whose size can be watched and changed while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from penstock.pressure.states import BackpressureState
from penstock.scaling.limits import LimitsType


@runtime_checkable
class ScalableSubsystem(Protocol[LimitsType]):
    """A subsystem with figures, limits that change while it runs, and a level of pressure.

    Each kind of subsystem has its kind of limits. ``penstock.testing.ScalableSubsystemConformance`` is the
    suite that all of them pass.
    """

    @property
    def current_limits(self) -> LimitsType:
        """The limits that are in force."""
        ...

    @property
    def current_backpressure_state(self) -> BackpressureState:
        """How full it is at this moment."""
        ...

    def get_scaling_metrics(self) -> Mapping[str, Any]:
        """The figures of this moment, by name: numbers, text, and mappings and lists of them.

        A value of its own: it does not change later, and a change of it changes nothing.
        """
        ...

    def reconfigure_limits(self, limits: LimitsType) -> None:
        """Put other limits in force, all of them or none. They hold when this returns.

        Nothing that was accepted is lost. Where more is there than a lower limit allows, nothing
        new comes in until there is room. Raises InvalidOption for limits of another kind.
        """
        ...
