"""The tour: three parts, the dashboard beside them, and one summary whose numbers must add up.

Run `make demo`, or `python -m examples.tour` from the top of the repository. The README beside this file
explains it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from examples.tour.board import Board, is_installed
from examples.tour.chart import Curve, blocks, svg
from examples.tour.sums import Books, Facts, of_the_kills, of_the_pipeline, of_the_rush_hour

EXAMPLES = Path(__file__).parent.parent
FOLDER = EXAMPLES.parent / "build" / "tour"
SECONDS_MEANT = 180
"""The tour is made to be shorter than this. A machine that is slow or busy is told so; nothing fails for it."""
ERROR_LINES = 20
"""Shown of a part that failed."""

console = Console(highlight=False)


@dataclass(frozen=True)
class Part:
    """An example that the tour runs."""

    name: str
    text: str
    books: Callable[[Facts], Books]
    log: bool = True
    """Whether the dashboard shows its log; otherwise it is torn on purpose, and gone afterwards."""


KILLS = Part(
    "crash_demo", "a writer is killed, and nothing acknowledged is lost", of_the_kills, log=False
)
RUSH = Part("rush_hour", "failing handlers, pressure, a kill in the middle", of_the_rush_hour)
SHOP = Part("shop_pipeline", "clicks and orders through Spark to tables", of_the_pipeline)


def say(text: str = "", style: str = "") -> None:
    console.print(text, style=style, soft_wrap=True, markup=False)


# ---------------------------------------------------------------------------------------- the parts


def run(part: Part, folder: Path, arguments: Sequence[str]) -> tuple[Facts | None, bool]:
    """Run a part to its end: what it counted, and whether it was content itself."""
    facts = folder / f"{part.name}.json"
    command = [sys.executable, str(EXAMPLES / part.name / "main.py"), "--facts", str(facts)]
    if part.log:
        command += ["--keep", str(folder / part.name)]
    # Spark tells much that is no news: it is kept for the case that something fails.
    aside = folder / f"{part.name}.txt"
    with aside.open("wb") as errors:
        ended = subprocess.run([*command, *arguments], stderr=errors, check=False).returncode
    if ended:
        last = aside.read_text(encoding="utf-8", errors="replace").splitlines()[-ERROR_LINES:]
        say(
            "\n".join([*last, f"{part.name} ended with {ended}. All of its errors: {shown(aside)}"])
        )
    counted: dict[str, Any] | None = json.loads(facts.read_text()) if facts.exists() else None
    return counted, ended == 0


class Tour:
    """Runs the parts and keeps what they counted."""

    def __init__(self, folder: Path, parts: Sequence[Part], board: Board | None) -> None:
        self._folder = folder
        self._parts = parts
        self._board = board
        self._shown: Part | None = None
        self._began = time.monotonic()
        self.facts: dict[str, Facts] = {}
        self.failed: list[str] = []

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def go(self, arguments: Sequence[str]) -> None:
        """One part after the other; one that fails does not stop the next."""
        for number, part in enumerate(self._parts, 1):
            say(
                f"Part {number} of {len(self._parts)}, at {self.seconds:.0f} s: {part.text}.",
                "bold",
            )
            self._show(number)
            counted, content = run(part, self._folder, arguments if part is KILLS else [])
            if counted is not None:
                self.facts[part.name] = counted
            if counted is None or not content:
                self.failed.append(part.name)
            say()

    def _show(self, number: int) -> None:
        """Point the dashboard at the log of a part; one that has none to show leaves it to the next."""
        part = next((one for one in self._parts[number - 1 :] if one.log), None)
        if self._board is None or part is None or part is self._shown:
            return
        self._shown = part
        self._board.show(self._folder / part.name / "log")
        say(f"Dashboard of the {part.name.replace('_', ' ')}, in some seconds: {self._board.url}")

    def books(self) -> Books:
        books = Books()
        for part in self._parts:
            if part.name in self.facts:
                books += part.books(self.facts[part.name])
        return books

    def curves(self) -> list[Curve]:
        """How it went, of the parts that have something to show."""
        found = []
        if rush := self.facts.get(RUSH.name):
            share = [100 * one for one in rush["pressure"]]
            found += [
                Curve("pressure in %", share, rush["killed_at"]),
                Curve("orders waiting", rush["waiting"], rush["killed_at"]),
            ]
        if shop := self.facts.get(SHOP.name):
            found.append(Curve("lag of Spark", shop["waiting"]))
        return found


# -------------------------------------------------------------------------------------- the summary


def table_of(books: Books) -> Table:
    grid = Table(
        title="Summary: published = handled + dead letters + set aside", title_justify="left"
    )
    for title in ("", "published", "handled", "dead letters", "set aside", "adds up"):
        grid.add_column(title, justify="right" if title else "left")
    for one in (*books.accounts, books.total):
        if one.what == books.total.what:
            grid.add_section()
        cells = (one.published, one.handled, one.dead_letters, one.set_aside)
        grid.add_row(one.what, *[f"{cell:,}" for cell in cells], "yes" if one.adds_up else "NO")
    return grid


def show_curves(curves: Sequence[Curve], folder: Path) -> None:
    grid = Table(title="Over time; | is the SIGKILL", title_justify="left", show_header=False)
    for curve in curves:
        grid.add_row(curve.name, blocks(curve), curve.at_most())
    console.print(grid)
    picture = folder / "chart.svg"
    picture.write_text(svg(curves), encoding="utf-8")
    say(f"The same as a picture: {shown(picture)}")


def duration(seconds: float) -> str:
    """How long it took, beside what it is made for."""
    told = f"The tour took {seconds:.0f} s; it is made for less than {SECONDS_MEANT} s."
    return told if seconds < SECONDS_MEANT else f"{told} This machine is slow, or busy."


def shown(path: Path) -> str:
    """As short as it can be named from here."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def summary(tour: Tour, folder: Path) -> bool:
    """The numbers of all parts; whether they add up."""
    books = tour.books()
    console.print(table_of(books))
    for one in books.equals:
        sign = "=" if one.adds_up else "IS NOT"
        say(f"  {one.text}: {one.left:,} {sign} {one.right:,}", "" if one.adds_up else "bold red")
    show_curves(tour.curves(), folder)
    wrong = [*books.wrong, *(f"{name} failed" for name in tour.failed)]
    say(duration(tour.seconds))
    say(
        f"{'FAIL' if wrong else 'PASS'}: {books.total}"
        + (f"; wrong: {', '.join(wrong)}" if wrong else ""),
        "bold red" if wrong else "bold green",
    )
    return not wrong


def point_to(folder: Path, board: Board | None) -> None:
    """Where to look now."""
    if board is None:
        say("No dashboard was served: it needs pip install '.[dashboard]'.")
        return
    log = folder / RUSH.name / "log"
    say(
        f"The dashboard was at {board.url} ({'it answered' if board.is_up else 'it did not answer'})."
    )
    say(f"Look again, at what is left: .venv/bin/penstock dashboard --url log:{shown(log)}")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0],
        prog="make demo",
        epilog="Other arguments go to the first part, such as --records 50000 --kills 8.",
    )
    parser.add_argument("--fast", action="store_true", help="leave out the part with Spark")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="made new (%(default)s)")
    parser.add_argument("--no-dashboard", action="store_true", help="serve no dashboard beside it")
    options, rest = parser.parse_known_args(words)
    folder: Path = options.folder.absolute()
    if folder.exists() and not (folder / "tour").exists() and any(folder.iterdir()):
        parser.error(f"{folder} is not of a tour: name another folder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "tour").touch()
    parts = [KILLS, RUSH] if options.fast else [KILLS, RUSH, SHOP]
    board = Board(folder / "dashboard.txt") if is_installed() and not options.no_dashboard else None
    try:
        tour = Tour(folder, parts, board)
        tour.go(rest)
        if options.fast:
            say("The part with Spark is left out: FAST is set.")
        well = summary(tour, folder)
        point_to(folder, board)
    finally:
        if board is not None:
            board.stop()
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
