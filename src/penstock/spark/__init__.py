"""Penstock on Spark: topics as tables and streams.

Spark finds ``format("penstock")`` by itself. :func:`spark_session` starts a Spark that suits it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from penstock.errors import MissingExtra
from penstock.spark.session import spark_session

if TYPE_CHECKING:
    from penstock.spark.listener import GroupListener, follow
    from penstock.spark.pipeline import Pipeline
    from penstock.spark.running import OutputStatus, RunningPipeline
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
    from penstock.spark.table_sink import TableDataSource
    from penstock.spark.tables import WarehouseTable
    from penstock.spark.typed import schema_of

# Loaded when it is used: importing Spark takes a second, and it is an extra.
_HOMES = {
    "GroupListener": "listener",
    "OutputStatus": "running",
    "PenstockDataSource": "source",
    "Pipeline": "pipeline",
    "RunningPipeline": "running",
    "TableDataSource": "table_sink",
    "WarehouseTable": "tables",
    "bad": "steps",
    "decode": "steps",
    "deduplicate": "steps",
    "enrich": "steps",
    "follow": "listener",
    "good": "steps",
    "join": "steps",
    "schema_of": "typed",
    "sessions": "steps",
    "stateful": "steps",
    "validate": "steps",
    "window": "steps",
}

__all__ = [
    "GroupListener",
    "OutputStatus",
    "PenstockDataSource",
    "Pipeline",
    "RunningPipeline",
    "TableDataSource",
    "WarehouseTable",
    "bad",
    "decode",
    "deduplicate",
    "enrich",
    "follow",
    "good",
    "join",
    "schema_of",
    "sessions",
    "spark_session",
    "stateful",
    "validate",
    "window",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{home}")
    except ImportError as cause:
        raise MissingExtra("Spark needs: pip install 'penstock[spark]'", extra="spark") from cause
    found: object = getattr(module, name)
    return found
