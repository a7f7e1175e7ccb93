"""A pipeline, declared in one file: typed sources, functions that make frames, tables and topics.

::

    shop = Pipeline("shop", log="./data", folder="./warehouse")
    orders = shop.source(OrderPlaced, rules={"the total is negative": "total >= 0"})


    @shop.table("silver/orders", partition_by=["country"])
    def silver_orders():
        return deduplicate(orders.frame(), "order_id", time="placed_at", within="10 minutes")


    shop.run(spark)

Every output is a streaming query of its own with its own checkpoint and its own group, so one that
fails or lags stops no other. Frames are plain frames of Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidOption, UsageError
from penstock.log.names import check_name
from penstock.messages import marks_of
from penstock.pressure import DegradationDirective
from penstock.spark import steps
from penstock.spark.degrading import check_lag
from penstock.spark.given_options import log_path
from penstock.spark.group_lag import lag_of_group
from penstock.spark.kafka_options import is_kafka
from penstock.spark.kafka_topics import path_of, read_topics
from penstock.spark.ledger import Ledger
from penstock.spark.open_log import OpenLog, open_log, open_state
from penstock.spark.replaying import letters_left, replay_letters
from penstock.spark.resetting import reset_output
from penstock.spark.steps import Rules
from penstock.spark.table_options import check_delta
from penstock.streaming.lag_pressure import GroupLag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.running import RunningPipeline

Build = Callable[[], "DataFrame"]
MODES = ("append", "complete", "update")
DEAD_LETTERS = "dead-letters"
BATCH_MORE = 4
"""Times as many records in a micro-batch when the pressure asks for larger ones."""


@dataclass(frozen=True)
class Output:
    """Where the rows of a function go."""

    name: str
    build: Build
    format: str
    options: Mapping[str, str]
    mode: str
    keys: tuple[str, ...] = ()
    """The columns that rows are known by, in update mode."""


@dataclass(frozen=True)
class Source:
    """A topic whose records are messages of one class."""

    pipeline: Pipeline
    kind: type
    topic: str
    rules: Rules
    options: Mapping[str, str] = field(default_factory=dict)

    def records(self) -> DataFrame:
        """The records as they are: key, value, topic, partition, offset, timestamp."""
        return self.pipeline._read(self.topic, self.options)

    def frame(self) -> DataFrame:
        """The fields of the class as columns, of the records that are good."""
        return steps.good(self._decoded(self.records()))

    def rejected(self) -> DataFrame:
        """The bad records, with the reason in a header. They go to the dead letters by themselves."""
        records = self.pipeline._read(self.topic, {**self.options, "includeHeaders": "true"})
        return steps.bad(self._decoded(records))

    def _decoded(self, records: DataFrame) -> DataFrame:
        return steps.decode(records, self.kind, self.rules)


class Pipeline:
    """Sources and outputs under one name. Nothing runs before :meth:`run` or :meth:`start`.

    ``log`` is the directory or URL of the log, or ``kafka://host:port``; ``folder`` is where tables and
    checkpoints are. For each source there is one output more: what does not decode, or breaks a rule,
    goes to the topic ``<topic>.dead-letters``, once; in Kafka at least once. A pipeline on Kafka keeps its
    ledger and its locks in the directory ``state``, ``<folder>/state`` if nothing is said.
    """

    def __init__(
        self,
        name: str,
        *,
        log: str,
        folder: str,
        records_max: int | None = None,
        lag_records_max: int | None = None,
        state: str | None = None,
    ) -> None:
        self.name = check_name("group", name)
        self.log = path_of(log)
        self.is_on_kafka = is_kafka(log)
        if not self.is_on_kafka:
            log_path(self.log, "a pipeline, which reads by means")
        self.folder = folder.rstrip("/")
        if state is not None and not self.is_on_kafka:
            raise InvalidOption("state is an option of pipelines on Kafka", option="state")
        self.state = state or f"{self.folder}/state" if self.is_on_kafka else self.log
        """Where its ledger and its locks are: the log itself, unless that is Kafka."""
        self.records_max = records_max
        """Records of a micro-batch, of each source; no bound when None."""
        self.lag_records_max = None if lag_records_max is None else check_lag(lag_records_max)
        """How far an output may be behind before the pipeline leaves things out; None: it never does."""
        self.sources: list[Source] = []
        self.outputs: dict[str, Output] = {}
        self.directive = DegradationDirective()
        """What is left out at present; see :meth:`RunningPipeline.degrade`."""
        self._spark: SparkSession | None = None
        self._building: Output | None = None
        self._reads: dict[str, dict[str, int]] = {}

    # Declaring

    def source(
        self, kind: type, *, rules: Rules | None = None, topic: str | None = None, **options: str
    ) -> Source:
        """The topic of a message class. ``rules`` say what else makes a record bad.

        ``options`` are those of the source, such as ``startingOffsets``; it begins at the earliest
        record unless they say otherwise.
        """
        found = Source(self, kind, topic or marks_of(kind).topic, dict(rules or {}), options)
        self.sources.append(found)
        return found

    def records(self, *topics: str, **options: str) -> DataFrame:
        """The records of topics as they are, in one stream; inside of a function, as a source is."""
        return self._read(",".join(check_name("topic", topic) for topic in topics), options)

    def table(
        self,
        path: str,
        *,
        mode: str = "append",
        key: Sequence[str] = (),
        partition_by: Sequence[str] = (),
        **options: str,
    ) -> Callable[[Build], Build]:
        """The rows of the function go to a Delta table below the folder, each once.

        In ``mode="update"`` a row takes the place of the one with the same ``key`` columns; the rows
        that a micro-batch changes are collected on the driver.
        """
        if (mode == "update") != bool(key):
            raise InvalidOption(
                "key and mode='update' go together: name the columns that rows are known by",
                option="key",
            )
        check_delta()
        chosen = {"path": f"{self.folder}/{path}", **options}
        if partition_by:
            chosen["partitionBy"] = ",".join(partition_by)
        return self._output("penstock_table", chosen, mode, tuple(key))

    def parquet(self, path: str, **options: str) -> Callable[[Build], Build]:
        """The rows of the function go to plain Parquet files, by Spark's own sink."""
        return self._output("parquet", {"path": f"{self.folder}/{path}", **options}, "append")

    def topic(
        self, topic: str, *, key: str | None = None, mode: str = "append", **options: str
    ) -> Callable[[Build], Build]:
        """The rows of the function go to a topic, as JSON, each once.

        ``key`` is the column that becomes the key. A frame with a column ``value`` is taken as it is.
        In ``mode="update"`` the newest record of a key is what counts: give such a topic compaction.
        """
        check_name("topic", topic)
        keys = ("key",) if mode == "update" else ()

        def declare(build: Build) -> Build:
            def shaped() -> DataFrame:
                return steps.as_records(build(), key)

            update_wrapper(shaped, build)
            given = {"path": self.log, "topic": topic, **options}
            self._output(self._topic_format, given, mode, keys)(shaped)
            return build

        return declare

    def _output(
        self, format_: str, options: Mapping[str, str], mode: str, keys: tuple[str, ...] = ()
    ) -> Callable[[Build], Build]:
        if mode not in MODES:
            raise InvalidOption(f"mode is {mode!r}: use {', '.join(MODES)}", option="mode")

        def declare(build: Build) -> Build:
            name = build.__name__.replace("_", "-")
            if name in self.outputs:
                raise InvalidOption(
                    f"there are two outputs {name!r}: rename one function", option="name"
                )
            self.outputs[name] = Output(name, build, format_, dict(options), mode, keys)
            return build

        return declare

    def enrich(self, frame: DataFrame, lookup: DataFrame, on: str | Sequence[str]) -> DataFrame:
        """As :func:`steps.enrich`; left out while the pressure asks for that."""
        return steps.enrich(frame, lookup, on, skip=self.directive.skip_enrichment)

    # Running

    def start(
        self,
        spark: SparkSession,
        *,
        every: str | None = None,
        once: bool = False,
        tell: Callable[[str], None] | None = None,
    ) -> RunningPipeline:
        """Start every output; a micro-batch as soon as there are records, or ``every`` so often.

        ``once`` reads what is there now, in as many micro-batches as it takes, and ends. ``tell`` gets a
        line for each output that runs, as that takes seconds for each.
        """
        from penstock.spark.running import RunningPipeline

        self._spark = spark
        running = RunningPipeline(self, spark, every=every, once=once)
        running.start(tell)
        return running

    def run(self, spark: SparkSession, *, timeout: float = 3600.0) -> RunningPipeline:
        """Read what is there now, write what follows from it, and return."""
        running = self.start(spark, once=True)
        running.wait(timeout)
        return running

    def reset(self, output: str, *, yes: bool = False) -> list[str]:
        """Start an output anew: its checkpoint, its ledger, its producer and the rows of its table go.

        The next run reads from the first record that is kept. The records of a topic stay, and come
        again behind the old ones. Without ``yes`` it raises UsageError, which says what would go.
        """
        known = {one.name: one for one in self.all_outputs()}
        if output not in known:
            raise InvalidOption(
                f"there is no output {output!r}: there are {', '.join(known)}", option="output"
            )
        return reset_output(self, known[output], yes=yes)

    def replay_dead_letters(self, topic: str, *, limit: int | None = None) -> int:
        """Publish the bad records of a topic to it again, each once; how many.

        They keep their key and their headers; ``penstock-attempts`` counts how often that was done.
        Those that were replayed before are not replayed again; one that fails again is a new letter.
        """
        letters = self.dead_letters_of(topic)
        if self.is_on_kafka:
            from penstock.spark.kafka_letters import replay_kafka_letters

            return replay_kafka_letters(self.log, letters, topic, self.replay_group, limit)
        return replay_letters(open_log(self.log), letters, topic, self.replay_group, limit)

    def all_outputs(self) -> list[Output]:
        """Those that were declared, and the dead letters of each source."""
        topics = {source.topic: source for source in self.sources}
        return [*self.outputs.values(), *(self._dead_letters(one) for one in topics.values())]

    def build(self, output: Output, spark: SparkSession) -> DataFrame:
        """The frame of an output, with the settings of this moment."""
        self._spark, self._building = spark, output
        self._reads[output.name] = {}
        try:
            return output.build()
        finally:
            self._building = None

    def group_of(self, output: Output) -> str:
        """The group as which an output reads."""
        return f"{self.name}.{output.name}"

    @property
    def replay_group(self) -> str:
        """The group that knows which dead letters were replayed."""
        return f"{self.name}.replay"

    def dead_letters_of(self, topic: str) -> str:
        """Where the bad records of a topic go."""
        return f"{topic}.{DEAD_LETTERS}"

    def checkpoint_of(self, output: Output) -> str:
        """Where Spark keeps the state of an output."""
        return f"{self.folder}/checkpoints/{output.name}"

    def ledger_of(self, output: Output) -> Ledger:
        """What its micro-batches read; a checkpoint can be rebuilt from it."""
        return Ledger(self.open_state().store, self.group_of(output))

    def open_state(self) -> OpenLog:
        """The log that has its ledger and its locks; made when the pipeline is on Kafka."""
        return open_state(self.state) if self.is_on_kafka else open_log(self.log)

    def topics_of(self, output: Output) -> set[str]:
        """The topics that an output reads, as far as they were named when it was built last."""
        return set(self._reads.get(output.name, ()))

    def lag_of(self, output: Output) -> GroupLag:
        """How far an output is behind, over all topics of the sources. Spark is not needed for it."""
        topics = sorted({source.topic for source in self.sources})
        if self.is_on_kafka:
            from penstock.spark.kafka_cluster import cluster_at

            return cluster_at(self.log).lag(self.group_of(output), topics)
        return lag_of_group(open_log(self.log), self.group_of(output), topics)

    def letters_of(self, topic: str) -> tuple[int, int]:
        """How many bad records a topic has, and how many of them were not replayed."""
        letters = self.dead_letters_of(topic)
        if self.is_on_kafka:
            from penstock.spark.kafka_cluster import cluster_at

            return cluster_at(self.log).letters_left(letters, self.replay_group)
        return letters_left(open_log(self.log), letters, self.replay_group)

    @property
    def url(self) -> str:
        """Where its topics are, as :func:`penstock.transports.open_transport` takes it."""
        return self.log if self.is_on_kafka else f"log:{self.log}"

    @property
    def _topic_format(self) -> str:
        return "kafka" if self.is_on_kafka else "penstock"

    def _dead_letters(self, source: Source) -> Output:
        name = self.dead_letters_of(source.topic)
        options = {"path": self.log, "topic": name}
        return Output(name, source.rejected, self._topic_format, options, "append")

    def _read(self, topic: str, given: Mapping[str, str]) -> DataFrame:
        if self._spark is None or self._building is None:
            raise UsageError(
                f"{topic!r} is read when the pipeline runs: use the source inside of a function that "
                "@pipeline.table or @pipeline.topic declares"
            )
        options: dict[str, Any] = {"startingOffsets": "earliest", **given}
        use = self._use(self._building, topic.split(","))
        if not self.is_on_kafka:
            options.setdefault("groupId", self.group_of(self._building))
            options["groupUse"] = str(use)
        if self.records_max is not None:
            times = BATCH_MORE if self.directive.batch_more else 1
            options.setdefault("maxOffsetsPerTrigger", str(self.records_max * times))
        return read_topics(self._spark, self.log, subscribe=topic, **options)

    def _use(self, output: Output, topics: Sequence[str]) -> int:
        """The how manieth use of the topics in the output this is, and note it."""
        reads = self._reads[output.name]
        use = 1 + max(reads.get(one, 0) for one in topics)
        reads.update(dict.fromkeys(topics, use))
        return use
