"""The entry: what stands in a segment file, byte for byte.

::

    entry   = length u32 | payload (length bytes) | timestamp i64 (milliseconds)
    payload = header (68 bytes) | body

    at  field            type
     0  magic            4 bytes   "PNSK"
     4  version          u8        1
     5  kind             u8        0 records, 1 segment start, 2 segment end, 3 gap
     6  codec            u8        0 none, 1 zlib, 2 lz4, 3 zstd
     7  flags            u8        which columns the body has
     8  base offset      u64
    16  record count     u32
    20  offset span      u32       the entry covers base offset … base offset + span - 1
    24  durable offset   u64       every record below it was synced before this entry was written
    32  producer id      u64       0: none
    40  producer epoch   u32
    44  sequence         u32       place of the entry among those of its transaction in the partition
    48  transaction mark u16       0: none; else which transaction of the producer it belongs to
    50  reserved         u16       0
    52  body length      u32       before compression
    56  previous         u32       header checksum of the entry before: the chain
    60  body checksum    u32       CRC-32C of the stored body and the timestamp behind it
    64  header checksum  u32       CRC-32C of the length and the header up to here

Integers are little-endian. The header has a checksum of its own, so a flipped length never hides
what follows. The chain ties each entry to all before it, so a lost, repeated or misplaced entry
shows. Every bit of an entry is under one of the two checksums.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from crc32c import crc32c

from penstock.errors import DamagedEntry, DamageError, UnsupportedFormat
from penstock.log import columns
from penstock.log.codec import Codec, compress, decompress
from penstock.system import Buffer

MAGIC = b"PNSK"
VERSION = 1
KIND_RECORDS, KIND_START, KIND_END, KIND_GAP = range(4)

_HEAD = struct.Struct("<I4sBBBBQIIQQIIHHIII")
_CHECKSUM = struct.Struct("<I")
_TIME = struct.Struct("<q")

HEADER_BYTES = _HEAD.size + _CHECKSUM.size
"""Bytes before the body, the length field included."""
FRAME_BYTES = HEADER_BYTES + _TIME.size
"""Bytes of an entry that are not body."""
ENTRY_BYTES_MAX = 64 * 1024 * 1024
"""No entry is larger, on disk or decompressed: what a length field can make a reader allocate."""
OFFSET_MAX = (1 << 63) - 1
"""Offsets are signed in numpy and Arrow."""
RECORDS_MAX = 1 << 20
"""No entry has more records, so that counts on disk cannot make a reader allocate much."""
PACKED_BODY_BYTES_MAX = 16 * 1024 * 1024
PACKED_RECORDS_MAX = 1 << 17
"""What a compressed entry may unpack to: there, a few bytes on disk are enough to ask for much."""


class Header(NamedTuple):
    """The fields of an entry before its body, checked."""

    length: int
    kind: int
    codec: int
    flags: int
    base_offset: int
    record_count: int
    offset_span: int
    durable_offset: int
    producer_id: int
    producer_epoch: int
    sequence: int
    transaction_mark: int
    body_length: int
    previous: int
    body_checksum: int
    checksum: int

    @property
    def entry_bytes(self) -> int:
        """Bytes of the whole entry on disk."""
        return self.length + _CHECKSUM.size + _TIME.size

    @property
    def next_offset(self) -> int:
        """The offset after the last one that the entry covers."""
        return self.base_offset + self.offset_span


class Draft(NamedTuple):
    """An entry but for what is known only under the partition's lock."""

    kind: int
    codec: int
    flags: int
    record_count: int
    offset_span: int
    body_length: int
    stored_length: int
    body: Sequence[Buffer]
    checksum: int
    producer_id: int = 0
    producer_epoch: int = 0
    sequence: int = 0
    transaction_mark: int = 0


def draft(
    flags: int,
    body: Sequence[Buffer],
    record_count: int,
    *,
    offset_span: int | None = None,
    kind: int = KIND_RECORDS,
    codec: Codec = Codec.NONE,
) -> Draft:
    """Compress and checksum a body; needs no lock and no offset. One that is too large stays as it is."""
    size = sum(map(len, body))
    stored = size
    if size > PACKED_BODY_BYTES_MAX or record_count > PACKED_RECORDS_MAX:
        codec = Codec.NONE
    if codec is not Codec.NONE:
        body = [compress(codec, b"".join(body))]
        stored = len(body[0])
    checksum = 0
    for buffer in body:
        checksum = crc32c(buffer, checksum)
    span = record_count if offset_span is None else offset_span
    return Draft(kind, codec, flags, record_count, span, size, stored, body, checksum)


def seal(
    entry: Draft, base_offset: int, durable_offset: int, previous: int, timestamp: int
) -> tuple[list[Buffer], int, int]:
    """The entry's buffers, its size and its header checksum, which the next entry chains to."""
    assert 0 <= entry.record_count <= RECORDS_MAX, "the batch was not split"
    assert entry.stored_length <= ENTRY_BYTES_MAX - FRAME_BYTES, "the batch was not split"
    time = _TIME.pack(timestamp)
    head = _HEAD.pack(
        HEADER_BYTES - 4 + entry.stored_length,
        MAGIC,
        VERSION,
        entry.kind,
        entry.codec,
        entry.flags,
        base_offset,
        entry.record_count,
        entry.offset_span,
        durable_offset,
        entry.producer_id,
        entry.producer_epoch,
        entry.sequence,
        entry.transaction_mark,
        0,
        entry.body_length,
        previous,
        crc32c(time, entry.checksum),
    )
    checksum = crc32c(head)
    buffers = [head + _CHECKSUM.pack(checksum), *entry.body, time]
    return buffers, FRAME_BYTES + entry.stored_length, checksum


def repack(header: Header, body: Sequence[Buffer], timestamp: int) -> tuple[list[Buffer], int, int]:
    """As :func:`seal`, for an entry that was read: all its fields are kept but the checksums."""
    time = _TIME.pack(timestamp)
    checksum = 0
    for buffer in (*body, time):
        checksum = crc32c(buffer, checksum)
    length = HEADER_BYTES - 4 + sum(map(len, body))
    fields = header._replace(length=length, body_checksum=checksum)
    head = _HEAD.pack(length, MAGIC, VERSION, *fields[1:12], 0, *fields[12:15])
    chained = crc32c(head)
    return [head + _CHECKSUM.pack(chained), *body, time], length + 12, chained


def parse_header(data: Buffer, position: int = 0) -> Header:
    """The header at a position of ``data``; raises DamagedEntry, or UnsupportedFormat."""
    if len(data) - position < HEADER_BYTES:
        raise DamagedEntry("the header is cut off", reason="header cut off")
    fields = _HEAD.unpack_from(data, position)
    (checksum,) = _CHECKSUM.unpack_from(data, position + _HEAD.size)
    if fields[1] != MAGIC:
        raise DamagedEntry("no entry starts here", reason="magic")
    if crc32c(memoryview(data)[position : position + _HEAD.size]) != checksum:
        raise DamagedEntry("the header fails its checksum", reason="header checksum")
    if fields[2] != VERSION:
        raise UnsupportedFormat(
            f"the entry has format version {fields[2]}, this release reads {VERSION}: upgrade it",
            version=fields[2],
        )
    header = Header._make((fields[0], *fields[3:14], *fields[15:18], checksum))
    _check_bounds(header)
    return header


def _check_bounds(header: Header) -> None:
    if not HEADER_BYTES - 4 <= header.length <= ENTRY_BYTES_MAX - 12:
        raise DamagedEntry("the length is out of bounds", reason="length")
    if header.body_length > ENTRY_BYTES_MAX or header.record_count > RECORDS_MAX:
        raise DamagedEntry("the counts are out of bounds", reason="counts")
    if header.codec != Codec.NONE and (
        header.body_length > PACKED_BODY_BYTES_MAX or header.record_count > PACKED_RECORDS_MAX
    ):
        raise DamagedEntry("the entry would unpack to too much", reason="counts")
    if header.next_offset > OFFSET_MAX:
        raise DamagedEntry("the offsets are out of bounds", reason="offsets")
    if header.kind > KIND_GAP or header.record_count > header.offset_span:
        raise DamagedEntry("the header contradicts itself", reason="header")


def parse_body(data: Buffer, position: int, header: Header) -> tuple[Buffer, int]:
    """The stored body, as a view, and the timestamp of an entry; DamagedEntry when damaged."""
    start = position + HEADER_BYTES
    end = position + header.entry_bytes
    if len(data) < end:
        raise DamagedEntry("the body is cut off", reason="body cut off")
    view = memoryview(data)
    if crc32c(view[start:end]) != header.body_checksum:
        raise DamagedEntry("the body fails its checksum", reason="body checksum")
    (timestamp,) = _TIME.unpack_from(data, end - _TIME.size)
    return view[start : end - _TIME.size], timestamp


class Entry(NamedTuple):
    """A checked entry and where it stands."""

    position: int
    header: Header
    body: Buffer
    timestamp: int

    def view(self, *, copy: bool = True) -> columns.ColumnView:
        """The records of the entry as columns; not copied, the view holds the whole chunk read."""
        header = self.header
        body: Buffer = bytes(self.body) if copy else self.body
        if header.codec != Codec.NONE:
            body = decompress(header.codec, body, header.body_length)
        return columns.decode(
            body, header.flags, header.record_count, header.base_offset, self.timestamp
        )


def entries(data: Buffer, file_position: int = 0) -> Iterator[Entry]:
    """The whole entries in ``data``, which starts at ``file_position`` of its file.

    Stops before an entry that is cut off by the end of ``data``; raises on damage.
    """
    position = 0
    while len(data) - position >= HEADER_BYTES:
        header = parse_header(data, position)
        if len(data) - position < header.entry_bytes:
            return
        body, timestamp = parse_body(data, position, header)
        yield Entry(file_position + position, header, body, timestamp)
        position += header.entry_bytes


def find_headers(data: bytes) -> Iterator[tuple[int, Header]]:
    """Every sound header in ``data`` with its position, to read on after damage."""
    for magic in re.finditer(MAGIC, memoryview(data)[_CHECKSUM.size :]):
        with suppress(DamageError):
            yield magic.start(), parse_header(data, magic.start())
