"""Update mode: the rows that changed in a micro-batch take the place of those with the same key.

Spark has no update mode for sinks in Python. So each micro-batch is written as a batch of its own, under
the id of the query and its number, and one that Spark does again is recognised by them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.errors import InvalidOption, NotSupported
from penstock.spark.sink import QUERY_ID
from penstock.spark.table_options import read_table_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.spark.pipeline import Output

Write = Callable[["DataFrame", int], None]


def update_writer(output: Output, group: str) -> Write:
    """What writes a micro-batch of an output in update mode."""
    if output.format == "penstock":
        return lambda frame, number: _to_topic(frame, number, output, group)
    return lambda frame, number: _to_table(frame, number, output)


def update_producer(group: str, query_id: str) -> str:
    """The producer as which a query in update mode writes to topics."""
    return f"{group}.{query_id}"


def check_update(frame: DataFrame, keys: Sequence[str]) -> None:
    """InvalidOption unless the frame has the columns that its rows are known by."""
    for key in keys:
        if key not in frame.columns:
            raise InvalidOption(
                f"mode update needs the column {key!r}: there are {', '.join(frame.columns)}",
                option="key",
            )


def _to_topic(frame: DataFrame, number: int, output: Output, group: str) -> None:
    """The newest record of a key is what counts: an upsert topic."""
    producer = update_producer(group, _query_id(frame))
    once = {"txnAppId": producer, "txnVersion": str(number)}
    frame.write.format("penstock").mode("append").options(**output.options, **once).save()


def _to_table(frame: DataFrame, number: int, output: Output) -> None:
    from penstock.spark.table_merge import merge_rows

    merge_rows(
        read_table_options(output.options), frame.toArrow(), output.keys,
        transaction=(_query_id(frame), number),
    )  # fmt: skip


def _query_id(frame: DataFrame) -> str:
    try:
        found = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    except Exception as cause:  # Spark Connect has no context here, and its own error for it.
        raise _no_query_id() from cause
    if not found:
        raise _no_query_id()
    return str(found)


def _no_query_id() -> NotSupported:
    return NotSupported(
        "mode update needs a classic Spark session, where a micro-batch knows its query: use one, or "
        "mode complete"
    )
