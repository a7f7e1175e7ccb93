"""Rows that take the place of those with the same key in a table, once for each micro-batch.

The rows of a micro-batch are collected on the driver: meant for results, such as totals by minute and
country, and not for the stream itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError

from penstock.errors import InvalidOption, StoreFailed
from penstock.spark.table_commit import (
    RETRIES_MAX,
    check_schema,
    commit_files,
    is_committed,
    make_log_durable,
    open_table,
)
from penstock.spark.table_files import make_durable, write_files
from penstock.spark.table_options import TableOptions
from penstock.system import OsFiles


def merge_rows(
    options: TableOptions, rows: pa.Table, keys: Sequence[str], *, transaction: tuple[str, int]
) -> bool:
    """Put the rows into the table; False when the transaction was there already.

    *After a crash* the table has all of them or none, and to do it again is right.
    """
    rows = _in_utc(rows)
    check_schema(options, rows.schema)
    _check_keys(rows, keys)
    table = open_table(options.path)
    if table is None:
        return _first(options, rows, transaction)
    if is_committed(options.path, *transaction):
        return False
    try:
        _merge(table, options, rows, keys, transaction)
    except DeltaError as error:
        raise StoreFailed(f"the table {options.path} could not be changed: {error}") from error
    return True


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
) -> None:
    before = set(table.file_uris())
    # Two nulls are the same key here, as they are in a group.
    same = " AND ".join(f'(target."{key}" IS NOT DISTINCT FROM source."{key}")' for key in keys)
    properties = CommitProperties(
        max_commit_retries=RETRIES_MAX, app_transactions=[Transaction(*transaction)]
    )
    (
        table.merge(
            rows, same, source_alias="source", target_alias="target",
            merge_schema=options.merge_schema, commit_properties=properties,
        )
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()
    )  # fmt: skip
    table.update_incremental()
    new = [_path(one) for one in set(table.file_uris()) - before]
    make_durable(options.path, sorted(new), OsFiles())
    make_log_durable(options.path)


def _path(uri: str) -> str:
    return os.path.abspath(uri.removeprefix("file://"))


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
