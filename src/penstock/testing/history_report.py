"""Check a history: every anomaly is counted, and some are shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from penstock.testing.history import AnyOperation
from penstock.testing.history_checks import CHECKS
from penstock.testing.history_columns import columns_of
from penstock.testing.history_view import History

EXAMPLES_MAX = 5


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One kind of thing that must not happen, and did."""

    name: str
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HistoryReport:
    """What was looked at and what was found. ``print`` it."""

    operations: int
    sent: int
    """Records whose send began."""
    acknowledged: int
    read: int
    anomalies: tuple[Anomaly, ...]

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return not self.anomalies

    @property
    def counts(self) -> dict[str, int]:
        """Name of the anomaly → how often."""
        return {one.name: one.count for one in self.anomalies}

    def __str__(self) -> str:
        total = sum(self.counts.values())
        lines = [f"{self.operations:,} operations, {total:,} anomalies"]
        lines += [f"{self.sent:,} sent, {self.acknowledged:,} acknowledged, {self.read:,} read"]
        for one in self.anomalies:
            lines.append(f"{one.name}: {one.count:,}")
            lines += [f"  {example}" for example in one.examples]
        return "\n".join(lines)


def check_history(operations: Iterable[AnyOperation]) -> HistoryReport:
    """Look for everything that must not happen, in the order of the operations of each process.

    The work grows as sorting does, a little faster than the history. The history is of one topic;
    values are unique; see :mod:`penstock.testing.history`.
    """
    columns = columns_of(operations)
    history = History(columns)
    anomalies = []
    for name, check in CHECKS.items():
        found = check(history)
        examples = tuple(islice(found, EXAMPLES_MAX))
        count = len(examples) + sum(1 for _ in found)
        if count:
            anomalies.append(Anomaly(name, count, examples))
    return HistoryReport(
        columns.operations,
        len(columns.sends["value"]),
        len(columns.sent["value"]),
        len(columns.reads["value"]),
        tuple(anomalies),
    )
