"""Every operation on a simulated disk: at each of its syncs, the disks that a power cut could leave are opened.

Retention, compaction, tiering, transactions, a change of the partition count, a topic that is deleted, a group that is
joined: the operations of ``operations.py``, with the checks that they stand after a kill and a real power cut.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random

import pytest

from penstock.errors import PenstockError
from penstock.testing.disk import SimulatedDisk
from tests.crash import operations
from tests.crash.rigs import Tried, scoring, seed_of
from tests.scoreboard import Scores

ROOT = Path("/data")
States = Iterator[SimulatedDisk | None]
Case = tuple[bytes, SimulatedDisk]


@cache
def base_of(operation: str) -> dict[str, bytes]:
    """The files that an operation finds."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        asyncio.run(operations.prepare(folder, operation))
        files = [one for one in sorted(folder.rglob("*")) if one.is_file()]
        return {str(ROOT / one.relative_to(folder)): one.read_bytes() for one in files}


def disk_of(operation: str) -> SimulatedDisk:
    base = base_of(operation)
    folders = {str(Path(path).parent) for path in base}
    disk = SimulatedDisk(directories=["/data", *sorted(folders)])
    for path, content in base.items():
        disk.put(path, content)
    return disk


def moments(operation: str, limit: int, random: Random) -> list[tuple[bytes, States]]:
    """What was said, and the disks that a power cut could leave, before and after every sync."""
    disk = disk_of(operation)
    heard: list[bytes] = []
    found: list[tuple[bytes, States]] = []

    def say(*words: object) -> None:
        heard.append(json.dumps(words).encode() + b"\n")
        look()

    def look(*_: object) -> None:
        found.append((b"".join(heard), disk.crash_states_once(limit, random)))

    disk.on_sync(look)
    asyncio.run(operations.perform(operation, ROOT, say, disk))
    look()
    return found


def check(operation: str, heard: bytes, disk: SimulatedDisk) -> None:
    said = operations.Said()
    said.take(heard)
    said.lose_power(operation)
    story = disk.describe()
    try:
        asyncio.run(operations.check(ROOT, operation, said, disk))
    except (AssertionError, PenstockError) as failure:
        failure.add_note("\n".join([f"{operation} said {said}", *story]))
        raise


def different(operation: str, limit: int, random: Random, tried: Tried) -> Iterator[Case]:
    """Every disk of every moment that is not like one before it, with what was said; all are counted."""
    seen: set[int] = set()
    for heard, states in moments(operation, limit, random):
        for disk in states:
            tried.count += 1
            if disk is None:
                continue
            key = hash((heard, *((path, disk.content(path)) for path in disk.files())))
            if key not in seen:
                seen.add(key)
                yield heard, disk
    tried.measured["different_disks_opened"] = len(seen)


def check_all(operation: str, limit: int, random: Random, tried: Tried) -> None:
    for heard, disk in different(operation, limit, random, tried):
        check(operation, heard, disk)


def cut(scored: Scores, request: pytest.FixtureRequest, operation: str, limit: int) -> None:
    seed = seed_of(request)
    with scoring(scored, 5, seed) as tried:
        check_all(operation, limit, Random(seed), tried)
    print(f"{operation}: {tried.count} states, {tried.measured}")


SOME = ("compaction", "tiering", "repartition", "transaction", "deletion", "join")
"""What the random runs of ``test_simulation.py`` leave out."""


@pytest.mark.parametrize("operation", SOME)
def test_power_cuts_of_an_operation_take_nothing_that_was_promised(scored, request, operation):
    cut(scored, request, operation, 2)


@pytest.mark.torture
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("operation", operations.OPERATIONS)
def test_many_power_cuts_of_an_operation_take_nothing_that_was_promised(scored, request, operation):
    cut(scored, request, operation, 200)


def test_the_rig_sees_an_operation_that_says_too_much():
    with pytest.raises(AssertionError, match="acknowledged and lost"):
        check_all("hasty", 4, Random(1), Tried())
