"""Records that come as Arrow, on their way to the log: no Python object for a record.

Arrow's columns of bytes are what the body of an entry needs: offsets, of which lengths are made, and
all bytes one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.log.arrow import numbers
from penstock.log.columns import KEYS, NULL, RECORD_OVERHEAD_BYTES, TIMES, Columns
from penstock.log.routing import partitions_of_bytes
from penstock.system import Buffer

if TYPE_CHECKING:
    import pyarrow as pa

_U32 = np.dtype("<u4")


class ArrowColumns(Columns):
    """A batch of records as Arrow's columns of bytes; headers are for :class:`Columns` itself."""

    __slots__ = ("_keys", "_times", "_values")

    def __init__(
        self, values: pa.Array, keys: pa.Array | None = None, times: NDArray[Any] | None = None
    ) -> None:
        self._values = values
        self._keys = keys
        self._times = times
        # What the router asks for: whether there are keys.
        self.keys = None if keys is None else ()
        self.headers = None

    def __len__(self) -> int:
        return len(self._values)

    def encode(self) -> tuple[int, list[Buffer]]:
        """The flags and the buffers of the body."""
        flags = 0
        lengths, values = _cut(self._values)
        sizes: list[Buffer] = [lengths.tobytes()]
        data: list[Buffer] = [values]
        if self._keys is not None:
            flags |= KEYS
            lengths, keys = _cut(self._keys)
            sizes.append(lengths.tobytes())
            data.insert(0, keys)
        if self._times is not None:
            flags |= TIMES
            sizes.append(self._times.astype("<i8").tobytes())
        return flags, sizes + data

    def byte_size(self) -> int:
        """Bytes that the records take in memory, about."""
        sizes = (_size(one) for one in (self._values, self._keys) if one is not None)
        return RECORD_OVERHEAD_BYTES * len(self) + sum(sizes)

    def largest(self) -> int:
        """The bytes of the largest record."""
        sizes = np.diff(_offsets(self._values))
        if self._keys is not None:
            sizes = sizes + np.diff(_offsets(self._keys))
        return int(sizes.max(initial=0))

    def pick(self, where: slice) -> ArrowColumns:
        """The records of a slice."""
        start, stop, step = where.indices(len(self))
        if step != 1:
            return self.take(range(start, stop, step))
        count = max(0, stop - start)
        return ArrowColumns(
            self._values.slice(start, count),
            None if self._keys is None else self._keys.slice(start, count),
            None if self._times is None else self._times[start : start + count],
        )

    def take(self, places: Sequence[int]) -> ArrowColumns:
        """The records at these places, in this order."""
        import pyarrow as pa

        chosen = np.asarray(places, np.int64)
        index = numbers(pa.int64(), chosen)
        return ArrowColumns(
            self._values.take(index),
            None if self._keys is None else self._keys.take(index),
            None if self._times is None else self._times[chosen],
        )

    def partitions(self, count: int, turn: int) -> tuple[NDArray[np.int64], int]:
        """The partition of each record, and whose turn it is after them."""
        assert self._keys is not None, "records without keys go in turn"
        lengths, data = _cut(self._keys)
        return partitions_of_bytes(lengths, data, count, turn)


def _offsets(column: pa.Array) -> NDArray[np.int32]:
    if not len(column):
        return np.zeros(1, np.int32)
    return np.frombuffer(column.buffers()[1], np.int32)[column.offset :][: len(column) + 1]


def _size(column: pa.Array) -> int:
    offsets = _offsets(column)
    return int(offsets[-1]) - int(offsets[0])


def _cut(column: pa.Array) -> tuple[NDArray[np.uint32], Buffer]:
    """The lengths, NULL for a null, and all bytes."""
    nulls = None
    if column.null_count:
        nulls = column.is_null().to_numpy(zero_copy_only=False)
        # Arrow lets a null have bytes.
        column = column.fill_null(b"")
    offsets = _offsets(column)
    lengths = np.diff(offsets).astype(_U32)
    if nulls is not None:
        lengths[nulls] = NULL
    data = column.buffers()[2]
    if data is None:
        return lengths, b""
    return lengths, memoryview(data)[int(offsets[0]) : int(offsets[-1])]
