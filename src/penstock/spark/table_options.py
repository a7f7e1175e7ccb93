"""The options of a warehouse table's sink, read once and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from penstock.errors import InvalidOption, MissingExtra
from penstock.spark.given_options import lowered, transaction_in, whole_number

FILE_ROWS_MAX = 5_000_000
_ABOUT = {
    "path": "the folder of the table",
    "partitionBy": "columns that split the table into folders, with commas between them",
    "mergeSchema": "true: columns that are new are added to the table",
    "maxRowsPerFile": "rows of a Parquet file",
    "txnAppId": "batch only: the name under which this write happens once",
    "txnVersion": "batch only: its number, which only grows",
}


@dataclass(frozen=True, slots=True)
class TableOptions:
    """What a query asked for."""

    path: str
    partition_by: tuple[str, ...] = ()
    merge_schema: bool = False
    file_rows_max: int = FILE_ROWS_MAX
    application: str | None = None
    version: int | None = None


def check_delta() -> None:
    """MissingExtra where the package that writes tables is not installed."""
    if find_spec("deltalake") is None:
        raise MissingExtra("tables need: pip install 'penstock[delta]'", extra="delta")


def read_table_options(given: Mapping[str, str]) -> TableOptions:
    """The options, checked; InvalidOption says what is wrong and what would be right."""
    found = lowered(given, _ABOUT, "a table")
    application, version = transaction_in(found)
    rows = found.get("maxrowsperfile", str(FILE_ROWS_MAX))
    return TableOptions(
        path=_path(found),
        partition_by=_names(found.get("partitionby", "")),
        merge_schema=_flag("mergeSchema", found),
        file_rows_max=whole_number("maxRowsPerFile", rows, 1),
        application=application,
        version=version,
    )


def _path(found: Mapping[str, str]) -> str:
    path = found.get("path", "").removeprefix("file://")
    if not path:
        raise InvalidOption(
            'a table needs a folder: .option("path", "./tables/orders")', option="path"
        )
    if "://" in path:
        raise InvalidOption(
            f"a table lives in a folder that all of Spark sees, not in {path!r}", option="path"
        )
    return path


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _flag(name: str, found: Mapping[str, str]) -> bool:
    text = found.get(name.lower(), "false").lower()
    if text not in {"true", "false"}:
        raise InvalidOption(f"{name} is {text!r}: use true or false", option=name)
    return text == "true"
