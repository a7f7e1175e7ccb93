"""Dead letters are published again, each once, with their key and their headers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import InvalidOption, SubscriberBusy, UnknownTopic
from penstock.spark.open_log import open_log
from penstock.spark.replaying import letters_left
from penstock.spark.tables import WarehouseTable
from tests.spark.shop_world import OrderPlaced, order, shop_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.spark.pipeline import Pipeline

LETTERS = "orders.dead-letters"


def headers_of(row: dict[str, Any]) -> dict[str, bytes]:
    return {one["key"]: one["value"] for one in row["headers"] or []}


@pytest.fixture
def shop(log, tmp_path) -> Pipeline:
    return shop_in(log, tmp_path)


def test_letters_come_to_their_topic_once(log, shop) -> None:
    log.create(LETTERS, partitions=2)
    log.publish(LETTERS, [b"1", b"2", b"3"], [b"a", b"b", b"c"], [{"trace": b"7"}, None, None])
    assert letters_left(open_log(log.path), LETTERS, shop.replay_group) == (3, 3)
    assert shop.replay_dead_letters("orders", limit=2) == 2
    assert letters_left(open_log(log.path), LETTERS, shop.replay_group) == (3, 1)
    assert shop.replay_dead_letters("orders") == 1
    assert shop.replay_dead_letters("orders") == 0
    rows = log.rows(subscribe="orders", includeHeaders="true")
    assert {(row["key"], row["value"]) for row in rows} == {
        (b"a", b"1"),
        (b"b", b"2"),
        (b"c", b"3"),
    }
    assert {row["key"]: headers_of(row).get("trace") for row in rows}[b"a"] == b"7"
    assert all(headers_of(row)["penstock-attempts"] == b"1" for row in rows)
    assert letters_left(open_log(log.path), LETTERS, shop.replay_group) == (3, 0)


def test_more_letters_than_a_transaction_takes(log, shop, monkeypatch) -> None:
    monkeypatch.setattr("penstock.spark.replaying.LETTERS_MAX", 3)
    log.create(LETTERS, partitions=1)
    log.numbers(LETTERS, 0, 20)
    assert shop.replay_dead_letters("orders", limit=10) == 10
    assert shop.replay_dead_letters("orders") == 10
    found = sorted(int(row["value"]) for row in log.rows(subscribe="orders"))
    assert found == list(range(20))


def test_a_replay_that_breaks_off_goes_on_where_it_was(log, shop, monkeypatch) -> None:
    """The records and the place are one transaction: broken before it, nothing has happened."""
    log.create(LETTERS, partitions=1)
    log.numbers(LETTERS, 0, 5)

    def broken(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("penstock.log.transactions.Transactions.commit", broken)
        with pytest.raises(KeyboardInterrupt):
            shop.replay_dead_letters("orders")
    assert log.rows(subscribe="orders") == []
    assert shop.replay_dead_letters("orders") == 5


def test_mistakes_of_a_replay_are_told(log, shop) -> None:
    with pytest.raises(UnknownTopic, match=r"there is no topic 'orders\.dead-letters'"):
        shop.replay_dead_letters("orders")
    log.create(LETTERS, partitions=1)
    with pytest.raises(InvalidOption, match="limit is 0"):
        shop.replay_dead_letters("orders", limit=0)
    with open_log(log.path).store.lock(f"groups/{shop.replay_group}/{LETTERS}.lock", 0):
        with pytest.raises(SubscriberBusy, match="is being replayed already"):
            shop.replay_dead_letters("orders")


def test_after_a_fix_the_bad_records_arrive_and_attempts_are_counted(
    spark, log, shop: Pipeline
) -> None:
    orders = shop.source(OrderPlaced, rules={"the total is negative": "total >= 0"})

    @shop.table("orders")
    def all_orders() -> DataFrame:
        return orders.frame().drop("_record")

    log.publish("orders", [order(1), order(2, total=-1.0)], [b"1", b"2"], [None, {"trace": b"9"}])
    shop.run(spark)
    assert shop.replay_dead_letters("orders") == 1
    shop.run(spark)
    # It is as bad as before: another letter, which knows what became of it.
    letters = log.rows(subscribe=LETTERS, includeHeaders="true")
    assert [headers_of(row).get("penstock-attempts") for row in letters] == [None, b"1"]
    assert [headers_of(row)["trace"] for row in letters] == [b"9", b"9"]
    shop.sources[0].rules.clear()  # type: ignore[attr-defined]
    assert shop.replay_dead_letters("orders") == 1
    shop.run(spark)
    found = WarehouseTable(f"{shop.folder}/orders").arrow()["order_id"].to_pylist()
    assert sorted(found) == ["o-1", "o-2"]
    assert len(log.rows(subscribe=LETTERS)) == 2
