"""Spark over a real Kafka: the same rows, the same pipeline, its lag in the same place."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock.errors import InvalidOption, NotSupported, SubscriberBusy, UnknownTopic
from penstock.hashing import fnv1a
from penstock.transports import open_transport
from tests.snippets import run_examples
from tests.transports.servers.kafka import KafkaServer, kafka_server

pytest.importorskip("pyspark", reason="Spark needs: pip install 'penstock[spark]'")
pytest.importorskip("confluent_kafka", reason="Kafka needs: pip install 'penstock[kafka]'")

from pyspark.errors import PySparkException

from penstock.spark.kafka_connector import kafka_jars
from penstock.spark.kafka_group import KafkaGroup
from penstock.spark.kafka_topics import read_topics, write_topics
from penstock.spark.pipeline import Pipeline
from penstock.spark.report import report_of
from penstock.spark.tables import WarehouseTable
from tests.spark.shop_world import OrderPlaced, order

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


@pytest.fixture(scope="module")
def server() -> Iterator[KafkaServer]:
    try:
        kafka_jars()
    except NotSupported as missing:
        pytest.skip(str(missing))
    with kafka_server() as running:
        yield running


def publish(url: str, topic: str, records: dict[bytes, bytes], partitions: int = 2) -> None:
    async def send() -> None:
        async with open_transport(url) as transport:
            await transport.create_topic(topic, partitions=partitions)
            await transport.produce(topic, list(records.values()), keys=list(records))

    asyncio.run(send())


def test_rows_are_those_of_a_log_and_keys_go_where_the_transport_sends_them(
    spark: Any, log: Any, server: KafkaServer
) -> None:
    keys = [b"%d" % number for number in range(40)]
    log.create("rows", partitions=3)
    log.publish("rows", keys, keys)
    url = f"log:{log.path}"
    rows = read_topics(spark, url, "rows", stream=False)
    assert rows.columns == COLUMNS
    write_topics(rows.select("key", "value"), server.url, "rows", partitions="3").save()
    copied = read_topics(spark, server.url, "rows", stream=False)
    assert copied.columns == COLUMNS
    assert [one.dataType for one in copied.schema] == [one.dataType for one in rows.schema]
    found = {bytes(row.key): (bytes(row.value), row.partition) for row in copied.collect()}
    assert found == {key: (key, fnv1a(key) % 3) for key in keys}
    with ThreadPoolExecutor(1) as another:
        counting = another.submit(
            lambda: read_topics(spark, server.url, "rows", stream=False).count()
        )
        assert counting.result(60) == len(keys), "each thread of Java finds the connector"
    with pytest.raises(PySparkException, match="read_topics"):
        spark.read.format("penstock").option("subscribe", "rows").load(server.url).count()
    with pytest.raises(UnknownTopic, match="no topic 'missing' in Kafka"):
        read_topics(spark, server.url, "missing")
    with pytest.raises(InvalidOption, match="follow"):
        read_topics(spark, server.url, "rows", groupId="me")


def test_the_examples_of_its_page_run(spark: Any, server: KafkaServer, tmp_path: Path) -> None:
    publish(server.url, "orders-of-the-page", {b"1": order(1), b"2": bytes(2_000)})
    said = {
        '"./': f'"{tmp_path}/',  # Java has a folder of its own to start from
        "kafka://127.0.0.1:9092": server.url,
        '"orders", startingOffsets': '"orders-of-the-page", startingOffsets',
        'spark_session("orders")': "the_session",
    }
    shown: dict[str, Any] = {"the_session": spark}
    run_examples("docs/spark-kafka.md", "tests/spark/test_kafka_pipeline.py", said, shown)
    shown["query"].processAllAvailable()
    shown["query"].stop()
    assert read_topics(spark, server.url, "large-orders", stream=False).count() == 1
    assert shown["shop"].name == "shop"


def shop_on(url: str, folder: Path) -> Pipeline:
    """A pipeline; nothing in it says where its topics are."""
    shop = Pipeline("shop", log=url, folder=str(folder / "warehouse"))
    orders = shop.source(OrderPlaced, rules={"the total is negative": "total >= 0"})

    @shop.table("orders")
    def all_orders() -> DataFrame:
        return orders.frame().drop("_record")

    @shop.topic("large", key="order_id", partitions="2")
    def large_orders() -> DataFrame:
        return orders.frame().drop("_record").where("total > 5")

    return shop


def numbers_in(shop: Pipeline) -> list[str]:
    return sorted(WarehouseTable(f"{shop.folder}/orders").arrow()["order_id"].to_pylist())


def test_the_pipeline_runs_on_kafka_and_its_lag_is_seen(
    spark: Any, server: KafkaServer, tmp_path: Path
) -> None:
    publish(server.url, "orders", {b"1": order(1), b"2": order(2, total=9.0), b"3": b"not json"})
    shop = shop_on(server.url, tmp_path)
    shop.run(spark)
    assert numbers_in(shop) == ["o-1", "o-2"]
    (large,) = read_topics(spark, server.url, "large", stream=False).collect()
    assert msgspec.json.decode(bytes(large.value))["order_id"] == "o-2"
    assert large.partition == fnv1a(b"o-2") % 2
    letters = read_topics(
        spark, server.url, "orders.dead-letters", stream=False, includeHeaders="true"
    ).collect()
    headers = {one.key: bytes(one.value).decode() for one in letters[0].headers}
    assert headers["penstock-reason"] == "the value is no JSON of OrderPlaced"
    report = report_of(shop)
    assert [(one.micro_batch, one.lag_records) for one in report.outputs] == [(0, 0)] * 3
    assert [(one.records, one.not_replayed) for one in report.dead_letters] == [(1, 1)]

    # The lag is that of groups in Kafka, for whoever asks.
    publish(server.url, "orders", {b"4": order(4), b"5": order(5)})
    assert {one.lag_records for one in report_of(shop).outputs} == {2}
    assert asyncio.run(lag_of(server.url, "orders", "shop.all-orders")) == 2
    assert shop.replay_dead_letters("orders") == 1
    assert shop.replay_dead_letters("orders") == 0
    # What a power cut may leave of a checkpoint; the ledger has what is needed.
    for file in (tmp_path / "warehouse" / "checkpoints" / "all-orders").rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    shop.run(spark)
    assert numbers_in(shop) == ["o-1", "o-2", "o-4", "o-5"]
    assert {one.lag_records for one in report_of(shop).outputs} <= {0, 1}, "a marker may count"
    assert report_of(shop).dead_letters[0].records == 2, "the bad record came back"

    # One reads as a group at a time, also when it comes to a reset.
    reader = KafkaGroup(server.url, "shop.all-orders")
    reader.claim(shop.open_state(), ["orders"])
    with pytest.raises(SubscriberBusy):
        shop.reset("all-orders", yes=True)
    reader.close()
    assert shop.reset("all-orders", yes=True) == ["the checkpoint", "the ledger", "all rows"]


async def lag_of(url: str, topic: str, group: str) -> int:
    async with open_transport(url) as transport:
        return sum(one.records for one in await transport.lag(topic, group))
