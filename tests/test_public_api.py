"""The public door: what `penstock` exports is pinned, documented and light to import."""

import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

# To change the public API, change this list too. A failing test prints the new one to paste here.
PUBLIC: list[str] = [
    "Acknowledgement",
    "BackpressureState",
    "BackpressureStateChanged",
    "BackpressureStrategy",
    "BackpressureThresholds",
    "BatchAcknowledgement",
    "BatchFailed",
    "Batching",
    "BoundedCache",
    "BoundedEventQueue",
    "BreakerOptions",
    "BusLimits",
    "CircuitBreaker",
    "Code",
    "Codec",
    "Command",
    "CommandResult",
    "DegradationDirective",
    "Envelope",
    "Event",
    "FsyncPolicy",
    "LostRange",
    "MaintenanceReport",
    "MessageBus",
    "MessageBusBackpressure",
    "MessageCodec",
    "Outcome",
    "Overflow",
    "PartitionStatistics",
    "PenstockError",
    "Priority",
    "Problem",
    "PublishDecision",
    "QueueOptions",
    "QueueStatistics",
    "Receipt",
    "Record",
    "RecordBatch",
    "RecoveryReport",
    "RepairReport",
    "ResilientMessageBus",
    "Retention",
    "RetentionInfo",
    "Retry",
    "ScalabilityConfig",
    "ScalableMessageBus",
    "ScalingLimits",
    "StreamCheckpoint",
    "StreamEvent",
    "StreamingBackpressureHandler",
    "StreamingScalingManager",
    "Subscription",
    "System",
    "TopicConfig",
    "TopicStatistics",
    "VerifyReport",
    "WalMessageQueue",
    "WhenFull",
    "critical",
    "current_envelope",
    "errors",
    "hot_path",
    "open",
    "open_store",
    "repair",
    "scrub",
    "topic",
    "verify",
]

# Loaded only by the code that uses them, so that `pip install penstock` stays small.
HEAVY = {"asyncpg", "boto3", "lz4", "obstore", "pyarrow", "rich", "sqlite3", "zstandard"}

HEAVY_BEHIND_DOORS = {"deltalake", "nicegui", "opentelemetry", "prometheus_client", "pydantic", "pyspark", "pytest", "typer"}  # fmt: skip


def documented_here(thing: object) -> bool:
    """Whether somebody wrote a docstring: an inherited or a generated one does not count."""
    if inspect.isclass(thing):
        text = vars(thing).get("__doc__") or ""
        return bool(text.strip()) and not text.startswith(f"{thing.__name__}(")
    return bool((getattr(thing, "__doc__", "") or "").strip())


def exported():
    """Yield (name, object) of everything exported that can carry a docstring."""
    for name in penstock.__all__:
        thing = getattr(penstock, name)
        if inspect.isclass(thing) or inspect.isroutine(thing) or inspect.ismodule(thing):
            yield name, thing


def public_members(owner: type):
    """Yield (name, member) of the methods and properties that a class of ours defines."""
    for name, member in vars(owner).items():
        plain = inspect.isroutine(member) or isinstance(member, property | classmethod)
        if plain and not name.startswith("_"):
            yield name, member


def test_the_exported_names_are_pinned():
    pinned = "PUBLIC: list[str] = " + json.dumps(sorted(penstock.__all__), indent=4)
    assert sorted(penstock.__all__) == PUBLIC, f"if this is meant, paste:\n{pinned}"


def test_the_exported_names_are_sorted_and_exist():
    assert list(penstock.__all__) == sorted(set(penstock.__all__))
    for name in penstock.__all__:
        assert hasattr(penstock, name), name


def test_every_public_object_has_a_docstring():
    bare = [name for name, thing in exported() if not documented_here(thing)]
    assert not bare


def test_every_public_method_has_a_docstring_of_its_own_or_of_its_base():
    bare = [
        f"{name}.{member_name}"
        for name, thing in exported()
        if inspect.isclass(thing)
        for member_name, _ in public_members(thing)
        if not inspect.getdoc(getattr(thing, member_name))
    ]
    assert not bare


def test_star_import_gives_exactly_the_public_names():
    namespace: dict[str, object] = {}
    exec("from penstock import *", namespace)
    assert sorted(namespace.keys() - {"__builtins__"}) == sorted(penstock.__all__)


def loaded_by(statement: str) -> set[str]:
    """The modules that a new Python has after a statement."""
    program = f"{statement}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(json.loads(finished.stdout))


def test_the_public_names_load_no_extra():
    loaded = loaded_by("from penstock import *")
    assert "penstock.log.queue" in loaded
    assert not {name.partition(".")[0] for name in loaded} & HEAVY


def test_a_name_loads_what_it_needs_and_no_more():
    assert not any(name.startswith("penstock.") for name in loaded_by("import penstock"))
    loaded = loaded_by(
        "import penstock\npenstock.errors.PenstockError\nfrom penstock import System"
    )
    assert {"penstock.errors", "penstock.system"} <= loaded
    assert not loaded & {"penstock.bus", "penstock.log", "penstock.streaming", "numpy"}


def test_rooms_are_found_without_an_import_of_their_own():
    loaded = loaded_by("import penstock\npenstock.bus.MessageBus\npenstock.stores.open_store")
    assert {"penstock.bus", "penstock.stores"} <= loaded


def doors_of_the_reference() -> set[str]:
    """The packages that docs/reference/index.md lists."""
    page = Path(__file__).parent.parent / "docs" / "reference" / "index.md"
    return set(
        re.findall(r"^\| \[penstock\.(\w+)\]", page.read_text(encoding="utf-8"), re.MULTILINE)
    )


def test_every_door_of_the_reference_is_there_and_is_named():
    doors = doors_of_the_reference()
    assert doors == {*penstock._DOORS, "dashboard"}
    assert all(f"``penstock.{door}``" in str(penstock.__doc__) for door in doors)


def test_the_doors_load_no_extra():
    used = "; ".join(f"penstock.{door}" for door in penstock._DOORS)
    loaded = loaded_by(f"import penstock; {used}")
    assert {f"penstock.{door}" for door in penstock._DOORS} <= loaded
    assert not {name.partition(".")[0] for name in loaded} & {*HEAVY, *HEAVY_BEHIND_DOORS}


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'penstock' has no attribute 'Misspelled'"):
        _ = penstock.Misspelled  # type: ignore[attr-defined]
    assert set(penstock.__all__) <= set(dir(penstock))


PACKAGES = sorted(path.parent.name for path in Path(penstock.__path__[0]).glob("*/__init__.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_with_an_all_is_a_door_in_good_order(package):
    """A package without `__all__` is private; tests/test_tidy.py keeps others out of it."""
    door = importlib.import_module(f"penstock.{package}")
    offered = getattr(door, "__all__", [])
    assert len(offered) == len(set(offered)), "ruff keeps them in order"
    assert [name for name in offered if not hasattr(door, name)] == []


def test_a_public_name_means_one_thing_in_all_packages():
    doors = [importlib.import_module(f"penstock.{package}") for package in PACKAGES]
    meanings: dict[str, dict[int, str]] = {}
    for door in doors:
        for name in getattr(door, "__all__", []):
            meanings.setdefault(name, {})[id(getattr(door, name))] = door.__name__
    assert {name: [*found.values()] for name, found in meanings.items() if len(found) > 1} == {}


def test_the_search_through_schedules_is_public():
    names = {"ScheduleFailed", "SeededSchedule", "run_schedule", "run_schedules"}
    assert names <= set(importlib.import_module("penstock.testing").__all__)
