"""The commit of a table: files that tasks wrote become part of it, once.

A table is a Delta table. Its log keeps for each application, here the query, the number of its last
transaction, here the micro-batch: a batch that Spark does again is recognised and not added again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from penstock.errors import InvalidOption, StoreFailed
from penstock.spark.table_files import WrittenFile, remove_files
from penstock.spark.table_options import TableOptions
from penstock.system import Files, OsClock, OsFiles

RETRIES_MAX = 20
LOG = "_delta_log"
LAST_SUMMARY = "_last_checkpoint"


def open_table(path: str) -> DeltaTable | None:
    """The table as it is now, None when there is none."""
    return DeltaTable(path) if DeltaTable.is_deltatable(path) else None


def rows_of(table: DeltaTable, path: str) -> ds.Dataset:
    """The rows of a table, to be read by Arrow from its own files.

    Left to itself, delta-rs hands out files that are Python objects. Arrow's threads let go of them some time
    after the rows are there; when the program has ended by then, it is aborted.
    """
    files = SubTreeFileSystem(os.path.abspath(path.removeprefix("file://")), LocalFileSystem())
    found: ds.Dataset = table.to_pyarrow_dataset(filesystem=files)
    return found


def is_committed(path: str, application: str, version: int) -> bool:
    """Whether the table has this transaction."""
    table = open_table(path)
    last = None if table is None else table.transaction_version(application)
    return last is not None and last >= version


def commit_files(
    options: TableOptions,
    schema: pa.Schema,
    written: Sequence[WrittenFile],
    *,
    transaction: tuple[str, int] | None,
    overwrite: bool = False,
) -> bool:
    """Add the files to the table; False when the transaction was there already.

    The files of one that was there already are removed. *After a crash* in here the table has all
    of the files or none, and to do it again with the same transaction is right.
    """
    if transaction and is_committed(options.path, *transaction):
        remove_files(options.path, [one.path for one in written])
        return False
    table = open_table(options.path)
    wanted = Schema.from_arrow(schema)
    if table is not None:
        _evolve(table, wanted, options)
    try:
        _add(table, wanted, options, written, transaction, overwrite)
    except DeltaError as error:
        raise StoreFailed(f"the table {options.path} could not be changed: {error}") from error
    make_log_durable(options.path)
    return True


def _add(
    table: DeltaTable | None,
    schema: Schema,
    options: TableOptions,
    written: Sequence[WrittenFile],
    transaction: tuple[str, int] | None,
    overwrite: bool,
) -> None:
    actions = _additions(written)
    properties = CommitProperties(
        max_commit_retries=RETRIES_MAX,
        app_transactions=[Transaction(*transaction)] if transaction else None,
    )
    partition_by = list(options.partition_by)
    if table is None:
        create_table_with_add_actions(
            options.path, schema, actions, mode="error",
            partition_by=partition_by, commit_properties=properties,
        )  # fmt: skip
        return
    table.create_write_transaction(
        [*actions], "overwrite" if overwrite else "append", table.schema(),
        partition_by=partition_by or None, commit_properties=properties,
    )  # fmt: skip


def replace_files(
    table: DeltaTable,
    options: TableOptions,
    old: Iterable[str],
    new: Sequence[WrittenFile],
    transaction: tuple[str, int],
) -> None:
    """Files of the table go and others come, in one commit; durable when it returns.

    Raises CommitFailedError, and changes nothing, when the table is not what it was when it was
    opened.
    """
    now = OsClock().time_ms()
    properties = CommitProperties(
        custom_metadata={"isBlindAppend": False},
        max_commit_retries=0,
        app_transactions=[Transaction(*transaction)],
    )
    try:
        table.create_write_transaction(
            [*(RemoveAction(path, True, now) for path in old), *_additions(new)],
            "append", table.schema(), partition_by=list(options.partition_by) or None,
            commit_properties=properties,
        )  # fmt: skip
    except CommitFailedError:
        raise
    except DeltaError as error:
        raise StoreFailed(f"the table {options.path} could not be changed: {error}") from error
    make_log_durable(options.path)


def _additions(written: Sequence[WrittenFile]) -> list[AddAction]:
    now = OsClock().time_ms()
    return [
        AddAction(
            one.path.replace(os.sep, "/"), one.size, one.partition_values, now, True, one.statistics
        )
        for one in written
    ]


def with_columns(table: DeltaTable, schema: pa.Schema, options: TableOptions) -> DeltaTable:
    """The table with all columns of the schema, as :func:`check_schema` allows it."""
    _evolve(table, Schema.from_arrow(schema), options)
    return table


def check_schema(options: TableOptions, schema: pa.Schema) -> None:
    """Raise InvalidOption when rows of this schema cannot go into the table: before any work."""
    for name in options.partition_by:
        if name not in schema.names:
            raise InvalidOption(
                f"partitionBy names {name!r}, which is no column: there are {', '.join(schema.names)}",
                option="partitionBy",
            )
    table = open_table(options.path)
    if table is None:
        return
    _new_fields(table, Schema.from_arrow(schema), options)
    stands = tuple(table.metadata().partition_columns)
    if stands != options.partition_by:
        raise InvalidOption(
            f"the table {options.path} is partitioned by {', '.join(stands) or 'nothing'}: say so in "
            f"partitionBy, or write another table",
            option="partitionBy",
        )


def _evolve(table: DeltaTable, schema: Schema, options: TableOptions) -> None:
    new = _new_fields(table, schema, options)
    if new:
        table.alter.add_columns(new)
        table.update_incremental()


def _new_fields(table: DeltaTable, schema: Schema, options: TableOptions) -> list[Field]:
    """Columns that the table does not have yet; what cannot go into it is an error.

    A column that is missing in the rows is null. A column of another type never fits: readers of the old
    files could not read the new ones.
    """
    stands = {field.name: field for field in table.schema().fields}
    for field in schema.fields:
        found = stands.get(field.name)
        if found is not None and found.type != field.type:
            raise InvalidOption(
                f"column {field.name!r} of {options.path} is {found.type}, and the rows have {field.type}: "
                "cast it, or write another table",
                option="path",
                column=field.name,
            )
    new = [
        Field(field.name, field.type, nullable=True)
        for field in schema.fields
        if field.name not in stands
    ]
    if new and not options.merge_schema:
        raise InvalidOption(
            f"the table {options.path} has no column {', '.join(field.name for field in new)}: select the "
            "others, or set mergeSchema to true",
            option="mergeSchema",
        )
    return new


def make_log_durable(path: str, files: Files | None = None) -> None:
    """The commit is a file that was renamed; without a sync a power cut could take it back."""
    files = files or OsFiles()
    folder = os.path.join(path, LOG)
    there = {name for name, is_folder in files.list_directory(folder) if not is_folder}
    newest = max(name for name in there if name.endswith(".json"))
    # Every hundred commits or so there is a summary, which readers begin with.
    summaries = sorted(name for name in there if name.endswith(".checkpoint.parquet"))[-1:]
    for name in [newest, *summaries, *({LAST_SUMMARY} & there)]:
        _sync(os.path.join(folder, name), files)
    files.sync_directory(folder)
    files.sync_directory(path)


def _sync(path: str, files: Files) -> None:
    descriptor = files.open(path)
    try:
        files.sync(descriptor)
    finally:
        files.close(descriptor)
