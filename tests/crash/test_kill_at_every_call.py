"""SIGKILL before, in the middle of and after every call that changes the disk, one by one."""

import itertools
import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.crash.rigs import Ledger, Nursery, Score, need, run_under_strace, seed_of
from tests.crash.upkeep import TOMBSTONE_HOURS, UpkeepLedger
from tests.crash.writer import Spec

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


def walk(nursery, folder, request, config, when, stride, *, again=False):
    walk = Walk(nursery, folder, config, seed_of(request))
    numbers = itertools.count(1)
    if stride > 1:
        numbers = itertools.count(walk.random.randint(1, stride), stride)
    # The first calls make the log: none of them is left out.
    first = range(1, 40) if stride > 1 and config is not UPKEEP else ()
    for number in first:
        walk.die_at(when, number, again=again)
    while walk.die_at(when, next(numbers), again=again):
        pass
    print(f"{request.node.name}: {walk.score}")


@pytest.mark.acceptance(11, 46, 56)
@pytest.mark.parametrize("when", ["before", "middle", "after"])
@pytest.mark.parametrize("config", CONFIGS, ids=["every_message", "every_n_messages"])
def test_a_kill_at_any_call_loses_nothing(nursery, folder, request, config, when):
    walk(nursery, folder, request, config, when, stride=7)


@pytest.mark.acceptance(11, 46, 56)
@pytest.mark.parametrize("config", CONFIGS, ids=["every_message", "every_n_messages"])
def test_a_kill_during_recovery_from_a_kill_loses_nothing(nursery, folder, request, config):
    walk(nursery, folder, request, config, "after", stride=7, again=True)


@pytest.mark.acceptance(11, 46, 56)
@pytest.mark.parametrize("when", ["before", "middle", "after"])
def test_a_kill_at_any_call_of_upkeep_loses_nothing_that_must_stay(nursery, folder, request, when):
    walk(nursery, folder, request, UPKEEP, when, stride=19, again=when == "after")


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.acceptance(11, 46, 56)
@pytest.mark.parametrize("again", [False, True], ids=["once", "again"])
@pytest.mark.parametrize("when", ["before", "middle", "after"])
@pytest.mark.parametrize(
    "config", [*CONFIGS, UPKEEP], ids=["every_message", "every_n_messages", "upkeep"]
)
def test_a_kill_at_every_call_loses_nothing(nursery, folder, request, config, when, again):
    walk(nursery, folder, request, config, when, stride=1, again=again)


# ------------------------------------------------------------------------------------ by strace

SYSTEM_CALLS = [
    "pwritev2",
    "fdatasync",
    "fsync",
    "rename",
    "unlink",
    "ftruncate",
    "mkdir",
    "flock",
    "fstat",
    "pread64",
]


def kill_at_system_call(
    folder: Path, seed: int, call: str, number: int, score: Score, config: dict = CONFIGS[1]
) -> bool:
    """The kernel kills the writer at its n-th such call; whether it made that many.

    The number counts in each thread by itself. No layer of ours takes part.
    """
    path = folder / f"{call}-{number}"
    path.mkdir()
    ledger = new_ledger(path, config, score)
    spec = new_spec(ledger, writer=1, seed=seed, steps=15)
    options = ["-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={number}"]
    child, code = run_under_strace(spec, options, path / "trace")
    assert code in {KILLED, 0}, child.frames[-3:]
    made = calls_of_a_thread(path / "trace", call)
    assert code == KILLED or made < number, f"{made} calls of {call}, and no kill at {number}"
    ledger.take(child)
    ledger.check_now(again=True, subscribers=["reader"])
    shutil.rmtree(path)
    score.crashes += code == KILLED
    return code == KILLED


def calls_of_a_thread(trace: Path, call: str) -> int:
    """How often the thread that made most of these calls made one."""
    lines = [line.split() for line in trace.read_text().splitlines()]
    threads = Counter(thread for thread, what, *_ in lines if what.startswith(f"{call}("))
    return max(threads.values(), default=0)


@pytest.mark.acceptance(11)
def test_a_kill_by_the_kernel_at_a_system_call_loses_nothing(folder, request):
    need("strace", "strace")
    seed = seed_of(request)
    chance = random.Random(seed)
    score = Score()
    calls = ["pwritev2", "fdatasync", "fsync", "rename", "mkdir", "flock"]
    for call in calls:
        number = chance.randint(1, 9)
        while not kill_at_system_call(folder, seed, call, number, score):
            number //= 2
            assert number, f"{call} was never called"
    print(f"{request.node.name}: {score}")
    assert score.crashes == len(calls)


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.acceptance(11)
@pytest.mark.parametrize("config", [CONFIGS[1], UPKEEP], ids=["every_n_messages", "upkeep"])
@pytest.mark.parametrize("call", SYSTEM_CALLS)
def test_a_kill_by_the_kernel_at_every_system_call_loses_nothing(folder, request, call, config):
    need("strace", "strace")
    seed = seed_of(request)
    score = Score()
    numbers = itertools.count(1)
    while kill_at_system_call(folder, seed, call, next(numbers), score, config):
        pass
    print(f"{request.node.name}: {score}")
