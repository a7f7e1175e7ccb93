"""Entries of a shared ring: a batch of records that proves itself.

Layout, little-endian, at an absolute position that is a multiple of 8::

    8  position      where the entry starts, counted from the start of the ring, never wrapped
    4  length        bytes of the body
    4  count         records in the body
    4  checksum      CRC-32C of the 16 bytes before and of the body
    4  zero
    n  body          count lengths of 4 bytes each, then the records one after the other
    0-7 padding      up to the next multiple of 8
"""

from __future__ import annotations

import struct

from crc32c import crc32c

HEADER = struct.Struct("<QIIII")
HEADER_BYTES = HEADER.size
FIELDS_BYTES = 16
LENGTH_BYTES = 4


def size_of(count: int, data_bytes: int) -> int:
    """Bytes that an entry takes, with padding."""
    return (HEADER_BYTES + LENGTH_BYTES * count + data_bytes + 7) & ~7


class EntryArea:
    """The bytes of the ring. Positions grow for ever; a mask finds the place."""

    __slots__ = ("_mask", "capacity", "memory")

    def __init__(self, memory: memoryview, capacity: int) -> None:
        self.memory = memory
        self.capacity = capacity
        self._mask = capacity - 1

    def write(self, position: int, records: list[bytes], lengths: list[int]) -> int:
        """Write an entry; its size. The body comes first, the header that proves it second."""
        body = b"".join((struct.pack(f"<{len(lengths)}I", *lengths), *records))
        fields = struct.pack("<QII", position, len(body), len(records))
        self._put(position + HEADER_BYTES, body)
        self._put(position, fields + struct.pack("<II", crc32c(body, crc32c(fields)), 0))
        return (HEADER_BYTES + len(body) + 7) & ~7

    def read(self, position: int) -> tuple[list[bytes], int] | None:
        """The records of the entry at this position, and its size; None if it does not prove itself."""
        found = self.copy(position)
        return (cut(*found), (HEADER_BYTES + len(found[0]) + 7) & ~7) if found else None

    def copy(self, position: int) -> tuple[bytes, int] | None:
        """The body of the entry and the number of its records; None if it does not prove itself."""
        header = self._get(position, HEADER_BYTES)
        stamp, length, count, checksum, _ = HEADER.unpack(header)
        first = LENGTH_BYTES * count
        if stamp != position or not first <= length <= self.capacity - HEADER_BYTES:
            return None
        body = self._get(position + HEADER_BYTES, length)
        if crc32c(body, crc32c(header[:FIELDS_BYTES])) != checksum:
            return None
        return body, count

    def _put(self, position: int, data: bytes) -> None:
        first = position & self._mask
        last = first + len(data)
        if last <= self.capacity:
            self.memory[first:last] = data
        else:
            split = self.capacity - first
            self.memory[first:] = data[:split]
            self.memory[: last - self.capacity] = data[split:]

    def _get(self, position: int, length: int) -> bytes:
        first = position & self._mask
        last = first + length
        if last <= self.capacity:
            return bytes(self.memory[first:last])
        return bytes(self.memory[first:]) + bytes(self.memory[: last - self.capacity])


def cut(body: bytes, count: int) -> list[bytes]:
    """The records of a body, made by one call: slicing them one by one takes several times as long."""
    first = LENGTH_BYTES * count
    lengths = struct.unpack_from(f"<{count}I", body)
    if body[:first] == body[:LENGTH_BYTES] * count:
        layout = f"{lengths[0]}s" * count if count else ""
    else:
        layout = "%ds" * count % lengths
    return list(struct.Struct(layout).unpack_from(body, first))
