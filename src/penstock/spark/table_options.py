"""The options of a warehouse table's sink, read once and checked."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.errors import InvalidOption

FILE_ROWS_MAX = 5_000_000
_ABOUT = {
    "path": "the folder of the table",
    "partitionBy": "columns that split the table into folders, with commas between them",
    "mergeSchema": "true: columns that are new are added to the table",
    "maxRowsPerFile": "rows of a Parquet file",
    "txnAppId": "batch only: the name under which this write happens once",
    "txnVersion": "batch only: its number, which only grows",
}
_FROM_SPARK = {"checkpointlocation", "queryname"}
"""What Spark passes on of its own."""


@dataclass(frozen=True, slots=True)
class TableOptions:
    """What a query asked for."""

    path: str
    partition_by: tuple[str, ...] = ()
    merge_schema: bool = False
    file_rows_max: int = FILE_ROWS_MAX
    application: str | None = None
    version: int | None = None


def read_table_options(given: Mapping[str, str]) -> TableOptions:
    """The options, checked; InvalidOption says what is wrong and what would be right."""
    found = {name.lower(): value for name, value in given.items()}
    _refuse_unknown(found)
    application, version = found.get("txnappid"), found.get("txnversion")
    if (application is None) != (version is None):
        raise InvalidOption("txnAppId and txnVersion go together: give both", option="txnAppId")
    return TableOptions(
        path=_path(found),
        partition_by=_names(found.get("partitionby", "")),
        merge_schema=_flag("mergeSchema", found),
        file_rows_max=_number("maxRowsPerFile", found, FILE_ROWS_MAX, at_least=1),
        application=application,
        version=None if version is None else _number("txnVersion", found, 0, at_least=0),
    )


def _refuse_unknown(found: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in _ABOUT}
    for name in found:
        if name in known or name in _FROM_SPARK:
            continue
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {known[near[0]]}? " if near else ""
        raise InvalidOption(
            f"a table has no option {name!r}: {hint}There are {', '.join(_ABOUT)}", option=name
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


def _number(name: str, found: Mapping[str, str], default: int, *, at_least: int) -> int:
    text = found.get(name.lower(), str(default))
    if not text.isascii() or not text.isdigit() or int(text) < at_least:
        raise InvalidOption(
            f"{name} is {text!r}: use a whole number of {at_least} or more", option=name
        )
    return int(text)
