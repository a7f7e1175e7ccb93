"""An output that is reset starts anew, and nothing else does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.errors import InvalidOption, SubscriberBusy, UsageError
from penstock.log.producer_file import producer_names
from penstock.spark.open_log import open_log
from penstock.spark.tables import WarehouseTable
from tests.spark.shop_world import OrderPlaced, order, shop_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def test_an_output_is_written_again_from_the_start(spark, log, tmp_path) -> None:
    shop = shop_in(log, tmp_path)
    orders = shop.source(OrderPlaced)

    @shop.table("orders")
    def kept() -> DataFrame:
        return orders.frame().drop("_record")

    @shop.topic("copies", key="order_id")
    def copies() -> DataFrame:
        return orders.frame().drop("_record")

    log.publish("orders", [order(1), order(2)])
    shop.run(spark)
    table = WarehouseTable(f"{shop.folder}/orders")
    with pytest.raises(UsageError, match="removes the checkpoint, the ledger, all rows"):
        shop.reset("kept")
    assert table.count() == 2
    with open_log(log.path).store.lock("groups/shop.kept/orders.lock", 0):
        with pytest.raises(SubscriberBusy, match="is running"):
            shop.reset("kept", yes=True)
    shop.reset("kept", yes=True)
    assert table.count() == 0
    producers = producer_names(open_log(log.path).store)
    shop.reset("copies", yes=True)
    assert set(producers) - set(producer_names(open_log(log.path).store))
    log.publish("orders", [order(3)])
    shop.run(spark)
    assert sorted(table.arrow()["order_id"].to_pylist()) == ["o-1", "o-2", "o-3"]
    # A topic keeps what it has; all of it comes again behind that.
    assert len(log.rows(subscribe="copies")) == 5


def test_an_output_that_is_not_there_is_named(log, tmp_path) -> None:
    shop = shop_in(log, tmp_path)
    shop.source(OrderPlaced)
    with pytest.raises(InvalidOption, match=r"no output 'x': there are orders\.dead-letters"):
        shop.reset("x", yes=True)
    # One that never ran has nothing that could go.
    shop.reset("orders.dead-letters", yes=True)
