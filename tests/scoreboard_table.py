"""The scoreboard as a table: a row for each line, and which of it ran when and in what form."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from tests.scoreboard_lines import LINES, NOT_RUN, OTHERS, WHOLE, Line

ADDED_UP = ("_in_all", "_before_kills", "_before_cuts", "_opened", "_inputs", "told", "pauses")
"""How the names of measured amounts end; the others are rates, or have a worst."""
LEAST = ("_per_second", "_per_second_of_processor_time", "_percent")
"""How the names of rates end of which the lowest is the worst."""
SEEDS_SHOWN = 4
RUNS_SHOWN = 3
FULL, SHORT = "full", "short"
UNDATED = "before 2026-11-18"
"""Figures carry their day and commit since then."""


@dataclass(frozen=True)
class Figure:
    """What one test says."""

    number: int
    test: str
    tried: int
    bad: int
    seed: str = ""
    """What repeats it: PENSTOCK_SEED, or the words "every one" when nothing is chosen."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """Values beside the counts, by a name with its unit."""
    peer: str = ""
    """Who was tried, if not Penstock."""
    commit: str = ""
    """What ran, "with changes" when it was not all committed."""
    when: str = ""
    """The day."""
    form: str = ""
    """``full``, ``short``, or which part of the full form."""
    skipped: str = ""
    """Why it did not run."""

    @property
    def is_failed(self) -> bool:
        """Whether something went wrong that should not. Of others nothing is asked."""
        return bool(self.bad) and not self.peer


def as_markdown(figures: Iterable[Figure], data: str = "scoreboard.json") -> str:
    """One table, a row for each line, in the order of the board; ``data`` has the figures."""
    rows = [
        "| # | what | tried | went wrong | measured | seeds | run | others |",
        "|---|---|---:|---:|---|---|---|---|",
    ]
    told = in_order(figures)
    rows += [_row(line, [one for one in told if one.number == line.number], data) for line in LINES]
    return "\n".join(rows) + "\n"


def as_json(figures: Iterable[Figure]) -> str:
    """All figures, for programs."""
    return json.dumps([asdict(one) for one in in_order(figures)], indent=2) + "\n"


def in_order(figures: Iterable[Figure]) -> list[Figure]:
    """By line, then by test."""
    return sorted(figures, key=lambda one: (one.number, one.test))


def _row(line: Line, told: Sequence[Figure], data: str) -> str:
    figures = counted(line, [one for one in told if not one.peer and not one.skipped])
    skipped = _skipped([one for one in told if one.skipped])
    what, others = f"{line.number} | {line.what}; {line.bad}", _others(line, told)
    if not figures:
        return f"| {what} | {skipped or 'not run'} | | | | | {others} |"
    bad = sum(one.bad for one in figures)
    shown = [
        f"{name.replace('_', ' ')} {_short(value)}" for name, value in _together(figures).items()
    ]
    measured = "; ".join([*shown, skipped] if skipped else shown)
    seeds = _listed(list(dict.fromkeys(one.seed for one in figures)), SEEDS_SHOWN, data)
    runs = _runs(figures, data)
    return (
        f"| {what} | {_tried(line, figures)} | {bad:,} | {measured} | {seeds} | {runs} | {others} |"
    )


def _tried(line: Line, figures: Iterable[Figure]) -> str:
    tried = sum(one.tried for one in figures)
    return f"{tried:,} (short of {line.full:,})" if tried < (line.full or 0) else f"{tried:,}"


def _skipped(figures: Sequence[Figure]) -> str:
    if not figures:
        return ""
    reasons = dict.fromkeys(one.skipped.replace("|", "/") for one in figures)
    return f"{len(figures):,} skipped: {', '.join(reasons)}"


def _others(line: Line, figures: Iterable[Figure]) -> str:
    again = "; ".join(f"{one.peer} {one.bad:,} of {one.tried:,}" for one in figures if one.peer)
    known = OTHERS[line.number]
    told = (f"here: {again}" if again else "", f"reported: {known}")
    return known if known == "not known" else ". ".join(one for one in told if one)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.4g}"


def _listed(words: Sequence[str], count_max: int, data: str) -> str:
    """Those of many parts stand in the data, each with its test."""
    return ", ".join(words) if len(words) <= count_max else f"{len(words)}, in [{data}]({data})"


def _runs(figures: Iterable[Figure], data: str) -> str:
    """The days, and of each the commits that ran."""
    days: dict[str, dict[str, None]] = {}
    for one in figures:
        days.setdefault(one.when, {})[one.commit] = None
    told = [f"{day or UNDATED}{_at([*commits], data)}" for day, commits in sorted(days.items())]
    return "; ".join(told)


def _at(commits: Sequence[str], data: str) -> str:
    known = [one for one in commits if one]
    return f" at {_listed(known, RUNS_SHOWN, data)}" if known else ""


def counted(line: Line, figures: Sequence[Figure]) -> Sequence[Figure]:
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
    return min if name.endswith(LEAST) else max


# What ran in which form, in words


def forms(figures: Sequence[Figure], not_run: Mapping[str, str] = NOT_RUN) -> str:
    """Which lines are from their full forms, and which long tests have no figure."""
    told = [_of_lines(figures), _of_days(figures)]
    if not_run:
        told.append("Long tests that have no figure here, by how their names begin:\n")
        told += [f"- `{name}`: {reason}" for name, reason in sorted(not_run.items())]
    return "\n".join(told) + "\n"


def _of_lines(figures: Sequence[Figure]) -> str:
    full = {one.number for one in figures if one.form == FULL and not one.peer}
    rest = [line.number for line in LINES if line.number not in full]
    short = [one.number for one in LINES if one.full and _sum(one, figures) < one.full]
    every = "Each line has figures of its full form" if full else "No line is from its full form"
    parts = [f"{every}, but for {_numbers(rest)}" if full and rest else every]
    if short:
        parts.append(f"lines that tried less than a full run is to try: {_numbers(short)}")
    return "; ".join(parts) + "."


def _sum(line: Line, figures: Sequence[Figure]) -> int:
    mine = [one for one in figures if one.number == line.number and not one.peer]
    return sum(one.tried for one in counted(line, mine))


def _of_days(figures: Sequence[Figure]) -> str:
    own = [one for one in figures if not one.peer]
    full = sum(one.form == FULL for one in own)
    days = sorted({one.when for one in own if one.when})
    undated = sum(not one.when for one in own)
    told = [f"{full:,} of {len(own):,} figures are of long tests, the rest of those of every day"]
    told += [f"{undated:,} are from {UNDATED}, when commits were not noted"] if undated else []
    told += [f"the others are from {', '.join(days)}"] if days and undated else []
    return "; ".join(told) + "."


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
