"""Which of the test processes runs which file: Spark in some of them, so that the others have the room to go on.

Spark keeps a processor busy, tests of brokers and disks mostly wait. In all processes at the same time one would wait
for the processor first, and leave it idle later.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

SPARK_FOLDER = "tests/spark/"
SPARK_ELSEWHERE = ("tests/test_examples.py", "tests/cli/test_pipeline.py")

ENOUGH = 2
"""Tests that wait in a process, so that it has the next ones in time."""


def is_spark(file: str) -> bool:
    """Whether tests of this file start Spark."""
    return file.startswith(SPARK_FOLDER) or file in SPARK_ELSEWHERE


class LanesScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Whole files, in their order; half of the processes take those with Spark first, the others those without."""

    def _assign_work_unit(self, node: Any) -> None:
        wanted = self._takes_spark(node)
        first = next((file for file in self.workqueue if is_spark(file) == wanted), None)
        if first is not None:
            self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)

    def remove_node(self, node: Any) -> str | None:
        """What a process that died has not run is for the others; the test that it died in is not run again.

        In xdist they are given the files that it had finished too, wait for a test of those, and never end.
        """
        units = self.assigned_work.pop(node)
        died_in = next((test for test, done in _tests(units) if not done), None)
        for file, tests in units.items():
            if left := [test for test, done in tests.items() if not done and test != died_in]:
                self.workqueue[file] = dict.fromkeys(left, False)
        if (
            self.collection is not None
        ):  # otherwise there is nothing to give out yet, and nobody is to end
            for other in self.nodes:
                self._reschedule(other)
        return died_in

    def _reschedule(self, node: Any) -> None:
        # A process begins a test when it knows of the one behind it, or that there is none.
        while node in self.registered_collections and not node.shutting_down:
            if self.workqueue and self._pending_of(self.assigned_work[node]) > ENOUGH:
                return
            super()._reschedule(node)

    def _takes_spark(self, node: Any) -> bool:
        place: int = self.nodes.index(node)
        return place < max(1, len(self.nodes) // 2)


def _tests(units: dict[str, dict[str, bool]]) -> Iterator[tuple[str, bool]]:
    for tests in units.values():
        yield from tests.items()
