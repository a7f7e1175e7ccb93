"""The columns of what is produced to RabbitMQ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.errors import InvalidOption


@dataclass(frozen=True, slots=True)
class Rows:
    """Values, and what belongs to them."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None
    headers: Sequence[Mapping[str, bytes] | None] | None
    timestamps: Sequence[int] | None

    def __post_init__(self) -> None:
        for name in ("keys", "headers", "timestamps"):
            column = getattr(self, name)
            if column is not None and len(column) != len(self.values):
                raise InvalidOption(
                    f"{len(column)} {name} for {len(self.values)} values: give one for each",
                    option=name,
                )

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
