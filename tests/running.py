"""Programs that are run as a reader would run them: from a folder, to their end, with all that they print."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FAST = {"PENSTOCK_EXAMPLE_FAST": "1", "PYTHONDONTWRITEBYTECODE": "1"}
"""The same steps with less data."""


def run_python(
    *arguments: str | Path,
    folder: Path,
    environment: dict[str, str] | None = None,
    seconds: float = 470,
) -> subprocess.CompletedProcess[str]:
    """Run this Python; see :func:`run_program`."""
    return run_program(
        sys.executable, *arguments, folder=folder, environment=environment, seconds=seconds
    )


def run_program(
    *command: str | Path,
    folder: Path,
    environment: dict[str, str] | None = None,
    seconds: float = 470,
) -> subprocess.CompletedProcess[str]:
    """What became of it; errors are among what it printed."""
    return subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=os.environ | (environment or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
