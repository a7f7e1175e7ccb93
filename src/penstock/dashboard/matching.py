"""Which records a search wants, asked of single records or of a whole Arrow batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock import Record


@dataclass(frozen=True, slots=True)
class Wanted:
    """Records with this key, and with this text in the value or a header."""

    key: bytes | None = None
    text: bytes | None = None

    @property
    def anything(self) -> bool:
        """Whether every record is wanted."""
        return self.key is None and self.text is None

    def matches(self, record: Record) -> bool:
        """Whether a record is wanted."""
        if self.key is not None and record.key != self.key:
            return False
        return self.text is None or self.text in (record.value or b"") or self._in(record.headers)

    def _in(self, headers: Mapping[str, bytes]) -> bool:
        assert self.text is not None, "somebody looks for it"
        return any(self.text in value for value in headers.values())


def chosen(records: Sequence[Record], wanted: Wanted) -> list[Record]:
    """Those that are wanted. Blocking work for many records."""
    return [record for record in records if wanted.matches(record)]


def chosen_of_arrow(batch: Any, topic: str, partition: int, wanted: Wanted) -> list[Record]:
    """The records of an Arrow batch that are wanted; only these become Python objects. Blocking."""
    import pyarrow.compute as pc

    if wanted.key is not None:
        batch = batch.filter(pc.equal(batch.column("key"), wanted.key))
    if wanted.text is not None and batch.num_rows:
        in_value = pc.fill_null(pc.match_substring(batch.column("value"), wanted.text), False)
        batch = batch.filter(pc.or_(in_value, _in_headers(batch.column("headers"), wanted.text)))
    return [_record(row, topic, partition) for row in batch.to_pylist()]


def _in_headers(headers: Any, text: bytes) -> Any:
    """A mask of the rows that have the text in the value of a header."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    found = np.zeros(len(headers), dtype=bool)
    if headers.null_count < len(headers):
        parents = pc.list_parent_indices(headers)
        values = pc.struct_field(pc.list_flatten(headers), "value")
        hits = pc.filter(parents, pc.fill_null(pc.match_substring(values, text), False))
        found[hits.to_numpy(zero_copy_only=False)] = True
    return pa.array(found)


def _record(row: Mapping[str, Any], topic: str, partition: int) -> Record:
    return Record(
        topic=topic,
        partition=partition,
        offset=row["offset"],
        timestamp=int(row["timestamp"].timestamp() * 1_000),
        key=row["key"],
        value=row["value"],
        headers={one["key"]: one["value"] for one in row["headers"] or ()},
    )
