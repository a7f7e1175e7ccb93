"""The command line: measure, show the tables, write the JSON."""

from __future__ import annotations

import argparse
import dataclasses
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
from benchmarks.suites import SUITES, Suite
from benchmarks.targets import judge

RESULTS = Path(__file__).parent / "results"


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line, parsed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    for name in ("quick", "full"):
        parser.add_argument(f"--{name}", dest="scale", action="store_const", const=name)
    parser.add_argument("--default", dest="scale", action="store_const", const="default")
    parser.add_argument("--suite", choices=[*SUITES, "all"], help="all; log with --json FILE")
    parser.add_argument("--only", metavar="NAME", help="cases whose name contains this")
    parser.add_argument(
        "--json", type=Path, default=RESULTS, metavar="PATH",
        help="a .json file for one suite, or a folder for a file of each",
    )  # fmt: skip
    parser.add_argument("--dir", type=Path, default=RESULTS, help="a folder on the disk to measure")
    parser.add_argument("--rounds", type=int, metavar="N", help="how often, not as the scale says")
    parser.add_argument("--check", action="store_true", help="fail when a target is missed")
    parser.set_defaults(scale="default")
    return checked(parser, parser.parse_args(given))


def checked(parser: argparse.ArgumentParser, options: argparse.Namespace) -> argparse.Namespace:
    """Choose the suites that were not named; one file holds one suite."""
    one_file = options.json.suffix == ".json"
    if options.suite is None:
        options.suite = "log" if one_file else "all"
    if one_file and options.suite == "all":
        parser.error("a file holds one suite: name it, or give --json a folder")
    if options.rounds is not None and options.rounds < 1:
        parser.error("there is at least one round")
    options.suites = [one for one in SUITES.values() if options.suite in (one.name, "all")]
    return options


def main(given: Sequence[str] | None = None) -> int:
    """Measure and write the JSON and the pages beside it.

    Returns 1 when a case could not be measured, 2 when none was chosen, and with ``--check`` 3 when
    a target was missed.
    """
    options = arguments(given)
    console = Console()
    if not console.is_terminal:
        console.width = 140
    codes = [measure(suite, options, console) for suite in options.suites]
    measured = [code for code in codes if code is not None]
    if not measured:
        console.print(f"No case has {options.only!r} in its name.")
        return 2
    return 1 if 1 in measured else max(measured)


def measure(suite: Suite, options: argparse.Namespace, console: Console) -> int | None:
    """Measure one suite and write its files; None when none of its cases was chosen."""
    report = run(suite, chosen_scale(options), options.only, options.dir, console)
    if not report.results and not report.failures and not report.skipped:
        return None
    file = options.json if options.json.suffix else options.json / f"{suite.name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(encode(report))
    show(report, console)
    console.print(f"JSON: {file}, page: {write_page(file)}")
    if report.failures:
        return 1
    return 3 if options.check and not all(one.met for one in report.targets) else 0


def chosen_scale(options: argparse.Namespace) -> Scale:
    """The scale, with the rounds that were asked for."""
    scale = SCALES[options.scale]
    return dataclasses.replace(scale, rounds=options.rounds or scale.rounds)


def run(suite: Suite, scale: Scale, only: str | None, folder: Path, console: Console) -> Report:
    """All of a suite."""
    scale = dataclasses.replace(scale, rounds=min(scale.rounds, suite.rounds_max))
    if not suite.on_disk:
        scale = dataclasses.replace(scale, settle=False)
    folder.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(dir=folder, prefix="run-"))
    started, start = datetime.now(UTC), time.monotonic()
    machine = describe(place, suite.packages, suite.versions())
    try:
        results, runner = _measure(suite, scale, only, place, console)
        profiles = _profiles(suite, scale, {result.name for result in results}, place, console)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return Report(
        suite=suite.name,
        scale=scale.name, rounds=scale.rounds, started=f"{started:%Y-%m-%d %H:%M} UTC",
        seconds=time.monotonic() - start, machine=machine, results=results,
        targets=judge(results, suite.targets), profiles=profiles, failures=runner.failures,
        only=only, skipped=runner.skipped, how=list(suite.how),
    )  # fmt: skip


def _measure(
    suite: Suite, scale: Scale, only: str | None, folder: Path, console: Console
) -> tuple[list[Result], Runner]:
    groups = selected(suite.workloads, scale, only)
    results: list[Result] = []
    with _progress(console) as progress:
        bar = progress.add_task("", total=scale.rounds * sum(map(len, groups)))
        runner = Runner(
            folder, scale, lambda name: progress.update(bar, advance=1, description=name)
        )
        for cases in groups:
            results += runner.measure(cases)
    return results, runner


def _progress(console: Console) -> Progress:
    return Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
    )


def _profiles(
    suite: Suite, scale: Scale, measured: set[str], folder: Path, console: Console
) -> list[Profile]:
    cases: dict[str, Case] = {
        case.name: case
        for workload in suite.workloads
        for case in workload.cases(longer(scale))
        if case.name in measured
    }
    with console.status("Sampling where the time goes ..."):
        return profile_all(cases, folder, suite.profiled, suite.profiler)


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
    for name, missing in report.skipped.items():
        console.print(f"left out: {name}: {missing}")
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
