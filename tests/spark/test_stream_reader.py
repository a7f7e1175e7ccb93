"""What the micro-batches of a stream read, without Java: the calls that Spark makes, in its order."""

import copy
import pickle
import threading

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from penstock.errors import OffsetOutOfRange, SubscriberBusy
from penstock.log.topic import TopicFile
from penstock.spark.open_log import OpenLog, open_log
from penstock.system import System
from penstock.testing.clock import VirtualClock
from tests.spark.spark_world import places, rows_of, values


class Query:
    """Calls a stream reader as Spark does."""

    def __init__(self, reader, offsets=None):
        self.reader = reader
        self.offsets = reader.initialOffset() if offsets is None else offsets

    def next(self, limit=None):
        """The rows of the next micro-batch; None when there is none."""
        limit = limit or self.reader.getDefaultReadLimit()
        before = copy.deepcopy(self.offsets)
        end = self.reader.latestOffset(self.offsets, limit)
        self.reader.reportLatestOffset()
        assert self.offsets == before, "what Spark handed over stays as it is"
        if str(end) == str(self.offsets):
            return None
        rows = rows_of(self.reader, self.reader.partitions(self.offsets, end))
        self.offsets = end
        return rows

    def all(self):
        """The rows of all micro-batches until there are no more."""
        found = []
        while (rows := self.next()) is not None:
            found.append(rows)
        return found


def test_a_stream_starts_at_the_end_and_gets_what_comes(log):
    log.create("orders", partitions=2)
    log.numbers("orders", 0, 10)
    query = Query(log.stream(subscribe="orders"))
    assert query.next() is None
    log.numbers("orders", 10, 5)
    assert sorted(values(query.next())) == [b"10", b"11", b"12", b"13", b"14"]
    assert query.next() is None


def test_a_stream_can_start_at_the_beginning_or_anywhere(log):
    log.create("orders")
    log.numbers("orders", 0, 10)
    assert len(Query(log.stream(subscribe="orders", startingOffsets="earliest")).next()) == 10
    some = log.stream(subscribe="orders", startingOffsets='{"orders": {"0": 7}}')
    assert values(Query(some).next()) == [b"7", b"8", b"9"]


def test_offsets_have_the_form_of_sparks_kafka_source_in_one_order(log):
    log.create("b", partitions=11)
    log.create("a")
    reader = log.stream(subscribe="b,a")
    assert str(reader.initialOffset()) == str(
        {"a": {"0": 0}, "b": {str(number): 0 for number in range(11)}}
    )


def test_the_same_offsets_give_the_same_rows_again(log):
    log.create("orders", partitions=3)
    log.numbers("orders", 0, 30)
    reader = log.stream(subscribe="orders", startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    log.numbers("orders", 30, 30)
    first = rows_of(reader, reader.partitions(start, end))
    again = log.stream(subscribe="orders")
    assert rows_of(again, again.partitions(start, end)) == first
    assert len(first) == 30


def test_a_reader_goes_to_tasks_as_a_copy(log):
    log.create("orders")
    log.numbers("orders", 0, 3)
    reader = pickle.loads(pickle.dumps(log.stream(subscribe="orders", startingOffsets="earliest")))
    start = reader.initialOffset()
    tasks = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    assert len(rows_of(log.stream(subscribe="orders"), pickle.loads(pickle.dumps(tasks)))) == 3


# -------------------------------------------------------------------------------------- limits


def test_limits_are_told_to_spark_one_at_a_time(log):
    log.create("orders")

    def limit(**options):
        return log.stream(subscribe="orders", **options).getDefaultReadLimit()

    assert limit() == ReadAllAvailable()
    assert limit(maxOffsetsPerTrigger=5, minOffsetsPerTrigger=2) == ReadMaxRows(5)
    assert limit(maxBytesPerTrigger=5) == ReadMaxBytes(5)
    assert limit(minOffsetsPerTrigger=2) == ReadMinRows(2)


def test_a_micro_batch_has_at_most_so_many_records_in_proportion(log):
    log.create("orders", partitions=2)
    log.publish("orders", [b"x"] * 20, [b"0"] * 20)
    log.publish("orders", [b"x"] * 180, [b"1"] * 180)
    query = Query(
        log.stream(subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger=50)
    )
    first = query.next()
    counts = sorted(places(first).count(one) for one in set(places(first)))
    assert len(first) == 50
    assert set(counts) == {1}
    by_partition = [[row["partition"] for row in first].count(number) for number in (0, 1)]
    assert sorted(by_partition) == [5, 45]
    assert [len(rows) for rows in query.all()] == [50, 50, 50]


def test_a_micro_batch_has_about_so_many_bytes(log):
    log.create("orders")
    log.publish("orders", [b"x" * 1000] * 100)
    query = Query(
        log.stream(subscribe="orders", startingOffsets="earliest", maxBytesPerTrigger=10_000)
    )
    batches = query.all()
    assert sum(map(len, batches)) == 100
    assert 8 <= len(batches[0]) <= 10
    assert max(map(len, batches)) <= 11


def test_a_record_larger_than_the_limit_of_bytes_is_read_alone(log):
    log.create("orders")
    log.publish("orders", [b"x" * 10_000] * 3)
    query = Query(log.stream(subscribe="orders", startingOffsets="earliest", maxBytesPerTrigger=10))
    assert [len(rows) for rows in query.all()] == [1, 1, 1]


def test_a_trigger_that_reads_everything_ignores_the_limits(log):
    log.create("orders")
    log.numbers("orders", 0, 10)
    query = Query(
        log.stream(subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger=3)
    )
    assert len(query.next(ReadAllAvailable())) == 10


def test_a_micro_batch_waits_for_enough_records_but_not_for_ever(log, monkeypatch):
    clock = VirtualClock()
    opened = OpenLog(log.path, system=System(clock=clock))
    monkeypatch.setattr("penstock.spark.stream.open_log", lambda *_: opened)
    log.create("orders")
    log.numbers("orders", 0, 2)
    query = Query(
        log.stream(
            subscribe="orders",
            startingOffsets="earliest",
            minOffsetsPerTrigger=5,
            maxTriggerDelay="10s",
            longPollMs=0,
        )
    )
    assert len(query.next()) == 2, "the first one does not wait"
    log.numbers("orders", 2, 4)
    assert query.next() is None
    clock.advance(9)
    assert query.next() is None
    clock.advance(1)
    assert len(query.next()) == 4
    log.numbers("orders", 6, 5)
    assert len(query.next()) == 5


def test_what_is_there_now_is_read_and_no_more(log):
    log.create("orders")
    log.numbers("orders", 0, 10)
    reader = log.stream(
        subscribe="orders",
        startingOffsets="earliest",
        maxOffsetsPerTrigger=4,
        minOffsetsPerTrigger=9,
    )
    query = Query(reader)
    reader.prepareForTriggerAvailableNow()
    log.numbers("orders", 10, 10)
    assert [len(rows) for rows in query.all()] == [4, 4, 2]


# ------------------------------------------------------------------------------------- waiting


def test_an_idle_stream_waits_for_the_next_record(log):
    log.create("orders")
    reader = log.stream(subscribe="orders", longPollMs=1000)
    query = Query(reader)
    assert query.next() is None, "the first look does not wait: other sources may have something"
    waits = []
    wait = reader._frontier.wait

    def publish_then_wait(seconds):
        waits.append(seconds)
        publisher = threading.Thread(target=log.numbers, args=("orders", 0, 1))
        publisher.start()
        wait(seconds)
        publisher.join()

    reader._frontier.wait = publish_then_wait
    assert values(query.next()) == [b"0"]
    assert waits


def test_a_stream_that_has_just_been_busy_does_not_wait(log):
    """Another source of the same query may be the one that is busy."""
    log.create("orders")
    reader = log.stream(subscribe="orders", longPollMs=1000)
    query = Query(reader)
    query.next()
    reader._frontier.wait = None
    reader.partitions(query.offsets, query.offsets)
    assert query.next() is None


def test_a_stream_gives_up_waiting_in_time(log, monkeypatch):
    clock = VirtualClock()
    opened = OpenLog(log.path, system=System(clock=clock))
    monkeypatch.setattr("penstock.spark.stream.open_log", lambda *_: opened)
    log.create("orders")
    reader = log.stream(subscribe="orders", longPollMs=500)
    query = Query(reader)
    query.next()
    waits = []

    def wait(seconds):
        waits.append(round(seconds, 3))
        clock.advance(0.3)

    reader._frontier.wait = wait
    assert query.next() is None
    assert waits == [0.5, 0.2]


def test_a_log_without_notices_is_asked(log, monkeypatch):
    clock = VirtualClock()
    opened = OpenLog(log.path, system=System(clock=clock))
    monkeypatch.setattr(opened.store, "watch", lambda: None)
    monkeypatch.setattr("penstock.spark.stream.open_log", lambda *_: opened)
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        clock.advance(seconds)

    monkeypatch.setattr(clock, "sleep", sleep)
    log.create("orders")
    query = Query(log.stream(subscribe="orders", longPollMs=100))
    query.next()
    assert query.next() is None
    assert 5 <= len(slept) <= 6


# --------------------------------------------------------------------- topics and partitions change


def test_a_topic_that_appears_later_is_read_from_its_start(log, monkeypatch):
    monkeypatch.setattr("penstock.spark.frontier.TOPICS_EVERY_SECONDS", 0)
    query = Query(log.stream(subscribe="orders"))
    assert query.offsets == {}
    assert query.next() is None
    log.create("orders")
    assert query.next() is None, "an empty topic makes no micro-batch"
    log.numbers("orders", 0, 3)
    assert values(query.next()) == [b"0", b"1", b"2"]


def test_a_topic_that_comes_to_match_is_read(log, monkeypatch):
    monkeypatch.setattr("penstock.spark.frontier.TOPICS_EVERY_SECONDS", 0)
    log.create("orders.eu")
    query = Query(log.stream(subscribePattern=r"orders\..*"))
    log.create("orders.us")
    log.create("clicks")
    for topic in ("orders.us", "clicks"):
        log.publish(topic, [b"x"])
    assert places(query.next()) == [("orders.us", 0, 0)]


def test_topics_are_looked_up_now_and_then(log, monkeypatch):
    clock = VirtualClock()
    opened = OpenLog(log.path, system=System(clock=clock))
    monkeypatch.setattr("penstock.spark.stream.open_log", lambda *_: opened)
    query = Query(log.stream(subscribe="orders", longPollMs=0))
    log.create("orders")
    log.publish("orders", [b"x"])
    assert query.next() is None
    clock.advance(0.5)
    assert len(query.next()) == 1


def test_a_topic_that_is_not_subscribed_any_more_keeps_its_place(log):
    for topic in ("a", "b"):
        log.create(topic)
        log.publish(topic, [b"x"])
    both = Query(log.stream(subscribe="a,b", startingOffsets="earliest"))
    assert len(both.next()) == 2
    log.publish("b", [b"y"])
    one = Query(log.stream(subscribe="a"), both.offsets)
    assert one.next() is None
    log.publish("a", [b"y"])
    assert places(one.next()) == [("a", 0, 1)]
    again = Query(log.stream(subscribe="a,b"), one.offsets)
    assert places(again.next()) == [("b", 0, 1)]


def test_an_epoch_of_the_partition_count_is_finished_before_the_next_begins(log, monkeypatch):
    """So the records of a key come in their order, though the key has moved to another partition."""
    monkeypatch.setattr("penstock.spark.frontier.TOPICS_EVERY_SECONDS", 0)
    log.create("orders", partitions=2)
    query = Query(
        log.stream(subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger=7)
    )
    for round_, count in enumerate((2, 5, 1, 3)):
        if round_:
            log.repartition("orders", count)
        keys = [b"%d" % number for number in range(10)]
        log.publish("orders", [b"%d" % round_] * 10, keys)
    seen: dict[bytes, list[bytes]] = {}
    for rows in query.all():
        assert len({row["value"] for row in rows}) == 1, "a micro-batch is of one epoch"
        for row in rows:
            seen.setdefault(row["key"], []).append(row["value"])
    assert seen == {b"%d" % number: [b"0", b"1", b"2", b"3"] for number in range(10)}


# ---------------------------------------------------------------------------------------- losses


def test_a_gap_is_an_error_that_names_it_or_is_left_out(log, caplog):
    log.create("orders", segment_bytes_max=1_000)
    strict = Query(log.stream(subscribe="orders"))
    lenient = Query(log.stream(subscribe="orders", failOnDataLoss="false"))
    for number in range(40):
        log.publish("orders", [b"%d" % number * 20])
    log.drop_old("orders")
    with pytest.raises(OffsetOutOfRange) as caught:
        strict.next()
    earliest = int(str(caught.value.earliest))
    assert f"records 0 to {earliest - 1} of orders/0 are gone: retention removed" in str(
        caught.value
    )
    assert "groupId" in str(caught.value)
    rows = lenient.next()
    assert [row["offset"] for row in rows] == list(range(earliest, 40))
    assert "are gone" in caplog.text


def test_a_partition_first_seen_without_its_start_is_a_gap(log, monkeypatch):
    monkeypatch.setattr("penstock.spark.frontier.TOPICS_EVERY_SECONDS", 0)
    query = Query(log.stream(subscribe="orders"))
    log.create("orders", segment_bytes_max=1_000)
    for number in range(40):
        log.publish("orders", [b"%d" % number * 20])
    log.drop_old("orders")
    with pytest.raises(OffsetOutOfRange, match="has not seen this partition before"):
        query.next()


def test_a_log_that_is_shorter_than_what_was_read_is_an_error_or_begins_anew(log):
    log.create("orders")
    log.numbers("orders", 0, 3)
    with pytest.raises(OffsetOutOfRange, match="up to offset 9, but it ends at 3"):
        Query(log.stream(subscribe="orders"), {"orders": {"0": 9}}).next()
    lenient = Query(log.stream(subscribe="orders", failOnDataLoss="false"), {"orders": {"0": 9}})
    assert lenient.next() == []
    log.numbers("orders", 3, 2)
    assert values(lenient.next()) == [b"3", b"4"]


def test_a_planned_micro_batch_whose_end_is_lost_is_an_error(log):
    log.create("orders")
    log.numbers("orders", 0, 3)
    reader = log.stream(subscribe="orders")
    with pytest.raises(OffsetOutOfRange, match="it ends at 3"):
        reader.partitions({"orders": {"0": 1}}, {"orders": {"0": 5}})
    lenient = log.stream(subscribe="orders", failOnDataLoss="false")
    assert (
        len(rows_of(lenient, lenient.partitions({"orders": {"0": 1}}, {"orders": {"0": 5}}))) == 2
    )


# ---------------------------------------------------------------------------------------- groups


def committed(log, group, topic="orders"):
    from penstock.log.offsets import OffsetFile

    opened = open_log(log.path)
    found = {}
    state = opened.topic(topic)
    for number in range(state.partitions if state else 0):
        read = OffsetFile(opened.store, group, topic, number).read()
        found[number] = None if read is None else read.offset
    return found


def test_the_group_follows_the_query_and_is_listed(log):
    log.create("orders")
    log.numbers("orders", 0, 5)
    query = Query(log.stream(subscribe="orders", startingOffsets="earliest", groupId="spark"))
    assert committed(log, "spark") == {0: 0}
    assert "spark" in TopicFile(open_log(log.path).store, "orders").read().subscribers
    assert len(query.next()) == 5
    assert committed(log, "spark") == {0: 0}, "the micro-batch is not finished"
    assert query.next() is None
    assert committed(log, "spark") == {0: 5}


def test_a_query_that_begins_anew_takes_the_group_back(log):
    log.create("orders")
    log.numbers("orders", 0, 5)
    options = {"subscribe": "orders", "startingOffsets": "earliest", "groupId": "spark"}
    first = Query(log.stream(**options))
    first.all()
    assert committed(log, "spark") == {0: 5}
    release(first)
    Query(log.stream(**options))
    assert committed(log, "spark") == {0: 0}


def test_retention_waits_for_the_group(log):
    log.create("orders", segment_bytes_max=1_000)
    query = Query(log.stream(subscribe="orders", groupId="spark"))
    for number in range(40):
        log.publish("orders", [b"%d" % number * 20])
    from penstock.log.topic import Retention

    keep = Retention(age_ms_max=None, bytes_max=1)

    async def retain(queue):
        await queue.change_topic("orders", retention=keep)
        await queue.maintain()

    log._run(retain)
    assert len(query.next()) == 40
    query.next()
    log._run(retain)
    assert open_log(log.path).reader("orders", 0).earliest() > 0


def test_a_group_with_some_partitions_only_does_not_hold_up_retention(log):
    log.create("orders", partitions=2)
    Query(log.stream(assign='{"orders": [1]}', groupId="spark"))
    assert committed(log, "spark") == {0: None, 1: 0}
    assert TopicFile(open_log(log.path).store, "orders").read().subscribers == {}


def test_a_group_has_one_query(log, monkeypatch):
    monkeypatch.setattr("penstock.spark.group.CLAIM_SECONDS", 0)
    log.create("orders")
    first = Query(log.stream(subscribe="orders", groupId="spark"))
    with pytest.raises(SubscriberBusy, match="group 'spark' of 'orders' is in use"):
        Query(log.stream(subscribe="orders", groupId="spark"))
    release(first)
    Query(log.stream(subscribe="orders", groupId="spark"))


def release(query):
    """What the end of the query's process does."""
    for claim in query.reader._group._claims.values():
        claim.__exit__(None, None, None)


def test_offsets_that_cannot_be_committed_do_not_stop_the_query(log, caplog, monkeypatch):
    from penstock.errors import StoreFailed
    from penstock.log.offsets import OffsetFile

    log.create("orders")
    query = Query(log.stream(subscribe="orders", groupId="spark"))

    def fail(*_):
        raise StoreFailed("the disk is full")

    monkeypatch.setattr(OffsetFile, "commit", fail)
    log.numbers("orders", 0, 2)
    assert len(query.next()) == 2
    assert query.next() is None
    assert "the disk is full" in caplog.text
