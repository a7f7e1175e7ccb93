"""The examples on the pages that need Spark, in the order of the pages, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import NotSupported
from penstock.spark.java import find_java
from tests.java import quick_environment

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.timeout(600)
def test_the_examples_of_the_pages_run(tmp_path: Path, forks: str) -> None:
    try:
        find_java()
    except NotSupported as missing:
        pytest.skip(str(missing))
    finished = subprocess.run(
        [sys.executable, "-m", "tests.spark.pages_program"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | quick_environment(),
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert finished.stdout.endswith("done\n"), finished.stdout[-2000:] + finished.stderr[-4000:]
