"""Compression: every codec gives the body back, or says that it is damaged; bombs stay small."""

import contextlib
import resource
import subprocess
import sys
import tracemalloc

import lz4.block
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DamagedEntry, MissingExtra
from penstock.log.codec import Codec, compress, decompress

REAL = [Codec.ZLIB, Codec.LZ4, Codec.ZSTD]
MEBIBYTE = 1 << 20


@given(st.binary(max_size=5_000), st.sampled_from(REAL))
def test_what_was_compressed_comes_back(body, codec):
    packed = compress(codec, body)
    assert decompress(codec, packed, len(body)) == body
    assert decompress(codec, memoryview(packed), len(body)) == body


@pytest.mark.parametrize("codec", REAL)
def test_a_body_of_the_largest_size_comes_back(codec):
    body = bytes(range(256)) * (63 * MEBIBYTE // 256)
    assert decompress(codec, compress(codec, body), len(body)) == body


@given(st.binary(max_size=300), st.sampled_from(REAL), st.integers(-3, 3).filter(bool))
def test_another_length_than_the_header_says_is_damage(body, codec, more):
    if len(body) + more >= 0:
        with pytest.raises(DamagedEntry):
            decompress(codec, compress(codec, body), len(body) + more)


@given(st.binary(max_size=300), st.sampled_from([*Codec, 4, 255]), st.integers(0, 70_000))
def test_random_bytes_are_damage_and_never_more_than_was_asked_for(body, codec, size):
    with contextlib.suppress(DamagedEntry):
        assert len(decompress(codec, body, size)) == size


@given(st.binary(min_size=1, max_size=300), st.sampled_from(REAL), st.data())
def test_a_stream_that_is_cut_is_damage(body, codec, data):
    packed = compress(codec, body)
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(DamagedEntry):
        decompress(codec, packed[:cut], len(body))


def bomb_of(codec: Codec) -> bytes:
    """Zeros, 64 MiB of them, in far less."""
    return compress(codec, bytes(64 * MEBIBYTE))


@pytest.mark.parametrize("codec", REAL)
def test_a_bomb_allocates_no_more_than_the_header_allows(codec):
    """Given a small body that would grow to 64 mebibytes, the limit holds."""
    bomb = bomb_of(codec)
    assert len(bomb) < MEBIBYTE
    tracemalloc.start()
    try:
        with pytest.raises(DamagedEntry):
            decompress(codec, bomb, 1_000)
        assert tracemalloc.get_traced_memory()[1] < MEBIBYTE
    finally:
        tracemalloc.stop()


BOMB_SCRIPT = """
import resource, struct, zstandard
from penstock.errors import DamagedEntry
from penstock.log.codec import Codec, decompress
# A frame that says it holds four gigabytes, and one that wants a window of two.
liar = bytes.fromhex("28b52ffd") + bytes([0b11100000]) + struct.pack("<Q", 1 << 32) + b"x" * 50
window = bytes.fromhex("28b52ffd") + bytes([0b10000000, 0xa8]) + struct.pack("<I", 1000) + b"x" * 50
resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))
for body in (liar, window):
    for size in (1_000, 1 << 26):
        try:
            decompress(Codec.ZSTD, body, size)
        except DamagedEntry:
            continue
        raise SystemExit("not refused")
"""


def test_a_frame_that_lies_about_its_size_is_refused_within_the_memory_limit():
    """C libraries do not show in tracemalloc, so the process gets a limit instead."""
    assert resource.getrlimit(resource.RLIMIT_AS)
    subprocess.run([sys.executable, "-c", BOMB_SCRIPT], check=True, timeout=50)


@pytest.mark.parametrize(
    ("codec", "module", "extra"),
    [(Codec.LZ4, "lz4.block", "lz4"), (Codec.ZSTD, "zstandard", "zstd")],
)
def test_a_missing_package_is_named_with_its_extra(codec, module, extra, monkeypatch):
    packed = compress(codec, b"body")
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delattr(lz4, "block")
    with pytest.raises(MissingExtra, match=rf"penstock\[{extra}\]"):
        compress(codec, b"body")
    with pytest.raises(MissingExtra, match=rf"penstock\[{extra}\]"):
        decompress(codec, packed, 4)
