"""A forked Python is as one that was started: its surroundings, its end, and that it can be ended."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark needs: pip install 'penstock[spark]'")

from tests.java import quick_pythons
from tests.spark.forks import NAME
from tests.spark.processes import below

PROGRAM = """
import json, os, sys, threading
import pyspark
told = {"arguments": sys.argv[1:], "folder": os.getcwd(), "given": os.environ.get("GIVEN")}
print(json.dumps(told | {"process": os.getpid(), "pyspark": pyspark.__file__}), flush=True)
if sys.argv[1:] == ["wait"]:
    threading.Event().wait(250)
sys.exit(int(sys.stdin.readline()))
"""


@pytest.fixture
def start(tmp_path: Path, forks: str) -> Iterator[Any]:
    """Starts the program as Spark starts its Pythons."""
    (tmp_path / "told.py").write_text(PROGRAM)
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
        python = quick_pythons()["PYSPARK_DRIVER_PYTHON"]
        zipped = "/nowhere/pyspark.zip:" + str(tmp_path)
        environment = os.environ | {"PYTHONPATH": zipped, "GIVEN": "a b\nc"}
        process = subprocess.Popen(
            [python, "-m", "told", *arguments], cwd=tmp_path, env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        return process, json.loads(process.stdout.readline())

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def test_it_has_the_surroundings_and_the_end_of_one_that_was_started(
    start: Any, tmp_path: Path
) -> None:
    process, told = start("x", "y z")
    assert told["arguments"] == ["x", "y z"]
    assert told["folder"] == str(tmp_path)
    assert told["given"] == "a b\nc"
    assert told["process"] != process.pid, "it was forked"
    assert ".zip" not in told["pyspark"]
    process.communicate("7\n", timeout=120)
    assert process.returncode == 7


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_the_one_that_stands_for_it(start: Any, how: signal.Signals) -> None:
    process, told = start("wait")
    watched = os.pidfd_open(told["process"])
    process.send_signal(how)
    assert select.select([watched], [], [], 120.0)[0], "it is still there"
    os.close(watched)


def test_one_that_is_killed_is_known_by_its_name_and_its_end_is_told(start: Any) -> None:
    process, told = start("wait")
    names = below(os.getpid())
    assert names[told["process"]].split()[-1] == "told"
    os.kill(told["process"], signal.SIGKILL)
    assert process.wait(120) == 256 - signal.SIGKILL


def test_without_a_server_it_is_started(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "nobody-listens-here")
    process, told = start()
    assert told["process"] == process.pid
