"""Rows that take the place of those with the same key in a table, once for each micro-batch.

The rows of a micro-batch are collected on the driver: meant for results, such as totals by minute and
country, and not for the stream itself. Files that have a row to be replaced are written anew without
it. All new files are on the disk before the commit names them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from penstock.errors import InvalidOption, StoreFailed
from penstock.spark.table_commit import (
    RETRIES_MAX,
    check_schema,
    commit_files,
    is_committed,
    open_table,
    replace_files,
    rows_of,
    with_columns,
)
from penstock.spark.table_files import remove_files, write_files
from penstock.spark.table_options import TableOptions

EXACT = (int, str, date)
"""Values whose bounds are exact in the log of a table, or known to be wider."""
CUT = timedelta(milliseconds=1)


def merge_rows(
    options: TableOptions, rows: pa.Table, keys: Sequence[str], *, transaction: tuple[str, int]
) -> bool:
    """Put the rows into the table; False when the transaction was there already.

    *After a crash*, and after a power cut, the table has all of them or none, and to do it again is
    right. Somebody who changes the table at the same time makes it start again.
    """
    rows = _in_utc(rows)
    check_schema(options, rows.schema)
    _check_keys(rows, keys)
    for _ in range(RETRIES_MAX):
        table = open_table(options.path)
        if table is None:
            return _first(options, rows, transaction)
        if is_committed(options.path, *transaction):
            return False
        if _merge(with_columns(table, rows.schema, options), options, rows, keys, transaction):
            return True
    raise StoreFailed(f"the table {options.path} is changed by others all the time: try again")


def _first(options: TableOptions, rows: pa.Table, transaction: tuple[str, int]) -> bool:
    files = write_files(
        options.path, rows.to_batches(), rows.schema, options.partition_by, options.file_rows_max
    )
    return commit_files(options, rows.schema, files, transaction=transaction)


def _merge(
    table: DeltaTable,
    options: TableOptions,
    rows: pa.Table,
    keys: Sequence[str],
    transaction: tuple[str, int],
) -> bool:
    """One attempt; False when somebody else changed the table meanwhile."""
    present = rows_of(table, options.path)
    rows = _fitted(rows, present.schema)
    wanted = _Keys(rows, keys)
    told = _told_of_files(table)
    touched = [
        one
        for one in present.get_fragments()
        if wanted.may_be_in(told.get(one.path, {})) and wanted.any_in(one, present.schema)
    ]
    kept = (
        batch.filter(pc.invert(wanted.found_in(batch)))
        for one in touched
        for batch in one.to_batches(schema=present.schema)
    )
    files = write_files(
        options.path, chain(kept, rows.to_batches()), present.schema, options.partition_by,
        options.file_rows_max,
    )  # fmt: skip
    try:
        replace_files(table, options, [one.path for one in touched], files, transaction)
    except CommitFailedError:
        remove_files(options.path, [one.path for one in files])
        return False
    except BaseException:
        remove_files(options.path, [one.path for one in files])
        raise
    return True


class _Keys:
    """The keys of some rows; two nulls are the same key here, as they are in a group.

    Each combination of columns has a number. It stays small, however many columns there are: after
    every column those that occur are numbered anew.
    """

    def __init__(self, rows: pa.Table, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._values = [pc.unique(rows[name]) for name in names]
        self._bounds = [_bounds(values) for values in self._values]
        self._pairs: list[pa.Array] = []
        self._number(rows)

    def found_in(self, rows: Any) -> Any:
        """Which of the rows have one of the keys."""
        return pc.is_valid(self._number(rows))

    def any_in(self, fragment: Any, schema: pa.Schema) -> bool:
        """Whether a file has one of the keys."""
        batches = fragment.to_batches(schema=schema, columns=list(self._names))
        return any(bool(pc.any(self.found_in(batch)).as_py()) for batch in batches)

    def may_be_in(self, told: Mapping[str, Any]) -> bool:
        """Whether what the table tells of a file leaves room for one of the keys."""
        pairs = zip(self._names, self._bounds, strict=True)
        return all(bounds is None or _overlap(bounds, name, told) for name, bounds in pairs)

    def _number(self, rows: Any) -> Any:
        """Numbers of the keys; null where it is none of them."""
        number: Any = None
        for level, (name, values) in enumerate(zip(self._names, self._values, strict=True)):
            place = pc.index_in(rows[name], value_set=values, skip_nulls=False).cast(pa.int64())
            if number is None:
                number = place
                continue
            pair = pc.add(pc.multiply(number, len(values)), place)
            if len(self._pairs) < level:
                self._pairs.append(pc.unique(pair))
            number = pc.index_in(pair, value_set=self._pairs[level - 1]).cast(pa.int64())
        return number


def _bounds(values: pa.Array) -> tuple[Any, Any] | None:
    """The smallest and the largest; None when files cannot be told apart by them."""
    if values.null_count or not len(values):
        return None
    try:
        ends = pc.min_max(values).as_py()
    except pa.ArrowNotImplementedError:
        return None
    return ends["min"], ends["max"]


def _overlap(bounds: tuple[Any, Any], name: str, told: Mapping[str, Any]) -> bool:
    only = told.get(f"partition.{name}")
    lower, upper = told.get(f"min.{name}", only), told.get(f"max.{name}", only)
    if not isinstance(lower, EXACT) or not isinstance(upper, EXACT):
        return True
    if isinstance(upper, datetime):
        upper += CUT  # what a table tells of times is cut to milliseconds
    try:
        return bool(bounds[0] <= upper and lower <= bounds[1])
    except TypeError:
        return True


def _told_of_files(table: DeltaTable) -> dict[str, dict[str, Any]]:
    """What the table tells of its files, by path."""
    rows = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return {row["path"]: row for row in rows}


def _fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with the columns of the table; null where they have none."""
    columns = [
        rows[field.name].cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _in_utc(rows: pa.Table) -> pa.Table:
    """Times in one zone, whatever that of the session is: tables have theirs in UTC."""
    fields = [
        field.with_type(pa.timestamp("us", "UTC"))
        if pa.types.is_timestamp(field.type) and field.type.tz is not None
        else field
        for field in rows.schema
    ]
    return rows.cast(pa.schema(fields))


def _check_keys(rows: pa.Table, keys: Sequence[str]) -> None:
    if rows.num_rows and rows.group_by(list(keys)).aggregate([]).num_rows != rows.num_rows:
        raise InvalidOption(
            f"several rows of a micro-batch have the same {', '.join(keys)}: name all columns that "
            "tell rows apart",
            option="key",
        )
