"""Every line and every branch of the log, recovery included, is reached by its tests.

So is what the log stands on: the directory store, its folders, and the machine with its files, clock and worker.

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
# By their paths: a package that is named is imported to find it, and asyncio with it, and then once more by the
# tests, which have two kinds of CancelledError after that.
SETTINGS = """
[run]
branch = True
include =
    {root}/src/penstock/log/*
    {root}/src/penstock/stores/directory.py
    {root}/src/penstock/stores/folders.py
    {root}/src/penstock/system.py
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
DISK = {"directory", "folders", "system"}
"""The parts that are counted and are none of the log."""
TESTS_OF_DISK = (
    "tests/crash/test_short_writes.py",
    "tests/security/test_disk.py",
    "tests/stores/test_conformance.py::TestDirectory",
    "tests/stores/test_directory.py",
    "tests/stores/test_fork.py",
    "tests/stores/test_handles.py",
    "tests/test_memory.py",
    "tests/test_system.py",
    "tests/testing/test_disk_conformance.py",
)
"""Of the machine that the log stands on: they reach all of it, without those of the log."""
TESTS = (
    *TESTS_OF_DISK,
    "tests/bus/test_event_log.py",
    "tests/bus/test_event_log_failures.py",
    "tests/bus/test_event_log_redelivery.py",
    "tests/log",
    "tests/security/test_names.py",
    "tests/test_speedups.py",
    "tests/transports/test_embedded.py",
    "tests/transports/test_embedded_conformance.py",
    "tests/transports/test_embedded_groups.py",
    "tests/transports/test_embedded_repartition.py",
)

CORE = ("frame", "head", "partition", "recovery")
"""The parts whose branches are counted in the tests of every day, too."""
TESTS_OF_CORE = (
    *(
        f"tests/log/test_{name}.py"
        for name in (
            *("close_figures", "compaction", "exact_bounds", "forged_segments", "frame", "head"),
            *("index", "partition", "rare_turns", "recovery", "recovery_claims", "repartition"),
            *("retention", "shared_failures", "unseen_steps", "upkeep_details", "vanishing"),
        )
    ),
    "tests/log/test_repair.py::test_a_writer_that_is_open_goes_on_behind_the_repaired_end",
    "tests/log/test_repair_small_files.py::test_offsets_below_the_durable_one_are_never_given_again",
    "tests/log/test_repair_small_files.py::test_a_flipped_byte_of_an_index_is_mended",
    "tests/log/test_simulation.py::test_the_script_seals_segments",
    "tests/log/test_truncation.py::test_a_segment_from_elsewhere_is_detected",
)
"""Quick ones that reach all of it together."""


def measured(folder: Path, tests: tuple[str, ...] = TESTS, workers: int = 2) -> dict[str, Any]:
    """What coverage says of the log after these tests, also of what their processes ran."""
    settings = folder / "settings.rc"
    settings.write_text(SETTINGS.format(folder=folder, root=ROOT))
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


def part_of(told: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """What was measured of some files alone."""
    return {"files": {path: one for path, one in told["files"].items() if Path(path).stem in names}}


@pytest.mark.timeout(600)
def test_every_branch_of_the_core_is_reached(tmp_path, scored):
    """The short form: frames, heads, partitions and recovery, by the tests that reach them quickly."""
    core = part_of(measured(tmp_path, TESTS_OF_CORE, workers=0), CORE)
    missing = not_reached(core)
    print("\n".join(missing))
    assert len(core["files"]) == len(CORE)
    branches = sum(one["summary"]["num_branches"] for one in core["files"].values())
    scored(17, tried=branches, bad=len(missing))


@pytest.mark.timeout(300)
def test_what_is_not_reached_is_told(tmp_path):
    """The rig itself: tests of names reach little of the log."""
    told = measured(tmp_path, ("tests/log/test_names.py",), workers=0)
    missing = not_reached(told)
    assert any("log/recovery.py" in one and " to " not in one for one in missing)
    parts = {Path(name).stem: one["summary"] for name, one in told["files"].items()}
    assert parts["names"]["percent_covered"] > 90 > parts["recovery"]["percent_covered"]
    assert {name for name in parts if f"src/penstock/log/{name}.py" not in told["files"]} == DISK
    assert told["totals"]["num_branches"] > 1_000


if __name__ == "__main__":
    place, *more = sys.argv[1:]
    print("\n".join(told_lines(measured(Path(place), tuple(more) or TESTS))))
