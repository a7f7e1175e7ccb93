"""Real power cuts at the calls of each operation: retention, compaction, tiering, transactions and all others.

The process that works cuts the power itself, right before or after one of its calls that changes something, so
that each of them is a moment at which the power goes.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from tests.crash import operations
from tests.crash.disks import Disk, command
from tests.crash.rigs import Nursery, scoring
from tests.crash.test_kill_at_every_call import KILLED, hear_out
from tests.scoreboard import Scores


class CuttingOperation:
    """One operation on one disk, which loses its power at a call of it; again and again."""

    def __init__(self, nursery: Nursery, disk: Disk, folder: Path, operation: str) -> None:
        self.nursery = nursery
        self.disk = disk
        self.operation = operation
        self.place = disk.root / "place"
        self.base = folder / "base"
        self.base.mkdir()
        asyncio.run(operations.prepare(self.base, operation))

    def cut_at(self, when: str, number: int) -> bool:
        """Whether the operation came to that call; what the cut left is checked."""
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self.base, self.place)
        command("sync", "--file-system", self.disk.root)
        order = json.dumps([self.operation, str(self.place), when, number, str(self.disk.root)])
        pid, pipe = self.nursery.fork(f"operation {order}")
        said = operations.Said()
        said.take(hear_out(pid, pipe))
        code = self.nursery.reap(pid)
        assert code in {KILLED, 0}, f"{self.operation} ends by itself with {code}"
        if code == KILLED:
            self.disk.power_on()
            said.lose_power(self.operation)
        self.check(said, f"power cut {when} call {number}")
        return code == KILLED

    def check(self, said: operations.Said, what: str) -> None:
        try:
            asyncio.run(operations.check(self.place, self.operation, said))
        except (AssertionError, PenstockError) as failure:
            failure.add_note(f"{self.operation}: {what}; it said {said}")
            raise


def cut(
    nursery: Nursery, scored: Scores, folder: Path, kind: str, operation: str, calls: Iterable[int]
) -> None:
    """Power cuts at these calls of an operation, until it makes no more."""
    with Disk(folder, kind) as disk, scoring(scored, 3, "every one") as tried:
        cutting = CuttingOperation(nursery, disk, folder, operation)
        for number in calls:
            # After a call its effect may be on the disk or not; before it, there is none.
            done = [cutting.cut_at(when, number) for when in ("before", "after")]
            tried.count += sum(done)
            if not all(done):
                break
        print(f"{operation} on {kind}: {tried.count} power cuts")


@pytest.mark.parametrize(
    ("operation", "kind"), [("transaction", "ext4"), ("compaction", "xfs"), ("deletion", "ext4")]
)
def test_power_cuts_at_some_calls_of_an_operation(nursery, folder, scored, operation, kind):
    cut(nursery, scored, folder, kind, operation, range(4, 100, 17))


@pytest.mark.torture
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
@pytest.mark.parametrize("operation", operations.OPERATIONS)
def test_power_cuts_at_every_call_of_an_operation(nursery, folder, scored, operation, kind):
    cut(nursery, scored, folder, kind, operation, itertools.count(1))


def test_the_rig_sees_an_operation_that_says_too_much(nursery, folder):
    """The rig bites: what is said before it is done is not there after a cut."""
    with Disk(folder) as disk:
        cutting = CuttingOperation(nursery, disk, folder, "hasty")
        with pytest.raises(AssertionError, match="acknowledged and lost"):
            _ = [cutting.cut_at("before", number) for number in range(1, 20)]
