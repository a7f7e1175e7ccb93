"""What a batch query reads, range by range, without Java: the reader that Spark's tasks call."""

import json
import shutil
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.errors import (
    DamageError,
    InvalidOption,
    OffsetOutOfRange,
    UnknownPartition,
    UnknownTopic,
)
from penstock.spark.open_log import open_log
from penstock.spark.planning import Range
from penstock.spark.reading import ROWS_MAX, ROWS_MIN, Task, check_schema, read_task, row_schema
from tests.spark.spark_world import places, rows_of, values


def test_rows_are_those_of_sparks_kafka_source(log):
    log.create("orders")
    log.publish("orders", [b"one"], [b"k"], timestamps=[1_700_000_000_123])
    log.publish("orders", [None], [None])
    first, second = log.rows(subscribe="orders")
    assert first == {
        "key": b"k",
        "value": b"one",
        "topic": "orders",
        "partition": 0,
        "offset": 0,
        "timestamp": datetime.fromtimestamp(1_700_000_000.123, UTC),
        "timestampType": 0,
    }
    assert (second["key"], second["value"], second["timestampType"]) == (None, None, 1)


def test_batches_have_exactly_the_schema_that_spark_asks_for(log):
    log.create("orders")
    log.publish("orders", [b"one"], headers=[{"a": b"b"}])
    reader = log.batch(subscribe="orders", includeHeaders="true")
    schema = to_arrow_schema(row_schema(headers=True), timezone="UTC")
    (task,) = reader.partitions()
    (batch,) = reader.read(task)
    assert schema.equals(batch.schema)
    assert str(schema) == str(batch.schema)
    batch.validate(full=True)


def test_headers_come_when_asked_for(log):
    log.create("orders")
    log.publish("orders", [b"1", b"2", b"3"], headers=[{"a": b"x", "b": b""}, None, {"a": b"y"}])
    rows = log.rows(subscribe="orders", includeHeaders="true")
    pairs = [[(one["key"], one["value"]) for one in row["headers"] or ()] for row in rows]
    assert pairs == [[("a", b"x"), ("b", b"")], [], [("a", b"y")]]
    assert "headers" not in log.rows(subscribe="orders")[0]


@pytest.mark.parametrize("count", [0, 1, 20_000])
def test_nothing_one_and_many_records(log, count):
    log.create("orders", partitions=2)
    if count:
        log.numbers("orders", 0, count)
    rows = log.rows(subscribe="orders")
    assert sorted(values(rows)) == sorted(b"%d" % number for number in range(count))


def test_large_values_come_whole(log):
    log.create("orders")
    large = bytes(range(256)) * 4096
    log.publish("orders", [large, b"", large])
    assert values(log.rows(subscribe="orders")) == [large, b"", large]


def test_small_batches_of_the_log_are_put_together(log):
    log.create("orders")
    for number in range(30):
        log.publish("orders", [b"%d" % number])
    reader = log.batch(subscribe="orders")
    (task,) = reader.partitions()
    (batch,) = reader.read(task)
    assert batch.column("value").to_pylist() == [b"%d" % number for number in range(30)]


def test_small_ranges_of_many_partitions_are_put_together(log):
    log.create("orders", partitions=4)
    log.publish("orders", [b"x"] * 8)
    reader = log.batch(subscribe="orders")
    (task,) = reader.partitions()
    (batch,) = reader.read(task)
    assert sorted(batch.column("partition").to_pylist()) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_large_batches_of_the_log_are_cut(log):
    log.create("orders")
    count = 3 * ROWS_MAX
    log.publish("orders", [b""] * count)
    reader = log.batch(subscribe="orders")
    (task,) = reader.partitions()
    sizes = [batch.num_rows for batch in reader.read(task)]
    assert sum(sizes) == count
    assert max(sizes) <= ROWS_MAX
    assert min(sizes[:-1]) >= ROWS_MIN


def test_times_are_told_apart_entry_by_entry(log):
    log.create("orders")
    log.publish("orders", [b"a", b"b"], timestamps=[5, 6])
    log.publish("orders", [b"c"])
    log.publish("orders", [b"d"], timestamps=[7])
    rows = log.rows(subscribe="orders", startingOffsets='{"orders": {"0": 1}}')
    assert [(row["value"], row["timestampType"]) for row in rows] == [
        (b"b", 0),
        (b"c", 1),
        (b"d", 0),
    ]


# --------------------------------------------------------------------------------- which records


def test_ranges_are_given_by_offsets(log):
    log.create("orders", partitions=2)
    log.publish("orders", [b"%d" % number for number in range(20)])
    start, end = {"orders": {"0": 3, "1": -2}}, {"orders": {"0": 5, "1": -1}}
    rows = log.rows(
        subscribe="orders", startingOffsets=json.dumps(start), endingOffsets=json.dumps(end)
    )
    expected = [("orders", 0, 3), ("orders", 0, 4), *(("orders", 1, one) for one in range(10))]
    assert places(rows) == expected


def test_partitions_can_be_assigned(log):
    log.create("orders", partitions=3)
    log.publish("orders", [b"%d" % number for number in range(9)])
    rows = log.rows(assign='{"orders": [2]}')
    assert places(rows) == [("orders", 2, 0), ("orders", 2, 1), ("orders", 2, 2)]
    with pytest.raises(UnknownPartition, match="partitions 0 to 2"):
        log.rows(assign='{"orders": [3]}')


def test_topics_can_be_matched(log):
    for topic in ("orders.eu", "orders.us", "clicks"):
        log.create(topic)
        log.publish(topic, [b"x"])
    assert places(log.rows(subscribePattern=r"orders\..*")) == [
        ("orders.eu", 0, 0),
        ("orders.us", 0, 0),
    ]
    assert len(log.rows(subscribe="clicks,orders.us")) == 2


def test_ranges_are_given_by_time(log):
    log.create("orders")
    times = []
    for value in (b"a", b"b", b"c"):
        log.publish("orders", [value])
        times.append(appended_ms(log))
    assert values(log.rows(subscribe="orders", startingTimestamp=times[1])) == [b"b", b"c"]
    assert values(log.rows(subscribe="orders", endingTimestamp=times[1])) == [b"a"]
    each = json.dumps({"orders": {"0": times[2]}})
    assert values(log.rows(subscribe="orders", startingOffsetsByTimestamp=each)) == [b"c"]
    assert values(log.rows(subscribe="orders", endingOffsetsByTimestamp=each)) == [b"a", b"b"]
    late = {"subscribe": "orders", "startingTimestamp": times[2] + 1}
    with pytest.raises(OffsetOutOfRange, match="startingOffsetsByTimestampStrategy=latest"):
        log.rows(**late)
    assert log.rows(**late, startingOffsetsByTimestampStrategy="latest") == []
    assert len(log.rows(subscribe="orders", endingTimestamp=times[2] + 1)) == 3


def appended_ms(log):
    """When the last record was appended; then waits for the clock to move on."""
    opened = open_log(log.path)
    time = opened.head("orders", 0).timestamp
    while opened.system.clock.time_ms() <= time:
        pass
    return time


def test_offsets_have_to_name_every_partition_and_no_other(log):
    log.create("orders", partitions=2)
    with pytest.raises(InvalidOption, match="leaves out orders/1"):
        log.rows(subscribe="orders", startingOffsets='{"orders": {"0": 0}}')
    text = '{"orders": {"0": 0, "1": 0}, "clicks": {"0": 0}}'
    with pytest.raises(InvalidOption, match="names clicks/0, which is not read"):
        log.rows(subscribe="orders", startingOffsets=text)


def test_offsets_outside_of_the_log_are_refused_or_bounded(log):
    log.create("orders")
    log.publish("orders", [b"a"])
    beyond = {"subscribe": "orders", "endingOffsets": '{"orders": {"0": 9}}'}
    with pytest.raises(OffsetOutOfRange, match="offset 9 of orders/0, which has 0 to 1"):
        log.rows(**beyond)
    assert values(log.rows(**beyond, failOnDataLoss="false")) == [b"a"]


def test_a_missing_topic_and_a_missing_log_are_told(log, tmp_path):
    log.create("orders")
    with pytest.raises(UnknownTopic, match=r"no topic 'clicks' in .* Topics there: orders"):
        log.rows(subscribe="orders,clicks")
    with pytest.raises(UnknownTopic, match=r"no topic like 'x\.\*'"):
        log.rows(subscribePattern="x.*")
    log.path = str(tmp_path / "elsewhere")
    with pytest.raises(InvalidOption, match="there is no log at"):
        log.rows(subscribe="orders")
    assert not (tmp_path / "elsewhere").exists()


def test_what_retention_takes_before_a_batch_query_is_not_missed(log):
    log.create("orders", segment_bytes_max=1_000)
    for number in range(40):
        log.publish("orders", [b"%d" % number * 20])
    log.drop_old("orders")
    rows = log.rows(subscribe="orders")
    assert 0 < len(rows) < 40
    assert rows[-1]["offset"] == 39


def test_what_retention_takes_between_plan_and_task_is_an_error_or_is_left_out(log, caplog):
    log.create("orders", segment_bytes_max=1_000)
    for number in range(40):
        log.publish("orders", [b"%d" % number * 20])
    strict = log.batch(subscribe="orders")
    lenient = log.batch(subscribe="orders", failOnDataLoss="false")
    plans = [(reader, reader.partitions()) for reader in (strict, lenient)]
    log.drop_old("orders")
    with pytest.raises(OffsetOutOfRange, match="records 0 to 39 of orders/0 were to be read"):
        rows_of(*plans[0])
    rows = rows_of(*plans[1])
    assert 0 < len(rows) < 40
    assert rows[-1]["offset"] == 39
    assert "offset 0 of orders/0 is gone" in caplog.text


# -------------------------------------------------------------------------------------- tasks


def test_ranges_become_tasks_as_the_options_say(log):
    log.create("orders", partitions=4)
    log.publish("orders", [b"%d" % number for number in range(400)])

    def tasks(**options):
        return [task.value for task in log.batch(subscribe="orders", **options).partitions()]

    assert len(tasks()) == 1
    assert len(tasks(minPartitions=8)) == 8
    assert len(tasks(maxRecordsPerPartition=50)) == 8
    for options in ({}, {"minPartitions": 7}, {"maxRecordsPerPartition": 33}):
        assert len(log.rows(subscribe="orders", **options)) == 400


def test_some_of_the_columns_can_be_asked_for(log):
    log.create("orders")
    log.publish("orders", [b"one"], [b"k"])
    schema = check_schema(StructType().add("offset", "long").add("value", "binary"))
    ranges = [Range("orders", 0, 0, 1)]
    (batch,) = read_task(Task(log.path, None, ranges, fail_on_loss=True), schema)
    assert batch.to_pylist() == [{"offset": 0, "value": b"one"}]


@pytest.mark.parametrize("wrong", [("price", "double"), ("value", "string"), ("offset", "integer")])
def test_other_columns_cannot_be_asked_for(wrong):
    with pytest.raises(InvalidOption, match="rows have key binary, value binary"):
        check_schema(StructType().add("key", "binary").add(*wrong))


def test_a_task_without_ranges_reads_nothing():
    from pyspark.sql.datasource import InputPartition

    assert list(read_task(InputPartition(None), row_schema(headers=False))) == []


def test_a_log_that_is_made_anew_under_the_same_path_is_read(log, tmp_path):
    """Workers of Spark outlive it: what they keep of the old one must not stand in the way."""
    log.create("orders")
    log.publish("orders", [b"old"] * 3)
    assert len(log.rows(subscribe="orders")) == 3
    shutil.rmtree(tmp_path / "log")
    log.create("orders")
    log.publish("orders", [b"new"])
    with suppress(DamageError):  # the first look may stumble over what was kept, and says so
        log.rows(subscribe="orders")
    assert values(log.rows(subscribe="orders")) == [b"new"]


def test_compressed_topics_are_read(log):
    from penstock.log.codec import Codec

    log.create("orders", codec=Codec.ZLIB)
    log.publish("orders", [b"a" * 1000] * 100)
    assert values(log.rows(subscribe="orders")) == [b"a" * 1000] * 100
