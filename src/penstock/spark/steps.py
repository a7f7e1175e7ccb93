"""The steps of a pipeline: functions from frames to frames.

Each is a few lines of Structured Streaming with a name; plain Spark may stand before, between and
after them. ``decode`` tells good records from bad ones and loses neither.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from penstock.errors import InvalidOption
from penstock.spark.typed import required_of, schema_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, GroupedData
    from pyspark.sql.types import StructType

RECORD = "_record"
"""Where a row comes from: topic, partition, offset, timestamp and key of its record, and headers if they are read."""
RECORD_FIELDS = ("topic", "partition", "offset", "timestamp", "key", "headers")
REASON = "_reason"
"""Why a record is bad; null for a good one."""
CORRUPT = "_corrupt"
WATERMARK = "spark.watermarkDelayMs"
"""What Spark notes at a column that has a watermark; it can have but one."""
Rules = Mapping[str, "str | Column"]
"""What is wrong when it does not hold → a condition, in SQL or as a column."""


def decode(frame: DataFrame, kind: type, rules: Rules | None = None) -> DataFrame:
    """The fields of a message class as columns, beside ``_record``, ``_value`` and ``_reason``.

    A record is bad when its value is missing or is no JSON of the class, when it lacks a field that the
    class needs, or when a rule says so. As for a constraint of a table, a rule that cannot be decided,
    because a field is null, holds. :func:`good` and :func:`bad` take them apart.
    """
    schema = schema_of(kind)
    parsed = _parsed(frame, schema)
    fields = [F.col(f"_parsed.{name}").alias(name) for name in schema.names]
    about = [name for name in RECORD_FIELDS if name in frame.columns]
    record = F.struct(*about).alias(RECORD)
    decoded = parsed.select(
        *fields, record, F.col("value").alias("_value"), _broken(kind).alias(REASON)
    )
    return validate(decoded, rules or {})


def _parsed(frame: DataFrame, schema: StructType) -> DataFrame:
    asked = type(schema)(list(schema.fields)).add(CORRUPT, "string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    return frame.withColumn("_parsed", F.from_json(F.col("value").cast("string"), asked, options))


def _broken(kind: type) -> Column:
    """What is wrong with a record, before any rule."""
    reason = F.when(F.col("value").isNull(), "the record has no value").when(
        F.col("_parsed").isNull() | F.col(f"_parsed.{CORRUPT}").isNotNull(),
        f"the value is no JSON of {kind.__name__}",
    )
    for name in required_of(kind):
        reason = reason.when(F.col(f"_parsed.{name}").isNull(), f"field {name!r} is missing")
    return reason


def validate(frame: DataFrame, rules: Rules) -> DataFrame:
    """Mark rows that break a rule, the first one that is broken; those that are bad already stay so."""
    reason = F.col(REASON)
    for wrong, condition in rules.items():
        holds = F.expr(condition) if isinstance(condition, str) else condition
        reason = F.when(reason.isNull() & ~F.coalesce(holds, F.lit(True)), wrong).otherwise(reason)
    return frame.withColumn(REASON, reason)


def good(frame: DataFrame) -> DataFrame:
    """The rows that decoded and broke no rule."""
    return frame.where(F.col(REASON).isNull()).drop(REASON, "_value")


def bad(frame: DataFrame) -> DataFrame:
    """The other ones, as the records that they were, with the reason: ready for a topic."""
    where = F.col(RECORD)
    told = {
        "penstock-reason": F.col(REASON),
        "penstock-topic": where["topic"],
        "penstock-partition": where["partition"].cast("string"),
        "penstock-offset": where["offset"].cast("string"),
    }
    headers = [
        F.struct(F.lit(name).alias("key"), F.encode(text, "utf-8").alias("value"))
        for name, text in told.items()
    ]
    return frame.where(F.col(REASON).isNotNull()).select(
        where["key"].alias("key"),
        F.col("_value").alias("value"),
        _after_own(frame, F.array(*headers)).alias("headers"),
    )


def _after_own(frame: DataFrame, headers: Column) -> Column:
    """Behind the headers that the record had; of two with one name the last one counts."""
    fields = cast("StructType", frame.schema[RECORD].dataType).names
    if "headers" not in fields:
        return headers
    return F.concat(F.coalesce(F.col(RECORD)["headers"], F.array_except(headers, headers)), headers)


def deduplicate(frame: DataFrame, *columns: str, time: str, within: str) -> DataFrame:
    """Let the first of several rows with the same columns pass, for as long as ``within``.

    ``time`` is the column of event time. Rows that are later than ``within`` are dropped: their
    duplicates are not known any more.
    """
    _check_columns(frame, (*columns, time))
    return _waiting(frame, time, within).dropDuplicatesWithinWatermark(list(columns))


def enrich(
    frame: DataFrame, lookup: DataFrame, on: str | Sequence[str], *, skip: bool = False
) -> DataFrame:
    """Add the columns of a table that does not stream; null where it has no such row.

    With ``skip`` they are null everywhere, and the table is not read: what a pipeline under pressure does.
    """
    keys = [on] if isinstance(on, str) else list(on)
    _check_columns(frame, keys)
    if not skip:
        return frame.join(lookup, keys, "left")
    new = [field for field in lookup.schema.fields if field.name not in keys]
    return frame.select("*", *(F.lit(None).cast(field.dataType).alias(field.name) for field in new))


def join(
    left: DataFrame,
    right: DataFrame,
    on: str | Sequence[str],
    *,
    times: tuple[str, str],
    within: str,
    how: str = "inner",
) -> DataFrame:
    """Join two streams: rows with the same columns whose times are at most ``within`` apart.

    ``times`` are the columns of event time, of the left and of the right stream; they need other
    names. Rows wait for each other as long as that, and are late after as long again.
    """
    keys = [on] if isinstance(on, str) else list(on)
    early, late = times
    if early == late:
        raise InvalidOption(f"both times are called {early!r}: rename one of them", option="times")
    _check_columns(left, [*keys, early])
    _check_columns(right, [*keys, late])
    span = F.expr(f"INTERVAL {within}")
    renamed = _waiting(right, late, within).withColumnsRenamed(
        {key: f"_right_{key}" for key in keys}
    )
    near = (F.col(late) >= F.col(early) - span) & (F.col(late) <= F.col(early) + span)
    for key in keys:
        near &= F.col(key) == F.col(f"_right_{key}")
    joined = _waiting(left, early, within).join(renamed, near, how)
    return joined.drop(*(f"_right_{key}" for key in keys))


def window(
    frame: DataFrame, *by: str, time: str, size: str, late: str, slide: str | None = None
) -> GroupedData:
    """Groups per span of event time and columns, for ``.agg(...)``.

    Rows that are more than ``late`` behind are dropped, and counted by Spark. A column ``window``
    has the start and the end.
    """
    _check_columns(frame, (*by, time))
    span = F.window(time, size, slide).alias("window")
    return _waiting(frame, time, late).groupBy(span, *by)


def sessions(frame: DataFrame, *by: str, time: str, gap: str, late: str) -> GroupedData:
    """Groups of rows between which no ``gap`` passed, for ``.agg(...)``; column ``window`` as there."""
    if not by:
        raise InvalidOption(
            "sessions are those of somebody: name a column, as user_id", option="by"
        )
    _check_columns(frame, (*by, time))
    span = F.session_window(time, gap).alias("window")
    return _waiting(frame, time, late).groupBy(span, *by)


def stateful(
    frame: DataFrame,
    *by: str,
    processor: Any,
    columns: StructType | str,
    time: str | None = None,
    late: str | None = None,
    mode: str = "append",
) -> DataFrame:
    """Rows of a key go through a ``StatefulProcessor`` of yours, which keeps state between batches.

    With ``time`` and ``late`` its timers follow the event time. Timers of the processing time are not
    offered: with them a query that is to end never ends.
    """
    _check_columns(frame, (*by, *([time] if time else ())))
    if (time is None) != (late is None):
        raise InvalidOption("time and late go together: give both", option="time")
    if time is not None and late is not None:
        frame = _waiting(frame, time, late)
    with warnings.catch_warnings():
        # Spark warns of a pandas that is newer than it knows; rows are not touched by it here.
        warnings.simplefilter("ignore", FutureWarning)
        return frame.groupBy(*by).transformWithState(
            processor, columns, mode, "None" if time is None else "EventTime"
        )


def _waiting(frame: DataFrame, time: str, late: str) -> DataFrame:
    """Wait that long for rows that are late. The first step of a column of time says how long."""
    if WATERMARK in frame.schema[time].metadata:
        return frame
    return frame.withWatermark(time, late)


def _check_columns(frame: DataFrame, names: Sequence[str]) -> None:
    for name in names:
        if name not in frame.columns:
            raise InvalidOption(
                f"there is no column {name!r}: there are {', '.join(frame.columns)}", option=name
            )


def as_records(frame: DataFrame, key: str | None) -> DataFrame:
    """A frame as records of a topic: all columns as JSON, and one of them as the key."""
    if "value" in frame.columns:
        return frame
    value = F.to_json(F.struct("*")).cast("binary").alias("value")
    if key is None:
        return frame.select(value)
    _check_columns(frame, [key])
    return frame.select(F.col(key).cast("string").cast("binary").alias("key"), value)
