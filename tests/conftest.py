"""What every test shares: hypothesis profiles and the rule that an acceptance mark names a line."""

import os
from importlib.metadata import entry_points

import pytest
from hypothesis import HealthCheck, Phase, settings

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


SHARED = {"spark": "spark", "cli": "programs", "test_examples.py": "programs", "crash": "crash"}
"""Folders and files whose tests stay in one process: they share a Spark, or the disk."""
PROGRAMS = ("test_cluster", "test_connect", "test_crash")
"""Tests in tests/spark that start Sparks of their own, one after the other."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests of a file stay together when several processes run tests."""
    item.add_marker(pytest.mark.xdist_group(group_of(item)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse an acceptance mark without numbers: it would claim nothing."""
    for item in items:
        for mark in item.iter_markers("acceptance"):
            if not mark.args or not all(isinstance(number, int) for number in mark.args):
                raise pytest.UsageError(f"{item.nodeid}: @acceptance takes line numbers")


def group_of(item: pytest.Item) -> str:
    """What tests that run in the same process have in common, where there are several."""
    place = item.path.relative_to(item.config.rootpath / "tests")
    if place.parts[0] == "spark" and place.name.startswith(PROGRAMS):
        return "programs"
    return SHARED.get(place.parts[0], str(place))
