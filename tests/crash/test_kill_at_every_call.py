"""SIGKILL before, in the middle of and after every call that changes the disk, one by one."""

import itertools
import random
import shutil
from pathlib import Path

import pytest

from tests.crash.rigs import Ledger, Nursery, Score, need, run_under_strace, seed_of
from tests.crash.writer import Spec

KILLED = -9
CONFIGS = [
    {"fsync": "every_message", "partitions": 1, "segment_bytes_max": 3_000},
    {"fsync": "every_n_messages", "fsync_messages": 7, "partitions": 2, "segment_bytes_max": 3_000},
]


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
        path = self.folder / "log"
        shutil.rmtree(path, ignore_errors=True)
        return Ledger(path, "orders", self.config, score=self.score)

    def spec(self, ledger: Ledger, writer: int, steps: int, **fault: object) -> Spec:
        return Spec(
            path=str(ledger.path),
            topic="orders",
            writer=writer,
            seed=self.seed,
            config=self.config,
            steps=steps,
            subscriber="reader",
            **fault,  # type: ignore[arg-type]
        )

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
    first = range(1, 40) if stride > 1 else ()
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


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.acceptance(11, 46, 56)
@pytest.mark.parametrize("again", [False, True], ids=["once", "again"])
@pytest.mark.parametrize("when", ["before", "middle", "after"])
@pytest.mark.parametrize("config", CONFIGS, ids=["every_message", "every_n_messages"])
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


def kill_at_system_call(folder: Path, seed: int, call: str, number: int, score: Score) -> bool:
    """The kernel kills the writer at its n-th such call; whether it made that many.

    The number counts in each thread by itself. No layer of ours takes part.
    """
    path = folder / f"{call}-{number}"
    path.mkdir()
    ledger = Ledger(path / "log", "orders", CONFIGS[1], score=score)
    spec = Spec(
        path=str(ledger.path),
        topic="orders",
        writer=1,
        seed=seed,
        config=ledger.config,
        steps=15,
        subscriber="reader",
    )
    options = ["-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={number}"]
    child, code = run_under_strace(spec, options, path / "trace")
    assert code in {KILLED, 0}, child.frames[-3:]
    ledger.take(child)
    ledger.check_now(again=True, subscribers=["reader"])
    shutil.rmtree(path)
    score.crashes += code == KILLED
    return code == KILLED


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
@pytest.mark.parametrize("call", SYSTEM_CALLS)
def test_a_kill_by_the_kernel_at_every_system_call_loses_nothing(folder, request, call):
    need("strace", "strace")
    seed = seed_of(request)
    score = Score()
    numbers = itertools.count(1)
    while kill_at_system_call(folder, seed, call, next(numbers), score):
        pass
    print(f"{request.node.name}: {score}")
