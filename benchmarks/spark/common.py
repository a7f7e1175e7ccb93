"""What the workloads of Spark share."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from penstock.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCHES = 8
"""Micro-batches of a run. The first ones are not counted: Spark compiles."""
WARM_UP = 2


def session() -> SparkSession:
    """The one of this process."""
    return spark_session("benchmark", master="local[2]", tell=lambda _: None)


def steady_rate(query: Any, rows: int) -> float:
    """The rate of the later micro-batches: rows by the time from trigger to commit."""
    progress = [one for one in query.recentProgress if one.numInputRows]
    check_rows(sum(one.numInputRows for one in progress), rows)
    rates = [one.numInputRows * 1_000 / one.durationMs["triggerExecution"] for one in progress]
    return float(median(rates[WARM_UP:]))


def check_rows(found: int, wanted: int) -> None:
    """A case that loses rows is not measured."""
    if found != wanted:
        raise RuntimeError(f"{found} rows were read, {wanted} were written")


def processor_seconds(root: int) -> float:
    """What a process and all below it have used of the processor."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[1])
            # Its own, and those of its children that have ended.
            ticks[int(folder.name)] = sum(map(int, fields[11:15]))
    return sum(ticks[one] for one in ticks if _is_below(one, root, parents)) / os.sysconf(
        "SC_CLK_TCK"
    )


def _is_below(process: int, root: int, parents: dict[int, int]) -> bool:
    while process not in (root, 0):
        process = parents.get(process, 0)
    return process == root
