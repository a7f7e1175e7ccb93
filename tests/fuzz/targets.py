"""What is fuzzed: each target takes bytes, and may only raise what it says.

Anything else that comes out of a target is a crash, and so is a hang and too much memory.
"""

from __future__ import annotations

import asyncio
import io
import os
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress

from crc32c import crc32c

Target = Callable[[bytes], None]
SECONDS_MAX = 10.0
BUG = "PENSTOCK_FUZZ_BUG"
"""With this in the environment the target of positions has a bug, to see that it is found."""


def recovery() -> Target:
    """Any bytes in the place of each file of a log: it opens, or it refuses with a name."""
    from penstock.errors import DamageError, KeyNotFound
    from penstock.log.group_file import GroupFile
    from penstock.log.offsets import OffsetFile
    from penstock.log.partition import PartitionLog
    from penstock.log.producer_file import ProducerFile
    from penstock.log.reader import PartitionReader
    from penstock.log.topic import TopicFile
    from penstock.log.transaction_decision import DecisionFiles
    from penstock.log.verify import verify
    from penstock.stores.memory import MemoryStore
    from penstock.system import OsClock
    from tests.log.strategies import KEYS, read_records, values_draft

    def log_on(store: MemoryStore) -> PartitionLog:
        return PartitionLog(store, KEYS)

    sound = MemoryStore()
    one = log_on(sound)
    for value in (b"first", b"second" * 9):
        one.append([values_draft(value)], sync=True)
    base = f"{KEYS.folder}/{0:020d}"
    head, log = sound.read(KEYS.head), sound.read(f"{base}.log")

    def try_partition(files: dict[str, bytes]) -> None:
        store = MemoryStore()
        for key, content in files.items():
            store.write(key, content)
        verify(store, KEYS.topic)
        two = log_on(store)
        with suppress(DamageError):
            two.attach()
            read_records(PartitionReader(store, KEYS))
            two.append([values_draft(b"next")], sync=True)

    def try_small(data: bytes) -> None:
        store = MemoryStore()
        for key in ("groups/g/orders-0.offset", "groups/g/members/state", "producers/p/state",
                    "producers/p/done", "producers/p/decision-0", "topics/orders/topic.json"):  # fmt: skip
            store.write(key, data)
        producer = ProducerFile(store, "p")
        for look in (
            OffsetFile(store, "g", "orders", 0).read,
            GroupFile(store, "g", OsClock(), 1.0).read,
            TopicFile(store, "orders").read,
            producer.read,
            DecisionFiles(store, producer).look,
        ):
            with suppress(DamageError, KeyNotFound):
                look()

    def target(data: bytes) -> None:
        kind, rest = (data[0] % 6, data[1:]) if data else (0, b"")
        places: dict[int, dict[str, bytes]] = {
            0: {f"{base}.log": rest},
            1: {f"{base}.log": rest, KEYS.head: head},
            2: {f"{base}.log": log, KEYS.head: rest},
            3: {f"{base}.log": log + rest, KEYS.head: head},
            4: {f"{base}.log": log, KEYS.head: head, f"{base}.index": rest},
        }
        if kind in places:
            try_partition(places[kind])
        else:
            try_small(rest)

    return target


def codecs() -> Target:
    """Entries whose checksums fit, whatever they say: every decoder."""
    from penstock.log.frame import HEADER_BYTES
    from tests.log.test_fuzz import read_everything, swallowed

    def target(data: bytes) -> None:
        if len(data) > HEADER_BYTES + 8:
            body = data[HEADER_BYTES:]
            front = struct.pack("<I", len(data) - 12) + b"PNSK\x01\0" + data[10:64]
            front += struct.pack("<I", crc32c(body))
            data = front + struct.pack("<I", crc32c(front)) + body
        with swallowed():
            read_everything(data)

    return target


def positions() -> Target:
    """Expressions of places and times."""
    from penstock.cli.positions import parse_range, parse_seek, parse_time
    from penstock.errors import PenstockError

    def target(data: bytes) -> None:
        if data == b"end" and BUG in os.environ:
            raise RuntimeError("a seeded bug")
        text = data.decode("utf-8", "surrogateescape")
        for parse in (parse_range, parse_seek, parse_time):
            with suppress(PenstockError):
                found = parse(text, 1_767_225_600_000)
                if parse is parse_seek:
                    found.position(3, 90)  # type: ignore[union-attr]

    return target


def command() -> Target:
    """The words of a command line, on a log of its own, in a folder of its own."""
    from penstock.cli import main
    from penstock.cli.codes import INTERRUPTED

    folder = tempfile.mkdtemp(prefix="penstock-fuzz-")
    os.chdir(folder)
    os.environ["XDG_CONFIG_HOME"] = folder
    allowed = {"topic", "group", "dlq", "config", "log", "consume"}
    before = ["--url", f"log:{folder}/data"]

    def target(data: bytes) -> None:
        words = data.decode("utf-8", "replace").split("\0")
        rest = " ".join(words)
        # Nothing outside of the folder, no server, nothing that waits for more records.
        if words[0] not in allowed or any(one in rest for one in ("/", "..", "://", "$", "~")):
            return
        if words[0] == "consume":
            words.append("--exit")
        output = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
        errors = io.StringIO()
        sys.stdin = io.TextIOWrapper(io.BytesIO(b""), encoding="utf-8")
        with redirect_stdout(output), redirect_stderr(errors):
            code = main([*before, *words])
        if "Traceback" in errors.getvalue() or not 0 <= code <= INTERRUPTED:
            raise AssertionError(f"{words}: code {code}, {errors.getvalue()[:400]}")

    return target


def http() -> Target:
    """Requests as bytes, to the real server of a dashboard."""
    address = _start_dashboard()

    def ask(data: bytes) -> bytes:
        # The server ends the connection after its answer, or this side does when it waits for more.
        whole = data.replace(b"\r\n", b"\r\nConnection: close\r\n", 1) + b"\r\n\r\n"
        answer = b""
        with socket.create_connection(address, timeout=SECONDS_MAX) as link:
            with suppress(ConnectionError, TimeoutError):
                link.sendall(whole)
                link.settimeout(0.2)
                while chunk := link.recv(65_536):
                    answer += chunk[: 4_096 - len(answer)]
        return answer

    def target(data: bytes) -> None:
        answer = ask(data)
        status = answer.split(b" ", 2)[1:2]
        if status and status[0][:1] == b"5" and status[0] != b"501":
            raise AssertionError(f"{data[:400]!r}: {answer[:400]!r}")

    if (found := ask(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n")[9:12]) != b"200":
        raise RuntimeError(f"the dashboard is not well: {found!r}")
    return target


def _start_dashboard() -> tuple[str, int]:
    """A dashboard with a token, on a log with a topic, in a thread of its own; where it is."""
    import penstock
    from penstock.dashboard import Dashboard
    from penstock.observe import Observer

    found: list[tuple[str, int]] = []
    ready = threading.Event()

    async def serve() -> None:
        path = tempfile.mkdtemp(prefix="penstock-fuzz-")
        async with penstock.open(f"log:{path}", name="shop") as bus, Observer() as observer:
            observer.watch(bus)
            async with Dashboard(observer, port=0, token="a-long-token") as dashboard:
                host, _, port = dashboard.url.removeprefix("http://").rstrip("/").partition(":")
                found.append((host, int(port.split("/")[0])))
                ready.set()
                await asyncio.Event().wait()

    threading.Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
    if not ready.wait(60):
        raise RuntimeError("the dashboard did not start")
    return found[0]


def keys() -> Target:
    """Messages in a stream of keys of RabbitMQ: one by one, and what is left works."""
    from penstock.transports.rabbitmq_key_table import KeyTable, messages_of
    from penstock.transports.rabbitmq_wire import Chunk
    from tests.transports.key_stream import packed, put, summary

    def target(data: bytes) -> None:
        kind, rest = (data[0] % 4, data[1:]) if data else (0, b"")
        table = KeyTable("stream")
        table.restart(0 if kind % 2 else 5)
        if kind < 2:
            table.take(9, 1, rest)
        else:
            for offset, message in messages_of(Chunk(9, 1, 100, 100, rest)):
                table.take(offset, 1, message)
        table.take(200, 1, put("a fresh key", b"x", 0))
        table.take(201, 1, summary(packed(), 200, number=b"12345678"))
        if table.entry(("a fresh key",)) is None and len(rest) < 20:
            raise AssertionError(f"{data!r} stands in the way")

    return target


TARGETS: dict[str, Callable[[], Target]] = {
    "recovery": recovery,
    "codecs": codecs,
    "positions": positions,
    "command": command,
    "http": http,
    "keys": keys,
}
