"""How a pipeline stands, from what the log knows: it may run elsewhere, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.spark.service import PipelineService

if TYPE_CHECKING:
    from penstock.spark.pipeline import Output, Pipeline


@dataclass(frozen=True, kw_only=True)
class OutputReport:
    """One output."""

    name: str
    group: str
    target: str
    """The topic, or the folder of the table."""
    micro_batch: int
    """The last one that is known to be done; -1 before the first."""
    lag_records: int
    lag_seconds: float
    """The age of the oldest record that it has not read."""


@dataclass(frozen=True, kw_only=True)
class DeadLetterReport:
    """The bad records of one topic."""

    topic: str
    records: int
    """That are kept."""
    not_replayed: int


@dataclass(frozen=True, kw_only=True)
class PipelineReport:
    """A pipeline, its outputs and its dead letters."""

    name: str
    running: bool
    outputs: tuple[OutputReport, ...]
    dead_letters: tuple[DeadLetterReport, ...]


def report_of(pipeline: Pipeline) -> PipelineReport:
    """How it stands. Spark is not needed, and not started."""
    topics = sorted({source.topic for source in pipeline.sources})
    return PipelineReport(
        name=pipeline.name,
        running=PipelineService(pipeline).is_running(),
        outputs=tuple(_output(pipeline, one) for one in pipeline.all_outputs()),
        dead_letters=tuple(_letters(pipeline, topic) for topic in topics),
    )


def _output(pipeline: Pipeline, output: Output) -> OutputReport:
    progress = pipeline.ledger_of(output).progress()
    lag = pipeline.lag_of(output)
    return OutputReport(
        name=output.name,
        group=pipeline.group_of(output),
        target=output.options.get("topic") or output.options["path"],
        micro_batch=-1 if progress is None else progress.batch_id,
        lag_records=lag.records,
        lag_seconds=lag.milliseconds / 1_000,
    )


def _letters(pipeline: Pipeline, topic: str) -> DeadLetterReport:
    there, left = pipeline.letters_of(topic)
    letters = pipeline.dead_letters_of(topic)
    return DeadLetterReport(topic=letters, records=there, not_replayed=left)
