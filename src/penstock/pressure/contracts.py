"""What every subsystem that feels pressure offers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from penstock.pressure.decisions import PublishDecision
from penstock.pressure.readings import share_in_use
from penstock.pressure.states import BackpressureState, BackpressureStateChanged
from penstock.pressure.strategies import BackpressureStrategy

OnBackpressureChanged = Callable[[BackpressureStateChanged], None]
"""Is told of each change of the level, once. What it raises is logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackpressureContext:
    """The situation of one producer: how full it is where its message goes, and what it is."""

    depth: int
    capacity: int
    topic: str = ""
    critical: bool = False
    """Whether the message must not be shed."""

    @property
    def utilisation(self) -> float:
        """The share of the capacity that is in use; more than 1 after the capacity was lowered."""
        return share_in_use(self.depth, self.capacity)


@runtime_checkable
class BackpressureAware(Protocol):
    """A subsystem that presses back on its producers."""

    @property
    def strategy(self) -> BackpressureStrategy:
        """What is done to producers. May be set at any time; effective for the next message."""
        ...

    @strategy.setter
    def strategy(self, strategy: BackpressureStrategy) -> None: ...

    @property
    def current_state(self) -> BackpressureState:
        """The level that was found last."""
        ...

    def on_backpressure_changed(self, callback: OnBackpressureChanged) -> Callable[[], None]:
        """Call back on every change of the level; returns what ends that."""
        ...

    async def apply_backpressure(self, context: BackpressureContext) -> PublishDecision:
        """Do to a producer what the strategy says: let it pass, let it wait, or raise LoadShed.

        Cancelled while it waits, nothing has happened. Every wait has a bound.
        """
        ...
