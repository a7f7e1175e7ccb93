"""Which process runs what, and what it costs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from tests import costs
from tests.java import QUICK, archive_of, quick_options
from tests.scheduling import LanesScheduling, is_spark

ROOT = Path(__file__).parents[1]
FILES = [
    "tests/spark/test_a.py",
    "tests/test_examples.py",
    "tests/log/test_b.py",
    "tests/test_c.py",
]


class Process:
    """Notes which tests it is to run."""

    def __init__(self) -> None:
        self.given: list[int] = []

    def send_runtest_some(self, numbers: list[int]) -> None:
        self.given += numbers


def shared_out(processes: int) -> list[list[str]]:
    """The files that each process gets when they ask in turn, until none is left."""
    lanes = LanesScheduling.__new__(LanesScheduling)
    tests = [f"{file}::test" for file in FILES]
    nodes: list[Any] = [Process() for _ in range(processes)]
    lanes.assigned_work = {node: {} for node in nodes}
    lanes.registered_collections = dict.fromkeys(nodes, tests)
    lanes.workqueue = OrderedDict((file, {f"{file}::test": False}) for file in FILES)
    while lanes.workqueue:
        for node in nodes[: len(lanes.workqueue)]:
            lanes._assign_work_unit(node)
    return [[FILES[number] for number in node.given] for node in nodes]


def test_files_with_spark_are_known():
    assert [is_spark(file) for file in FILES] == [True, True, False, False]


def test_one_of_three_processes_takes_spark_first():
    first, *others = shared_out(3)
    assert first[0] == FILES[0]
    assert [one[0] for one in others] == FILES[2:], "while there is anything else"
    assert sorted([*first, *others[0], *others[1]]) == sorted(FILES), "each file once"


def test_a_process_takes_what_is_left():
    assert shared_out(1) == [[FILES[0], FILES[1], FILES[2], FILES[3]]]
    first, second = shared_out(2)
    assert (first, second) == (FILES[:2], FILES[2:])


def test_the_time_of_processes_that_live_and_that_ended_is_counted():
    burn = "sum(range(3_000_000)); print('burnt', flush=True); input()"
    before = costs.spent()
    began = time.process_time()
    with subprocess.Popen(
        [sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        living = costs.spent()
        child.communicate(b"\n")
    own = time.process_time() - began
    assert living - before > 0
    assert costs.spent() - before > own, "that of the child too"


def test_files_are_listed_by_what_they_took(tmp_path):
    (tmp_path / "1.json").write_text('{"tests/a.py": [1.0, 0.5], "tests/b.py": [3.0, 2.0]}')
    (tmp_path / "2.json").write_text('{"tests/c.py": [2.0, 1.0]}')
    total, *lines = costs.table(tmp_path)
    assert total.split()[0] == "6.0"
    assert [line.split()[-1] for line in lines] == ["tests/b.py", "tests/c.py", "tests/a.py"]


def test_what_python_compiles_is_kept_by_all_processes_of_the_tests():
    asked = [sys.executable, "-c", "import sys; print(sys.dont_write_bytecode)"]
    assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout == "False\n"
    assert not sys.dont_write_bytecode


@pytest.mark.parametrize("kept", [True, False])
def test_an_archive_of_classes_is_used_while_its_jars_are_the_same(tmp_path, monkeypatch, kept):
    monkeypatch.setattr("tests.java.CACHE", tmp_path)
    jars = tmp_path / "jars"
    jars.mkdir()
    (jars / "a.jar").write_bytes(b"one")
    archive = archive_of("spark", jars)
    archive.parent.mkdir()
    archive.touch()
    if not kept:
        (jars / "a.jar").write_bytes(b"three")
    used = f"-XX:SharedArchiveFile={archive}" in quick_options("spark", jars)
    assert used == kept
    assert quick_options("spark", jars)[: len(QUICK)] == QUICK


HALF_DEAD = {
    "conftest.py": """
        from tests.scheduling import LanesScheduling

        def pytest_xdist_make_scheduler(config, log):
            return LanesScheduling(config, log)
    """,
    "test_a.py": "def test_1(): pass\ndef test_2(): pass\ndef test_3(): pass\n",
    "test_b.py": "import os\ndef test_1(): pass\ndef test_dies(): os._exit(3)\ndef test_3(): pass\n",
    "test_c.py": "def test_1(): pass\n",
}


@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_ends_and_leaves_out_nothing_when_a_process_of_it_dies(tmp_path, processes):
    for name, text in HALF_DEAD.items():
        (tmp_path / name).write_text(textwrap.dedent(text))
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", f"-n{processes}", "--dist=loadfile", "-p", "no:cacheprovider", "-rfp"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False,
        capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    told = [line.split(" - ")[0] for line in ran.stdout.splitlines() if "ED test_" in line]
    assert sorted(told) == [
        "FAILED test_b.py::test_dies",
        *(f"PASSED test_a.py::test_{number}" for number in (1, 2, 3)),
        "PASSED test_b.py::test_1",
        "PASSED test_b.py::test_3",
        "PASSED test_c.py::test_1",
    ]
