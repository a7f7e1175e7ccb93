"""The options of the sink, and the columns that a frame for it may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import InvalidOption
from penstock.log.names import check_name
from penstock.spark.given_options import log_path, lowered, transaction_in, whole_number

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_ABOUT = {
    "path": "the directory of the log, or the URL of its store",
    "topic": "where the records go; without it, a column `topic` says so",
    "partitions": "of a topic that is made because it is not there",
    "txnAppId": "batch only: the name under which this write happens once",
    "txnVersion": "batch only: its number, which only grows",
}
COLUMNS: Mapping[str, Sequence[str]] = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "timestamp": ("timestamp",),
}
"""The columns of a frame and their types. Only ``value`` has to be there."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a query asked for."""

    path: str
    topic: str | None = None
    partitions: int = 1
    application: str | None = None
    version: int | None = None


def read_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """The options, checked; InvalidOption says what is wrong and what would be right."""
    found = lowered(given, _ABOUT, "the sink")
    if not found.get("path"):
        raise InvalidOption('the sink needs a log: .option("path", "./data")', option="path")
    application, version = transaction_in(found)
    topic = found.get("topic")
    return SinkOptions(
        path=log_path(found["path"], "the sink"),
        topic=None if topic is None else check_name("topic", topic),
        partitions=whole_number("partitions", found.get("partitions", "1"), 1),
        application=None if application is None else check_name("producer", application),
        version=version,
    )


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Raise InvalidOption when a frame with these columns cannot go to topics."""
    for field in schema.fields:
        kind = field.dataType.simpleString()
        wanted = COLUMNS.get(field.name)
        if wanted is None:
            raise InvalidOption(
                f"records have no column {field.name!r}: put it into value, for example by "
                f"to_json(struct(*)). There are {', '.join(COLUMNS)}",
                option=field.name,
            )
        if kind not in wanted:
            raise InvalidOption(
                f"column {field.name!r} is {kind}: use {' or '.join(wanted)}", option=field.name
            )
    if "value" not in schema.names:
        raise InvalidOption("records need a column 'value', of binary or string", option="value")
    if options.topic is None and "topic" not in schema.names:
        raise InvalidOption('say where the records go: .option("topic", "orders")', option="topic")
