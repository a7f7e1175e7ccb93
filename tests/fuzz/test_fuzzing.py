"""Fuzzing with coverage: a few seconds of each target here, minutes of each in a torture run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.crash.rigs import environment, seed_of
from tests.fuzz.seeds import write_corpus
from tests.fuzz.targets import TARGETS
from tests.scoreboard import SCALE

pytest.importorskip("atheris", reason="fuzzing needs atheris, which is there for Linux on x86-64")
ROOT = Path(__file__).parents[2]
MEMORY_MIB_MAX = 64
SHORT_SECONDS = 2
FULL_SECONDS = 300


class Fuzzed(NamedTuple):
    runs: int
    grown_mib: float
    crash: str


def fuzz(folder: Path, target: str, seconds: float, seed: int) -> Fuzzed:
    """Let a target run for so long in a process of its own."""
    write_corpus(target, folder / "corpus")
    done = subprocess.run(
        [
            # A child of a small process: the highest memory of who starts it would count as its own.
            *("sh", "-c", '"$@"; exit $?', "sh"),
            *(sys.executable, "-m", "tests.fuzz.fuzzing", target),
            f"-max_total_time={max(1, round(seconds))}",
            f"-seed={seed % (1 << 31) or 1}",
            *("-timeout=20", "-max_len=4096", "-print_final_stats=1", "-rss_limit_mb=1024"),
            f"-artifact_prefix={folder}/",
            str(folder / "corpus"),
        ],
        capture_output=True,
        check=False,
        timeout=seconds + 240,
        cwd=ROOT,
        env=environment() | {"TMPDIR": str(folder)},
        text=True,
        errors="replace",
    )
    runs = re.search(r"stat::number_of_executed_units:\s*(\d+)", done.stderr)
    grown = re.findall(r"grown_mib=([\d.]+)", done.stdout)
    crash = "" if done.returncode == 0 else done.stdout[-3_000:] + done.stderr[-3_000:]
    if runs is None:
        return Fuzzed(0, 0.0, crash or "it said nothing")
    return Fuzzed(int(runs[1]), max(map(float, grown), default=0.0), crash)


@pytest.mark.parametrize("target", TARGETS)
def test_fuzz_a_little(target, tmp_path, scored, request):
    check(fuzz(tmp_path, target, SHORT_SECONDS, seed := seed_of(request)), target, seed, scored)


@pytest.mark.torture
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("target", TARGETS)
def test_fuzz_for_minutes(target, tmp_path, scored, request):
    seconds = FULL_SECONDS * float(os.environ.get(SCALE, "1"))
    check(fuzz(tmp_path, target, seconds, seed := seed_of(request)), target, seed, scored)


def check(found: Fuzzed, target: str, seed: int, scored) -> None:
    print(found.crash)
    bad = bool(found.crash) + (found.grown_mib > MEMORY_MIB_MAX)
    measured = {f"{target}_inputs": found.runs, f"{target}_grown_mib": found.grown_mib}
    scored(18, tried=max(1, found.runs), bad=bad, seed=seed, **measured)


def test_caught_a_decoder_that_raises_something_else(tmp_path, monkeypatch):
    """The rig sees a crash: a target that fails for one input of its corpus."""
    monkeypatch.setenv("PENSTOCK_FUZZ_BUG", "1")
    found = fuzz(tmp_path, "positions", 5, 1)
    assert "a seeded bug" in found.crash
