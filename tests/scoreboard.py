"""The scoreboard: what the torture tests tried, and what went wrong, as figures with seeds.

A test tells the ``scored`` fixture what it did. With ``PENSTOCK_SCOREBOARD`` set to a folder, each figure is
written there as a line of JSON, by any number of processes; ``python -m tests.scoreboard FOLDER`` adds them up
to one table, as Markdown and as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

FOLDER = "PENSTOCK_SCOREBOARD"
PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"
DATA = PAGE.with_suffix(".json")
BEGIN, END = "<!-- scoreboard -->", "<!-- end of the scoreboard -->"
SCALE = "PENSTOCK_SCALE"
"""A part of the full amounts, such as 0.01, for a look at a rig."""


@dataclass(frozen=True)
class Line:
    """One line of the scoreboard: what is tried, what must not happen, and how often it is tried."""

    number: int
    what: str
    bad: str
    short: int | None = None
    """How many the tests of every day try; None: as many as there are."""
    full: int | None = None


LINES = (
    Line(1, "kills", "acknowledged records lost", 1_000, 100_000),
    Line(2, "crash points (system calls)", "not covered, or violated"),
    Line(3, "power cuts", "acknowledged records lost, or logs that do not open", 30, 3_000),
    Line(4, "block-level crash states", "violated", 100, 20_000),
    Line(5, "simulated crash states", "violated", 200_000, 10_000_000),
    Line(6, "flipped bits", "silently wrong"),
    Line(7, "flipped bits", "silently lost"),
    Line(8, "damaged files", "not noticed"),
    Line(9, "failed syncs", "acknowledgements after them"),
    Line(10, "failing calls of the disk", "violated"),
    Line(11, "compound faults", "violated", 10_000, 10_000),
    Line(12, "operations in histories", "anomalies", 1_000_000, 10_000_000),
    Line(13, "kills under the exactly-once oracle", "records lost or twice", 100, 1_000),
    Line(14, "commits of zombies", "accepted", 10_000, 10_000),
    Line(15, "seeded schedules", "violated", 10_000, 10_000_000),
    Line(16, "seeded bugs", "missed", 30, 30),
    Line(17, "branches of log and recovery", "not covered"),
    Line(18, "fuzzed inputs", "crashes, hangs, or memory over the bound"),
    Line(19, "recoveries", "over 2 s or 64 MiB for a GB"),
    Line(20, "policies with a measured window of loss", "over the stated window"),
    Line(21, "checks of security", "findings"),
    Line(22, "slow and hung disks", "with the loop late by over 50 ms (p99)"),
)
OTHERS = {
    1: "NATS 2.10.20 forgot the stream; Faust lost 644 of 300,000 (exactly once)",
    3: "RabbitMQ streams (default) lost all, quorum queues none",
    8: "a RabbitMQ node (classic queues) and Spark (zeroed checkpoint) do not start",
    12: "Jepsen found 7 safety faults in Redpanda 21.10, several in NATS 2.12",
    13: (
        "Kafka Streams passes its own; Faust does not; Spark with a local checkpoint did "
        "not restart after 3 of 3 power cuts"
    ),
    14: "Kafka before its change of epochs in every transaction: accepted some",
    17: "SQLite: 100 %, each condition",
}
"""What others did in the same test, by the number of the line, where that is known."""
WHOLE = {16: "::test_every_bug_is_caught"}
"""The test of a line that tries all of which others choose some."""
ADDED_UP = ("_in_all", "_before_kills", "_before_cuts", "_opened", "_inputs", "told", "pauses")
"""How the names of measured amounts end; the others are rates, or have a worst."""
SEEDS_SHOWN = 4
_BY_NUMBER = {one.number: one for one in LINES}


def amount(number: int) -> int:
    """How many a full run tries of a line, with ``PENSTOCK_SCALE`` applied."""
    full = _BY_NUMBER[number].full
    if full is None:
        raise ValueError(f"line {number} tries every one there is")
    return max(1, round(full * float(os.environ.get(SCALE, "1"))))


def short_amount(number: int) -> int:
    """How many the tests of every day try of a line."""
    short = _BY_NUMBER[number].short
    if short is None:
        raise ValueError(f"line {number} tries every one there is")
    return short


@dataclass(frozen=True)
class Figure:
    """What one test says."""

    number: int
    test: str
    tried: int
    bad: int
    seed: str = ""
    """What repeats it: a seed, or the words "every one" when nothing is chosen."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """Values beside the counts, by a name with its unit."""
    peer: str = ""
    """Who was tried, if not Penstock."""


class Scores:
    """What the ``scored`` fixture gives: tells the scoreboard what a test did."""

    def __init__(self, test: str) -> None:
        self._test = test

    def __call__(
        self,
        number: int,
        *,
        tried: int,
        bad: int,
        seed: object = "every one",
        **measured: float,
    ) -> None:
        """Tell it, and fail when something went wrong: nothing on this board may."""
        line = _BY_NUMBER[number]
        figure = Figure(number, self._test, tried, bad, str(seed), measured)
        if folder := os.environ.get(FOLDER):
            _write(Path(folder), figure)
        assert tried > 0, f"no {line.what} were tried"
        assert bad == 0, f"{bad:,} {line.bad} of {tried:,} {line.what}; seed {seed}"

    def peer(
        self, number: int, name: str, *, tried: int, bad: int, seed: object = "every one"
    ) -> None:
        """Tell what somebody else did in the same test. Nothing is asked of others."""
        if folder := os.environ.get(FOLDER):
            _write(Path(folder), Figure(number, self._test, tried, bad, str(seed), peer=name))


def _write(folder: Path, figure: Figure) -> None:
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


def as_markdown(figures: Iterable[Figure], data: str = "scoreboard.json") -> str:
    """One table, a row for each line, in the order of the board; ``data`` has the figures."""
    rows = [
        "| # | what | tried | went wrong | measured | seeds | others |",
        "|---|---|---:|---:|---|---|---|",
    ]
    told = _in_order(figures)
    rows += [_row(line, [one for one in told if one.number == line.number], data) for line in LINES]
    return "\n".join(rows) + "\n"


def _others(line: Line, figures: Iterable[Figure]) -> str:
    again = "; ".join(f"{one.peer} {one.bad:,} of {one.tried:,}" for one in figures if one.peer)
    known = OTHERS.get(line.number, "")
    told = (f"here: {again}" if again else "", f"reported: {known}" if known else "")
    return ". ".join(one for one in told if one)


def _row(line: Line, told: Sequence[Figure], data: str) -> str:
    others = _others(line, told)
    figures = _counted(line, [one for one in told if not one.peer])
    if not figures:
        return f"| {line.number} | {line.what}; {line.bad} | not run | | | | {others} |"
    tried, bad = sum(one.tried for one in figures), sum(one.bad for one in figures)
    shown = "; ".join(
        f"{name.replace('_', ' ')} {_short(value)}" for name, value in _together(figures).items()
    )
    seeds = _seeds(list(dict.fromkeys(one.seed for one in figures)), data)
    return f"| {line.number} | {line.what}; {line.bad} | {tried:,} | {bad:,} | {shown} | {seeds} | {others} |"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.4g}"


def _seeds(seeds: Sequence[str], data: str) -> str:
    """Those of many parts stand in the data, each with its test."""
    if len(seeds) <= SEEDS_SHOWN:
        return ", ".join(seeds)
    return f"{len(seeds)}, in [{data}]({data})"


def _counted(line: Line, figures: Sequence[Figure]) -> Sequence[Figure]:
    """Without what was chosen from what another test tried as a whole: nothing counts twice."""
    whole = [one for one in figures if one.test.endswith(WHOLE.get(line.number, ()))]
    return whole or figures


def _together(figures: Iterable[Figure]) -> dict[str, float]:
    """What several tests measured: amounts are added up, of rates, times and memory the worst is told."""
    values: dict[str, list[float]] = {}
    for one in figures:
        for name, value in one.measured.items():
            values.setdefault(name, []).append(value)
    return {name: _merge_of(name)(found) for name, found in values.items()}


def _merge_of(name: str) -> Callable[[Iterable[float]], float]:
    if name.endswith(ADDED_UP):
        return sum
    return min if name.endswith("_per_second") else max


def as_json(figures: Iterable[Figure]) -> str:
    """All figures, for programs."""
    return json.dumps([asdict(one) for one in _in_order(figures)], indent=2) + "\n"


def _in_order(figures: Iterable[Figure]) -> list[Figure]:
    return sorted(figures, key=lambda one: (one.number, one.test))


def on_page(page: str, figures: Iterable[Figure]) -> str:
    """The page with the table of these figures between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{as_markdown(figures, DATA.name)}\n{END}{after}"


def write_page(figures: Sequence[Figure]) -> None:
    """Keep the figures of a run, and show them on the page."""
    DATA.write_text(as_json(figures))
    PAGE.write_text(on_page(PAGE.read_text(), figures))


def kept() -> list[Figure]:
    """The figures that stand on the page."""
    return [Figure(**one) for one in json.loads(DATA.read_text())]


def main(arguments: Sequence[str]) -> int:
    """Print the table of a folder, and write scoreboard.md and scoreboard.json into it.

    With ``--page`` it also goes to docs/reliability.md, and the figures beside it: those of tests that did
    not run this time stay as they were.
    """
    folder = Path(arguments[0])
    figures = read(folder)
    if "--page" in arguments:
        write_page(
            list({(one.number, one.test, one.peer): one for one in [*kept(), *figures]}.values())
        )
    (folder / "scoreboard.md").write_text(as_markdown(figures))
    (folder / "scoreboard.json").write_text(as_json(figures))
    print(as_markdown(figures), end="")
    bad = sum(one.bad for one in figures if not one.peer)
    print(
        f"\n{len({one.number for one in figures})} of {len(LINES)} lines were run; {bad:,} violations."
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
