"""What the checks of security tried, and what they found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.scoreboard import Scores

LINE = 21


@dataclass
class Findings:
    """A table of checks that one test goes through. Each is counted; a finding does not end the test."""

    tried: int = 0
    found: list[str] = field(default_factory=list)

    def check(self, fine: object, what: str) -> None:
        """One check; ``what`` says what is wrong when it is not fine."""
        self.tried += 1
        if not fine:
            self.found.append(what)

    def none(self, wrong: Iterable[str], among: int) -> None:
        """Many checks at once: how many there were, and what was wrong."""
        self.tried += among
        self.found += wrong

    def tell(self, scored: Scores) -> None:
        """To the scoreboard, and to whoever reads the failure."""
        for one in self.found:
            print("finding:", one)
        scored(LINE, tried=self.tried, bad=len(self.found))
