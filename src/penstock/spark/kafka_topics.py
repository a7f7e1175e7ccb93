"""Topics as frames, whatever the URL says: a log by ``format("penstock")``, Kafka by Spark's connector.

::

    orders = read_topics(spark, "kafka://127.0.0.1:9092", "orders", startingOffsets="earliest")
    write_topics(alerts, "log:./data", "alerts").option("checkpointLocation", "./c").start()

Rows have the same columns, and options the same names. What differs is what the places promise: a log gets
every micro-batch once, Kafka gets it at least once, as Spark's connector knows no transactions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidOption
from penstock.log.names import check_name
from penstock.spark.kafka_connector import add_connector
from penstock.spark.kafka_options import connection, is_kafka, source_options
from penstock.spark.sink_options import SinkOptions, check_columns, read_sink_options

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LOG = "log:"


def read_topics(
    spark: SparkSession, url: str, *topics: str, stream: bool = True, **options: str
) -> DataFrame:
    """The records of topics: a stream, or what is there now with ``stream=False``.

    ``url`` is ``log:./data``, the directory itself, or ``kafka://host:port``. ``options`` are those of
    the source; for Kafka also ``kafka.…`` options of its client. Raises InvalidOption for one that is
    wrong there, UnknownTopic for a topic that Kafka does not have, and NotSupported when the connector
    cannot be fetched.
    """
    if topics:
        options = {"subscribe": ",".join(check_name("topic", one) for one in topics), **options}
    reader: Any = spark.readStream if stream else spark.read
    if not is_kafka(url):
        found: DataFrame = reader.format("penstock").options(path=path_of(url), **options).load()
        return found
    chosen = {**connection(url), **source_options(options, stream=stream)}
    _check_there(url, chosen.get("subscribe"))
    add_connector(spark)
    found = reader.format("kafka").options(**chosen).load()
    return found


def write_topics(frame: DataFrame, url: str, topic: str | None = None, **options: str) -> Any:
    """The writer of a frame to a topic: ``.start()`` it when the frame is a stream, else ``.save()`` it.

    A topic that is not there is made, with ``partitions`` as an option. Keys go to the partitions that the
    transport sends them to, which takes a function in Python for Kafka; ``?partitioner=native`` in its
    URL leaves that to Kafka's client.
    """
    named = options if topic is None else {"topic": topic, **options}
    kind, chosen = "penstock", {"path": path_of(url), **named}
    if is_kafka(url):
        add_connector(frame.sparkSession)
        frame, chosen = _for_kafka(frame, url, named)
        kind = "kafka"
    if frame.isStreaming:
        return frame.writeStream.format(kind).options(**chosen)
    return frame.write.format(kind).mode("append").options(**chosen)


def path_of(url: str) -> str:
    """The directory, or the URL of the store, of a log."""
    return url.removeprefix(LOG).removeprefix("//") if url.startswith(LOG) else url


def _check_there(url: str, subscribe: str | None) -> None:
    from penstock.spark.kafka_cluster import cluster_at

    cluster_at(url).check_topics(
        name.strip() for name in (subscribe or "").split(",") if name.strip()
    )


def _for_kafka(
    frame: DataFrame, url: str, given: dict[str, str]
) -> tuple[DataFrame, dict[str, str]]:
    from penstock.spark.kafka_cluster import cluster_at

    native = {name: value for name, value in given.items() if name.lower().startswith("kafka.")}
    plain = {name: value for name, value in given.items() if name not in native}
    options = read_sink_options({"path": ".", **plain})
    _check_sink(frame, options)
    cluster = cluster_at(url)
    assert options.topic is not None, "it has just been checked"
    count = cluster.make_topic(options.topic, options.partitions if "partitions" in plain else None)
    if "key" in frame.columns and not cluster.is_native:
        frame = frame.withColumn("partition", _partition(count))
    return frame, {**connection(url), "topic": options.topic, **native}


def _check_sink(frame: DataFrame, options: SinkOptions) -> None:
    check_columns(frame.schema, options)
    if options.application is not None:
        raise InvalidOption(
            "txnAppId: Spark's connector writes to Kafka at least once, not once", option="txnAppId"
        )
    if options.topic is None:
        raise InvalidOption("say which topic of Kafka the records go to", option="topic")
    for column in ("timestamp", "topic"):
        if column in frame.columns:
            raise InvalidOption(
                f"Spark's connector for Kafka takes no column {column!r} here: drop it",
                option=column,
            )


def _partition(count: int) -> Column:
    """The partition of each key, by the hash that all transports use; null for none."""
    import pyarrow as pa
    from pyspark.sql import functions

    def chosen(keys: pa.Array) -> pa.Array:
        from penstock.log.routing import partitions_of

        numbers, _ = partitions_of(keys.to_pylist(), count, 0)
        return pa.array(numbers, pa.int32(), mask=keys.is_null().to_numpy(zero_copy_only=False))

    chosen.__annotations__ = {"keys": pa.Array, "return": pa.Array}
    route: Any = functions.arrow_udf(chosen, "int")  # type: ignore[attr-defined]
    found: Column = route(functions.col("key").cast("binary"))
    return found
