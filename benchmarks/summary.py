"""All results in one JSON, one table and plots: ``python -m benchmarks.summary`` makes them from the committed files.

It reads the JSON of each suite below docs/benchmarks, and writes all.json, all.md and a picture for each group that
has more than one contender. Nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

import msgspec

from benchmarks import before, hottest
from benchmarks.model import POINTS
from benchmarks.plots import bars, lines
from benchmarks.report import amount, table
from benchmarks.results import Report, Result, decode
from benchmarks.suites import SUITES

FOLDER = Path(__file__).parents[1] / "docs" / "benchmarks"
NAME = "all"
PICTURED = (0, 100)
"""The sizes of records that get pictures; all are in the table."""
OURS = ("penstock", "resilient", "plain")


def reports(folder: Path = FOLDER) -> list[Report]:
    """The suites that were measured, in their order."""
    found = [folder / f"{name}.json" for name in SUITES]
    return [decode(path.read_bytes()) for path in found if path.exists()]


def is_ours(contender: str) -> bool:
    """Whether a contender is Penstock."""
    return contender.startswith(OURS)


def groups(report: Report) -> Iterator[tuple[str, list[Result]]]:
    """Results that are compared with each other, by the name that they share."""

    def group(result: Result) -> str:
        return f"{result.name.rpartition('/')[0]} {result.unit}"

    for name, members in groupby(sorted(report.results, key=group), key=group):
        yield name.partition(" ")[0], list(members)


def best_of_ours(results: Sequence[Result]) -> Result | None:
    """The quickest of Penstock's contenders; None when there is none."""
    ours = [one for one in results if is_ours(one.contender)]
    if not ours:
        return None
    return max(ours, key=lambda one: one.median if one.unit.endswith("/s") else -one.median)


def compared(results: Sequence[Result]) -> Iterator[tuple[Result, Result, float]]:
    """Penstock, each peer, and how many times better Penstock is, by the medians."""
    ours = best_of_ours(results)
    for one in results:
        if ours is not None and not is_ours(one.contender) and one.median and ours.median:
            ratio = ours.median / one.median
            yield ours, one, ratio if one.unit.endswith("/s") else 1 / ratio


def rows(report: Report) -> Iterator[list[str]]:
    """One line for each peer."""
    for name, results in groups(report):
        for ours, peer, ratio in compared(results):
            yield [
                f"`{name}`", ours.contender, amount(ours.best, ours.unit),
                amount(ours.median, ours.unit), peer.contender, amount(peer.best, peer.unit),
                amount(peer.median, peer.unit), f"{ratio:.2f}",
                _promise(peer),
            ]  # fmt: skip


def _promise(peer: Result) -> str:
    """How durable a peer is when its call returns; the point says it where all do the same."""
    told = peer.durability or POINTS.get(peer.point, "")
    return f"the limit; {told}" if peer.bound else told


def markdown(found: Iterable[Report]) -> str:
    """The page."""
    text = [
        "# All peers",
        "",
        "This page is generated from [all.json](all.json) by `python -m benchmarks.summary`. `make bench-full` repeats",
        "the runs. Each line is Penstock's best contender of a workload beside one peer, from the same run; the ratio is",
        "that of the medians, and more than 1 means that Penstock is ahead. The page of a suite says how it is measured.",
        "",
    ]
    for report in found:
        told = report.machine
        text += [f"## {report.suite.capitalize()}", ""]
        text += [f"[Page of the suite]({report.suite}.md). Measured {report.started}, scale"]
        text += [f"`{report.scale}`, {report.rounds} rounds, on {told['processor']},"]
        text += [f"{told['memory']}, {told['Python']}; {told['packages']}.", ""]
        head = [
            "workload",
            "Penstock",
            "best",
            "median",
            "peer",
            "best",
            "median",
            "×",
            "promise",
        ]
        if lines_found := list(rows(report)):
            text += table(head, lines_found)
        text += [f"![{title}]({name})\n" for name, title, _ in pictures(report)]
    return "\n".join(text).rstrip() + "\n"


def pictures(report: Report) -> Iterator[tuple[str, str, str]]:
    """File name, title and SVG."""
    if report.suite == "growth":
        yield from _growth(report)
        return
    for name, results in groups(report):
        unit, size = results[0].unit, results[0].payload_bytes
        if unit.endswith("/s") and size in PICTURED and any(compared(results)):
            file = f"{report.suite}-{name.replace('/', '-')}.svg"
            values = [(one.contender, one.median, is_ours(one.contender)) for one in results]
            yield (
                file,
                name,
                bars(f"{name}, {unit}", values, partial(amount, unit=unit)),
            )


def _growth(report: Report) -> Iterator[tuple[str, str, str]]:
    for name, results in groups(report):
        points = sorted((float(one.contender), one.median) for one in results)
        if len(points) > 1:
            file = f"growth-{name.replace('/', '-')}.svg"
            yield file, name, lines(f"{name}, {results[0].unit}", points)


def write(folder: Path = FOLDER) -> list[Path]:
    """Write everything; returns the files."""
    found = reports(folder)
    files = {
        f"{NAME}.json": msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n",
        f"{NAME}.md": markdown(found).encode(),
        hottest.NAME: hottest.markdown(found, before.read(folder)).encode(),
    }
    for report in found:
        files |= {name: picture.encode() for name, _, picture in pictures(report)}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return [folder / name for name in files]


if __name__ == "__main__":
    print(f"wrote {len(write())} files into {FOLDER}")
