"""The scoreboard: what the torture tests tried, and what went wrong, as figures with seeds.

A test tells the ``scored`` fixture what it did. With ``PENSTOCK_SCOREBOARD`` set to a folder, each figure is
written there as a line of JSON, by any number of processes; ``python -m tests.scoreboard FOLDER`` adds them up
to one table, as Markdown and as JSON. A test that fails or is skipped before it could tell stands there too:
``tests/scored_tests.py`` sees to that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from tests.scoreboard_lines import BY_NUMBER, LINES
from tests.scoreboard_table import FULL, SHORT, Figure, as_json, as_markdown, forms

FOLDER = "PENSTOCK_SCOREBOARD"
ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reliability.md"
DATA = PAGE.with_suffix(".json")
BEGIN, END = "<!-- scoreboard -->", "<!-- end of the scoreboard -->"
SCALE = "PENSTOCK_SCALE"
"""A part of the full amounts, such as 0.01, for a look at a rig."""
EVERY_ONE = "every one"


def scale() -> float:
    """Which part of the full amounts a run tries."""
    return float(os.environ.get(SCALE, "1"))


def amount(number: int) -> int:
    """How many a full run tries of a line, with ``PENSTOCK_SCALE`` applied."""
    full = BY_NUMBER[number].full
    if full is None:
        raise ValueError(f"line {number} tries every one there is")
    return max(1, round(full * scale()))


def short_amount(number: int) -> int:
    """How many the tests of every day try of a line."""
    short = BY_NUMBER[number].short
    if short is None:
        raise ValueError(f"line {number} tries every one there is")
    return short


def form_of(*, long: bool) -> str:
    """The form of a test, for its figure."""
    if not long:
        return SHORT
    return FULL if scale() == 1 else f"{scale():g} of {FULL}"


@cache
def commit() -> str:
    """What is checked out, "with changes" when code or tests are not as they were committed."""
    try:
        head = _git("rev-parse", "--short=9", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", "src", "tests")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{head} with changes" if changed else head


def _git(*words: str) -> str:
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@dataclass
class Noted:
    """What is known of a test while it runs."""

    seed: int | None = None
    """PENSTOCK_SEED, as it was or as it was chosen: only that repeats the run."""
    bad: dict[int, int] = field(default_factory=dict)
    """What it told so far, by line."""


NOTED: dict[str, Noted] = defaultdict(Noted)


class Scores:
    """What the ``scored`` fixture gives: tells the scoreboard what a test did."""

    def __init__(self, test: str, form: str = SHORT) -> None:
        self._test = test
        self._form = form

    def __call__(
        self,
        number: int,
        *,
        tried: int,
        bad: int,
        seed: object = EVERY_ONE,
        **measured: float,
    ) -> None:
        """Tell it, and fail when something went wrong: nothing on this board may."""
        line = BY_NUMBER[number]
        NOTED[self._test].bad[number] = bad
        seed = self._repeating(seed)
        self._write(number, tried=tried, bad=bad, seed=seed, measured=measured)
        assert tried > 0, f"no {line.what} were tried"
        assert bad == 0, f"{bad:,} {line.bad} of {tried:,} {line.what}; seed {seed}"

    def peer(
        self, number: int, name: str, *, tried: int, bad: int, seed: object = EVERY_ONE
    ) -> None:
        """Tell what somebody else did in the same test. Nothing is asked of others."""
        seed = self._repeating(seed)
        self._write(number, tried=tried, bad=bad, seed=seed, peer=name)

    def failed(self, lines: Iterable[int]) -> None:
        """The test failed: that is on the board, whatever it told before, and if it told nothing."""
        noted = NOTED[self._test]
        if any(noted.bad.values()):
            return
        seed = EVERY_ONE if noted.seed is None else str(noted.seed)
        for number in sorted(set(lines) - set(noted.bad) or lines):
            self._write(number, tried=1, bad=1, seed=seed)

    def skipped(self, lines: Iterable[int], reason: str) -> None:
        """The test did not run."""
        for number in sorted(lines):
            self._write(number, tried=0, bad=0, skipped=reason)

    def _repeating(self, seed: object) -> str:
        chosen = NOTED[self._test].seed
        return str(seed) if isinstance(seed, str) or chosen is None else str(chosen)

    def _write(self, number: int, **told: object) -> None:
        day = datetime.now(UTC).date().isoformat()
        about = {"commit": commit(), "when": day, "form": self._form}
        write(Figure(number, self._test, **told, **about))  # type: ignore[arg-type]


def write(figure: Figure) -> None:
    """To the folder of the run, where there is one."""
    if not os.environ.get(FOLDER):
        return
    folder = Path(os.environ[FOLDER])
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps(asdict(figure)) + "\n")


def read(folder: Path) -> list[Figure]:
    """All figures of a run; of a test that ran again, the last."""
    lines = [
        line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()
    ]
    figures = [Figure(**json.loads(line)) for line in lines]
    return list({(one.number, one.test, one.seed, one.peer): one for one in figures}.values())


# The page


def on_page(page: str, figures: Sequence[Figure]) -> str:
    """The page with what ran and the table of these figures between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{forms(figures)}\n{as_markdown(figures, DATA.name)}\n{END}{after}"


def write_page(figures: Sequence[Figure]) -> None:
    """Keep the figures of a run, and show them on the page."""
    DATA.write_text(as_json(figures))
    PAGE.write_text(on_page(PAGE.read_text(), figures))


def kept() -> list[Figure]:
    """The figures that stand on the page."""
    return [Figure(**one) for one in json.loads(DATA.read_text())]


def refusals(figures: Iterable[Figure]) -> list[str]:
    """Why a run does not go to the page: something failed, or a long test did not run as a whole."""
    told = []
    for one in figures:
        if one.is_failed:
            told.append(f"{one.test} failed")
        elif one.form not in ("", SHORT) and one.skipped:
            told.append(f"{one.test} was skipped: {one.skipped}")
        elif one.form not in ("", SHORT, FULL):
            told.append(f"{one.test} tried {one.form}")
    return sorted(set(told))


def together(before: Sequence[Figure], now: Sequence[Figure]) -> list[Figure]:
    """Figures of tests that did not run this time stay as they were."""
    ran = [one for one in now if not one.skipped]
    return list({(one.number, one.test, one.peer): one for one in [*before, *ran]}.values())


def summary(figures: Sequence[Figure]) -> str:
    """How much ran, and what went wrong, in one line."""
    run = {one.number for one in figures if not one.skipped}
    bad = sum(one.bad for one in figures if one.is_failed)
    skipped = len({one.test for one in figures if one.skipped})
    more = f"; {skipped:,} tests were skipped" if skipped else ""
    return f"{len(run)} of {len(LINES)} lines were run; {bad:,} violations{more}."


def main(arguments: Sequence[str]) -> int:
    """Print the table of a folder, and write scoreboard.md and scoreboard.json into it.

    With ``--page`` it also goes to docs/reliability.md, and the figures beside it: those of tests that did
    not run this time stay as they were. A run in which anything failed, or a long test was skipped, does not.
    """
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    figures = read(folder)
    against = refusals(figures) if "--page" in arguments else []
    (folder / "scoreboard.md").write_text(as_markdown(figures))
    (folder / "scoreboard.json").write_text(as_json(figures))
    print(as_markdown(figures), end="")
    print(f"\n{summary(figures)}\nWritten: {folder}/scoreboard.md, {folder}/scoreboard.json")
    if against:
        print("\n".join(["The page stays as it was:", *against]))
    elif "--page" in arguments:
        write_page(together(kept(), figures))
    return 1 if against or any(one.is_failed for one in figures) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
