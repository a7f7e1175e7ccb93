"""Pipelines on real Spark: topics to tables and topics, with bad records in the dead letters."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock import Event, topic
from penstock.errors import DamagedFile, HandlerFailed, InvalidOption, UsageError
from penstock.log.offsets import OffsetFile
from penstock.pressure import DegradationDirective
from penstock.spark.open_log import open_log
from penstock.spark.pipeline import Pipeline
from penstock.spark.steps import deduplicate, join, window
from penstock.spark.tables import WarehouseTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@topic("orders", key="order_id")
class OrderPlaced(Event):
    order_id: str
    country: str
    total: float
    placed_at: datetime


def order(number: int, country: str = "de", total: float = 1.0, minute: int = 0) -> bytes:
    placed = OrderPlaced(f"o-{number}", country, total, NOON + timedelta(minutes=minute))
    return msgspec.json.encode(placed)


@pytest.fixture
def shop(log, tmp_path) -> Pipeline:
    log.create("orders", partitions=2)
    return Pipeline("shop", log=log.path, folder=str(tmp_path / "warehouse"))


def headers_of(row: dict[str, Any]) -> dict[str, str]:
    return {one["key"]: one["value"].decode() for one in row["headers"]}


def test_good_records_go_to_the_table_and_bad_ones_to_the_dead_letters(
    spark, log, shop: Pipeline
) -> None:
    orders = shop.source(OrderPlaced, rules={"the total is negative": "total >= 0"})

    @shop.table("silver/orders", partition_by=["country"])
    def silver_orders() -> DataFrame:
        return orders.frame().drop("_record")

    keys = [b"a", b"b", b"c", b"d"]
    log.publish("orders", [order(1), b"not json", order(2, total=-1.0), order(3, "fr")], keys)
    shop.run(spark)
    found = WarehouseTable(f"{shop.folder}/silver/orders").arrow().to_pylist()
    assert {(row["order_id"], row["country"]) for row in found} == {("o-1", "de"), ("o-3", "fr")}
    letters = log.rows(subscribe="orders.dead-letters", includeHeaders="true")
    told = {row["value"]: headers_of(row) for row in letters}
    assert told[b"not json"]["penstock-reason"] == "the value is no JSON of OrderPlaced"
    assert told[order(2, total=-1.0)]["penstock-reason"] == "the total is negative"
    places = {
        (one["penstock-topic"], one["penstock-partition"], one["penstock-offset"])
        for one in told.values()
    }
    standing = {
        (row["topic"], str(row["partition"]), str(row["offset"]))
        for row in log.rows(subscribe="orders")
        if row["value"] in told
    }
    assert places == standing

    # What came before does not come again.
    log.publish("orders", [order(4), b"worse"], [b"e", b"f"])
    shop.run(spark)
    assert WarehouseTable(f"{shop.folder}/silver/orders").count() == 3
    assert len(log.rows(subscribe="orders.dead-letters")) == 3


def test_results_go_back_to_a_topic(spark, log, shop: Pipeline) -> None:
    orders = shop.source(OrderPlaced)

    @shop.topic("revenue", key="country", mode="complete")
    def revenue() -> DataFrame:
        groups = window(
            orders.frame(), "country", time="placed_at", size="1 minute", late="10 minutes"
        )
        return groups.agg({"total": "sum"}).selectExpr(
            "country", "window.start AS minute", "`sum(total)` AS total"
        )

    log.publish("orders", [order(1), order(2, total=2.0), order(3, "fr", minute=1)])
    shop.run(spark)
    rows = log.rows(subscribe="revenue")
    assert {(row["key"], msgspec.json.decode(row["value"])["total"]) for row in rows} == {
        (b"de", 3.0),
        (b"fr", 1.0),
    }


def test_duplicates_and_late_rows_are_dropped_and_state_that_is_lost_is_replayed(
    spark, log, shop: Pipeline, tmp_path
) -> None:
    orders = shop.source(OrderPlaced)

    @shop.table("orders")
    def unique_orders() -> DataFrame:
        return deduplicate(
            orders.frame().drop("_record"), "order_id", time="placed_at", within="1 hour"
        )

    log.publish("orders", [order(1, minute=90), order(1, minute=90), order(2, minute=80)])
    shop.run(spark)
    log.publish("orders", [order(2, minute=91), order(3, minute=31), order(4, minute=29)])
    running = shop.run(spark)
    found = WarehouseTable(f"{shop.folder}/orders").arrow()["order_id"].to_pylist()
    assert sorted(found) == ["o-1", "o-2", "o-3"], "the last one came more than an hour late"
    (status,) = (one for one in running.status() if one.name == "unique-orders")
    assert status.rows_too_late == 1
    assert status.state_rows == 3
    assert status.rows_in_all == 3
    assert 0 < status.write_seconds <= status.seconds
    assert status.watermark is not None
    assert status.watermark_lag_seconds > 3_600, "the orders are of a day that has passed"

    # A power cut takes the state. That is told with the command that helps, and nothing is changed.
    damage(tmp_path / "warehouse" / "checkpoints" / "unique-orders" / "state", gone=False)
    command = rf"penstock pipeline reset {re.escape(__file__)} unique-orders --yes"
    with pytest.raises(DamagedFile, match=rf"state of the query.*have to be read again.*{command}"):
        shop.run(spark)
    assert WarehouseTable(f"{shop.folder}/orders").count() == 3
    shop.reset("unique-orders", yes=True)
    shop.run(spark)
    found = WarehouseTable(f"{shop.folder}/orders").arrow()["order_id"].to_pylist()
    assert sorted(found) == ["o-1", "o-2", "o-3", "o-4"], "all of it in one go: none is late"


def test_under_pressure_enrichment_is_left_out_and_taken_up_again(
    spark, log, shop: Pipeline
) -> None:
    orders = shop.source(OrderPlaced)
    countries = spark.createDataFrame([("de", "Germany")], "country string, name string")

    @shop.table("named")
    def named() -> DataFrame:
        return shop.enrich(orders.frame().drop("_record"), countries, "country")

    for number, directive in enumerate(
        [
            DegradationDirective(),
            DegradationDirective(skip_enrichment=True, batch_more=True),
            DegradationDirective(),
        ]
    ):
        shop.directive = directive
        log.publish("orders", [order(number)])
        shop.run(spark)
    found = WarehouseTable(f"{shop.folder}/named").arrow().to_pylist()
    assert {row["order_id"]: row["name"] for row in found} == {
        "o-0": "Germany",
        "o-1": None,
        "o-2": "Germany",
    }


def test_a_running_pipeline_changes_its_plan_and_loses_nothing(spark, log, shop: Pipeline) -> None:
    orders = shop.source(OrderPlaced)

    @shop.table("orders")
    def all_orders() -> DataFrame:
        return orders.frame().drop("_record")

    log.publish("orders", [order(number) for number in range(20)])
    running = shop.start(spark)
    try:
        before = {name: query.runId for name, query in running.queries.items()}
        running.degrade(DegradationDirective(utilisation=0.1))
        assert {name: query.runId for name, query in running.queries.items()} == before
        running.degrade(DegradationDirective(batch_more=True, skip_enrichment=True))
        assert {name: query.runId for name, query in running.queries.items()} != before
        log.publish("orders", [order(number) for number in range(20, 40)])
        for query in running.queries.values():
            query.processAllAvailable()
        (status,) = (one for one in running.status() if one.name == "all-orders")
        assert status.running
        assert status.error is None
        assert status.group == "shop.all-orders"
    finally:
        running.stop()
    found = WarehouseTable(f"{shop.folder}/orders").arrow()["order_id"].to_pylist()
    assert sorted(found) == sorted(f"o-{number}" for number in range(40))


def test_a_query_that_ended_while_it_planned_its_first_micro_batch_begins_again(
    spark, log, shop: Pipeline
) -> None:
    orders = shop.source(OrderPlaced)

    @shop.table("orders")
    def all_orders() -> DataFrame:
        return orders.frame().drop("_record")

    log.publish("orders", [order(1)])
    offsets = Path(shop.folder) / "checkpoints" / "all-orders" / "offsets"
    offsets.mkdir(parents=True)
    (offsets.parent / "metadata").write_text('{"id": "dc207de9-b1bc-4f95-8135-aad64538eb53"}')
    (offsets / ".0.b12e4b05-a97d-4a1c-a927-ee3c98451dd7.tmp").write_text("v1")
    shop.run(spark)
    assert WarehouseTable(f"{shop.folder}/orders").count() == 1


def test_a_query_that_fails_is_named_and_the_others_go_on(spark, log, shop: Pipeline) -> None:
    orders = shop.source(OrderPlaced)

    @shop.table("broken")
    def broken() -> DataFrame:
        return orders.frame().selectExpr("raise_error('no such luck') AS failed")

    @shop.table("fine")
    def fine() -> DataFrame:
        return orders.frame().drop("_record")

    log.publish("orders", [order(1)])
    with pytest.raises(HandlerFailed, match="output 'broken' of pipeline 'shop'"):
        shop.run(spark)
    assert WarehouseTable(f"{shop.folder}/fine").count() == 1


def test_mistakes_of_a_declaration_are_told_at_once(shop) -> None:
    orders = shop.source(OrderPlaced)
    with pytest.raises(UsageError, match="inside of a function"):
        orders.frame()
    with pytest.raises(InvalidOption, match="use append, complete, update"):
        shop.table("x", mode="upsert")

    @shop.table("twice")
    def same_name() -> DataFrame:
        raise AssertionError

    with pytest.raises(InvalidOption, match="two outputs 'same-name'"):
        shop.topic("twice")(same_name)


def damage(folder: Path, *, gone: bool) -> None:
    """What a power cut leaves of files that nobody synced."""
    for file in folder.rglob("*"):
        if file.is_file():
            file.unlink() if gone else file.write_bytes(b"")


def test_a_checkpoint_that_a_power_cut_emptied_is_rebuilt_and_nothing_comes_twice(
    spark, log, shop: Pipeline, tmp_path
) -> None:
    orders = shop.source(OrderPlaced)

    @shop.table("orders")
    def all_orders() -> DataFrame:
        return orders.frame().drop("_record")

    for number in range(4):
        if number > 1:
            damage(tmp_path / "warehouse" / "checkpoints", gone=number == 3)
        log.publish("orders", [order(number), b"bad"])
        shop.run(spark)
    found = WarehouseTable(f"{shop.folder}/orders").arrow()["order_id"].to_pylist()
    assert sorted(found) == ["o-0", "o-1", "o-2", "o-3"]
    assert len(log.rows(subscribe="orders.dead-letters")) == 4
    (output,) = (one for one in shop.all_outputs() if one.name == "all-orders")
    progress = shop.ledger_of(output).progress()
    assert progress is not None
    assert progress.batch_id == 3, "it went on with the next number"


def test_a_topic_is_read_twice_in_one_output(spark, log, shop: Pipeline, tmp_path) -> None:
    orders = shop.source(OrderPlaced)

    @shop.topic("pairs", key="order_id")
    def pairs() -> DataFrame:
        """An order, and the same one from the other country: a stream beside itself."""
        left = orders.frame().where("country = 'de'").selectExpr("order_id", "placed_at")
        right = orders.frame().where("country = 'fr'")
        return join(
            left, right.selectExpr("order_id", "placed_at AS again_at"), "order_id",
            times=("placed_at", "again_at"), within="10 minutes",
        )  # fmt: skip

    @shop.table("both")
    def both() -> DataFrame:
        first, second = orders.frame(), orders.frame()
        return first.selectExpr("order_id", "1 AS use").union(
            second.selectExpr("order_id", "2 AS use")
        )

    log.publish("orders", [order(1), order(2), order(1, "fr", minute=5), order(3, "fr")])
    shop.run(spark)
    damage(tmp_path / "warehouse" / "checkpoints" / "both", gone=False)
    log.publish("orders", [order(4), order(2, "fr", minute=1)])
    running = shop.run(spark)

    found = [msgspec.json.decode(row["value"])["order_id"] for row in log.rows(subscribe="pairs")]
    assert sorted(found) == ["o-1", "o-2"]
    rows = WarehouseTable(f"{shop.folder}/both").arrow().to_pylist()
    uses = {use: sorted(row["order_id"] for row in rows if row["use"] == use) for use in (1, 2)}
    assert uses[1] == uses[2] == ["o-1", "o-1", "o-2", "o-2", "o-3", "o-4"], "each once"
    assert [lag.records for lag in running.lags()] == [0, 0, 0]
    for group in ("shop.both", "shop.both.2"):
        files = [OffsetFile(open_log(log.path).store, group, "orders", one) for one in range(2)]
        assert sum(at.offset for one in files if (at := one.read())) == 6, group
