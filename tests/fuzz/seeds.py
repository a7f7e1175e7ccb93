"""What the fuzzers begin with: made by code, so that no file of it is kept."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from pathlib import Path

POSITIONS = (
    "start", "end", "47", "-3", "+2", "40:50", ":50", "40:", "@1h:", "@1h:30m", "@1767225600000",
    "@2026-03-01:2026-04-01", "@2026-03-01T12:00:00Z:", "@1.5d2h:", "-9999999999999999999",
)  # fmt: skip
REQUESTS = (
    b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\n\r\n",
    b"GET /login?next=%2Ftopics HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/html\r\n\r\n",
    b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 19\r\n\r\ntoken=x&next=%2Fabc%",
    b"POST /logout HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: https://a.b\r\nCookie: a=b; c\r\n\r\n",
    b"GET /topic?source=log&topic=orders HTTP/1.1\r\nHost: [::1]:80\r\nCookie: x=\xff\r\n\r\n",
)
COMMANDS = (
    ("topic", "list"), ("topic", "describe", "orders"), ("group", "list"), ("log", "verify"),
    ("group", "describe", "billing"), ("consume", "orders", "-o", "start:end", "-f", "%v\\n"),
    ("topic", "create", "x", "--partitions", "2"), ("config", "show"), ("dlq", "list"),
)  # fmt: skip


def corpus_of(target: str) -> Iterable[bytes]:
    """The first inputs of a target."""
    return {
        "recovery": _recovery,
        "codecs": _codecs,
        "positions": lambda: [one.encode() for one in POSITIONS],
        "http": lambda: list(REQUESTS),
        "keys": _keys,
        "command": lambda: ["\0".join(words).encode() for words in COMMANDS],
    }[target]()


def write_corpus(target: str, folder: Path) -> None:
    """As files, which is what the fuzzer reads."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(corpus_of(target)):
        (folder / f"{number:05d}").write_bytes(data)


def _recovery() -> list[bytes]:
    from tests.log.whole_log import make_files

    files: Mapping[str, bytes] = make_files()
    found = []
    for key, content in files.items():
        kinds = (0, 1, 3) if key.endswith(".log") else (2,) if key.endswith("/head") else (4, 5)
        if 0 < len(content) < 1_500:
            found += [bytes([kind]) + content for kind in kinds]
    return found


def _codecs() -> list[bytes]:
    from penstock.log.codec import Codec
    from tests.log.test_fuzz import hostile_corpus
    from tests.security.test_bombs import MEBIBYTE, entry, zstd_bomb

    sizes = [size * MEBIBYTE for size in (1, 16, 60)]
    bombs = [entry(Codec.ZSTD, zstd_bomb(size, size), size, 1) for size in sizes]
    return [*hostile_corpus(random.Random(3), 100), *bombs]


def _keys() -> list[bytes]:
    from tests.transports.key_stream import NUMBER, entry, packed, put, summary

    one = [put("a", b"x", 0), summary(packed(("a", b"x", 1)), 5), summary(b"x", 5, 2)]
    one += [entry(kind, NUMBER, ["a", "b"]) for kind in "drl"]
    whole = b"".join(len(message).to_bytes(4) + message for message in one)
    sub = b"\x90\x00\x03\x00\x00\x00\x10\x00\x00\x00\x05abcde"
    return [bytes([kind]) + message for kind in (0, 1) for message in one] + [
        bytes([kind]) + some for kind in (2, 3) for some in (whole, sub + whole)
    ]
