"""Every line and every branch of the log, recovery included, is reached by its tests.

``python -m tests.mutants.test_branches FOLDER`` measures, leaves what was measured in the folder, and prints what no
test reached. ``python -m tests.mutants.test_branches FOLDER TEST ...`` adds what some more tests reach.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.bug import ROOT

SECONDS_MAX = 7_200
SETTINGS = """
[run]
branch = True
source = penstock.log
parallel = True
data_file = {folder}/coverage
patch =
    subprocess
    _exit
disable_warnings = no-sysmon

[report]
exclude_also =
    if TYPE_CHECKING:
    ^\\s*\\.\\.\\.$
"""
TESTS = (
    "tests/bus/test_event_log.py",
    "tests/bus/test_event_log_failures.py",
    "tests/bus/test_event_log_redelivery.py",
    "tests/log",
    "tests/test_speedups.py",
    "tests/transports/test_embedded.py",
    "tests/transports/test_embedded_conformance.py",
    "tests/transports/test_embedded_groups.py",
    "tests/transports/test_embedded_repartition.py",
)


def measured(folder: Path, tests: tuple[str, ...] = TESTS, workers: int = 2) -> dict[str, Any]:
    """What coverage says of the log after these tests, also of what their processes ran."""
    settings = folder / "settings.rc"
    settings.write_text(SETTINGS.format(folder=folder))
    tool = [sys.executable, "-m", "coverage"]
    pytest_options = ["-q", "-n", str(workers), "--dist", "loadfile", "--timeout", "900"]
    run = [*tool, "run", f"--rcfile={settings}", "-m", "pytest", *pytest_options, *tests]
    subprocess.run(run, cwd=ROOT, env=_environment(), check=False)
    combine = ["combine", "--quiet", "--append"]
    for command in (combine, ["json", "--quiet", "-o", str(folder / "told.json")]):
        subprocess.run([*tool, *command, f"--rcfile={settings}"], cwd=ROOT, check=True)
    told: dict[str, Any] = json.loads((folder / "told.json").read_text())
    return told


def _environment() -> dict[str, str]:
    """The figures of these tests are not for the board: it is told of branches here.

    Few generated examples: a branch that only luck reaches counts as one that is not reached.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PENSTOCK_SCOREBOARD"}
    return kept | {"HYPOTHESIS_PROFILE": "quick"}


def not_reached(told: dict[str, Any]) -> list[str]:
    """Lines and branches that no test reached."""
    found = []
    for name, file in sorted(told["files"].items()):
        found += [f"{name}:{line}" for line in file["missing_lines"]]
        lines = set(file["missing_lines"])
        found += [f"{name}:{a} to {b}" for a, b in file["missing_branches"] if a not in lines]
    return found


def told_lines(told: dict[str, Any]) -> list[str]:
    """The figures, and what no test reached."""
    totals, missing = told["totals"], not_reached(told)
    figures = f"{totals['covered_branches']} of {totals['num_branches']} branches"
    return [*missing, f"{figures}, {totals['covered_lines']} of {totals['num_statements']} lines"]


@pytest.mark.torture
@pytest.mark.timeout(SECONDS_MAX)
def test_every_branch_of_the_log_is_reached(tmp_path, scored):
    told = measured(tmp_path)
    print("\n".join(told_lines(told)))
    scored(17, tried=told["totals"]["num_branches"], bad=len(not_reached(told)))


@pytest.mark.timeout(300)
def test_what_is_not_reached_is_told(tmp_path):
    """The rig itself: tests of names reach little of the log."""
    told = measured(tmp_path, ("tests/log/test_names.py",), workers=0)
    missing = not_reached(told)
    assert any("log/recovery.py" in one and " to " not in one for one in missing)
    parts = {Path(name).stem: one["summary"] for name, one in told["files"].items()}
    assert parts["names"]["percent_covered"] > 90 > parts["recovery"]["percent_covered"]
    assert told["totals"]["num_branches"] > 1_000


if __name__ == "__main__":
    place, *more = sys.argv[1:]
    print("\n".join(told_lines(measured(Path(place), tuple(more) or TESTS))))
