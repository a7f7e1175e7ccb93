"""The few figures that the README shows: ``python -m benchmarks.headlines`` writes them there.

They are read from the committed results below docs/benchmarks, and from nowhere else.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "benchmarks"
README = ROOT / "README.md"
TWIN = "docs/installation.md#with-and-without-a-compiler"
BEGIN, END = "<!-- figures -->", "<!-- end of the figures -->"


TITLES = {
    "bus": "the bus",
    "scale": "scale",
    "log": "the log",
    "spark": "Spark",
    "brokers": "brokers",
    "durable": "durable peers",
    "frameworks": "frameworks",
}
"""Suite → its name on the page."""


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
    Headline("the same beside servers that sync, 64 tasks", "durable",
             "durable_singles/100/sync-each/penstock",
             (("PostgreSQL", "durable_singles/100/sync-each/postgres"),
              ("Kafka", "durable_singles/100/sync-each/kafka"),
              ("NATS JetStream", "durable_singles/100/sync-each/nats"),
              ("Redis Streams", "durable_singles/100/sync-each/redis"))),
    Headline("records of 100 bytes to the disk, one by one, a sync for 1,000 of them", "log",
             "one_by_one/100/sync-1000/penstock-double-buffered",
             (("SQLite", "one_by_one/100/sync-1000/sqlite"),
              ("LMDB", "one_by_one/100/sync-1000/lmdb"))),
    Headline("the same, up to 33,000 on their way that share a sync, which the others do not have", "log",
             "one_by_one/100/sync-1000/penstock-every-message",
             (("SQLite", "one_by_one/100/sync-1000/sqlite"),
              ("LMDB", "one_by_one/100/sync-1000/lmdb"))),
    Headline("records of 100 bytes to the disk, 1,000 in a call, each call synced", "log",
             "publish_many/100/sync-1000/penstock",
             (("SQLite", "publish_many/100/sync-1000/sqlite"),
              ("LMDB", "publish_many/100/sync-1000/lmdb"))),
    Headline("the same with 4 calls in flight, which the others do not have", "log",
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
    Headline("records to Redis Streams one by one, acknowledged, 64 tasks", "frameworks",
             "on_redis/100/publish/penstock",
             (("FastStream", "on_redis/100/publish/faststream"),)),
)  # fmt: skip


@cache
def _report(suite: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((RESULTS / f"{suite}.json").read_text())
    return report


@cache
def _medians(suite: str) -> dict[str, float]:
    return {result["name"]: result["median"] for result in _report(suite)["results"]}


def _short(rate: float) -> str:
    """Two digits that count, as no machine gives more."""
    for limit, unit in ((1e6, " M"), (1e3, " k")):
        if rate >= limit:
            scaled = rate / limit
            return f"{scaled:.1f}{unit}" if scaled < 10 else f"{scaled:.0f}{unit}"
    return f"{rate:.0f}"


def _names(suites: list[str]) -> str:
    *most, last = (TITLES[suite] for suite in suites)
    return f"{', '.join(most)} and {last}" if most else last


def twin(reports: dict[str, dict[str, Any]]) -> str:
    """Which suites ran with the compiled twin. Results from before there was one do not speak of it."""
    with_it = [
        suite
        for suite, report in reports.items()
        if report["machine"].get("compiled twin") == "in use"
    ]
    without = [suite for suite in reports if suite not in with_it]
    if not with_it:
        return "Without the compiled twin."
    others = f"; without it: {_names(without)}" if without else ""
    return f"With the [compiled twin]({TWIN}): {_names(with_it)}{others}."


def where(reports: dict[str, dict[str, Any]]) -> str:
    """On which machines the suites were measured: rows of one can be compared, whatever the others have."""
    suites: dict[str, list[str]] = {}
    for suite, report in reports.items():
        machine = report["machine"]
        # The name of the kernel is that of the image, so two machines of one kind are told apart.
        parts = ("processor", "memory", "kernel", "Python")
        name = ", ".join(machine[part] for part in parts)
        suites.setdefault(name, []).append(suite)
    if len(suites) == 1:
        return f"Medians, on {next(iter(suites))}."
    told = "; ".join(f"{_names(some)} on {name}" for name, some in suites.items())
    return f"Medians. {told[0].upper()}{told[1:]}."


def when(reports: dict[str, dict[str, Any]]) -> str:
    """When the suites were measured: what was changed later is not in the figures."""
    days = sorted({report["started"].partition(" ")[0] for report in reports.values()})
    span = " to ".join(dict.fromkeys((days[0], days[-1])))
    return f"Measured {span}; what was changed later is not in these figures."


def table() -> str:
    """The rows as Markdown."""
    rows = ["| per second | Penstock | others, in the same run |", "|---|---:|---|"]
    for line in HEADLINES:
        medians = _medians(line.suite)
        others = ", ".join(f"{name} {_short(medians[key])}" for name, key in line.others)
        rows.append(f"| {line.what} | {_short(medians[line.ours])} | {others} |")
    reports = {line.suite: _report(line.suite) for line in HEADLINES}
    return "\n".join([*rows, "", where(reports), when(reports), twin(reports), ""])


def on_page(page: str) -> str:
    """The page with these rows between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n{END}{after}"


if __name__ == "__main__":
    README.write_text(on_page(README.read_text()))
