"""The suites: what is measured together and shown on one page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import (
    brokers,
    bus,
    durable,
    frameworks,
    growth,
    observe,
    scale,
    spark,
    streaming,
    targets,
    workloads,
)
from benchmarks.attached import profile_attached
from benchmarks.bus.targets import TARGETS as BUS_TARGETS
from benchmarks.model import Workload
from benchmarks.profile import Profiler, profile_case
from benchmarks.scale.targets import TARGETS as SCALE_TARGETS
from benchmarks.spark.targets import TARGETS as SPARK_TARGETS
from benchmarks.streaming.targets import TARGETS as STREAMING_TARGETS
from benchmarks.targets import Target


@dataclass(frozen=True)
class Suite:
    """Workloads that share a page, with their targets."""

    name: str
    workloads: tuple[Workload, ...]
    targets: tuple[Target, ...]
    packages: tuple[str, ...]
    """Those whose versions matter."""
    profiled: tuple[str, ...]
    """Cases that are sampled once more to see where the time goes."""
    about_targets: str
    explained: str
    """The contender that ``how`` is about: without it the page needs no ``how``."""
    how: tuple[str, ...]
    on_disk: bool = False
    profiler: Profiler = profile_case
    rounds_max: int = 100
    """For what takes long and is compared with itself."""
    versions: Callable[[], dict[str, str]] = dict
    """Of servers, which no package tells."""


SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "log",
            workloads.WORKLOADS,
            targets.TARGETS,
            ("penstock", "crc32c", "msgspec", "numpy", "pyarrow", "lmdb"),
            profiled=(
                "publish_many/100/sync-1000/penstock",
                "publish_many/100/no-sync/penstock",
                "one_by_one/100/no-sync/penstock",
                "one_by_one/100/sync-1000/penstock",
                "awaited/100/sync-each/penstock-64",
                "partitions/100/sync-1000/penstock-every-message-4",
                "processes/100/sync-1000/penstock-2",
                "read/100/read/penstock-for",
                "read/100/read/penstock-batches",
                "read/100/read/penstock-arrow",
                "tail/100/delivery/penstock",
                "recovery/100/restart/penstock",
            ),
            about_targets=(
                "For 100-byte records. The median is judged. “Syncs shared” is judged with tens of thousands of "
                "records in a sync, “a sync per 1,000” one by one with as many as raw, SQLite and LMDB have. “Calls in flight” "
                "share syncs, which raw, SQLite and LMDB do not: there a ratio to raw may be above one."
            ),
            explained="raw",
            how=(
                "- “raw” is the limit: the very bytes that Penstock writes, packed beforehand, written with",
                "  `os.write` and synced with `os.fdatasync` after each block: of 1,000 records, of 100 or of one.",
                "- Nobody is compared at a weaker durability than Penstock's. SQLite runs in WAL mode with",
                "  `synchronous=FULL` where Penstock syncs, LMDB with `sync=True`; they sync after each block too.",
                "- Penstock's publishers share syncs: what has gathered while the disk was busy is synced at once.",
                "  “records per sync” tells how many records a sync had. It is more than raw's where several calls",
                "  or records are on their way, and the table says how many may be. “penstock-double-buffered”,",
                "  “penstock-stop-and-wait” and all that make one call at a time sync where raw does.",
                "- Every record is acknowledged, and where it says durable synced, before the clock stops.",
            ),
            on_disk=True,
        ),
        Suite(
            "durable",
            durable.WORKLOADS,
            durable.TARGETS,
            (
                "penstock",
                "lmdb",
                "rocksdict",
                "litequeue",
                "persist-queue",
                "redis",
                "nats-py",
                "confluent-kafka",
                "asyncpg",
            ),
            profiled=(
                "durable_batches/100/sync-1000/penstock",
                "durable_singles/100/sync-each/penstock",
                "durable_read/100/read/penstock",
            ),
            about_targets=(
                "The median is judged. The goal against a server is 10, against a library 1.5. Calls in flight "
                "share syncs, as those of servers may; the libraries have one call, and a sync for each."
            ),
            explained="raw",
            how=(
                "- “raw” is the limit: the very bytes that Penstock writes, packed beforehand, written with",
                "  `os.write` and synced with `os.fdatasync` after each call's records.",
                "- Nobody is compared at a weaker durability than Penstock's; the column says how each one",
                "  syncs. The settings are those of its documentation for that.",
                "- Every sample of a server has one of its own, on loopback or a local socket, and its start is",
                "  not counted. A peer that is not here is named and left out.",
                "- Kafka's Java has the options of its own start script: `-Xms1g -Xmx1g -XX:+UseG1GC",
                "  -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35 -XX:+ExplicitGCInvokesConcurrent",
                "  -XX:MaxInlineLevel=15`, and compiles fully. Its settings are those of one node, with short sessions, and those",
                "  in the column; the consumer has `queued.min.messages=1000000`, `fetch.message.max.bytes=8388608`.",
                "  It gets 200,000 records before a clock starts, so that Java has compiled what it needs.",
                "- PostgreSQL has `shared_buffers=1GB` and `max_wal_size=4GB`; the rest is as it comes. redis-py",
                "  uses hiredis, and Redis runs with `appendonly yes` and without snapshots. NATS is as it comes",
                "  but for `sync_interval`.",
                "- RocksDB has `max_background_jobs=6`, `bytes_per_sync=1 MiB`, dynamic level sizes and blocks of",
                "  16 KiB, as its guide to tuning advises. SQLite has `wal_autocheckpoint=10000` and 64 MiB of cache.",
                "- litequeue's column is text; it is given bytes, which SQLite keeps there as they are.",
            ),
            on_disk=True,
            versions=durable.versions,
        ),
        Suite(
            "bus",
            bus.WORKLOADS,
            BUS_TARGETS,
            ("penstock", "msgspec", "bubus", "pyee", "blinker"),
            profiled=(
                "events/queued/resilient",
                "events/handled/resilient",
                "burst/unawaited/resilient",
                "commands/executed/resilient",
                "paced/10000/resilient",
                "schedule/pending/resilient",
            ),
            about_targets="The median is judged.",
            explained="resilient",
            how=(
                "- “resilient” is `ResilientMessageBus` as it comes: retries, a circuit breaker and dead",
                "  letters for its one async handler. “plain” is `MessageBus`.",
                "- The handler adds one to a counter, in all contenders alike, and every event is a new",
                "  object. After each block the counter must agree with what was published.",
                "- “queue” is a bare `asyncio.Queue` and a task that takes from it: no handler, no bus.",
                "  “hand-rolled” is what programs write themselves: a dictionary of handlers and a task",
                "  for each call. bubus, pyee and blinker are set up as their documentation says.",
                "- “µs of processor” is the time of this process for each event; on a busy machine it says",
                "  more than the rate.",
            ),
        ),
        Suite(
            "scale",
            scale.WORKLOADS,
            SCALE_TARGETS,
            ("penstock", "msgspec", "faster-fifo", "pyzmq", "pyee", "blinker"),
            profiled=(
                "hot/sync-handler/resilient",
                "hot/async-handler/resilient",
                "hot/sync-handler/resilient-awaited",
                "ring/one-thread/ring",
                "shared/100/batch-1000/penstock",
                "scale_partitions/slow-handler/partitions-8",
                "durable/sync-each/resilient-64",
            ),
            about_targets="The median is judged.",
            explained="resilient",
            how=(
                "- “resilient” and “plain” are `ScalableMessageBus` around `ResilientMessageBus` and",
                "  `MessageBus`, as they come: limits, pressure, retries and breakers are on.",
                "- “deque” is the limit of Python: the bound methods `append` and `popleft` in a loop.",
                "- The handler counts and adds up the numbers of its events, in all contenders alike. A",
                "  case in which something is lost, or comes twice, is not measured.",
                "- “µs of processor” is the time of this process for each event; on a busy machine it says",
                "  more than the rate.",
            ),
        ),
        Suite(
            "streaming",
            streaming.WORKLOADS,
            STREAMING_TARGETS,
            ("penstock", "crc32c", "msgspec", "numpy"),
            profiled=(
                "end_to_end/100/manual-commit/partitions-4-processes-1",
                "end_to_end/100/auto-commit/partitions-4-processes-1",
                "parallel/slow-handler/in-flight-400",
                "transform/100/batch-1000/partitions-4-transaction",
                "rebalance/hand-over/join",
            ),
            about_targets="The median is judged.",
            explained="partitions-1-processes-1",
            how=(
                "- Everything goes through `EmbeddedTransport`, as a service does it: a log in a directory,",
                "  every record durable when its call returns, groups that any process may join.",
            ),
            on_disk=True,
        ),
        Suite(
            "spark",
            spark.WORKLOADS,
            SPARK_TARGETS,
            ("penstock", "pyspark", "pyarrow"),
            profiled=(
                "spark_source/100/micro-batches/penstock",
                "spark_source/100/table/penstock",
                "spark_sink/100/micro-batches/penstock",
                "spark_sink/100/micro-batches/table",
            ),
            about_targets="The median is judged.",
            explained="penstock",
            how=(
                '- “penstock” is `format("penstock")`, as Spark finds it, in a session of `spark_session()`; the',
                "  Parquet source runs in the same session.",
                "- A stream is read in eight micro-batches, the first two of which are not counted. The rate",
                "  is that of a whole micro-batch, from its trigger to its commit.",
            ),
            on_disk=True,
            profiler=profile_attached,
        ),
        Suite(
            "observe",
            observe.WORKLOADS,
            observe.TARGETS,
            ("penstock", "msgspec", "prometheus-client"),
            profiled=(
                "metrics/watched/queued",
                "metrics/watched/commands",
            ),
            about_targets="The median is judged, in percent.",
            explained="queued",
            how=(
                "- The same messages through the same bus, in turn with an observer that measures durations",
                "  and without one. A scrape reads a snapshot, a few milliseconds each, and is not in it.",
                "- The time is that of the processor, the best of nine each.",
            ),
        ),
        Suite(
            "growth",
            growth.WORKLOADS,
            growth.TARGETS,
            ("penstock", "numpy", "crc32c"),
            profiled=(
                "grow_records/grow-publish/1000000",
                "grow_partitions/grow-publish/32",
                "grow_topics/grow-publish/100",
                "grow_groups/grow-read/100",
                "grow_sizes/grow-publish/4096",
                "grow_tasks/grow-publish/16",
                "grow_processes/grow-publish/2",
            ),
            about_targets=(
                "What one unit costs at the larger size, divided by what it costs at the smaller one; of memory, "
                "handles and recovery all of it. Half more than linear counts as missed."
            ),
            explained="1",
            how=(
                "- Each size has a process and a folder of its own. All figures of a size are from the same run.",
                "- Recovery is the worst case: every head file is removed, so that all that is not sealed is read",
                "  and checked. After a usual crash the heads are there.",
            ),
            on_disk=True,
            rounds_max=3,
        ),
        Suite(
            "frameworks",
            frameworks.WORKLOADS,
            frameworks.TARGETS,
            ("penstock", "faststream", "redis", "nats-py", "confluent-kafka"),
            profiled=(
                "on_redis/100/publish/penstock",
                "on_redis/100/handle/penstock",
                "on_redis/100/handle/penstock-commit",
                "on_nats/100/publish/penstock",
                "on_nats/100/handle/penstock",
                "on_nats/100/handle/penstock-commit",
                "on_kafka/100/publish/penstock",
                "on_kafka/100/handle/penstock",
                "on_kafka/100/handle/penstock-commit",
            ),
            about_targets="The median is judged.",
            explained="faststream",
            how=(
                "- “penstock” commits every five seconds, as it comes. “penstock-commit” commits each record before",
                "  the next one, and waits until the broker has taken it.",
                "- “faststream” acknowledges each record when its handler returns, as it comes. On Redis it waits until the",
                "  server has taken that. On NATS and Kafka it does not; “faststream-confirmed” does, before the next record.",
                "  So commits of each record are judged against “faststream” on Redis, “faststream-confirmed” elsewhere.",
                "- Every sample has a server of its own, in a folder of its own, on loopback. Both frameworks get",
                "  the same server with the same settings.",
            ),
            on_disk=True,
            versions=durable.versions,
        ),
        Suite(
            "brokers",
            brokers.WORKLOADS,
            brokers.TARGETS,
            (
                "penstock",
                "confluent-kafka",
                "nats-py",
                "redis",
                "aio-pika",
                "rstream",
                "pulsar-client",
            ),
            profiled=(
                "kafka/100/produce/penstock",
                "kafka/100/consume/penstock",
                "nats/100/produce/penstock",
                "nats/100/consume/penstock",
                "pulsar/100/produce/penstock",
                "pulsar/100/consume/penstock",
                "rabbitmq/100/produce/penstock",
                "rabbitmq/100/consume/penstock",
                "redis/100/produce/penstock",
                "redis/100/consume/penstock",
            ),
            about_targets="The median is judged.",
            explained="penstock",
            how=(
                "- “bare” is the broker's own client for Python, used as its documentation does, in the same",
                "  run, on the same server and with the same promise: acknowledged before the clock stops.",
                "- Every sample has a server of its own, in a folder of its own, on loopback. A broker that is not",
                "  here is named and left out.",
                "- The Java of Kafka and Pulsar has the options of Kafka's start script: `-Xms1g -Xmx1g",
                "  -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35",
                "  -XX:+ExplicitGCInvokesConcurrent -XX:MaxInlineLevel=15`, and compiles fully; Pulsar's has",
                "  `-XX:MaxDirectMemorySize=1g` too, and its caches are the shares of that which are its defaults.",
                "- redis-py uses hiredis, in Penstock's hands as in its own.",
            ),
            on_disk=True,
        ),
    )
}
