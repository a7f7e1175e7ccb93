"""Rows into Spark: from a topic, and from Parquet files with the very same rows."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.model import Case, Load, Prepared, Sample, Scale, Workload
from benchmarks.spark.common import BATCHES, session, steady_rate
from penstock import FsyncPolicy, TopicConfig, WalMessageQueue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS = {"quick": 800_000}
RECORDS_DEFAULT = 4_000_000
PAYLOAD_BYTES = 100
FILES_OF_A_BATCH = 2
CALL = 10_000
TOPIC = "rows"
Frame = Callable[["SparkSession", Path, int], "DataFrame"]


def cases(scale: Scale) -> list[Case]:
    """The topic with all of its columns and with two, and Parquet, as streams and as tables."""
    records = RECORDS.get(scale.name, RECORDS_DEFAULT)
    prepared = Prepared(f"spark-{records}", lambda folder: fill(folder, records))
    stream = partial(Case, "spark_source", PAYLOAD_BYTES, "micro-batches", unit="rows/s")
    table = partial(Case, "spark_source", PAYLOAD_BYTES, "table", unit="rows/s")
    return [
        stream("kafka", "Spark's Kafka source, seven columns", run=lambda at: _kafka(at, records)),
        stream("parquet", "Spark's file source, seven columns", prepared=prepared,
               run=lambda at: _streamed(_parquet_stream, at, records)),
        stream("bound", "a source in Python that gives the same rows from memory", bound=True,
               run=lambda at: _streamed(_bound, at, records)),
        stream("penstock", 'format("penstock"), seven columns', prepared=prepared,
               run=lambda at: _streamed(_topic_stream, at, records)),
        stream("penstock-two", "the same, key and value only", prepared=prepared,
               run=lambda at: _streamed(_two_columns, at, records)),
        table("parquet", "spark.read.parquet", prepared=prepared,
              run=lambda at: _read(_parquet_table, at, records)),
        table("penstock", 'spark.read.format("penstock")', prepared=prepared,
              run=lambda at: _read(_topic_table, at, records)),
    ]  # fmt: skip


def _kafka(folder: Path, records: int) -> Sample:
    # It needs a client of Kafka, and a broker.
    from benchmarks.spark.kafka_source import FilledKafka

    with FilledKafka(folder, records, PAYLOAD_BYTES) as kafka:
        return _streamed(lambda spark, _, __: kafka.stream(spark), folder, records)


def fill(folder: Path, records: int) -> None:
    """The topic, and the Parquet files: two for each micro-batch."""
    asyncio.run(_fill_topic(folder, records))
    rows = session().read.format("penstock").option("subscribe", TOPIC)
    files = BATCHES * FILES_OF_A_BATCH
    rows.option("minPartitions", files).load(str(folder / "log")).write.parquet(
        str(folder / "parquet")
    )


async def _fill_topic(folder: Path, records: int) -> None:
    values = Load(PAYLOAD_BYTES, 0, 0, CALL).values()
    config = TopicConfig(partitions=2, fsync=FsyncPolicy.TIMED)
    async with WalMessageQueue(folder / "log") as queue:
        await queue.create_topic(TOPIC, config)
        for first in range(0, records, CALL):
            keys = [b"%012d" % number for number in range(first, first + CALL)]
            await queue.publish_many(TOPIC, values, keys=keys)


def _parquet_stream(session: SparkSession, folder: Path, _: int) -> DataFrame:
    path = str(folder / "parquet")
    reader = session.readStream.schema(session.read.parquet(path).schema)
    return reader.option("maxFilesPerTrigger", FILES_OF_A_BATCH).parquet(path)


def _topic_stream(session: SparkSession, folder: Path, records: int) -> DataFrame:
    return _stream(session.readStream.format("penstock"), folder, records)


def _two_columns(session: SparkSession, folder: Path, records: int) -> DataFrame:
    reader = session.readStream.format("penstock").schema("key BINARY, value BINARY")
    return _stream(reader, folder, records)


def _bound(session: SparkSession, _: Path, records: int) -> DataFrame:
    from benchmarks.spark.bound import bound_stream

    return bound_stream(session, records, BATCHES)


def _stream(reader: Any, folder: Path, records: int) -> DataFrame:
    reader = reader.option("subscribe", TOPIC).option("startingOffsets", "earliest")
    reader = reader.option("maxOffsetsPerTrigger", records // BATCHES)
    return reader.load(str(folder / "log"))  # type: ignore[no-any-return]


def _parquet_table(session: SparkSession, folder: Path, _: int) -> DataFrame:
    return session.read.parquet(str(folder / "parquet"))


def _topic_table(session: SparkSession, folder: Path, _: int) -> DataFrame:
    return session.read.format("penstock").option("subscribe", TOPIC).load(str(folder / "log"))


def _streamed(frame: Frame, folder: Path, records: int) -> Sample:
    """The rate of the later micro-batches: rows by the time from trigger to commit."""
    checkpoint = tempfile.mkdtemp(dir=folder)
    writer = frame(session(), folder, records).writeStream.format("noop")
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    start = time.perf_counter()
    query = writer.start()
    query.awaitTermination()
    seconds = time.perf_counter() - start
    return Sample(steady_rate(query, records), {"whole query, rows/s": records / seconds})


def _read(frame: Frame, folder: Path, records: int) -> Sample:
    rows = frame(session(), folder, records)
    start = time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    return Sample(records / (time.perf_counter() - start))


WORKLOAD = Workload(
    "spark_source",
    "Rows into Spark",
    "Records of 100 bytes with keys of 12 in a topic of two partitions, and Parquet files that Spark wrote with the "
    "same rows, are read by `local[2]` into a sink that does nothing. Kafka has the same records in a topic of two "
    "partitions, on a broker beside Spark.",
    cases,
)
