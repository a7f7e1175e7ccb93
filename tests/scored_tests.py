"""Which tests tell the scoreboard, and of which lines; what fails or is skipped before it tells, stands there too.

``python -m tests.scored_tests`` prints the long tests that have no figure in docs/reliability.json. With ``--page`` it
takes the figures of tests that are no more out of it, and writes the page anew.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.scoreboard import FOLDER, ROOT, Scores, form_of, kept, write_page
from tests.scoreboard_lines import NOT_RUN

FIXTURE = "scored"
FIXTURES = {"findings": 21}
"""Fixtures that tell a line by themselves."""
PLACE = "PENSTOCK_SCORED_TESTS"
"""Names the file that takes what was collected."""
REASON_CHARACTERS_MAX = 120


# The lines of a test, from its source


@cache
def _functions(path: Path) -> dict[str, list[ast.AST]]:
    found: dict[str, list[ast.AST]] = {}
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.setdefault(node.name, []).append(node)
    return found


@cache
def _imports(path: Path) -> dict[str, tuple[Path, str]]:
    """What a file takes from others of the tests: the name that it has here → where it is from."""
    found: dict[str, tuple[Path, str]] = {}
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests."):
            file = ROOT / f"{(node.module or '').replace('.', '/')}.py"
            found |= {one.asname or one.name: (file, one.name) for one in node.names}
    return {name: place for name, place in found.items() if place[0].exists()}


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def lines_in(path: Path, name: str) -> set[int]:
    """The lines that a function of a file tells, itself or by what it calls."""
    left, seen, told = [(path, name)], set[tuple[Path, str]](), set[int]()
    while left:
        if (place := left.pop()) in seen:
            continue
        seen.add(place)
        file, one = place
        if one in _imports(file):
            left.append(_imports(file)[one])
        for node in (inner for outer in _functions(file).get(one, ()) for inner in ast.walk(outer)):
            left += [(file, used) for used in _names(node)]
            told |= _told(node)
    return told


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name):
        return [node.id]
    return [node.attr] if isinstance(node, ast.Attribute) else []


def _told(node: ast.AST) -> set[int]:
    """The number in ``scored(1, ...)``, ``scored.peer(1, ...)`` or ``scoring(scored, 1, ...)``."""
    if not isinstance(node, ast.Call):
        return set()
    called = ast.unparse(node.func)
    words = {FIXTURE: 0, f"{FIXTURE}.peer": 0, "scoring": 1}
    first = words.get(called, len(node.args))
    inside = [one for word in node.args[first : first + 1] for one in ast.walk(word)]
    numbers = [one.value for one in inside if isinstance(one, ast.Constant)]
    return {one for one in numbers if isinstance(one, int)}


def lines_of(item: pytest.Item) -> set[int]:
    """The lines of the board that a test is for."""
    used = {FIXTURES[one] for one in getattr(item, "fixturenames", ()) if one in FIXTURES}
    return used or lines_in(item.path, getattr(item, "originalname", item.name))


def tells(item: pytest.Item) -> bool:
    """Whether a test has something to tell the board."""
    return FIXTURE in getattr(item, "fixturenames", ())


def scores_of(item: pytest.Item) -> Scores:
    """What tells the board of a test."""
    return Scores(item.nodeid, form_of(long=item.get_closest_marker("torture") is not None))


class Board:
    """A pytest plugin: what failed or was skipped is on the board."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if tells(item) and report.failed:
            scores_of(item).failed(lines_of(item))
        elif tells(item) and report.skipped and not hasattr(report, "wasxfail"):
            scores_of(item).skipped(lines_of(item), reason_of(report))
        return report


def reason_of(report: pytest.TestReport) -> str:
    """Why a test was skipped."""
    told: Any = report.longrepr
    reason = told[2] if isinstance(told, tuple) else str(told)
    return re.sub(r"\s+", " ", reason.removeprefix("Skipped: "))[:REASON_CHARACTERS_MAX]


# All of them, collected


@dataclass(frozen=True)
class Scored:
    """A test that tells the board."""

    test: str
    lines: Sequence[int]
    long: bool


class Collecting:
    """A pytest plugin that writes down what was collected, and runs none of it."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        found = [
            {"test": one.nodeid, "lines": sorted(lines_of(one)), "long": _is_long(one)}
            for one in session.items
            if tells(one)
        ]
        Path(os.environ[PLACE]).write_text(json.dumps(found))


def _is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("torture") is not None


def collected() -> list[Scored]:
    """All tests that tell the board, from files that name a fixture of it."""
    words = re.compile(rf"\b({'|'.join([FIXTURE, *FIXTURES])})\b")
    files = [
        path
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if words.search(path.read_text())
    ]
    program = "import sys, pytest; from tests.scored_tests import Collecting; sys.exit(pytest.main(sys.argv[1:], [Collecting()]))"
    options = [
        "--collect-only",
        "-q",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "torture or not torture",
    ]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "scored.json")
        around = {**os.environ, PLACE: str(place)}
        around.pop(FOLDER, None)
        command = [sys.executable, "-c", program, *options, *map(str, files)]
        ended = subprocess.run(
            command, cwd=ROOT, env=around, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return [Scored(**one) for one in json.loads(place.read_text())]


def without_figure(tests: Sequence[Scored]) -> list[str]:
    """The long tests that have no figure on the page."""
    known = {one.test for one in kept()}
    return [one.test for one in tests if one.long and one.test not in known]


def unexplained(missing: Sequence[str]) -> Iterator[str]:
    """Those for which no reason is given."""
    return (one for one in missing if not one.startswith(tuple(NOT_RUN)))


def main(arguments: Sequence[str]) -> int:
    """Print what has no figure; with ``--page``, leave out what is no more."""
    tests = collected()
    if "--page" in arguments:
        known = {one.test for one in tests}
        write_page([one for one in kept() if one.test in known])
    print("\n".join(without_figure(tests)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
