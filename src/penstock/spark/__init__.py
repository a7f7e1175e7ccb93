"""Penstock on Spark: topics as tables and streams.

Spark finds ``format("penstock")`` by itself. :func:`spark_session` starts a Spark that suits it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from penstock.errors import MissingExtra
from penstock.spark.session import spark_session

if TYPE_CHECKING:
    from penstock.spark.kafka_connector import kafka_jars
    from penstock.spark.kafka_topics import read_topics, write_topics
    from penstock.spark.listener import GroupListener, follow
    from penstock.spark.loading import load_pipeline
    from penstock.spark.pipeline import Pipeline
    from penstock.spark.report import (
        DeadLetterReport,
        OutputReport,
        PipelineReport,
        report_of,
    )
    from penstock.spark.running import OutputStatus, RunningPipeline
    from penstock.spark.service import PipelineService
    from penstock.spark.source import PenstockDataSource
    from penstock.spark.steps import (
        bad,
        decode,
        deduplicate,
        enrich,
        good,
        join,
        sessions,
        stateful,
        validate,
        window,
    )
    from penstock.spark.tables import WarehouseTable

# Loaded when it is used: importing Spark takes a second, and it is an extra.
_HOMES = {
    "DeadLetterReport": "report",
    "GroupListener": "listener",
    "OutputReport": "report",
    "OutputStatus": "running",
    "PenstockDataSource": "source",
    "Pipeline": "pipeline",
    "PipelineReport": "report",
    "PipelineService": "service",
    "RunningPipeline": "running",
    "WarehouseTable": "tables",
    "bad": "steps",
    "decode": "steps",
    "deduplicate": "steps",
    "enrich": "steps",
    "follow": "listener",
    "good": "steps",
    "join": "steps",
    "kafka_jars": "kafka_connector",
    "load_pipeline": "loading",
    "read_topics": "kafka_topics",
    "report_of": "report",
    "sessions": "steps",
    "stateful": "steps",
    "validate": "steps",
    "window": "steps",
    "write_topics": "kafka_topics",
}

__all__ = [
    "DeadLetterReport",
    "GroupListener",
    "OutputReport",
    "OutputStatus",
    "PenstockDataSource",
    "Pipeline",
    "PipelineReport",
    "PipelineService",
    "RunningPipeline",
    "WarehouseTable",
    "bad",
    "decode",
    "deduplicate",
    "enrich",
    "follow",
    "good",
    "join",
    "kafka_jars",
    "load_pipeline",
    "read_topics",
    "report_of",
    "sessions",
    "spark_session",
    "stateful",
    "validate",
    "window",
    "write_topics",
]

if not TYPE_CHECKING:
    # Type checkers read the imports above, and know a misspelled name.

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            module = import_module(f"{__name__}.{home}")
        except ImportError as cause:
            of_tables = (cause.name or "").startswith("deltalake")
            what, extra = ("tables need", "delta") if of_tables else ("Spark needs", "spark")
            raise MissingExtra(f"{what}: pip install 'penstock[{extra}]'", extra=extra) from cause
        found: object = getattr(module, name)
        return found
