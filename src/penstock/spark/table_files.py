"""Parquet files of a table: written by tasks, not part of the table before the commit.

Every file is on the disk, its name included, when the task is done. A task that fails removes its
own; what a killed one leaves is found by :meth:`WarehouseTable.vacuum`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds

from penstock.spark.table_statistics import statistics_of
from penstock.system import Files, OsFiles, System

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
OPEN_FILES_MAX = 256


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that waits to be part of the table."""

    path: str
    """Within the table's folder."""
    size: int
    partition_values: Mapping[str, str | None]
    statistics: str
    """As JSON, as the table's log has it."""


def write_files(
    folder: str,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    partition_by: Sequence[str],
    file_rows_max: int,
    files: Files | None = None,
) -> tuple[WrittenFile, ...]:
    """Write rows into new files below the folder; none when there are no rows."""
    files = files or OsFiles()
    name = f"part-{System().random.getrandbits(128):032x}-{{i}}.parquet"
    written: list[Any] = []
    try:
        ds.write_dataset(
            _rows_only(batches), folder, schema=schema, format="parquet",
            basename_template=name, partitioning=_partitioning(schema, partition_by),
            existing_data_behavior="overwrite_or_ignore", file_visitor=written.append,
            max_rows_per_file=file_rows_max, max_rows_per_group=min(file_rows_max, 1 << 20),
            max_open_files=OPEN_FILES_MAX, max_partitions=1 << 16,
        )  # fmt: skip
        make_durable(folder, [one.path for one in written], files)
    except BaseException:
        # Also those that were not finished, of which nobody was told.
        remove_files(folder, _of_task(folder, name.partition("-{")[0], files), files)
        raise
    return tuple(_described(folder, one, partition_by) for one in written)


def remove_files(folder: str, paths: Iterable[str], files: Files | None = None) -> None:
    """Remove files that did not become part of the table."""
    files = files or OsFiles()
    for path in paths:
        try:
            files.unlink(os.path.join(folder, path))
        except FileNotFoundError:
            continue


def _of_task(folder: str, name: str, files: Files) -> Iterator[str]:
    """Files below the folder whose names begin so."""
    if not files.exists(folder):
        return
    for found, is_folder in files.list_directory(folder):
        if is_folder and found != "_delta_log":
            inside = _of_task(os.path.join(folder, found), name, files)
            yield from (os.path.join(found, one) for one in inside)
        elif found.startswith(name):
            yield found


def _rows_only(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """An empty batch would make an empty file."""
    return (batch for batch in batches if batch.num_rows)


def _partitioning(schema: pa.Schema, names: Sequence[str]) -> ds.Partitioning | None:
    if not names:
        return None
    return ds.partitioning(pa.schema([schema.field(name) for name in names]), flavor="hive")


def make_durable(folder: str, paths: Sequence[str], files: Files) -> None:
    """Sync files below a folder, and the folders that have their names."""
    for path in paths:
        descriptor = files.open(path)
        try:
            files.sync(descriptor)
        finally:
            files.close(descriptor)
    for place in sorted({parent for path in paths for parent in _parents(folder, path)}):
        files.sync_directory(place)


def _parents(folder: str, path: str) -> Iterator[str]:
    place = os.path.dirname(os.path.abspath(path))
    top = os.path.abspath(folder)
    while place != top:
        yield place
        place = os.path.dirname(place)
    yield top


def _described(folder: str, written: Any, partition_by: Sequence[str]) -> WrittenFile:
    path = os.path.relpath(written.path, folder)
    return WrittenFile(
        path=path,
        size=written.size,
        partition_values=dict(_partition_values(path)) if partition_by else {},
        statistics=json.dumps(statistics_of(written.metadata)),
    )


def _partition_values(path: str) -> Iterator[tuple[str, str | None]]:
    for part in os.path.dirname(path).split(os.sep):
        name, _, value = part.partition("=")
        yield unquote(name), None if value == NULL_PARTITION else unquote(value)
