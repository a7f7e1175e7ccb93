"""Publishing single records with ``publish_nowait``, under each policy."""

from __future__ import annotations

from functools import partial

from benchmarks.model import Case, Load, Scale, Workload
from benchmarks.peers import lmdb, raw, sqlite
from benchmarks.publishers import (
    EVERY_100,
    EVERY_1000,
    EVERY_MESSAGE,
    NO_SYNC,
    TIMED,
    publish_nowait,
)
from benchmarks.workloads.double_buffered import publish_double_buffered

SHARED = "publish_nowait, up to 33,000 ahead that share syncs"


def cases(scale: Scale) -> list[Case]:
    """Every policy for each payload."""
    found = []
    for size in scale.payloads:
        load = Load.of(scale, size)
        found += [*_unsynced(load), *_per_1000(load)]
    for size in scale.side_payloads:
        found += [*_per_100(scale, size), *_timed(Load.of(scale, size))]
    return found


def _unsynced(load: Load) -> list[Case]:
    case = partial(Case, "one_by_one", load.payload_bytes, "no-sync")
    return [
        case("raw", "write of packed blocks of 1,000",
             lambda at: raw.append(at, load, sync=False), bound=True),
        case("penstock", "TIMED with an hour, publish_nowait in a loop",
             lambda at: publish_nowait(at, load, NO_SYNC)),
        case("sqlite", "execute each, commit per 1,000, synchronous=OFF",
             lambda at: sqlite.insert_each(at, load, sync=False)),
        case("lmdb", "put each, commit per 1,000, writemap, no sync",
             lambda at: lmdb.put_each(at, load, sync=False)),
    ]  # fmt: skip


def _per_1000(load: Load) -> list[Case]:
    case = partial(Case, "one_by_one", load.payload_bytes, "sync-1000")
    return [
        case("raw", "write + fdatasync of packed blocks of 1,000",
             lambda at: raw.append(at, load, sync=True), bound=True),
        case("raw-gathered", "each into a list; 1,000 joined, with a checksum, write + fdatasync",
             lambda at: raw.append_gathered(at, load)),
        case("penstock", f"EVERY_N_MESSAGES with N = 1,000, {SHARED}, flush",
             lambda at: publish_nowait(at, load, EVERY_1000, flush=True)),
        case("penstock-every-message", f"EVERY_MESSAGE, {SHARED}, flush",
             lambda at: publish_nowait(at, load, EVERY_MESSAGE, flush=True)),
        case("penstock-double-buffered",
             "EVERY_MESSAGE, publish_nowait, 1,000 gather while the last 1,000 are synced",
             lambda at: publish_double_buffered(at, load)),
        case("penstock-stop-and-wait", "N = 1,000, waits for the sync after every 1,000",
             lambda at: publish_nowait(at, load, EVERY_1000, window=0, flush=True)),
        case("penstock-on-loop", "EVERY_MESSAGE, waits for the sync after every 1,000, committed on the event loop",
             lambda at: publish_nowait(at, load, EVERY_MESSAGE, window=0, commit_on="loop")),
        case("sqlite", "execute each, commit per 1,000, synchronous=FULL",
             lambda at: sqlite.insert_each(at, load, sync=True)),
        case("lmdb", "put each, commit per 1,000, sync",
             lambda at: lmdb.put_each(at, load, sync=True)),
    ]  # fmt: skip


def _per_100(scale: Scale, size: int) -> list[Case]:
    load = Load.of(scale, size)
    block = Load.of(scale, size, 100)
    case = partial(Case, "one_by_one", size, "sync-100")
    return [
        case("raw", "write + fdatasync of packed blocks of 100",
             lambda at: raw.append(at, block, sync=True), bound=True),
        case("penstock", f"EVERY_N_MESSAGES with N = 100 (its default), {SHARED}, flush",
             lambda at: publish_nowait(at, load, EVERY_100, flush=True)),
        case("sqlite", "execute each, commit per 100, synchronous=FULL",
             lambda at: sqlite.insert_each(at, block, sync=True)),
        case("lmdb", "put each, commit per 100, sync",
             lambda at: lmdb.put_each(at, block, sync=True)),
    ]  # fmt: skip


def _timed(load: Load) -> list[Case]:
    case = partial(Case, "one_by_one", load.payload_bytes, "timed")
    return [
        case("raw", "write of packed blocks, fdatasync once a second and at the end",
             lambda at: raw.append_timed(at, load), bound=True),
        case("penstock", "TIMED (its default, 1 s), publish_nowait in a loop, flush",
             lambda at: publish_nowait(at, load, TIMED, flush=True)),
    ]  # fmt: skip


WORKLOAD = Workload(
    "one_by_one",
    "Publish one by one",
    "`publish_nowait` for each record. A peer executes a statement per record and syncs after each "
    "block, and raw does the same. “penstock” and “penstock-every-message” share syncs: whatever has "
    "gathered while the disk was busy is synced at once, tens of thousands of records, of which "
    "“records per sync” tells. Under EVERY_MESSAGE a record is durable when its receipt completes; "
    "with N it is written then, and fewer than N wait for the next sync. "
    "“penstock-double-buffered” and “penstock-stop-and-wait” sync where raw and the peers do: one "
    "gathers the next 1,000 records while the last 1,000 are synced, the other does nothing meanwhile. "
    "“penstock-on-loop” does so too, in the thread that calls, as they do. “raw-gathered” is the least that a log in Python does with single records: it makes a list, joins it, "
    "has a checksum of it, writes and syncs, and has no event loop, threads, receipts or head.",
    cases,
)
