"""Topics in a real Spark: batch queries, streams, SQL, restarts, groups."""

import json
import re
import threading
from typing import Any

import pytest

from penstock.log.lag import lag_of
from penstock.spark import follow


def read(spark, log, **options):
    reader = spark.read.format("penstock").option("path", log.path)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


class Stream:
    """A streaming query into a list of micro-batches, with a checkpoint that outlives it."""

    def __init__(self, spark, log, folder, **options):
        self.spark, self.log, self.options = spark, log, options
        self.checkpoint = str(folder / "checkpoint")
        self.output = str(folder / "output")
        self.query: Any = None

    def start(self, trigger=None, **options):
        reader = self.spark.readStream.format("penstock").option("path", self.log.path)
        for name, value in (self.options | options).items():
            reader = reader.option(name, value)
        writer = reader.load().writeStream.format("json").option("path", self.output)
        writer = writer.option("checkpointLocation", self.checkpoint)
        self.query = writer.trigger(**(trigger or {"availableNow": True})).start()
        return self.query

    def run(self, **options):
        """Read what is there; what Spark reported."""
        query = self.start(**options)
        assert query.awaitTermination(120)
        return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]

    def offsets(self):
        rows = self.spark.read.json(self.output).select("topic", "partition", "offset").collect()
        return sorted((row.topic, row.partition, row.offset) for row in rows)


def every_place(topic, *counts):
    return [(topic, number, at) for number, count in enumerate(counts) for at in range(count)]


# --------------------------------------------------------------------------------------- batch


def test_a_topic_is_a_table_without_any_registration(spark, log):
    log.create("orders")
    large = bytes(range(256)) * 4096
    headers = [{"trace": b"1", "empty": b""}, None, None]
    log.publish(
        "orders", [b"one", None, large], [b"k", None, b"l"], headers, [1_700_000_000_123, 5, 6]
    )
    table = read(spark, log, subscribe="orders", includeHeaders="true")
    assert table.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    rows = table.orderBy("offset").selectExpr("*", "unix_millis(timestamp) AS at").collect()
    assert [bytes(row.value) if row.value is not None else None for row in rows] == [
        b"one",
        None,
        large,
    ]
    assert [row.key and bytes(row.key) for row in rows] == [b"k", None, b"l"]
    assert [(row.topic, row.partition, row.offset) for row in rows] == every_place("orders", 3)
    assert [(row.at, row.timestampType) for row in rows] == [(1_700_000_000_123, 0), (5, 0), (6, 0)]
    assert {one.key: bytes(one.value) for one in rows[0].headers} == {"trace": b"1", "empty": b""}
    assert not rows[1].headers


def test_options_choose_what_is_read(spark, log):
    log.create("orders", partitions=2)
    log.publish("orders", [b"%d" % number for number in range(20)])
    log.create("clicks")
    assert read(spark, log, subscribe="clicks").count() == 0
    assert read(spark, log, subscribePattern="ord.*").count() == 20
    some = read(
        spark,
        log,
        assign='{"orders": [1]}',
        STARTINGOFFSETS='{"orders": {"1": 4}}',
        endingOffsets='{"orders": {"1": -1}}',
        maxRecordsPerPartition="2",
    )
    assert some.rdd.getNumPartitions() == 3
    assert sorted(row.offset for row in some.select("offset").collect()) == [4, 5, 6, 7, 8, 9]


def test_a_wrong_option_is_told_with_the_right_ones(spark, log):
    log.create("orders")
    with pytest.raises(Exception, match=r"Did you mean startingOffsets\? The options are path, "):
        read(spark, log, subscribe="orders", startingOffset="earliest").count()
    with pytest.raises(Exception, match="there is no topic 'nothing' in"):
        read(spark, log, subscribe="nothing").count()


def test_a_topic_is_a_view_in_sql(spark, log):
    log.create("orders")
    log.publish("orders", [b'{"price": 3}', b'{"price": 4}'])
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW orders USING penstock "
        f"OPTIONS (path '{log.path}', subscribe 'orders')"
    )
    price = "get_json_object(CAST(value AS STRING), '$.price')"
    assert spark.sql(f"SELECT sum({price}) AS total FROM orders").collect()[0].total == 7


def test_some_of_the_columns_are_read_when_the_schema_says_so(spark, log):
    log.create("orders")
    log.publish("orders", [b"one"])
    reader = spark.read.format("penstock").schema("offset BIGINT, value BINARY")
    rows = reader.options(path=log.path, subscribe="orders").load().collect()
    assert [(row.offset, bytes(row.value)) for row in rows] == [(0, b"one")]


# ------------------------------------------------------------------------------------- streams


def test_a_stream_goes_on_where_its_checkpoint_ends(spark, log, tmp_path):
    log.create("orders", partitions=2)
    log.publish("orders", [b"x"] * 100)
    stream = Stream(
        spark,
        log,
        tmp_path,
        subscribe="orders",
        startingOffsets="earliest",
        maxOffsetsPerTrigger="40",
        groupId="spark",
    )
    assert stream.run() == [40, 40, 20]
    log.publish("orders", [b"y"] * 10)
    log.create("clicks")
    log.publish("clicks", [b"z"])
    assert stream.run(subscribe="orders,clicks", startingOffsets="latest") == [11]
    assert stream.offsets() == every_place("clicks", 1) + every_place("orders", 55, 55)
    offsets = stream.query.lastProgress.sources[0].endOffset
    assert json.loads(offsets) == {"clicks": {"0": 1}, "orders": {"0": 55, "1": 55}}


def test_a_topic_and_partitions_that_appear_while_a_stream_runs_are_read(spark, log, tmp_path):
    stream = Stream(spark, log, tmp_path, subscribe="orders", groupId="spark")
    query = stream.start(trigger={"processingTime": "0 seconds"})
    wait_until(query, lambda: query.status["message"].startswith("Waiting for data"))
    log.create("orders")
    log.numbers("orders", 0, 5)
    wait_until(query, lambda: rows_read(query) >= 5)
    log.repartition("orders", 3)
    log.numbers("orders", 5, 20)
    wait_until(query, lambda: rows_read(query) >= 25)
    follow(query, path=log.path, group="spark")
    query.stop()
    places = stream.offsets()
    assert len(places) == len(set(places)) == 25
    assert {partition for _, partition, _ in places} == {0, 1, 2}

    async def lag(queue):
        return await lag_of(queue, "orders", "spark")

    lags = log._run(lag)
    assert [one.records for one in lags] == [0, 0, 0]
    log.numbers("orders", 25, 10)
    lags = log._run(lag)
    assert sum(one.records for one in lags) == 10
    assert max(one.milliseconds for one in lags) >= 0


def rows_read(query):
    return sum(progress.numInputRows for progress in query.recentProgress)


def wait_until(query, condition):
    """Return when the condition holds; raise when the query has failed."""
    pause = threading.Event()
    while not condition():
        assert query.isActive, query.exception()
        pause.wait(0.05)


def test_a_gap_stops_a_stream_unless_it_may_go_on(spark, log, tmp_path):
    log.create("orders", segment_bytes_max=1_000)
    log.publish("orders", [b"first"])
    stream = Stream(spark, log, tmp_path, subscribe="orders", startingOffsets="earliest")
    assert stream.run() == [1]
    for number in range(40):
        log.publish("orders", [b"%d" % number * 20])
    log.drop_old("orders")
    with pytest.raises(
        Exception, match=r"records 1 to \d+ of orders/0 are gone: retention"
    ) as caught:
        stream.run()
    (earliest,) = map(int, re.findall(r"It begins at (\d+) now", str(caught.value))[:1])
    assert stream.run(failOnDataLoss="false") == [41 - earliest]
    assert stream.offsets() == [
        ("orders", 0, 0),
        *(("orders", 0, at) for at in range(earliest, 41)),
    ]


def test_a_wrong_option_stops_a_stream_before_it_starts(spark, log, tmp_path):
    log.create("orders")
    with pytest.raises(Exception, match="endingOffsets is an option of batch queries only"):
        Stream(spark, log, tmp_path, subscribe="orders", endingOffsets="latest").run()
