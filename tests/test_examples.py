"""Every example runs to its end, in an empty folder, as a reader would run it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.java import quick_spark

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted(ROOT.glob("examples/*/main.py"))


@pytest.mark.timeout(480)
@pytest.mark.parametrize("main", EXAMPLES, ids=lambda main: main.parent.name)
def test_the_example_ends_well(main, tmp_path):
    # PENSTOCK_EXAMPLE_FAST asks for the same steps with less data.
    environment = os.environ | {
        "PENSTOCK_EXAMPLE_FAST": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "JDK_JAVA_OPTIONS": quick_spark(),
    }
    finished = subprocess.run(
        [sys.executable, "-W", "error", str(main)],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=470,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-4000:]
    assert finished.stdout.strip(), "an example shows something"
