"""A pytest plugin: coverage knows which test reached a line, and the processor time of each test is written down.

The processor's time, as a machine that is busy with other things must not make tests slow.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

SECONDS = "PENSTOCK_TEST_SECONDS"
"""Names the file that takes the seconds of each test."""
_seconds: dict[str, float] = {}
_bad: set[str] = set()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Everything that a test runs, its fixtures included, is its own context."""
    if measured := coverage.Coverage.current():
        measured.switch_context(item.nodeid)
    began = time.process_time()
    try:
        return (yield)
    finally:
        _seconds[item.nodeid] = time.process_time() - began


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note those that did not pass."""
    if report.outcome != "passed":
        _bad.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write the seconds of those that passed."""
    if place := os.environ.get(SECONDS):
        good = {name: one for name, one in _seconds.items() if name not in _bad}
        Path(place).write_text(json.dumps(good))
