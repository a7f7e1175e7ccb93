"""What goes wrong on real Spark is told in words that help: names, topics, the disk."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from penstock.spark.tables import WarehouseTable
from tests.spark.spark_world import LogWorld

DISK_MEBIBYTES = 8


def read(spark: Any, log: Any, **options: str) -> Any:
    return spark.read.format("penstock").options(path=log.path, **options).load()


def test_a_misspelled_option_names_the_right_one(spark: Any, log: Any, tmp_path: Path) -> None:
    log.create("orders")
    log.numbers("orders", 0, 1)
    with pytest.raises(PySparkException, match=r"(?i)did you mean subscribe"):
        read(spark, log, subscrbe="orders").count()
    view = (
        "CREATE TEMPORARY VIEW misspelled USING penstock "
        f"OPTIONS (path '{log.path}', subscribe 'orders', startingOfsets 'earliest')"
    )
    with pytest.raises(PySparkException, match=r"(?i)did you mean startingOffsets"):
        spark.sql(view)
    rows = read(spark, log, subscribe="orders").select("value")
    with pytest.raises(PySparkException, match=r"(?i)did you mean topic"):
        rows.write.format("penstock").mode("append").options(path=log.path, topik="copy").save()
    table = rows.write.format("penstock_table").mode("append")
    with pytest.raises(PySparkException, match=r"(?i)did you mean partitionBy"):
        table.options(path=str(tmp_path / "table"), partitonBy="value").save()


def test_a_topic_that_is_not_there_is_named_with_those_that_are(spark: Any, log: Any) -> None:
    log.create("orders")
    with pytest.raises(PySparkException, match=r"(?s)oders.*orders"):
        read(spark, log, subscribe="oders").count()


def test_a_log_that_is_not_there_is_told(spark: Any, log: Any) -> None:
    with pytest.raises(PySparkException, match="there is no log at /nowhere"):
        spark.read.format("penstock").options(path="/nowhere", subscribe="orders").load().count()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    size = f"size={DISK_MEBIBYTES}m"
    mounted = os.geteuid() == 0 and (
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(place)], check=False)
    ).returncode == 0  # fmt: skip
    if not mounted:
        pytest.skip("a small disk can be mounted by root only")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_is_told_leaves_nothing_behind_and_what_fits_is_written_later(
    spark: Any, disk: Path
) -> None:
    (disk / "log").mkdir()
    log = LogWorld(disk / "log")
    log.create("copy")
    parts = ", ".join(f"sha2(concat(id, '-{number}'), 512)" for number in range(16))
    value = f"unhex(concat({parts})) AS value"  # a kibibyte that cannot be made smaller
    many = spark.range(0, 20_000, 1, 2).selectExpr(value)
    few = spark.range(0, 100, 1, 2).selectExpr(value)
    topic = {"path": log.path, "topic": "copy"}
    table = {"path": str(disk / "table")}
    for kind, options in (("penstock", topic), ("penstock_table", table)):
        with pytest.raises(PySparkException, match=r"(?i)no space left|disk is full|out of space"):
            many.write.format(kind).mode("append").options(**options).save()
        few.write.format(kind).mode("append").options(**options).save()
    assert len(log.rows(subscribe="copy")) == 100
    assert WarehouseTable(table["path"]).count() == 100
