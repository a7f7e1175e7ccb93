"""A pytest plugin: coverage knows which test reached a line, and how long each test took is written down."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

SECONDS = "PENSTOCK_TEST_SECONDS"
"""Names the file that takes the seconds of each test."""
_seconds: dict[str, float] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Everything that a test runs, its fixtures included, is its own context."""
    if measured := coverage.Coverage.current():
        measured.switch_context(item.nodeid)
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up setup, call and teardown."""
    if report.outcome == "passed":
        _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration
    else:
        _seconds[report.nodeid] = float("inf")


def pytest_sessionfinish() -> None:
    """Write the seconds of those that passed."""
    if place := os.environ.get(SECONDS):
        good = {name: one for name, one in _seconds.items() if one != float("inf")}
        Path(place).write_text(json.dumps(good))
