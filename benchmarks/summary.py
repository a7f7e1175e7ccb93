"""All results in one JSON, one table and plots: ``python -m benchmarks.summary`` makes them from the committed files.

It reads the JSON of each suite in a folder, docs/benchmarks unless another is given, and writes there all.json, all.md,
the page of where the time goes, and a picture for each group in which Penstock has a peer. Nothing is measured here.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks import before, hottest
from benchmarks.model import POINTS
from benchmarks.pairs import NOT_COMPARED, difference, is_limit, is_ours
from benchmarks.plots import bars, lines
from benchmarks.report import amount, table
from benchmarks.results import Report, Result, decode
from benchmarks.suites import SUITES

FOLDER = Path(__file__).parents[1] / "docs" / "benchmarks"
NAME = "all"
PICTURED = (0, 100)
"""The sizes of records that get pictures; all are in the table."""


def reports(folder: Path = FOLDER) -> list[Report]:
    """The suites that were measured, in their order."""
    found = [folder / f"{name}.json" for name in SUITES]
    return [decode(path.read_bytes()) for path in found if path.exists()]


def groups(report: Report) -> Iterator[tuple[str, list[Result]]]:
    """Results that are compared with each other, by the name that they share."""

    def group(result: Result) -> str:
        return f"{result.name.rpartition('/')[0]} {result.unit}"

    for name, members in groupby(sorted(report.results, key=group), key=group):
        yield name.partition(" ")[0], list(members)


class Compared(NamedTuple):
    """A contender of Penstock beside a peer."""

    ours: Result
    peer: Result
    ratio: float
    """How many times better Penstock is, by the medians."""
    differs: str
    """What is not equal between them."""


def compared(results: Sequence[Result]) -> list[Compared]:
    """The pairs of a group: those that are equal, then the others."""
    ours = [one for one in results if is_ours(one.workload, one.contender)]
    peers = [one for one in results if not is_ours(one.workload, one.contender)]
    found = [pair for one in ours for peer in peers if (pair := _pair(one, peer)) is not None]
    return sorted(found, key=lambda pair: bool(pair.differs))


def _pair(ours: Result, peer: Result) -> Compared | None:
    group = ours.name.rpartition("/")[0]
    differs = difference(group, ours.contender, peer.contender)
    if differs is None or ours.unit in NOT_COMPARED or not (ours.median and peer.median):
        return None
    ratio = ours.median / peer.median
    return Compared(ours, peer, ratio if ours.unit.endswith("/s") else 1 / ratio, differs)


def rows(report: Report) -> Iterator[list[str]]:
    """One line for each pair."""
    for name, results in groups(report):
        for ours, peer, ratio, differs in compared(results):
            yield [
                f"`{name}`", ours.contender, amount(ours.best, ours.unit),
                amount(ours.median, ours.unit), peer.contender, amount(peer.best, peer.unit),
                amount(peer.median, peer.unit), f"{ratio:.2f}", differs, _promise(peer),
            ]  # fmt: skip


def _promise(peer: Result) -> str:
    """How durable a peer is when its call returns; the point says it where all do the same."""
    told = peer.durability or POINTS.get(peer.point, "")
    return f"the limit; {told}" if is_limit(peer.contender) else told


HEAD = (
    "workload",
    "Penstock",
    "best",
    "median",
    "peer",
    "best",
    "median",
    "×",
    "not equal",
    "promise of the peer",
)


def markdown(found: Iterable[Report]) -> str:
    """The page."""
    text = [
        "# All peers",
        "",
        "This page is generated from [all.json](all.json) by `python -m benchmarks.summary`. `make bench-full` repeats",
        "the runs. Each line is one contender of Penstock beside one peer, from the same run; the ratio is that of the medians,",
        "and more than 1 means that Penstock is ahead. Pairs that do the same under the same promise come first; of the others",
        "“not equal” says what Penstock's contender, or the peer, does otherwise. “The limit” is what no contender could pass that",
        "did the same: the bare disk, a bare deque. The page of a suite says how it is measured.",
        "",
    ]
    for report in found:
        told = report.machine
        text += [f"## {report.suite.capitalize()}", ""]
        text += [f"[Page of the suite]({report.suite}.md). Measured {report.started}, scale"]
        text += [f"`{report.scale}`, {report.rounds} rounds, on {told['processor']},"]
        text += [f"{told['memory']}, {told['Python']}; {told['packages']}.", ""]
        if lines_found := list(rows(report)):
            text += table(HEAD, lines_found)
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
            values = [
                (one.contender, one.median, is_ours(one.workload, one.contender)) for one in results
            ]
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


def main(given: Sequence[str] | None = None) -> None:
    """Write the files of a folder."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.summary", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER, help="docs/benchmarks")
    folder: Path = parser.parse_args(given).folder
    print(f"wrote {len(write(folder))} files into {folder}")


if __name__ == "__main__":
    main()
