"""The same rows from Kafka, by Spark's own connector: what the source of a log is compared with."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.brokers.starting import kafka_server
from benchmarks.model import Load
from benchmarks.spark.common import BATCHES
from penstock.spark import read_topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "rows"
CALL = 10_000
WAIT_SECONDS = 300
WAITING_MAX = 200_000


class FilledKafka:
    """A broker of its own with the rows in a topic of two partitions, as the log has them."""

    def __init__(self, folder: Path, records: int, payload_bytes: int) -> None:
        self._folder = Path(tempfile.mkdtemp(dir=folder))
        self._stack = ExitStack()
        self._records = records
        self._payload_bytes = payload_bytes

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._server = stack.enter_context(kafka_server(self._folder))
            self._fill()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def stream(self, session: SparkSession) -> DataFrame:
        """All rows, in micro-batches of one size."""
        size = str(self._records // BATCHES)
        return read_topics(
            session,
            self._server.url,
            TOPIC,
            startingOffsets="earliest",
            maxOffsetsPerTrigger=size,
        )

    def _fill(self) -> None:
        own: dict[str, Any] = {"bootstrap.servers": self._server.address, "log_level": 3}
        admin = AdminClient(own)
        admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result()
        producer = Producer({**own, "linger.ms": 20, "queue.buffering.max.messages": 500_000})
        values = Load(self._payload_bytes, 0, 0, CALL).values()
        for number in range(self._records):
            producer.produce(TOPIC, values[number % CALL], b"%012d" % number)
            if number % CALL == 0:
                while len(producer) > WAITING_MAX:
                    producer.poll(0.1)
        assert producer.flush(WAIT_SECONDS) == 0
