"""Publishing 1,000 records per call, at two points of durability, beside raw writes and peers."""

from __future__ import annotations

from functools import partial

from benchmarks.model import Case, Load, Scale, Workload
from benchmarks.peers import lmdb, raw, sqlite
from benchmarks.publishers import EVERY_1000, EVERY_MESSAGE, NO_SYNC, publish_many

IN_FLIGHT = 4


def cases(scale: Scale) -> list[Case]:
    """Both points for each payload."""
    return [
        case
        for size in scale.payloads
        for case in (*_synced(Load.of(scale, size)), *_unsynced(Load.of(scale, size)))
    ]


def _synced(load: Load) -> list[Case]:
    case = partial(Case, "publish_many", load.payload_bytes, "sync-1000")
    return [
        case("raw", "write + fdatasync of packed blocks",
             lambda at: raw.append(at, load, sync=True), bound=True),
        case("raw-joined", "1,000 joined, with a checksum, write + fdatasync",
             lambda at: raw.append_joined(at, load, sync=True)),
        case("penstock", "EVERY_MESSAGE, one call at a time",
             lambda at: publish_many(at, load, EVERY_MESSAGE)),
        case("penstock-on-loop", "EVERY_MESSAGE, one call at a time, committed on the event loop",
             lambda at: publish_many(at, load, EVERY_MESSAGE, commit_on="loop")),
        case("penstock-pipelined", f"EVERY_MESSAGE, {IN_FLIGHT} calls in flight",
             lambda at: publish_many(at, load, EVERY_MESSAGE, in_flight=IN_FLIGHT)),
        case("penstock-pipelined-on-loop", f"EVERY_MESSAGE, {IN_FLIGHT} calls in flight, committed on the event loop",
             lambda at: publish_many(at, load, EVERY_MESSAGE, in_flight=IN_FLIGHT, commit_on="loop")),
        case("penstock-every-n", "EVERY_N_MESSAGES with N = 1,000, one call at a time",
             lambda at: publish_many(at, load, EVERY_1000, flush=True)),
        case("sqlite", "executemany, synchronous=FULL",
             lambda at: sqlite.insert_many(at, load, sync=True)),
        case("lmdb", "putmulti, sync",
             lambda at: lmdb.put_many(at, load, sync=True)),
    ]  # fmt: skip


def _unsynced(load: Load) -> list[Case]:
    case = partial(Case, "publish_many", load.payload_bytes, "no-sync")
    return [
        case("raw", "write of packed blocks",
             lambda at: raw.append(at, load, sync=False), bound=True),
        case("raw-joined", "1,000 joined, with a checksum, write",
             lambda at: raw.append_joined(at, load, sync=False)),
        case("penstock", "TIMED with an hour, one call at a time",
             lambda at: publish_many(at, load, NO_SYNC)),
        case("penstock-on-loop", "TIMED with an hour, one call at a time, committed on the event loop",
             lambda at: publish_many(at, load, NO_SYNC, commit_on="loop")),
        case("penstock-pipelined", f"TIMED with an hour, {IN_FLIGHT} calls in flight",
             lambda at: publish_many(at, load, NO_SYNC, in_flight=IN_FLIGHT)),
        case("sqlite", "executemany, synchronous=OFF",
             lambda at: sqlite.insert_many(at, load, sync=False)),
        case("lmdb", "putmulti, writemap, no sync",
             lambda at: lmdb.put_many(at, load, sync=False)),
    ]  # fmt: skip


WORKLOAD = Workload(
    "publish_many",
    "Publish many",
    "1,000 records per call; a peer's transaction holds 1,000 records. Calls in flight share "
    "syncs, which “records per sync” shows. “penstock-on-loop” writes and syncs in the thread that "
    'calls, as raw, SQLite and LMDB do (`commit_on="loop"`); the others do it in a thread of their own, so '
    "that a slow disk does not stop the event loop. “raw-joined” is the least that a log in Python does with such a call: it "
    "joins the records, has a checksum of them, writes and syncs, and has no event loop, threads, receipts or head.",
    cases,
)
