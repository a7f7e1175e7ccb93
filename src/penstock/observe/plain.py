"""From values to what JSON can hold."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any

import msgspec

from penstock.bus.histogram import Durations


def as_plain(value: Any) -> Any:
    """Dictionaries, lists, text, numbers and None; what is something else becomes text."""
    if isinstance(value, enum.Enum):
        return value.value if isinstance(value, str) else value.name
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Durations):
        return _durations(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_plain(getattr(value, field.name)) for field in fields(value)}
    return _as_plain_many(value)


def _as_plain_many(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return {name: as_plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {_key(key): as_plain(one) for key, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return as_plain(value._asdict())
    if isinstance(value, tuple | list):
        return [as_plain(one) for one in value]
    if isinstance(value, set | frozenset):
        return sorted((as_plain(one) for one in value), key=str)
    return str(value)


def _durations(value: Durations) -> dict[str, float]:
    return {
        "count": value.count,
        "total_seconds": value.total_seconds,
        "longest_seconds": value.longest_seconds,
        "p50_seconds": value.quantile(0.50),
        "p95_seconds": value.quantile(0.95),
        "p99_seconds": value.quantile(0.99),
    }


def as_json(value: Any) -> str:
    """A value as JSON text."""
    return json.dumps(as_plain(value), allow_nan=False)


def _key(key: Any) -> str:
    return str(as_plain(key))
