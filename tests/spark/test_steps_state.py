"""Late data, duplicates, watermarks and state that expires, on real Spark: one run of all steps."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from penstock import Event, topic
from penstock.errors import InvalidOption
from penstock.spark.pipeline import Pipeline
from penstock.spark.steps import deduplicate, join, sessions, stateful, window
from penstock.spark.tables import WarehouseTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.timeout(300)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@topic("orders", key="order_id")
class Ordered(Event):
    order_id: str
    at: datetime


@topic("payments", key="order_id")
class Paid(Event):
    order_id: str
    paid_at: datetime


class Counting(StatefulProcessor):
    """How many rows of its key there were so far."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "count long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803 - Spark's names
        count = (self._count.get() or (0,))[0]
        count += sum(1 for _ in rows)
        self._count.update((count,))
        yield Row(kind=key[0], count=count)

    def close(self) -> None:
        pass


def ordered(*rows: tuple[int, int]) -> list[bytes]:
    """Numbers and minutes."""
    return [
        msgspec.json.encode(Ordered(f"o-{number}", NOON + timedelta(minutes=minute)))
        for number, minute in rows
    ]


def paid(*rows: tuple[int, int]) -> list[bytes]:
    return [
        msgspec.json.encode(Paid(f"o-{number}", NOON + timedelta(minutes=minute)))
        for number, minute in rows
    ]


@pytest.fixture
def shop(log: Any, tmp_path: Any) -> Pipeline:
    """Micro-batches of two records: the watermark moves after each of them."""
    log.create("orders")
    log.create("payments")
    return Pipeline("shop", log=log.path, folder=str(tmp_path / "warehouse"), records_max=2)


def declare(shop: Pipeline) -> None:
    orders = shop.source(Ordered)
    payments = shop.source(Paid)

    @shop.table("unique")
    def unique() -> DataFrame:
        frame = orders.frame().drop("_record")
        return deduplicate(frame, "order_id", time="at", within="10 minutes")

    @shop.table("windows")
    def windows() -> DataFrame:
        groups = window(orders.frame(), time="at", size="10 minutes", late="10 minutes")
        return groups.count().selectExpr("window.start AS start", "count")

    @shop.table("sessions")
    def visits() -> DataFrame:
        frame = orders.frame().selectExpr("at", "substring(order_id, 1, 1) AS kind")
        with pytest.raises(InvalidOption, match="name a column"):
            sessions(frame, time="at", gap="10 minutes", late="10 minutes")
        groups = sessions(frame, "kind", time="at", gap="10 minutes", late="10 minutes")
        return groups.count().selectExpr("window.start AS start", "window.end AS end", "count")

    @shop.table("joined")
    def joined() -> DataFrame:
        left = orders.frame().drop("_record")
        right = payments.frame().drop("_record")
        return join(left, right, "order_id", times=("at", "paid_at"), within="10 minutes")

    @shop.table("counted")
    def counted() -> DataFrame:
        frame = orders.frame().selectExpr("substring(order_id, 1, 1) AS kind")
        return stateful(frame, "kind", processor=Counting(), columns="kind string, count long")


def rows_of(shop: Pipeline, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = WarehouseTable(f"{shop.folder}/{table}").arrow().to_pylist()
    return found


def minute(time: datetime) -> int:
    return int((time - NOON).total_seconds() // 60)


def too_late(query: Any) -> int:
    reports = query.recentProgress
    return sum(one.numRowsDroppedByWatermark for report in reports for one in report.stateOperators)


def test_late_data_duplicates_and_state(spark: Any, log: Any, shop: Pipeline) -> None:
    declare(shop)
    # A row is late when it is behind the watermark that the micro-batch before the last one left.
    log.publish("orders", ordered((1, 0), (1, 0), (2, 5), (3, 30)))  # then the watermark is at 20
    log.publish("orders", ordered((5, 31), (6, 60), (4, 1), (6, 60)))  # o-4 is late; then at 50
    log.publish("orders", ordered((1, 61), (7, 62)))  # o-1 is forgotten by now
    log.publish("payments", paid((1, 2), (3, 50), (6, 65), (9, 66)))
    running = shop.run(spark)

    unique = sorted(row["order_id"] for row in rows_of(shop, "unique"))
    assert unique == ["o-1", "o-1", "o-2", "o-3", "o-5", "o-6", "o-7"]

    windows = {minute(row["start"]): row["count"] for row in rows_of(shop, "windows")}
    assert windows == {0: 3, 30: 2}, "without o-4, and the last one is still open"

    visits = {
        (minute(row["start"]), minute(row["end"])): row["count"]
        for row in rows_of(shop, "sessions")
    }
    assert visits == {(0, 15): 3, (30, 41): 2}

    joined = sorted(
        (row["order_id"], minute(row["at"]), minute(row["paid_at"]))
        for row in rows_of(shop, "joined")
    )
    assert joined == [("o-1", 0, 2), ("o-1", 0, 2), ("o-6", 60, 65), ("o-6", 60, 65)]

    counted = [row["count"] for row in rows_of(shop, "counted")]
    assert sorted(counted) == [2, 4, 6, 8, 10], "state is kept from one micro-batch to the next"

    queries = running.queries
    assert too_late(queries["unique"]) == too_late(queries["windows"]) == 1
    status = {one.name: one for one in running.status()}
    # What is left of the state is what may still be needed: those of minute 60 and later.
    assert status["unique"].state_rows == 3
    assert status["windows"].state_rows == 1
