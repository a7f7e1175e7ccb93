"""Update mode: changed rows take the place of those with the same key, each micro-batch once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pytest

from penstock.errors import InvalidOption
from penstock.spark.steps import window
from penstock.spark.table_merge import merge_rows
from penstock.spark.table_options import TableOptions
from penstock.spark.tables import WarehouseTable
from tests.spark.shop_world import OrderPlaced, order, shop_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.timeout(300)


def revenue_of(orders) -> DataFrame:
    groups = window(orders.frame(), "country", time="placed_at", size="1 minute", late="1 hour")
    return groups.agg({"total": "sum"}).selectExpr(
        "country", "window.start AS minute", "`sum(total)` AS total"
    )


def forget_last_commit(checkpoint) -> None:
    """As if the driver had been killed after the micro-batch and before Spark's note of it."""
    numbers = [int(one.name) for one in (checkpoint / "commits").iterdir() if one.name.isdigit()]
    (checkpoint / "commits" / str(max(numbers))).unlink()
    (checkpoint / "commits" / f".{max(numbers)}.crc").unlink(missing_ok=True)


def test_changed_rows_go_to_a_topic_and_to_a_table(spark, log, tmp_path) -> None:
    shop = shop_in(log, tmp_path)
    orders = shop.source(OrderPlaced)

    @shop.topic("revenue", key="country", mode="update")
    def live() -> DataFrame:
        return revenue_of(orders)

    @shop.table("revenue", mode="update", key=["country", "minute"])
    def kept() -> DataFrame:
        return revenue_of(orders)

    def table() -> dict[str, float]:
        found = WarehouseTable(f"{shop.folder}/revenue").arrow().to_pylist()
        return {row["country"]: row["total"] for row in found}

    def told() -> list[tuple[bytes, float]]:
        rows = log.rows(subscribe="revenue")
        return sorted((row["key"], msgspec.json.decode(row["value"])["total"]) for row in rows)

    log.publish("orders", [order(1), order(2, "fr", total=5.0)])
    shop.run(spark)
    log.publish("orders", [order(3, total=2.0)])
    shop.run(spark)
    for again in (False, True):
        assert told() == [(b"de", 1.0), (b"de", 3.0), (b"fr", 5.0)], again
        assert table() == {"de": 3.0, "fr": 5.0}
        assert WarehouseTable(f"{shop.folder}/revenue").count() == 2
        if not again:
            for name in ("live", "kept"):
                forget_last_commit(tmp_path / "warehouse" / "checkpoints" / name)
            shop.run(spark)


def test_rows_of_update_mode_need_their_key(spark, log, tmp_path) -> None:
    shop = shop_in(log, tmp_path)
    orders = shop.source(OrderPlaced)
    with pytest.raises(InvalidOption, match="key and mode='update' go together"):
        shop.table("x", mode="update")
    with pytest.raises(InvalidOption, match="key and mode='update' go together"):
        shop.table("x", key=["country"])

    @shop.topic("revenue", mode="update")
    def keyless() -> DataFrame:
        return revenue_of(orders)

    with pytest.raises(InvalidOption, match="mode update needs the column 'key'"):
        shop.run(spark)


def rows(**columns) -> pa.Table:
    return pa.table(columns)


def test_rows_are_merged_once_for_each_transaction(tmp_path) -> None:
    options = TableOptions(path=str(tmp_path / "table"))
    table = WarehouseTable(options.path)

    def merge(number: int, **columns) -> bool:
        return merge_rows(options, rows(**columns), ["k"], transaction=("q", number))

    assert merge(0, k=["a", None], v=[1, 2])
    assert merge(1, k=["a", None, "b"], v=[10, 20, 30])
    assert not merge(1, k=["a"], v=[99])
    assert not merge(0, k=["a"], v=[99])
    found = {row["k"]: row["v"] for row in table.arrow().to_pylist()}
    assert found == {"a": 10, None: 20, "b": 30}
    with pytest.raises(InvalidOption, match="several rows of a micro-batch have the same k"):
        merge(2, k=["c", "c"], v=[1, 2])


def test_a_column_that_does_not_fit_is_refused_before_anything_is_written(tmp_path) -> None:
    options = TableOptions(path=str(tmp_path / "table"))
    merge_rows(options, rows(k=["a"], v=[1]), ["k"], transaction=("q", 0))
    with pytest.raises(InvalidOption, match="column 'v'"):
        merge_rows(options, rows(k=["a"], v=["text"]), ["k"], transaction=("q", 1))
    assert WarehouseTable(options.path).version == 0
