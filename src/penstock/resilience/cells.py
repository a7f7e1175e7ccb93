"""What a breaker counts for every call, in a place where the compiled twin finds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.speedups import compiled


class PythonBreakerCells:
    """Calls that were admitted, and those that went well."""

    _admitted: int
    _succeeded: int
    _look_at: int
    """From so many successes on each one is looked at; 0 while the circuit is not closed."""

    def passed(self, count: int) -> None:
        """So many calls were made without asking, while the circuit was closed, and went well.

        If it has opened since, they are counted, and are no probes.
        """
        self._admitted += count
        self._succeeded += count
        if self._look_at and self._succeeded >= self._look_at:
            self._note_success()

    def _note_success(self) -> None:
        raise NotImplementedError


if TYPE_CHECKING or compiled is None:  # noqa: SIM108 (as a base class mypy takes no expression)
    BreakerCells = PythonBreakerCells
else:
    BreakerCells = compiled.BreakerCells
