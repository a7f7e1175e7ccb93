"""The page of figures, made from the JSON of a run and from nothing else.

``python -m benchmarks.report docs/benchmarks/log.json`` writes ``log.md`` beside it; with ``--judge`` the samples
are judged by the targets of today first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import msgspec

from benchmarks.model import POINTS
from benchmarks.results import Judgement, Profile, Report, Result, decode, encode
from benchmarks.suites import SUITES, Suite
from benchmarks.targets import judge

_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def amount(value: float, unit: str) -> str:
    """A value with its unit, three digits: ``1.23 M/s``."""
    if unit == "×":
        return f"{_digits(value)} ×"
    if unit == "bytes/s":
        return f"{value / 1e9:.2f} GB/s"
    if not unit.endswith("/s"):
        return f"{_digits(value)} {unit}"
    for size, letter in _UNITS:
        if value >= size:
            return f"{_digits(value / size)} {letter}/s"
    return f"{_digits(value)} /s"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def markdown(report: Report, name: str = "log") -> str:
    """The whole page of ``name.json``."""
    suite = SUITES[report.suite]
    chosen = "" if report.suite == "log" else f" --suite {report.suite}"
    only = f" --only {report.only}" if report.only else ""
    again = f"--{report.scale}{chosen}{only} --json docs/benchmarks/{name}.json"
    lines = [
        f"# Benchmark of the {name}",
        "",
        f"This page is generated from [{name}.json]({name}.json) by `python -m benchmarks.report`.",
        f"`make bench ARGS='{again}'` repeats the run.",
        "",
        *_machine(report),
        *_how(suite, report),
        *_targets(suite, report.targets),
        *_workloads(suite, report.results),
        *_reasons("Not measured", report.failures),
        *_reasons("Left out", report.skipped),
        *_profiles(report.profiles),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _machine(report: Report) -> Iterator[str]:
    yield "## The machine"
    yield ""
    yield from table(["", ""], [[name, value] for name, value in report.machine.items()])
    yield f"Measured {report.started}, scale `{report.scale}`, {report.rounds} rounds, "
    yield f"{report.seconds:.0f} s."
    yield ""


def _how(suite: Suite, report: Report) -> Iterator[str]:
    yield "## How it is measured"
    yield ""
    yield "- A round measures every contender once; the rounds follow each other, so that a slow"
    yield "  phase of the machine hits all alike. A ratio is the median of the ratios of the rounds."
    if any(result.contender == suite.explained for result in report.results):
        yield from report.how or suite.how
    yield ""


def _targets(suite: Suite, targets: Sequence[Judgement]) -> Iterator[str]:
    if not targets:
        return
    yield "## Targets"
    yield ""
    yield suite.about_targets
    yield ""
    rows = [
        [
            one.title,
            f"{'≤' if one.at_most else '≥'} {amount(one.goal, one.unit)}",
            amount(one.median, one.unit),
            amount(one.best, one.unit),
            "met" if one.met else "**missed**",
        ]
        for one in targets
    ]
    yield from table(["target", "goal", "median", "best", ""], rows)


def _workloads(suite: Suite, results: Sequence[Result]) -> Iterator[str]:
    for workload in suite.workloads:
        mine = [result for result in results if result.workload == workload.name]
        if mine:
            yield f"## {workload.title}"
            yield ""
            yield workload.about
            yield ""
            yield from _groups(mine)


def _groups(results: Iterable[Result]) -> Iterator[str]:
    def group(result: Result) -> tuple[int, str]:
        return result.payload_bytes, result.point

    for (size, point), members in groupby(sorted(results, key=group), key=group):
        yield f"### {size:,} bytes, {POINTS[point]}" if size else f"### {capital(POINTS[point])}"
        yield ""
        rivals = list(members)
        bound = next((result.contender for result in rivals if result.bound), "raw")
        head = ["contender", "how", "best", "median", f"× {bound.partition('-')[0]}", "notes"]
        rows = [result_row(result) for result in rivals]
        if any(result.durability for result in rivals):
            head.append("durability")
            rows = [[*row, one.durability] for row, one in zip(rows, rivals, strict=True)]
        yield from table(head, rows)


def capital(text: str) -> str:
    """The text with a capital letter."""
    return text[:1].upper() + text[1:]


def result_row(result: Result) -> list[str]:
    """One line of a table of results."""
    notes = [f"{name} {_digits(value)}" for name, value in result.notes.items()]
    return [
        result.contender,
        result.what,
        amount(result.best, result.unit),
        amount(result.median, result.unit),
        "–" if result.to_bound is None else _digits(result.to_bound),
        ", ".join(notes),
    ]


def _reasons(title: str, reasons: Mapping[str, str]) -> Iterator[str]:
    if reasons:
        yield f"## {title}"
        yield ""
        yield from (f"- `{name}`: {why}" for name, why in reasons.items())
        yield ""


def _profiles(profiles: Sequence[Profile]) -> Iterator[str]:
    if profiles:
        yield "## Where the time goes"
        yield ""
        yield "Stacks sampled about every millisecond while a case runs once more: the function that"
        yield "a thread was in, its share of the thread's samples, and the line seen most often."
        yield "“(idle)” is a thread that waits for others or for the interpreter lock; of the helper"
        yield "threads only the busy ones are counted. Nothing here is used as a figure."
        yield ""
        yield from profile_lines(profiles)


def profile_lines(profiles: Sequence[Profile]) -> Iterator[str]:
    """Profiles as tables."""
    for one in profiles:
        yield f"### `{one.title}`, {one.thread}"
        yield ""
        rows = [
            [f"{spot.share:.0%}", f"`{spot.function}`", f"`{spot.line.replace('|', '/')}`"]
            for spot in one.hotspots
        ]
        yield from table(["share", "function", "line"], rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A Markdown table and the empty line after it."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def write_page(source: Path) -> Path:
    """Write the page of a JSON file beside it."""
    page = source.with_suffix(".md")
    page.write_text(markdown(decode(source.read_bytes()), source.stem), encoding="utf-8")
    return page


def judge_again(source: Path) -> None:
    """Judge the samples of a JSON file by the targets of today."""
    report = decode(source.read_bytes())
    judged = judge(report.results, SUITES[report.suite].targets)
    source.write_bytes(encode(msgspec.structs.replace(report, targets=judged)))


if __name__ == "__main__":
    if "--judge" in sys.argv:
        judge_again(Path(sys.argv[1]))
    print(f"wrote {write_page(Path(sys.argv[1]))}")
