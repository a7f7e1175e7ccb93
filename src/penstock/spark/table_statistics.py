"""What the log of a table tells of a file: rows, nulls, and the smallest and largest value of columns.

Readers skip files by it. Some of them take a column that has no bounds in a file, while others have,
for one without any value. So a file has bounds for all columns that can have them, or for none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow.parquet as pq

COLUMNS_MAX = 32
TEXT_MAX = 32
"""Longer texts are cut; an upper bound is then the next text of that length."""


@dataclass(frozen=True)
class _Column:
    name: str
    nulls: int
    only_nulls: bool
    smallest: Any
    largest: Any

    @property
    def is_whole(self) -> bool:
        return self.only_nulls or (self.smallest is not None and self.largest is not None)


def statistics_of(metadata: pq.FileMetaData) -> dict[str, Any]:
    """The statistics of a file, as the log of a table has them."""
    numbers = range(min(metadata.num_columns, COLUMNS_MAX))
    columns = [one for number in numbers if (one := _column(metadata, number))]
    found: dict[str, Any] = {
        "numRecords": metadata.num_rows,
        "nullCount": {one.name: one.nulls for one in columns},
    }
    if all(one.is_whole for one in columns):
        told = [one for one in columns if not one.only_nulls]
        found["minValues"] = {one.name: one.smallest for one in told}
        found["maxValues"] = {one.name: one.largest for one in told}
    return found


def _column(metadata: pq.FileMetaData, number: int) -> _Column | None:
    """A column over all groups of rows; None for one that never has bounds: nested ones, and bytes."""
    about = metadata.schema.column(number)
    is_text = about.logical_type.type == "STRING"
    if "." in about.path or (about.physical_type == "BYTE_ARRAY" and not is_text):
        return None
    groups = [metadata.row_group(one).column(number) for one in range(metadata.num_row_groups)]
    kept = [one.statistics for one in groups if one.statistics is not None]
    nulls = sum(one.null_count for one in kept)
    with_bounds = [one for one in kept if one.has_min_max]
    only_nulls = len(kept) == len(groups) and nulls == metadata.num_rows
    # A group without bounds is one of nulls only, or nothing is known of it.
    known = all(one.has_min_max or one.num_values == 0 for one in kept)
    if not with_bounds or len(kept) < len(groups) or not known:
        return _Column(about.path, nulls, only_nulls, None, None)
    return _Column(
        about.path, nulls, only_nulls,
        _lower(min(one.min for one in with_bounds)), _upper(max(one.max for one in with_bounds)),
    )  # fmt: skip


def _lower(value: Any) -> Any:
    return value[:TEXT_MAX] if isinstance(value, str) else _plain(value)


def _upper(value: Any) -> Any:
    if not isinstance(value, str):
        return _plain(value)
    return value if len(value) <= TEXT_MAX else _next_text(value[:TEXT_MAX])


def _next_text(text: str) -> str | None:
    """The smallest text of this length that comes after all that begin so; None when there is none."""
    for place in range(len(text) - 1, -1, -1):
        code = ord(text[place]) + 1
        if code <= 0x10FFFF:
            # Half of a pair is no character.
            return text[:place] + chr(0xE000 if 0xD800 <= code <= 0xDFFF else code)
    return None


def _plain(value: Any) -> Any:
    """A value as JSON has it; None when it has none that is exact."""
    if isinstance(value, datetime):
        # Cut to milliseconds, as readers know.
        text = value.isoformat(timespec="milliseconds")
        return text.removesuffix("+00:00") + ("Z" if value.tzinfo else "")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value) if Decimal(repr(float(value))) == value else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, int) else None
