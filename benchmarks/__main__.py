"""The command line: measure, show the tables, write the JSON."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.machine import describe
from benchmarks.model import SCALES, Case, Scale
from benchmarks.profile import longer, profile_all
from benchmarks.report import amount, result_row, write_page
from benchmarks.results import Profile, Report, Result, encode
from benchmarks.runner import Runner, selected
from benchmarks.targets import judge
from benchmarks.workloads import WORKLOADS

RESULTS = Path(__file__).parent / "results"


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line, parsed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    for name in ("quick", "full"):
        parser.add_argument(f"--{name}", dest="scale", action="store_const", const=name)
    parser.add_argument("--default", dest="scale", action="store_const", const="default")
    parser.add_argument("--only", metavar="NAME", help="cases whose name contains this")
    parser.add_argument("--json", type=Path, default=RESULTS / "log.json", metavar="PATH")
    parser.add_argument("--dir", type=Path, default=RESULTS, help="a folder on the disk to measure")
    parser.set_defaults(scale="default")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Measure and write ``PATH`` and the page beside it; 1 when a case could not be measured."""
    options = arguments(given)
    console = Console()
    if not console.is_terminal:
        console.width = 140
    report = run(SCALES[options.scale], options.only, options.dir, console)
    if not report.results and not report.failures:
        console.print(f"No case has {options.only!r} in its name.")
        return 2
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_bytes(encode(report))
    show(report, console)
    console.print(f"JSON: {options.json}, page: {write_page(options.json)}")
    return 1 if report.failures else 0


def run(scale: Scale, only: str | None, folder: Path, console: Console) -> Report:
    """All of it."""
    folder.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(dir=folder, prefix="run-"))
    started, start = datetime.now(UTC), time.monotonic()
    machine = describe(place)
    try:
        results, failures = _measure(scale, only, place, console)
        profiles = _profiles(scale, {result.name for result in results}, place, console)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return Report(
        scale=scale.name, rounds=scale.rounds, started=f"{started:%Y-%m-%d %H:%M} UTC",
        seconds=time.monotonic() - start, machine=machine, results=results,
        targets=judge(results), profiles=profiles, failures=failures, only=only,
    )  # fmt: skip


def _measure(
    scale: Scale, only: str | None, folder: Path, console: Console
) -> tuple[list[Result], dict[str, str]]:
    groups = selected(WORKLOADS, scale, only)
    results: list[Result] = []
    with _progress(console) as progress:
        bar = progress.add_task("", total=scale.rounds * sum(map(len, groups)))
        runner = Runner(
            folder, scale, lambda name: progress.update(bar, advance=1, description=name)
        )
        for cases in groups:
            results += runner.measure(cases)
    return results, runner.failures


def _progress(console: Console) -> Progress:
    return Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
    )


def _profiles(scale: Scale, measured: set[str], folder: Path, console: Console) -> list[Profile]:
    cases: dict[str, Case] = {
        case.name: case
        for workload in WORKLOADS
        for case in workload.cases(longer(scale))
        if case.name in measured
    }
    with console.status("Sampling where the time goes ..."):
        return profile_all(cases, folder)


def show(report: Report, console: Console) -> None:
    """The tables on the terminal."""
    results = Table(title="Results", title_justify="left")
    results.add_column("case", overflow="fold")
    for head in ("best", "median", "× bound", "notes"):
        results.add_column(head, no_wrap=head != "notes")
    for result in report.results:
        results.add_row(result.name, *result_row(result)[2:])
    console.print(results)
    if report.targets:
        show_targets(report, console)
    for name, error in report.failures.items():
        console.print(f"[bold red]not measured[/]: {name}: {error}")


def show_targets(report: Report, console: Console) -> None:
    """The targets on the terminal."""
    targets = Table("target", "goal", "median", "best", "", title="Targets", title_justify="left")
    for one in report.targets:
        cells = [amount(value, one.unit) for value in (one.goal, one.median, one.best)]
        targets.add_row(one.title, *cells, "met" if one.met else "[bold red]missed")
    console.print(targets)


if __name__ == "__main__":
    sys.exit(main())
