"""Rows out of Spark: to a topic and to a table, and to the Parquet files of Spark's own sink."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.model import Case, Prepared, Sample, Scale, Workload
from benchmarks.spark.common import BATCHES, check_rows, session, steady_rate
from penstock.spark import WarehouseTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS = {"quick": 160_000}
ROWS_DEFAULT = 1_600_000
PAYLOAD_BYTES = 100
FILES_OF_A_BATCH = 2
TOPIC = "rows"
Target = tuple[str, dict[str, str], Callable[[Path], int] | None]
"""A format, its options, and how to count what is there; None: it keeps nothing."""


def cases(scale: Scale) -> list[Case]:
    """A topic of two partitions, a table, and Parquet files."""
    rows = ROWS.get(scale.name, ROWS_DEFAULT)
    prepared = Prepared(f"spark-sink-{rows}", lambda folder: fill(folder, rows))
    case = partial(Case, "spark_sink", PAYLOAD_BYTES, "micro-batches", unit="rows/s")
    return [
        case("parquet", "Spark's file sink, not synced", prepared=prepared,
             run=lambda at: _written(at, rows, _parquet)),
        case("bound", "a sink in Python that counts the rows and forgets them", prepared=prepared,
             bound=True, run=lambda at: _written(at, rows, _bound)),
        case("penstock", 'format("penstock"), durable, each row once', prepared=prepared,
             run=lambda at: _written(at, rows, _topic)),
        case("table", 'format("penstock_table"), durable, each row once', prepared=prepared,
             run=lambda at: _written(at, rows, _table)),
    ]  # fmt: skip


def fill(folder: Path, rows: int) -> None:
    """Parquet files to read from: keys of 12 bytes, and values that cannot be made smaller."""
    value = "substring(unhex(concat(sha2(cast(id AS string), 512), sha2(cast(-id AS string), 512))), 1, 100)"
    frame = session().range(0, rows, 1, BATCHES * FILES_OF_A_BATCH)
    frame = frame.selectExpr(
        "cast(lpad(cast(id AS string), 12, '0') AS binary) AS key", f"{value} AS value"
    )
    frame.write.parquet(str(folder / "rows"))


def _parquet(place: Path) -> Target:
    return "parquet", {"path": str(place / "out")}, _count_parquet


def _count_parquet(place: Path) -> int:
    return session().read.parquet(str(place / "out")).count()


def _bound(_: Path) -> Target:
    from benchmarks.spark.bound import registered

    registered(session())
    return "bound", {}, None


def _topic(place: Path) -> Target:
    log = place / "log"
    log.mkdir()
    options = {"path": str(log), "topic": TOPIC, "partitions": "2"}
    return "penstock", options, _count_topic


def _count_topic(place: Path) -> int:
    reader = session().read.format("penstock").option("subscribe", TOPIC)
    return reader.load(str(place / "log")).count()


def _table(place: Path) -> Target:
    path = place / "table"
    return (
        "penstock_table",
        {"path": str(path)},
        lambda at: WarehouseTable(str(at / "table")).count(),
    )


def _written(folder: Path, rows: int, target: Callable[[Path], Target]) -> Sample:
    place = Path(tempfile.mkdtemp(dir=folder))
    try:
        kind, options, count = target(place)
        writer = _stream(folder).writeStream.format(kind).options(**options)
        writer = writer.option("checkpointLocation", str(place / "checkpoint"))
        start = time.perf_counter()
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        seconds = time.perf_counter() - start
        if count is not None:
            check_rows(count(place), rows)
        return Sample(steady_rate(query, rows), {"whole query, rows/s": rows / seconds})
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _stream(folder: Path) -> DataFrame:
    reader = session().readStream.schema("key BINARY, value BINARY")
    return reader.option("maxFilesPerTrigger", FILES_OF_A_BATCH).parquet(str(folder / "rows"))


WORKLOAD = Workload(
    "spark_sink",
    "Rows out of Spark",
    "Rows with values of 100 bytes and keys of 12 are read from Parquet files by `local[2]` and written, in eight "
    "micro-batches. A topic and a table have each row on the disk when the micro-batch is done; Spark's file sink syncs "
    "nothing.",
    cases,
)
