"""Compression of an entry's body. The codec is chosen per topic and named in each entry."""

from __future__ import annotations

import enum
import zlib
from typing import Any

from penstock.errors import DamagedEntry, MissingExtra
from penstock.system import Buffer

WINDOW_BYTES_MAX = 8 * 1024 * 1024
"""What a zstd frame may ask the decompressor to keep; level 1 asks for far less."""


class Codec(enum.IntEnum):
    """How the body of an entry is compressed."""

    NONE = 0
    ZLIB = 1
    LZ4 = 2
    ZSTD = 3


def compress(codec: Codec, body: Buffer) -> bytes:
    """The compressed body."""
    if codec is Codec.ZLIB:
        return zlib.compress(body, 1)
    if codec is Codec.LZ4:
        return bytes(_lz4().compress(body, store_size=False))
    return bytes(_zstd().ZstdCompressor(level=1).compress(body))


def decompress(codec: int, body: Buffer, size: int) -> bytes:
    """The body again. It is never longer than ``size``, which the caller has bounded."""
    try:
        data = _decompress(codec, body, size)
    except (MissingExtra, DamagedEntry):
        raise
    except Exception as cause:
        raise DamagedEntry(f"the body does not decompress: {cause}", reason="codec") from cause
    if len(data) != size:
        raise DamagedEntry("the body has another length after decompression", reason="codec")
    return data


def _decompress(codec: int, body: Buffer, size: int) -> bytes:
    if codec == Codec.ZLIB:
        return _inflate(body, size)
    if codec == Codec.LZ4:
        return bytes(_lz4().decompress(body, uncompressed_size=size))
    if codec == Codec.ZSTD:
        return _unpack_zstd(body, size)
    raise DamagedEntry(f"unknown codec {codec}", reason="codec")


def _inflate(body: Buffer, size: int) -> bytes:
    stream = zlib.decompressobj()
    data = stream.decompress(body, size + 1)
    if not stream.eof or stream.unused_data:
        raise DamagedEntry("the body is not one whole zlib stream", reason="codec")
    return data


def _unpack_zstd(body: Buffer, size: int) -> bytes:
    zstd = _zstd()
    # The frame's own size decides how much the library allocates, so it is checked first.
    if zstd.frame_content_size(body) != size:
        raise DamagedEntry("the body has another length after decompression", reason="codec")
    return bytes(zstd.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX).decompress(body))


def _lz4() -> Any:
    try:
        import lz4.block
    except ImportError as cause:
        raise MissingExtra("lz4 entries need: pip install 'penstock[lz4]'", extra="lz4") from cause
    return lz4.block


def _zstd() -> Any:
    try:
        import zstandard
    except ImportError as cause:
        message = "zstd entries need: pip install 'penstock[zstd]'"
        raise MissingExtra(message, extra="zstd") from cause
    return zstandard
