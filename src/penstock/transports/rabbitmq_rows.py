"""The columns of what is produced to RabbitMQ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.transports.options import check_columns


@dataclass(frozen=True, slots=True)
class Rows:
    """Values, and what belongs to them."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None
    headers: Sequence[Mapping[str, bytes] | None] | None
    timestamps: Sequence[int] | None

    def __post_init__(self) -> None:
        check_columns(self.values, keys=self.keys, headers=self.headers, timestamps=self.timestamps)

    def row(
        self, place: int
    ) -> tuple[bytes | None, bytes | None, Mapping[str, bytes] | None, int | None]:
        """Value, key, headers, timestamp."""
        return (
            self.values[place],
            None if self.keys is None else self.keys[place],
            None if self.headers is None else self.headers[place],
            None if self.timestamps is None else self.timestamps[place],
        )
