"""The same three things with each peer: blocks of 1,000, single records, reading back."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

from benchmarks.brokers.common import pump
from benchmarks.durable.client import Client, ServerPeer, Take
from benchmarks.durable.servers import SERVERS
from benchmarks.durable.stores import STORES, StorePeer
from benchmarks.model import BATCH, Case, Load, Meter, Prepared, Sample, Scale, Workload, drive
from benchmarks.peers import raw
from benchmarks.publishers import EVERY_MESSAGE, TOPIC, fill, publish, publish_many
from benchmarks.workloads.read import read_batches
from penstock import Record

PAYLOAD_BYTES = 100
TASKS = 64
IN_FLIGHT = 4
SLOW_RECORDS = 500
"""Those of queues that take each record out, to read."""
OURS = "EVERY_MESSAGE: synced before the call returns"

Job = Callable[[Client, Load], Coroutine[Any, Any, Sample]]


def batches(scale: Scale) -> list[Case]:
    """1,000 records in a call."""
    load = Load.of(scale, PAYLOAD_BYTES)
    case = partial(Case, "durable_batches", PAYLOAD_BYTES, "sync-1000")
    return [
        case("raw", "write + fdatasync of packed blocks",
             lambda at: raw.append(at, load, sync=True), bound=True, durability="fdatasync"),
        case("raw-joined", "1,000 joined, with a checksum, write + fdatasync",
             lambda at: raw.append_joined(at, load, sync=True), durability="fdatasync"),
        case("raw-commit", "the same, and a head in another file: locked, looked at, written, unlocked",
             lambda at: raw.append_committed(at, load), durability="fdatasync"),
        case("penstock", "publish_many, one call at a time",
             lambda at: publish_many(at, load, EVERY_MESSAGE), durability=OURS),
        case("penstock-on-loop", "publish_many, one call at a time, committed on the event loop",
             lambda at: publish_many(at, load, EVERY_MESSAGE, commit_on="loop"), durability=OURS),
        case("penstock-pipelined", f"publish_many, {IN_FLIGHT} calls in flight",
             lambda at: publish_many(at, load, EVERY_MESSAGE, in_flight=IN_FLIGHT), durability=OURS),
        case("penstock-pipelined-on-loop", f"publish_many, {IN_FLIGHT} calls in flight, committed on the event loop",
             lambda at: publish_many(at, load, EVERY_MESSAGE, in_flight=IN_FLIGHT, commit_on="loop"),
             durability=OURS),
        *(case(name, peer.how,
               partial(_store, peer=peer, load=Load.of(scale, PAYLOAD_BYTES, peer.block)),
               durability=peer.durability)
          for name, peer in STORES.items()),
        *(case(name, f"{peer.how}; {IN_FLIGHT} calls in flight",
               partial(_server, peer=peer, load=load, job=_pump, warm_up=peer.warm_up), durability=peer.durability)
          for name, peer in SERVERS.items()),
    ]  # fmt: skip


def singles(scale: Scale) -> list[Case]:
    """Every record durable when its call returns."""
    load = Load.of(scale, PAYLOAD_BYTES, 1)
    case = partial(Case, "durable_singles", PAYLOAD_BYTES, "sync-each")
    return [
        case("raw", "write + fdatasync of each record",
             lambda at: raw.append(at, load, sync=True), bound=True, durability="fdatasync"),
        case("raw-64", f"{TASKS} awaiting tasks, write + fdatasync for all of them",
             lambda at: raw.append_awaited(at, load, tasks=TASKS), durability="fdatasync"),
        case("penstock", f"await publish, {TASKS} tasks",
             lambda at: publish(at, load, EVERY_MESSAGE, publishers=TASKS), durability=OURS),
        case("penstock-on-loop", f"await publish, {TASKS} tasks, committed on the event loop",
             lambda at: publish(at, load, EVERY_MESSAGE, publishers=TASKS, commit_on="loop"),
             durability=OURS),
        *(case(name, peer.single_how,
               partial(_store, peer=peer, load=load), durability=peer.durability)
          for name, peer in STORES.items()),
        *(case(name, f"{peer.how}; {TASKS} tasks",
               partial(_server, peer=peer, load=load, job=_tasks, warm_up=peer.warm_up), durability=peer.durability)
          for name, peer in SERVERS.items()),
    ]  # fmt: skip


def reads(scale: Scale) -> list[Case]:
    """All records as objects."""
    load = Load.of(scale, PAYLOAD_BYTES)
    records = max(1, scale.read_bytes // PAYLOAD_BYTES // BATCH) * BATCH
    case = partial(Case, "durable_read", PAYLOAD_BYTES, "read")
    log = Prepared("durable-log", lambda at: fill(at, load, records))
    return [
        case("penstock", "subscription, batches of objects, checksums verified",
             lambda at: read_batches(at, records), prepared=log, bound=True),
        case("raw-objects", "the same objects made of bytes in memory; nothing is read or checked",
             lambda _: _make_objects(load.values(), records)),
        *(case(name, peer.read_how, partial(_read_store, peer=peer, records=records))
          for name, peer in STORES.items()),
        *(case(name, peer.read_how,
               partial(_server, peer=peer, load=load,
                       job=partial(_read_server, peer=peer, records=min(records, peer.read_records))))
          for name, peer in SERVERS.items()),
    ]  # fmt: skip


def _store(folder: Path, peer: StorePeer, load: Load) -> Sample:
    values = load.values()
    with peer.open(folder) as store:
        return drive(load, lambda: store.append(values))


def _read_store(folder: Path, peer: StorePeer, records: int) -> Sample:
    values = Load(PAYLOAD_BYTES, 0, 0).values()[: peer.block]
    blocks = max(1, (SLOW_RECORDS if peer.slow_read else records) // len(values))
    with peer.open(folder) as store:
        for _ in range(blocks):
            store.append(values)
        start = time.perf_counter()
        found = store.read()
        seconds = time.perf_counter() - start
    records = _checked(found, blocks * len(values))
    return Sample(records / seconds, {"records": records, "seconds": seconds})


def _make_objects(values: list[bytes], records: int) -> Sample:
    """The quickest that Python has: values cut, and records made of them, in C, a batch at a time."""
    body = b"".join(values)
    cut = struct.Struct(f"{PAYLOAD_BYTES}s" * len(values)).unpack
    start = time.perf_counter()
    for first in range(0, records, len(values)):
        offsets = range(first, first + len(values))
        list(map(Record, repeat(TOPIC), repeat(0), offsets, repeat(0), repeat(None), cut(body)))
    return Sample(records / (time.perf_counter() - start))


def _checked(found: int, records: int) -> int:
    if found != records:
        raise RuntimeError(f"{found} records were read, {records} were written")
    return found


def _server(folder: Path, peer: ServerPeer, load: Load, job: Job, warm_up: int = 0) -> Sample:
    async def run() -> Sample:
        async with peer.open(folder) as client:
            warm = Load(load.payload_bytes, 0, 0).values()
            await _fill_server(client, warm, warm_up, peer.fill_batch)
            return await job(client, load)

    return asyncio.run(run())


async def _pump(client: Client, load: Load) -> Sample:
    values = load.values()
    return await pump(load, lambda: client.append(values))


async def _tasks(client: Client, load: Load) -> Sample:
    values = load.values()[:1]
    await client.append(values)
    meter = Meter(load)

    async def publisher() -> None:
        while meter.more():
            meter.records += 1
            await client.append(values)

    await asyncio.gather(*(publisher() for _ in range(TASKS)))
    return meter.sample()


async def _read_server(client: Client, load: Load, peer: ServerPeer, records: int) -> Sample:
    """The rate after the first batch: connecting, and whatever a server does once, is not in it."""
    await _fill_server(client, load.values(), records, peer.fill_batch)
    async with client.reader() as take:
        found = first = await _some(take, min(peer.read_batch, records // 2))
        start = time.perf_counter()
        while found < records:
            found += await _some(take, min(peer.read_batch, records - found))
        seconds = time.perf_counter() - start
    notes = {"records": records, "seconds": seconds}
    return Sample((_checked(found, records) - first) / seconds, notes)


async def _fill_server(client: Client, values: list[bytes], records: int, batch: int) -> None:
    call = values * max(1, batch // len(values))
    for first in range(0, records, len(call)):
        await client.append(call[: records - first])


async def _some(take: Take, count: int) -> int:
    if not (found := await take(count)):
        raise RuntimeError("no more records came")
    return found


WORKLOADS = (
    Workload(
        "durable_batches",
        "1,000 records in a call",
        "Every contender syncs before its call returns. Servers get four calls at the same time, as "
        "“penstock-pipelined” does; the others have one writer. Calls in flight may share a sync: "
        "“records per sync” shows it for Penstock, the servers do not tell. persist-queue has no call for "
        "several records and syncs each. “penstock-on-loop” writes and syncs in the thread that calls, as the "
        "libraries do; otherwise Penstock has a thread for it, so that a slow disk does not stop the event loop. "
        "“raw-joined” is the least that a log in Python does with such a call: it joins the records, has a checksum of "
        "them, writes and syncs. “raw-commit” does the same in a log that other processes write to, too: it has a "
        "head that it locks, looks at and moves, with the calls of the system that a commit makes and nothing else.",
        batches,
    ),
    Workload(
        "durable_singles",
        "One record in a call",
        "Each call returns when its record is durable. Penstock and the servers have 64 tasks that wait, "
        "and may share syncs. SQLite, which litequeue and persist-queue are made of, and LMDB let one writer "
        "commit at a time. RocksDB lets threads share a sync, but rocksdict holds the interpreter lock until a "
        "write returns: 32 threads got a sync for each record, as one does, so it has one writer too. “raw-64” is the least "
        "that 64 tasks cost which wait for the disk: futures of asyncio, a write and a sync in the loop's own thread.",
        singles,
    ),
    Workload(
        "durable_read",
        "Read back",
        "All records, from the oldest on, as objects of Python. Queues take each record out, durably; they "
        "are measured with 500 records or one block, servers with as many as take half a second. A server's reader is connected "
        "and has its first batch before the clock starts, and is closed after it stops. Penstock checks every "
        "checksum. “raw-objects” is the limit of whoever makes such objects: the same ones of bytes that are in "
        "memory already.",
        reads,
    ),
)
