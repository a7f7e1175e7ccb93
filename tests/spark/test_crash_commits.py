"""Failures around the commit: what Spark does again is recognised, what is committed is not undone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from penstock.spark.open_log import open_log
from penstock.spark.tables import WarehouseTable
from tests.spark.failing_sinks import (
    AFTER_COMMIT,
    AFTER_ROWS,
    BEFORE_COMMIT,
    FailingTable,
    FailingTopic,
)


class Copying:
    """A topic that is copied, by a sink that fails when it is told to."""

    def __init__(self, spark: Any, log: Any, folder: Path, sink: str) -> None:
        self.spark, self.log, self.folder, self.sink = spark, log, folder, sink
        self.table = folder / "table"
        log.create("orders")

    def run(self) -> None:
        """Copy what is there; raises what the query raised."""
        reader = self.spark.readStream.format("penstock").option("path", self.log.path)
        rows = reader.option("subscribe", "orders").option("startingOffsets", "earliest").load()
        writer = rows.select("value").writeStream.format(self.sink)
        to_table = self.sink == FailingTable.name()
        target = {"path": str(self.table)} if to_table else {"path": self.log.path, "topic": "copy"}
        writer = writer.options(**target, checkpointLocation=str(self.folder / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination(200)

    def fails(self, where: str) -> None:
        (self.folder / where).touch()
        with pytest.raises(StreamingQueryException, match=f"failed on purpose {where}"):
            self.run()

    def forget_commit(self, number: int) -> None:
        """As if Spark had been killed before it noted that the micro-batch is done."""
        for name in (f"{number}", f".{number}.crc"):
            (self.folder / "checkpoint" / "commits" / name).unlink(missing_ok=True)

    def found(self) -> list[int]:
        if self.sink == FailingTopic.name():
            rows = self.log.rows(subscribe="copy")
        else:
            rows = WarehouseTable(str(self.table)).arrow().to_pylist()
        return sorted(int(row["value"]) for row in rows)

    def left(self) -> list[str]:
        """Files that belong to nothing."""
        staged = [
            key for key in open_log(self.log.path).store.list("producers/") if "/staged/" in key
        ]
        if not self.table.exists():
            return staged
        is_table = (self.table / "_delta_log").exists()
        files = WarehouseTable(str(self.table)).files() if is_table else []
        used = {Path(file).name for file in files}
        return staged + [one.name for one in self.table.glob("*.parquet") if one.name not in used]


@pytest.mark.parametrize("sink", [FailingTopic, FailingTable])
def test_each_micro_batch_counts_once(spark: Any, log: Any, tmp_path: Path, sink: Any) -> None:
    spark.dataSource.register(sink)
    copying = Copying(spark, log, tmp_path, sink.name())

    # A task fails: what it staged is gone, and so is what the others staged.
    log.numbers("orders", 0, 100)
    copying.fails(AFTER_ROWS)
    assert copying.left() == []
    copying.run()
    assert copying.found() == list(range(100))

    # The commit fails, and nothing of it happened.
    log.numbers("orders", 100, 10)
    copying.fails(BEFORE_COMMIT)
    assert copying.found() == list(range(100))
    assert copying.left() == []

    # Spark tells of a failure and asks to undo a micro-batch that is committed: it stays.
    copying.fails(AFTER_COMMIT)
    assert copying.found() == list(range(110))
    copying.run()
    assert copying.found() == list(range(110))
    assert copying.left() == [], "what was staged again is removed"

    # Spark was killed before it noted the commit, and more was published since.
    log.numbers("orders", 110, 10)
    copying.forget_commit(1)
    copying.run()
    assert copying.found() == list(range(120))
    assert copying.left() == []
