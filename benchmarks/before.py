"""What the profiles said before: the first committed run of each suite.

``python -m benchmarks.before`` writes docs/benchmarks/before.json from the history of the repository. The page of
where the time goes shows it beside the last run. The hours of a machine differ: the ratio to the bound of the same run
says more than the rate.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import msgspec

from benchmarks.hottest import costs
from benchmarks.results import Before, Report, decode
from benchmarks.suites import SUITES

FOLDER = Path(__file__).parents[1] / "docs" / "benchmarks"
NAME = "before.json"


def first_report(suite: str) -> Report | None:
    """The first run of a suite in the history; None when it was never committed."""
    path = f"docs/benchmarks/{suite}.json"
    commits = _git("log", "--reverse", "--format=%H", "--", path).decode().split()
    return decode(_git("show", f"{commits[0]}:{path}")) if commits else None


def cases_of(report: Report) -> Iterator[Before]:
    """What it says of its profiled cases."""
    results = {one.name: one for one in report.results}
    for title, profiles in groupby(report.profiles, key=lambda one: one.title):
        if title in results:
            one = results[title]
            yield Before(
                title=title, started=report.started, scale=report.scale, median=one.median,
                unit=one.unit, to_bound=one.to_bound, costs=costs(list(profiles)),
            )  # fmt: skip


def read(folder: Path = FOLDER) -> dict[str, Before]:
    """What was written, by the names of the cases."""
    path = folder / NAME
    found = msgspec.json.decode(path.read_bytes(), type=list[Before]) if path.exists() else []
    return {one.title: one for one in found}


def write(folder: Path = FOLDER) -> Path:
    """Write the file."""
    firsts = [report for name in SUITES if (report := first_report(name)) is not None]
    found = [one for report in firsts for one in cases_of(report)]
    path = folder / NAME
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    return path


def _git(*arguments: str) -> bytes:
    return subprocess.run(
        ["git", *arguments], cwd=FOLDER.parents[1], capture_output=True, check=True
    ).stdout


if __name__ == "__main__":
    print(f"wrote {write()}")
