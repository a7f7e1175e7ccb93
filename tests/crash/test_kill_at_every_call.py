"""SIGKILL before, in the middle of and after every call that changes the disk, one by one."""

import asyncio
import itertools
import json
import os
import random
import select
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError
from tests.crash import operations
from tests.crash.disks import need
from tests.crash.ledger import Ledger, Score
from tests.crash.rigs import DEADLINE_SECONDS, Nursery, scoring, seed_of
from tests.crash.said import Spec
from tests.crash.upkeep import TOMBSTONE_HOURS, UpkeepLedger

KILLED = -9
CONFIGS = [
    {"fsync": "every_message", "partitions": 1, "segment_bytes_max": 3_000},
    {"fsync": "every_n_messages", "fsync_messages": 7, "partitions": 2, "segment_bytes_max": 3_000},
]
UPKEEP = {
    "compact_keys": True,
    "segment_bytes_max": 3_000,
    "retention": {"age_ms_max": None, "bytes_max": None, "acknowledged": True},
}
"""A round of key compaction, tiering and retention follows each step."""


def new_ledger(folder: Path, config: dict, score: Score) -> Ledger:
    """The ledger of a log in a folder; the tier of one with upkeep is beside it."""
    path = folder / "log"
    if config is not UPKEEP:
        return Ledger(path, "orders", config, score=score)
    tier = str(folder / "tier")
    return UpkeepLedger(path, "orders", config, score=score, varied=True, tier=tier)


def new_spec(ledger: Ledger, **how: Any) -> Spec:
    """A writer on the log of a ledger; upkeep has a clock that is a day ahead for each writer."""
    spec = Spec(
        path=str(ledger.path), topic="orders", config=ledger.config, subscriber="reader", **how
    )
    if not isinstance(ledger, UpkeepLedger):
        return spec
    hours = TOMBSTONE_HOURS * spec.writer
    return replace(spec, tier=ledger.tier, varied=True, upkeep="between", hours=hours)


class Walk:
    """Runs the same work over and over and kills it at one call later each time."""

    def __init__(self, nursery: Nursery, folder: Path, config: dict, seed: int) -> None:
        self.nursery = nursery
        self.folder = folder
        self.config = config
        self.seed = seed
        self.random = random.Random(seed)
        self.score = Score()

    def ledger(self) -> Ledger:
        for name in ("log", "tier"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        return new_ledger(self.folder, self.config, self.score)

    def spec(self, ledger: Ledger, writer: int, steps: int, **fault: Any) -> Spec:
        return new_spec(ledger, writer=writer, seed=self.seed, steps=steps, **fault)

    def die_at(self, when: str, number: int, *, again: bool) -> bool:
        """Whether the work was still going on at that call."""
        ledger = self.ledger()
        ledger.tears = again or when == "middle"
        child = self.nursery.start(self.spec(ledger, 1, 12, fault=when, fault_at=number))
        code = self.nursery.wait(child)
        assert code in {KILLED, 0}, child.frames[-3:]
        ledger.take(child)
        if again:
            self.die_while_recovering(ledger)
        ledger.check_now(again=True, subscribers=["reader"])
        self.score.crashes += code == KILLED
        return code == KILLED

    def die_while_recovering(self, ledger: Ledger) -> None:
        """Another writer finds what the first left, and dies early too."""
        when = self.random.choice(["before", "middle", "after"])
        at = self.random.randint(1, 25)
        child = self.nursery.start(self.spec(ledger, 2, 3, fault=when, fault_at=at))
        assert self.nursery.wait(child) in {KILLED, 0}, child.frames[-3:]
        self.score.crashes += 1
        ledger.take(child)


def walk(nursery, folder, request, scored, config, when, stride, *, again=False):
    seed = seed_of(request)
    walk = Walk(nursery, folder, config, seed)
    numbers = itertools.count(1)
    if stride > 1:
        numbers = itertools.count(walk.random.randint(1, stride), stride)
    # The first calls make the log: none of them is left out.
    first = range(1, 40) if stride > 1 and config is not UPKEEP and when == "before" else ()
    with scoring(scored, 1, seed) as tried:
        for number in first:
            walk.die_at(when, number, again=again)
        while walk.die_at(when, next(numbers), again=again):
            pass
        tried.count = walk.score.crashes
    print(f"{request.node.name}: {walk.score}")


@pytest.mark.acceptance(11, 46, 56)
@pytest.mark.parametrize("when", ["before", "middle", "after"])
@pytest.mark.parametrize("config", CONFIGS, ids=["every_message", "every_n_messages"])
def test_a_kill_at_any_call_loses_nothing(nursery, folder, request, scored, config, when):
    walk(nursery, folder, request, scored, config, when, stride=14)


@pytest.mark.acceptance(11, 46, 56)
@pytest.mark.parametrize("config", CONFIGS, ids=["every_message", "every_n_messages"])
def test_a_kill_during_recovery_from_a_kill_loses_nothing(nursery, folder, request, scored, config):
    walk(nursery, folder, request, scored, config, "after", stride=14, again=True)


@pytest.mark.acceptance(11, 46, 56)
@pytest.mark.parametrize("when", ["before", "middle", "after"])
def test_a_kill_at_any_call_of_upkeep_loses_nothing_that_must_stay(
    nursery, folder, request, scored, when
):
    walk(nursery, folder, request, scored, UPKEEP, when, stride=29, again=when == "after")


@pytest.mark.torture
@pytest.mark.timeout(14_400)
@pytest.mark.acceptance(11, 46, 56)
@pytest.mark.parametrize("again", [False, True], ids=["once", "again"])
@pytest.mark.parametrize("when", ["before", "middle", "after"])
@pytest.mark.parametrize(
    "config", [*CONFIGS, UPKEEP], ids=["every_message", "every_n_messages", "upkeep"]
)
def test_a_kill_at_every_call_loses_nothing(nursery, folder, request, scored, config, when, again):
    walk(nursery, folder, request, scored, config, when, stride=1, again=again)


# ------------------------------------------------------------------------------------ by strace

CHANGING = (
    *("pwrite64", "pwritev", "pwritev2", "ftruncate", "fallocate", "fdatasync", "fsync"),
    *("rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat"),
    *("mkdir", "mkdirat", "rmdir"),
)
"""Between two of these nothing changes that outlives a process."""
OTHERS = (
    *("write", "flock", "open", "openat", "close", "read", "pread64", "preadv", "preadv2", "lseek"),
    *("stat", "fstat", "lstat", "newfstatat", "statx", "access", "faccessat2", "getdents64"),
    *("readlink", "fcntl", "dup", "dup3"),
    *("inotify_init1", "inotify_add_watch", "inotify_rm_watch"),
)


class Traced:
    """One operation after the other under strace, each killed at one of its system calls.

    The kernel kills it before the call; no layer of ours takes part. An operation runs in one
    thread and finds the same log each time, so the n-th call is always the same one.
    """

    def __init__(self, nursery: Nursery, folder: Path, operation: str) -> None:
        self.nursery = nursery
        self.operation = operation
        self.place = folder / "place"
        self.base = folder / "base"
        self.trace = folder / "trace"
        self.seen: set[int] = set()
        self.base.mkdir()
        asyncio.run(operations.prepare(self.base, operation))

    def points(self, calls: Sequence[str]) -> list[tuple[str, int]]:
        """Every call of the operation, by its name and number; the others touch no file of the log."""
        code, _ = self.run(["all"], ["--decode-fds=path"])
        assert code == 0, f"{self.operation} ends by itself with {code}"
        lines = self.trace.read_text().splitlines()
        made = Counter(line.split("(")[0] for line in lines)
        left_out = made.keys() - {*CHANGING, *OTHERS}
        print(f"{self.operation} also makes {sum(made[one] for one in left_out)} other calls")
        touching = [
            one for one in lines if one.split("(")[0] in left_out and str(self.place) in one
        ]
        assert not touching, touching[:3]
        assert any(str(self.place) in one for one in lines), "the rig sees no path"
        return [(call, number + 1) for call in calls for number in range(made[call])]

    def die_at(self, call: str, number: int) -> bool:
        """Whether it died at that call; what it left is checked in any case."""
        fault = f"inject={call}:signal=SIGKILL:when={number}"
        code, said = self.run([call], ["-e", fault])
        left = {path: path.read_bytes() for path in self.place.rglob("*") if path.is_file()}
        key = hash((repr(said), *sorted(left.items())))
        if key in self.seen:
            # Nothing was changed between two calls.
            return code == KILLED
        self.seen.add(key)
        try:
            asyncio.run(operations.check(self.place, self.operation, said))
        except (AssertionError, PenstockError) as failure:
            failure.add_note(f"{self.operation} was killed at {call} {number}; it said {said}")
            raise
        return code == KILLED

    def run(self, calls: Sequence[str], options: Sequence[str]) -> tuple[int, operations.Said]:
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self.base, self.place)
        order = json.dumps([self.operation, str(self.place)])
        pid, pipe = self.nursery.fork(f"operation {order}")
        command = ["strace", "-o", str(self.trace), "-e", f"trace={','.join(calls)}", *options]
        wait_until_stopped(pid)
        with subprocess.Popen([*command, "-p", str(pid)], stderr=subprocess.PIPE) as strace:
            assert strace.stderr is not None
            line = strace.stderr.readline()
            assert b"attached" in line, line
            os.kill(pid, signal.SIGCONT)
            said = operations.Said()
            said.take(hear_out(pid, pipe))
            code = self.nursery.reap(pid)
        return code, said


def wait_until_stopped(pid: int) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "T":
        assert time.monotonic() < deadline, "the process does not stop"
        select.select([], [], [], 0.0005)


def hear_out(pid: int, pipe: int) -> bytes:
    """All that a process says until its end."""
    heard = b""
    with open(pipe, "rb", buffering=0) as file:
        while True:
            if not select.select([file], [], [], DEADLINE_SECONDS)[0]:
                os.kill(pid, signal.SIGKILL)
                raise AssertionError(f"it does not end; it said {heard!r}")
            if not (more := file.read(65_536)):
                return heard
            heard += more


def kill_at_every_point(nursery, folder, request, scored, operation, calls):
    need("strace", "strace")
    traced = Traced(nursery, folder, operation)
    points = traced.points(calls)
    with scoring(scored, 2, seed="every one") as tried:
        tried.count = len(points)
        missed = [point for point in points if not traced.die_at(*point)]
        tried.measured[f"points_of_{operation}"] = len(points)
        print(f"{request.node.name}: {len(points)} points, not covered: {missed}")
        assert not missed


@pytest.mark.acceptance(11)
@pytest.mark.parametrize("operation", operations.OPERATIONS)
def test_a_kill_by_the_kernel_at_every_change_loses_nothing(
    nursery, folder, request, scored, operation
):
    kill_at_every_point(nursery, folder, request, scored, operation, CHANGING)


@pytest.mark.torture
@pytest.mark.timeout(14_400)
@pytest.mark.acceptance(11)
@pytest.mark.parametrize("operation", operations.OPERATIONS)
def test_a_kill_by_the_kernel_at_every_system_call_loses_nothing(
    nursery, folder, request, scored, operation
):
    kill_at_every_point(nursery, folder, request, scored, operation, [*CHANGING, *OTHERS])


def test_the_rig_sees_an_operation_that_says_too_much(nursery, folder):
    """The rig bites: at some call, what was said is not so yet."""
    need("strace", "strace")
    traced = Traced(nursery, folder, "hasty")
    points = traced.points(CHANGING)
    with pytest.raises(AssertionError, match="acknowledged and lost"):
        _ = [traced.die_at(*point) for point in points]
