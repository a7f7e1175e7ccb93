"""What queries cost that have nothing to read."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.model import Case, Sample, Scale, Workload
from benchmarks.spark.common import processor_seconds, session
from penstock import WalMessageQueue

QUERIES = 8
SECONDS = {"quick": 2.0}
SECONDS_DEFAULT = 10.0
SETTLE_SECONDS = 3.0


def cases(scale: Scale) -> list[Case]:
    """Eight queries at once; the figure is for one of them."""
    seconds = SECONDS.get(scale.name, SECONDS_DEFAULT)
    return [
        Case("spark_idle", 0, "idle", "penstock", f"{QUERIES} queries of one topic each",
             lambda folder: _measured(folder, seconds), unit="cores", once=True)
    ]  # fmt: skip


def _measured(folder: Path, seconds: float) -> Sample:
    log = str(folder / "log")
    asyncio.run(_create(log))
    queries = [_query(log, folder, number) for number in range(QUERIES)]
    try:
        for query in queries:
            query.processAllAvailable()
        time.sleep(SETTLE_SECONDS)  # Java compiles for a while after the last micro-batch
        busy = _cores(seconds)
    finally:
        for query in queries:
            query.stop()
    time.sleep(SETTLE_SECONDS)
    return Sample(busy / QUERIES, {"Spark without queries, cores": _cores(seconds)})


def _cores(seconds: float) -> float:
    before, start = processor_seconds(os.getpid()), time.perf_counter()
    time.sleep(seconds)
    return (processor_seconds(os.getpid()) - before) / (time.perf_counter() - start)


async def _create(log: str) -> None:
    async with WalMessageQueue(log) as queue:
        for number in range(QUERIES):
            await queue.create_topic(f"topic-{number}")
            await queue.publish(f"topic-{number}", b"one", durable=True)


def _query(log: str, folder: Path, number: int) -> Any:
    reader = session().readStream.format("penstock").option("subscribe", f"topic-{number}")
    reader = reader.option("startingOffsets", "earliest").option("groupId", f"idle-{number}")
    writer = reader.load(log).writeStream.format("noop")
    return writer.option("checkpointLocation", str(folder / f"checkpoint-{number}")).start()


WORKLOAD = Workload(
    "spark_idle",
    "Idle queries",
    f"{QUERIES} streaming queries whose topics get no records. The processor time of Java and of all processes of Python is "
    "counted.",
    cases,
)
