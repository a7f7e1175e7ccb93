"""What the tests in a real browser share. Without a browser they are skipped, and say what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytest.importorskip(
    "nicegui", reason="the dashboard needs nicegui: pip install 'penstock[dashboard]'"
)
playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
if CHROMIUM is None:
    pytest.skip("the browser tests need chromium", allow_module_level=True)

ROOT = Path(__file__).parents[2]


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser."""
    with playwright.sync_playwright() as engine:
        started = engine.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@contextmanager
def dashboard_of(*program: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A program with a dashboard, in a process of its own: its address, and the process."""
    with subprocess.Popen(
        [sys.executable, *program],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address.startswith("http://"), "the program did not start"
            yield address.rstrip("/"), process
        finally:
            process.kill()
