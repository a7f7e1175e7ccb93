"""Whether what a publisher hands over can be a record, and how large it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat

from penstock.errors import InvalidOption
from penstock.log.columns import Columns
from penstock.log.published import Row

_TIMESTAMP_MIN = -(1 << 63)
_TIMESTAMP_MAX = (1 << 63) - 1


def record_size(
    value: bytes | None,
    key: bytes | None,
    headers: Mapping[str, bytes] | None,
    timestamp: int | None = None,
) -> int:
    """Bytes of a record; InvalidOption when a part of it is not what it must be."""
    size = 0
    if value.__class__ is bytes:
        size = len(value)
    elif value is not None:
        raise _not_bytes("value", value)
    if key is not None:
        if key.__class__ is not bytes:
            raise _not_bytes("key", key)
        size += len(key)
    if headers:
        size += _headers_size(headers)
    if timestamp is not None:
        _check_timestamps([timestamp])
    return size


def packed(
    value: bytes | None,
    key: bytes | None,
    headers: Mapping[str, bytes] | None,
    timestamp: int | None,
) -> tuple[bytes | Row, int]:
    """Check a record; the item that stands for it, and its size."""
    size = record_size(value, key, headers, timestamp)
    if value is not None and key is None and timestamp is None and not headers:
        return value, size
    # A copy of what its owner may change.
    return (value, key, dict(headers) if headers else None, timestamp), size


def _check_timestamps(timestamps: Sequence[int]) -> None:
    if not set(map(type, timestamps)) <= {int}:
        raise InvalidOption("a timestamp is an int: milliseconds since 1970", option="timestamp")
    if timestamps and (min(timestamps) < _TIMESTAMP_MIN or max(timestamps) > _TIMESTAMP_MAX):
        raise InvalidOption(
            f"a timestamp is {_TIMESTAMP_MIN} to {_TIMESTAMP_MAX} ms", option="timestamp"
        )


def _headers_size(headers: Mapping[str, bytes]) -> int:
    size = 0
    for name, value in headers.items():
        if name.__class__ is not str or value.__class__ is not bytes:
            raise InvalidOption("headers map str to bytes", option="headers")
        try:
            size += len(name.encode()) + len(value)
        except UnicodeEncodeError:
            raise InvalidOption(f"header name {name!r} is not text", option="headers") from None
    return size


def _not_bytes(what: str, item: object) -> InvalidOption:
    return InvalidOption(
        f"the {what} is {type(item).__name__}, it must be bytes: encode it first", option=what
    )


def largest_record(columns: Columns) -> int:
    """The size of the largest record."""
    if columns.keys is None and columns.headers is None:
        return max(map(len, filter(None, columns.values)), default=0)
    absent = repeat(None)
    rows = zip(columns.values, columns.keys or absent, columns.headers or absent, strict=False)
    return max((record_size(*row) for row in rows), default=0)


def checked_columns(
    values: Iterable[bytes | None],
    keys: Iterable[bytes | None] | None,
    timestamps: Iterable[int] | None,
    headers: Iterable[Mapping[str, bytes] | None] | None,
) -> Columns:
    """The columns in lists of their own, as their owner may change his, checked as check_columns does."""
    columns = Columns(
        list(values),
        None if keys is None else list(keys),
        None if timestamps is None else list(timestamps),
        None if headers is None else list(headers),
    )
    check_columns(columns)
    columns.headers = columns.headers and [dict(one) if one else None for one in columns.headers]
    return columns


def check_columns(columns: Columns) -> None:
    """InvalidOption unless every column has the right types and the same length."""
    all_bytes = columns.all_bytes()
    if all_bytes and columns.are_bare():
        return
    kinds = {bytes, type(None)}
    for name in ("keys",) if all_bytes else ("values", "keys"):
        column = getattr(columns, name)
        if column is not None and not set(map(type, column)) <= kinds:
            odd = next(item for item in column if type(item) not in kinds)
            raise _not_bytes(name, odd)
    for headers in columns.headers or ():
        _headers_size(headers or {})
    _check_timestamps(columns.timestamps or ())
    for name in ("keys", "headers", "timestamps"):
        column = getattr(columns, name)
        if column is not None and len(column) != len(columns.values):
            raise InvalidOption(f"{name} has {len(column)} items, values {len(columns.values)}")
