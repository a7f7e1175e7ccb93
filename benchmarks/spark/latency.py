"""How long a record takes from a topic through Spark to another topic, one record at a time."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.model import Case, Sample, Scale, Workload
from benchmarks.spark.common import session
from penstock import WalMessageQueue

RECORDS = {"quick": 15}
RECORDS_DEFAULT = 80
WARM_UP = 10
PAYLOAD_BYTES = 100
WAIT_SECONDS = 180.0
PAUSE_SECONDS_MAX = 0.3


def cases(scale: Scale) -> list[Case]:
    """One topic to another, by a query that runs all the time."""
    records = RECORDS.get(scale.name, RECORDS_DEFAULT)
    return [
        Case("spark_latency", PAYLOAD_BYTES, "topic-to-topic", "penstock",
             "published durably, until a subscriber of the other topic has it",
             lambda folder: _measured(folder, records), unit="ms", once=True)
    ]  # fmt: skip


def _measured(folder: Path, records: int) -> Sample:
    log = str(folder / "log")
    asyncio.run(_create(log))
    query = _query(log, folder)
    try:
        times = asyncio.run(_exchange(log, records + WARM_UP))[WARM_UP:]
        triggers = [
            one.durationMs["triggerExecution"] for one in query.recentProgress if one.numInputRows
        ]
    finally:
        query.stop()
    notes = {
        "95 of 100 within, ms": quantiles(times, n=20)[-1],
        "micro-batch, ms": float(median(triggers[WARM_UP:] or triggers)),
    }
    return Sample(median(times), notes)


async def _create(log: str) -> None:
    async with WalMessageQueue(log) as queue:
        for topic in ("in", "out"):
            await queue.create_topic(topic)


def _query(log: str, folder: Path) -> Any:
    reader = session().readStream.format("penstock").option("subscribe", "in")
    rows = reader.option("startingOffsets", "earliest").load(log).select("key", "value")
    writer = rows.writeStream.format("penstock").option("topic", "out").option("path", log)
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


async def _exchange(log: str, records: int) -> list[float]:
    """Milliseconds of each record; the next one is published after a while."""
    pauses = random.Random(records)
    found = []
    async with WalMessageQueue(log) as queue, queue.subscribe("out", "benchmark") as results:
        for number in range(records):
            await asyncio.sleep(pauses.uniform(0, PAUSE_SECONDS_MAX))
            start = time.perf_counter()
            await queue.publish("in", b"x" * PAYLOAD_BYTES, key=b"%d" % number, durable=True)
            record = await asyncio.wait_for(anext(results), WAIT_SECONDS)
            found.append((time.perf_counter() - start) * 1e3)
            if record.key != b"%d" % number:
                raise RuntimeError(f"{record.key!r} came, {number} was published")
    return found


WORKLOAD = Workload(
    "spark_latency",
    "From topic to topic",
    "A query reads one topic and writes another. A record is published at a random moment while the query is idle, and the "
    "next one only when it came out.",
    cases,
)
