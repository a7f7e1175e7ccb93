"""What is small on the disk or on the wire and large in memory."""

import asyncio
import contextlib
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from crc32c import crc32c

from penstock.errors import DamageError, Unreachable
from penstock.log import frame
from penstock.log.codec import Codec

ROOT = Path(__file__).parents[2]
MEBIBYTE = 1 << 20


def zlib_bomb(size: int) -> bytes:
    packer = zlib.compressobj(1)
    some = bytes(MEBIBYTE)
    return b"".join(packer.compress(some) for _ in range(size // MEBIBYTE)) + packer.flush()


def zstd_bomb(size: int, told: int | None) -> bytes:
    """A frame of blocks that repeat one byte: 4 bytes for each 128 KiB; ``told`` is what it claims."""
    window = struct.pack("<B", 10 << 3)  # 1 MiB
    if told is None:
        head = b"\x28\xb5\x2f\xfd" + b"\x00" + window
    else:
        head = b"\x28\xb5\x2f\xfd" + b"\xc0" + window + struct.pack("<Q", told)
    block, count = 128 << 10, size >> 17
    blocks = [struct.pack("<I", block << 3 | 1 << 1 | int(at == count - 1))[:3] + b"\0"
              for at in range(count)]  # fmt: skip
    return head + b"".join(blocks)


def lz4_bomb(size: int) -> bytes:
    """One literal, and a match of it that goes on and on."""
    length = size - 6 - 4 - 15
    return b"\x1f\0\x01\0" + b"\xff" * (length // 255) + bytes([length % 255]) + b"\x50" + bytes(5)


def entry(codec: Codec, stored: bytes, told: int, records: int) -> bytes:
    """An entry with right checksums."""
    time = struct.pack("<q", 1)
    head = frame._HEAD.pack(
        68 + len(stored), frame.MAGIC, 1, 0, codec, 0, 0, records, records, 0, 0, 0, 0, 0, 0, told, 0,
        crc32c(stored + time),
    )  # fmt: skip
    return head + struct.pack("<I", crc32c(head)) + stored + time


def bombs() -> list[tuple[str, bytes]]:
    """Each codec, what it really unpacks to, and what the entry says."""
    ten_gigabytes, one_gigabyte = 10 << 30, 1 << 30
    stored = {
        "zlib 256 MB": (Codec.ZLIB, zlib_bomb(256 * MEBIBYTE)),
        "zstd 10 GB": (Codec.ZSTD, zstd_bomb(ten_gigabytes, ten_gigabytes)),
        "zstd 10 GB, untold": (Codec.ZSTD, zstd_bomb(ten_gigabytes, None)),
        "zstd 10 GB, told as 1 MB": (Codec.ZSTD, zstd_bomb(ten_gigabytes, MEBIBYTE)),
        "zstd 1 MB, told as 10 GB": (Codec.ZSTD, zstd_bomb(MEBIBYTE, ten_gigabytes)),
        "lz4 1 GB": (Codec.LZ4, lz4_bomb(one_gigabyte)),
    }
    sizes = [0, 1, MEBIBYTE, 16 * MEBIBYTE, 64 * MEBIBYTE, 1 << 31, (1 << 32) - 1]
    return [
        (f"{what}, in an entry of {told}", entry(codec, data, told, records))
        for what, (codec, data) in stored.items()
        for told in sizes
        for records in (1, (1 << 32) - 1)
    ]


def refused(data: bytes) -> bool:
    try:
        for one in frame.entries(data):
            one.view().records("orders", 0)
    except DamageError:
        return True
    return False


CHILD = """
import resource, sys
from pathlib import Path
import lz4.block, zstandard
from tests.security.test_bombs import bombs, refused
made = bombs()
usage = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
limit = usage + (96 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for what, data in made:
    if not refused(data):
        print("taken:", what)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
if grown > 48 * 1024:
    print(f"it grew by {grown} KiB")
print("tried:", len(made))
"""


def check_child(findings, program: str) -> None:
    """Run it; it prints what was wrong, and at last how many it tried."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    *wrong, last = done.stdout.splitlines() or [""]
    findings.check(done.returncode == 0, f"it died: {done.stderr[-400:]}")
    findings.check(last.startswith("tried:"), f"it did not try all: {last}")
    findings.none(wrong, int(last.split()[-1]) if last.startswith("tried:") else 0)


def test_no_body_unpacks_to_more_than_it_says(findings):
    """One may unpack to 16 MiB; a process that reads bombs grows by one and a copy of it at most."""
    check_child(findings, CHILD)


def summary_bombs() -> list[tuple[str, list[bytes]]]:
    """Entries in a stream of keys of RabbitMQ: half a megabyte that unpacks to a gigabyte, and counts that lie."""
    import msgspec

    from tests.transports.key_stream import packed, summary

    gigabyte, many = zlib_bomb(1 << 30), b"\xdd\x01\x00\x00\x00"
    text = msgspec.msgpack.encode([[["x" * MEBIBYTE], b"", 1]] * 3)
    half = len(gigabyte) // 2
    return [
        ("1 GB", [summary(gigabyte, 5)]),
        ("1 GB in two parts", [summary(gigabyte[:half], 5, 2), summary(gigabyte[half:], 5, 2)]),
        ("16 million keys", [summary(zlib.compress(many + b"\x93\x90\xc4\0\0" * (1 << 22)), 5)]),
        ("a count that lies", [summary(zlib.compress(many), 5)]),
        ("names of a megabyte", [summary(zlib.compress(text), 5)]),
        ("no end", [summary(bytes(MEBIBYTE), 5, 1_024) for _ in range(100)]),
        ("no end, others", [summary(bytes(MEBIBYTE), 5, 9, b"%08d" % n) for n in range(100)]),
        ("cut off", [summary(packed(("a", b"x", 1))[:-2], 5)]),
    ]


SUMMARIES = """
import resource
from penstock.transports.rabbitmq_key_table import KeyTable
from tests.security.test_bombs import packed_of, summary_bombs
made = summary_bombs()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for what, messages in made:
    table = KeyTable("stream")
    table.restart(5)
    for message in messages:
        table.take(5, 7, message)
    table.take(6, 7, packed_of(b"the real"))
    if table.entry(("a",)) != (b"the real", 3):
        print("it stopped the others:", what)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
if grown > 80 * 1024:
    print(f"it grew by {grown} KiB")
print("tried:", len(made))
"""


def packed_of(value: bytes) -> bytes:
    """A right summary."""
    from tests.transports.key_stream import packed, summary

    return summary(packed(("a", value, 3)), 5, number=b"12345678")


def test_no_entry_of_a_stranger_in_a_stream_of_keys_takes_memory(findings):
    pytest.importorskip("rstream", reason="needs the client of RabbitMQ")
    check_child(findings, SUMMARIES)


def test_the_bombs_are_real(findings):
    """Smaller ones of the same making unpack to what they should: the tests above refuse the size."""
    import lz4.block
    import zstandard

    size = 4 * MEBIBYTE
    findings.check(len(zlib.decompress(zlib_bomb(size))) == size, "zlib")
    unpacked = zstandard.ZstdDecompressor().decompress(zstd_bomb(size, size))
    findings.check(len(unpacked) == size, "zstd")
    findings.check(len(lz4.block.decompress(lz4_bomb(size), size)) == size, "lz4")


# ------------------------------------------------------------------------------- on the wire


@contextlib.asynccontextmanager
async def hostile_server(answer: bytes):
    """Says the same to everybody, and then zeros without end."""

    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (task := asyncio.current_task()) is not None:
            serving.add(task)
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            while True:
                writer.write(bytes(MEBIBYTE))
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for one in serving:
            one.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await asyncio.sleep(0)  # the transports close in the next turn of the loop


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 4294967296\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * MEBIBYTE,
        b"no answer at all\r\n\r\n",
    ],
    ids=["long", "negative", "chunk", "negative-chunk", "header", "nonsense"],
)
async def test_an_answer_of_a_broker_has_a_bound(findings, head):
    pytest.importorskip("pulsar", reason="needs the client of Pulsar")
    from penstock.transports.pulsar_http import PulsarHttp
    from penstock.transports.pulsar_settings import settings_from

    async with hostile_server(head) as port:
        settings = settings_from("pulsar://127.0.0.1:1", {"admin_url": f"http://127.0.0.1:{port}"})
        http = PulsarHttp(settings)
        with pytest.raises(Unreachable):
            await http.call("GET", "/x", seconds=0.3)
        findings.check(http.last_error is not None, "nothing was said of it")
        await http.close()


async def test_a_frame_of_a_broker_has_a_bound(findings):
    """A server that says that 4 GiB follow is left at once."""
    pytest.importorskip("rstream", reason="needs the client of RabbitMQ")
    from penstock.transports.rabbitmq_settings import settings_from
    from penstock.transports.rabbitmq_wire import Link, LinkLost

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(b"\xff\xff\xff\xff" + bytes(MEBIBYTE))
            await writer.drain()
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    link = Link(settings_from(f"rabbitmq://127.0.0.1:{port}", {}))
    with pytest.raises(LinkLost, match="a frame of 4294967295 bytes"):
        await link.open("127.0.0.1", port, None)
    findings.check(True, "")
    server.close()
