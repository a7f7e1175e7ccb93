"""The last micro-batch that the sink of an output has, by the sink's own word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.log.transactions import Transactions
from penstock.spark.open_log import open_log
from penstock.spark.updating import update_producer

if TYPE_CHECKING:
    from penstock.spark.pipeline import Output, Pipeline

NONE = -1


def producer_of(pipeline: Pipeline, output: Output, query_id: str) -> str:
    """The producer as which a query of an output writes to topics."""
    if output.mode == "update":
        return update_producer(pipeline.group_of(output), query_id)
    return f"spark-{query_id}"


def sink_number(pipeline: Pipeline, output: Output, query_id: str) -> int | None:
    """Its number, -1 before the first; None for a sink that keeps none.

    A micro-batch without rows may leave no trace in a topic.
    """
    if output.format == "penstock":
        producer = producer_of(pipeline, output, query_id)
        return Transactions(open_log(pipeline.log).store).last_number(producer)
    if output.format == "penstock_table":
        return _of_table(output.options["path"], query_id)
    return None


def _of_table(path: str, query_id: str) -> int:
    from penstock.spark.table_commit import open_table

    table = open_table(path)
    last = None if table is None else table.transaction_version(query_id)
    return NONE if last is None else int(last)
