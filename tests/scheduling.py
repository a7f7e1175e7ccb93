"""Which of the test processes runs which file: Spark in some of them, so that the others have the room to go on.

Spark keeps a processor busy, tests of brokers and disks mostly wait. In all processes at the same time one would wait
for the processor first, and leave it idle later.
"""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

SPARK_FOLDER = "tests/spark/"
SPARK_ELSEWHERE = ("tests/test_examples.py", "tests/cli/test_pipeline.py")


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

    def _takes_spark(self, node: Any) -> bool:
        place: int = self.nodes.index(node)
        return place < max(1, len(self.nodes) // 2)
