"""The options of the sink, and the columns that a frame for it may have."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import InvalidOption
from penstock.log.names import check_name

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_ABOUT = {
    "path": "the directory of the log, or the URL of its store",
    "topic": "where the records go; without it, a column `topic` says so",
    "partitions": "of a topic that is made because it is not there",
    "txnAppId": "batch only: the name under which this write happens once",
    "txnVersion": "batch only: its number, which only grows",
}
_FROM_SPARK = {"checkpointlocation", "queryname"}
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
    found = {name.lower(): value for name, value in given.items()}
    _refuse_unknown(found)
    if not found.get("path"):
        raise InvalidOption('the sink needs a log: .option("path", "./data")', option="path")
    application, version = found.get("txnappid"), found.get("txnversion")
    if (application is None) != (version is None):
        raise InvalidOption("txnAppId and txnVersion go together: give both", option="txnAppId")
    topic = found.get("topic")
    return SinkOptions(
        path=found["path"],
        topic=None if topic is None else check_name("topic", topic),
        partitions=_number("partitions", found.get("partitions", "1"), 1),
        application=None if application is None else check_name("producer", application),
        version=None if version is None else _number("txnVersion", version, 0),
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


def _refuse_unknown(found: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in _ABOUT}
    for name in found:
        if name in known or name in _FROM_SPARK:
            continue
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {known[near[0]]}? " if near else ""
        raise InvalidOption(
            f"the sink has no option {name!r}: {hint}There are {', '.join(_ABOUT)}", option=name
        )


def _number(name: str, text: str, at_least: int) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < at_least:
        raise InvalidOption(
            f"{name} is {text!r}: use a whole number of {at_least} or more", option=name
        )
    return int(text)
