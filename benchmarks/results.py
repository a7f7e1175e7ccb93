"""What a run found, as it is kept in JSON, and the arithmetic on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

FORMAT = 1
FIT = "R²"
"""The unit of how well something fits: 1 at most."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """All samples of one case, in the order of the rounds."""

    name: str
    workload: str
    payload_bytes: int
    point: str
    contender: str
    what: str
    unit: str
    bound: bool
    samples: list[float]
    best: float
    median: float
    to_bound: float | None
    """Median, over the rounds, of this divided by the bound of its group."""
    notes: dict[str, float]
    durability: str = ""


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """A target and what became of it."""

    title: str
    of: str
    to: str | None
    goal: float
    unit: str
    best: float
    """From the best samples."""
    median: float
    """The median over the rounds; this one is judged."""
    met: bool
    at_most: bool = False
    """Whether less is better."""


class Hotspot(msgspec.Struct, frozen=True):
    """A place in the code and its share of a thread's samples."""

    share: float
    function: str
    line: str


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of one thread went while a case ran."""

    title: str
    thread: str
    samples: int
    hotspots: list[Hotspot]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    format: int = FORMAT
    scale: str
    rounds: int
    started: str
    seconds: float
    machine: dict[str, str]
    results: list[Result]
    targets: list[Judgement]
    profiles: list[Profile]
    failures: dict[str, str]
    """Cases that could not be measured, with the error."""
    only: str | None = None
    """What chose the cases, if not all were measured."""
    suite: str = "log"
    skipped: dict[str, str] = {}
    """Cases of peers that are not here, with what is missing."""
    how: list[str] = []
    """How it was measured, in the words of that day: later ones need not be true of it."""


class Before(msgspec.Struct, frozen=True, kw_only=True):
    """One profiled case, as it was first."""

    title: str
    started: str
    scale: str
    median: float
    unit: str
    to_bound: float | None
    costs: list[tuple[str, float, str]]
    """Function, share and thread of the hottest."""


def best(samples: Sequence[float], unit: str) -> float:
    """The best of some samples: of a rate the most, of a time or of memory the least."""
    return max(samples) if unit.endswith("/s") or unit == FIT else min(samples)


def ratios(of: Sequence[float], to: Sequence[float]) -> list[float]:
    """Round by round, so that a slow phase of the disk hits both sides; what ran once, beside the median."""
    if len(of) == 1:
        return [of[0] / median(to)]
    return [one / other for one, other in zip(of, to, strict=True)]


def ratio_to_bound(result: Mapping[str, Sequence[float]], name: str, bound: str) -> float | None:
    """Median of the ratios to the bound; None when there is no bound or it was not measured."""
    of, to = result.get(name), result.get(bound)
    return median(ratios(of, to)) if of and to and len(of) == len(to) else None


def encode(report: Report) -> bytes:
    """The report as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"


def decode(data: bytes) -> Report:
    """The report from JSON; raises when it is not one."""
    return msgspec.json.decode(data, type=Report)
