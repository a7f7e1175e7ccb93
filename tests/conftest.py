"""What every test shares: hypothesis profiles, the order of files, the rule that an acceptance mark names a line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests import costs, scoreboard, scored_tests
from tests.scoreboard import Scores

# A run starts thousands of Pythons. Where none of them keeps what it compiled, that is most of what they do.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# A process that crashes (SIGSEGV) tells where, also one that a test has started.
os.environ.setdefault("PYTHONFAULTHANDLER", "1")

# A failing example is printed with the line that reproduces it. Deadlines are pytest-timeout's.
settings.register_profile(
    "test",
    deadline=None,
    max_examples=100,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("torture", parent=settings.get_profile("test"), max_examples=10_000)
# For work on one test: the first failure as it was found, without shrinking.
settings.register_profile(
    "quick",
    parent=settings.get_profile("test"),
    max_examples=10,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
PLUGIN = "penstock.testing.plugin"
if not any(one.value == PLUGIN for one in entry_points(group="pytest11")):
    # An environment that was made before the package had a plugin. Elsewhere pytest has loaded it.
    pytest_plugins = [PLUGIN]

settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "test"))


LAST_LINES = 20
"""Of a failure, told at once."""
LONG_FILES = (
    # With Spark.
    "test_crash_kills.py",
    "test_examples.py",
    "test_pipeline.py",
    "test_cluster.py",
    "test_pages.py",
    "test_connect.py",
    "test_declarative.py",
    "test_kafka_pipeline.py",
    # Without.
    "test_kill_at_every_call.py",
    "test_benchmarks.py",
    "test_queue_conformance.py",
    "test_pulsar.py",
    "test_rabbitmq.py",
    "test_kafka.py",
    "test_pulsar_connection.py",
    "test_rabbitmq_connection.py",
    "test_kafka_connection.py",
    "test_kill.py",
    "test_seeded_bugs.py",
    "test_fuzzing.py",
    "test_bus_benchmarks.py",
    "test_processes.py",
    "test_browser.py",
    "test_dashboard.py",
    "test_simulation.py",
)
"""Those of the tests that take minutes: they come first, so that no process is left with one at the end. What each
takes: ``make test`` with PENSTOCK_COSTS=folder, then ``python -m tests.costs folder``."""


def _rank(item: pytest.Item) -> int:
    name = item.path.name
    return LONG_FILES.index(name) if name in LONG_FILES else len(LONG_FILES)


class Failures:
    """Tells of each failure when it comes: a run that is cut short shows none of those that pytest keeps for its end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            last = report.longreprtext.splitlines()[-LAST_LINES:]
            terminal.write_line("\n".join([f"\nFAILED {report.nodeid} ({report.when})", *last]))


def pytest_configure(config: pytest.Config) -> None:
    """Tell of failures at once; measure the files and keep the score, where that is asked for."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(config))
    if folder := os.environ.get(costs.FOLDER):
        config.pluginmanager.register(costs.Costs(Path(folder)))
    if os.environ.get(scoreboard.FOLDER):
        scoreboard.commit()  # of the code that is loaded now: a long run may see others
        config.pluginmanager.register(scored_tests.Board())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep Spark to some of the processes."""
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.scheduling import LanesScheduling

    return LanesScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first; and refuse an acceptance mark without numbers: it would claim nothing."""
    items.sort(key=_rank)
    for item in items:
        for mark in item.iter_markers("acceptance"):
            if not mark.args or not all(isinstance(number, int) for number in mark.args):
                raise pytest.UsageError(f"{item.nodeid}: @acceptance takes line numbers")


@pytest.fixture(scope="session")
def forks() -> Iterator[str]:
    """Pythons of Spark are forked, for this test process and the programs that it starts."""
    from tests.spark import forks

    with forks.forks() as name, pytest.MonkeyPatch.context() as patch:
        patch.setenv(forks.NAME, name)
        yield name


@pytest.fixture
def scored(request: pytest.FixtureRequest) -> Scores:
    """Tells the scoreboard of the torture run what a test tried, and fails when anything went wrong."""
    return scored_tests.scores_of(request.node)
