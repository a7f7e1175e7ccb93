"""The few figures that the README shows: ``python -m benchmarks.headlines`` writes them there.

They are read from the committed results below docs/benchmarks, and from nowhere else.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "benchmarks"
README = ROOT / "README.md"
BEGIN, END = "<!-- figures -->", "<!-- end of the figures -->"


@dataclass(frozen=True)
class Headline:
    """One row: what was done, ours and others' in the same run."""

    what: str
    suite: str
    ours: str
    others: tuple[tuple[str, str], ...] = ()


HEADLINES = (
    Headline("events in memory, a burst, handled", "bus", "burst/unawaited/resilient",
             (("`asyncio.Queue`, which is no bus", "burst/unawaited/queue"),
              ("a hand-rolled asyncio bus", "burst/unawaited/hand-rolled"),
              ("bubus", "burst/unawaited/bubus"))),
    Headline("events on a hot topic, one by one", "scale", "hot/sync-handler/resilient",
             (("`asyncio.Queue`", "hot/sync-handler/queue"),)),
    Headline("records between processes, 1,000 in a call", "scale", "shared/100/batch-1000/penstock",
             (("`multiprocessing.Queue`", "shared/100/batch-1000/mp-queue"),
              ("pyzmq", "shared/100/batch-1000/zmq-ipc"))),
    Headline("records of 100 bytes to the disk, 64 publishers, each synced", "log",
             "awaited/100/sync-each/penstock-64",
             (("SQLite, one writer", "awaited/100/sync-each/sqlite"),
              ("LMDB, one writer", "awaited/100/sync-each/lmdb"))),
    Headline("the same, 1,000 in a call, calls in flight", "log",
             "publish_many/100/sync-1000/penstock-pipelined",
             (("SQLite", "publish_many/100/sync-1000/sqlite"),
              ("LMDB", "publish_many/100/sync-1000/lmdb"))),
    Headline("records read as objects", "log", "read/100/read/penstock-batches",
             (("SQLite", "read/100/read/sqlite"), ("LMDB", "read/100/read/lmdb"))),
    Headline("records read as Arrow", "log", "read/100/read/penstock-arrow"),
    Headline("rows into Spark", "spark", "spark_source/100/micro-batches/penstock",
             (("Spark's Kafka source", "spark_source/100/micro-batches/kafka"),
              ("Parquet files", "spark_source/100/micro-batches/parquet"))),
    Headline("records to Kafka, acknowledged", "brokers", "kafka/100/produce/penstock",
             (("confluent-kafka alone", "kafka/100/produce/bare"),)),
)  # fmt: skip


@cache
def _medians(suite: str) -> dict[str, float]:
    report = json.loads((RESULTS / f"{suite}.json").read_text())
    return {result["name"]: result["median"] for result in report["results"]}


def _short(rate: float) -> str:
    """Two digits that count, as no machine gives more."""
    for limit, unit in ((1e6, " M"), (1e3, " k")):
        if rate >= limit:
            scaled = rate / limit
            return f"{scaled:.1f}{unit}" if scaled < 10 else f"{scaled:.0f}{unit}"
    return f"{rate:.0f}"


def table() -> str:
    """The rows as Markdown."""
    rows = ["| per second | Penstock | others, in the same run |", "|---|---:|---|"]
    for line in HEADLINES:
        medians = _medians(line.suite)
        others = ", ".join(f"{name} {_short(medians[key])}" for name, key in line.others)
        rows.append(f"| {line.what} | {_short(medians[line.ours])} | {others} |")
    machine = json.loads((RESULTS / "log.json").read_text())["machine"]
    return (
        "\n".join(rows)
        + f"\n\nMedians, on {machine['processor']}, {machine['memory']}, {machine['Python']}.\n"
    )


def on_page(page: str) -> str:
    """The page with these rows between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n{END}{after}"


if __name__ == "__main__":
    README.write_text(on_page(README.read_text()))
