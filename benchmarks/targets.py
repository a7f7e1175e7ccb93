"""The targets of the log, for 100-byte records, as ratios within one run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from benchmarks.results import Judgement, Result, best, ratios


@dataclass(frozen=True)
class Target:
    """At least ``goal`` times another case, or at least ``goal`` of the case's own unit."""

    title: str
    of: str
    goal: float
    to: str | None = None
    at_most: bool = False
    """At most ``goal``, not at least."""
    note: str | None = None
    """The note of the case that is judged, in place of its value; the unit is its last word."""


def _against_peers(title: str, group: str, contender: str) -> Iterator[Target]:
    of = f"{group}/{contender}"
    yield Target(f"{title}: times SQLite", of, 3, f"{group}/sqlite")
    yield Target(f"{title}: times LMDB", of, 1, f"{group}/lmdb")


def _at_the_same_points(title: str, group: str, contender: str) -> Iterator[Target]:
    """Where a sync has as many records as one of raw's and of the peers'."""
    of = f"{group}/{contender}"
    yield _against_raw(f"{title}, with the compiled twin", of, 0.8)
    yield Target(f"{title}: times SQLite", of, 1.5, f"{group}/sqlite")
    yield Target(f"{title}: times LMDB", of, 1.5, f"{group}/lmdb")


def _against_raw(title: str, of: str, goal: float, contender: str = "raw") -> Target:
    return Target(f"{title}: times raw", of, goal, f"{of.rpartition('/')[0]}/{contender}")


_MANY = "publish_many/100"
_EACH = "one_by_one/100"
_AWAIT = "awaited/100/sync-each"

TARGETS: tuple[Target, ...] = (
    _against_raw("`publish_many`, a sync per call", f"{_MANY}/sync-1000/penstock", 0.8),
    _against_raw("`publish_many`, calls in flight", f"{_MANY}/sync-1000/penstock-pipelined", 0.8),
    _against_raw(
        "`publish_many`, calls in flight, on the loop",
        f"{_MANY}/sync-1000/penstock-pipelined-on-loop",
        0.8,
    ),
    _against_raw("`publish_many`, no sync", f"{_MANY}/no-sync/penstock", 0.3),
    _against_raw(
        "`publish_many`, no sync, calls in flight", f"{_MANY}/no-sync/penstock-pipelined", 0.3
    ),
    *_against_peers("`publish_many`, a sync per 1,000", f"{_MANY}/sync-1000", "penstock"),
    *_against_peers(
        "`publish_many`, a sync per 1,000, on the loop", f"{_MANY}/sync-1000", "penstock-on-loop"
    ),
    *_against_peers("`publish_many`, no sync", f"{_MANY}/no-sync", "penstock"),
    Target("one by one, no sync", f"{_EACH}/no-sync/penstock", 1e6),
    _against_raw("one by one, syncs shared", f"{_EACH}/sync-1000/penstock", 0.5),
    _against_raw(
        "one by one, syncs shared, with the compiled twin", f"{_EACH}/sync-1000/penstock", 0.8
    ),
    *_against_peers("one by one, syncs shared", f"{_EACH}/sync-1000", "penstock"),
    *_at_the_same_points(
        "one by one, a sync per 1,000", f"{_EACH}/sync-1000", "penstock-double-buffered"
    ),
    *_at_the_same_points(
        "one by one, a sync per 1,000, on the loop", f"{_EACH}/sync-1000", "penstock-on-loop"
    ),
    *_against_peers("one by one, no sync", f"{_EACH}/no-sync", "penstock"),
    _against_raw("64 publishers, every record durable", f"{_AWAIT}/penstock-64", 20),
    *_against_peers("64 publishers, every record durable", _AWAIT, "penstock-64"),
    _against_raw("64 publishers, on the loop", f"{_AWAIT}/penstock-on-loop-64", 20),
    Target("read as objects, in batches", "read/100/read/penstock-batches", 1.5e6),
    Target("read as objects, `async for`", "read/100/read/penstock-for", 1.5e6),
    Target(
        "read as objects, with the compiled twin: times LMDB",
        "read/100/read/penstock-batches",
        1,
        "read/100/read/lmdb",
    ),
    Target("read as Arrow", "read/100/read/penstock-arrow", 20e6),
    Target("read as Arrow, written 10,000 per call", "read/100/read/penstock-arrow-wide", 20e6),
    Target("recovery", "recovery/100/restart/penstock", 0.5e9),
)


def judge(results: Iterable[Result], targets: Iterable[Target] = TARGETS) -> list[Judgement]:
    """What became of the targets whose cases were measured."""
    known = {result.name: result for result in results}
    return [_judge_one(target, known) for target in targets if _is_measured(target, known)]


def _is_measured(target: Target, known: Mapping[str, Result]) -> bool:
    if not {target.of, target.to or target.of} <= known.keys():
        return False
    return target.note is None or target.note in known[target.of].notes


def _judge_one(target: Target, known: Mapping[str, Result]) -> Judgement:
    unit, typical, at_best = _found(target, known[target.of], known.get(target.to or ""))
    return Judgement(
        title=target.title, of=target.of, to=target.to, goal=float(target.goal), unit=unit,
        best=at_best, median=typical, at_most=target.at_most,
        met=typical <= target.goal if target.at_most else typical >= target.goal,
    )  # fmt: skip


def _found(target: Target, of: Result, to: Result | None) -> tuple[str, float, float]:
    """Unit, median and best of what a target is about."""
    if target.note is not None:
        return target.note.rpartition(" ")[2], of.notes[target.note], of.notes[target.note]
    if to is None:
        return of.unit, of.median, of.best
    at_best = best(of.samples, of.unit) / best(to.samples, to.unit)
    return "×", median(ratios(of.samples, to.samples)), at_best
