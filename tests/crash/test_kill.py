"""SIGKILL at any moment: nothing that was acknowledged is lost, whatever the policy."""

import itertools
import random
import shutil
from pathlib import Path

import pytest

from penstock.log.loop_worker import CommitOn
from tests.crash.ledger import Ledger, Score
from tests.crash.rigs import Child, Nursery, listen, scoring, seed_of
from tests.crash.said import Kind, Spec
from tests.scoreboard import amount, short_amount

POLICIES = {
    "every_message": {"fsync": "every_message", "partitions": 1},
    "every_n_messages": {"fsync": "every_n_messages", "fsync_messages": 10, "partitions": 3},
    "timed": {"fsync": "timed", "fsync_interval_ms": 20, "partitions": 2},
}
# Small enough that segments go all the time, while writers die.
POLICIES["with retention"] = {
    "partitions": 2,
    "retention": {"bytes_max": 30_000, "acknowledged": True},
}
SMALL_SEGMENTS = {"segment_bytes_max": 20_000}
KILLS_OF_A_LOG = 400


class Killing:
    """Starts writers on one log and kills them, again and again; the log grows."""

    checks = 0.7
    """How often the log is checked. Otherwise the next writer finds it as the dead one left it."""
    patience = 60
    """Up to so many things are heard from a writer before it is killed."""

    batch_max = 200
    fault = ""
    commit_on: CommitOn = "thread"

    def __init__(self, nursery: Nursery, path: Path, config: dict, seed: int, writers: int) -> None:
        self.random = random.Random(seed)
        self.nursery = nursery
        self.config = {**SMALL_SEGMENTS, **config}
        self.ledger = Ledger(path, "orders", self.config)
        self.writers = writers
        self.numbers = 0

    def start(self, place: int) -> Child:
        self.numbers += 1
        subscriber = f"reader-{place}"
        spec = Spec(
            path=str(self.ledger.path),
            topic="orders",
            writer=self.numbers,
            seed=self.random.getrandbits(32),
            config=self.config,
            subscriber=subscriber if self.random.random() < 0.8 else "",
            maintenance=0.005 if "retention" in self.config else None,
            batch_max=self.batch_max,
            fault=self.fault,
            commit_on=self.commit_on,
            simple=bool(self.fault),
        )
        return self.nursery.start(spec)

    def round(self) -> None:
        """Let writers work for a moment, kill each, check the log, now and then from the start."""
        children = [self.start(place) for place in range(self.writers)]
        if self.random.random() < 0.7:
            # Otherwise it dies while it opens the log.
            count = self.random.randint(1, self.patience * self.writers)
            listen(children, 5.0, until=[Kind.TRYING, Kind.ACKNOWLEDGED], count=count)
        for child in children:
            listen(children, self.random.uniform(0, 0.01))
            child.kill()
        for child in children:
            assert self.nursery.wait(child) == -9, "the writer ended by itself"
            self.ledger.score.crashes += 1
            self.ledger.take(child)
        if self.random.random() < self.checks:
            self.check(again=self.random.random() < 0.05)

    def check(self, *, again: bool) -> None:
        names = [f"reader-{place}" for place in range(self.writers)]
        self.ledger.check_now(again=again, subscribers=names)

    def has_done_its_work(self) -> bool:
        """Whether there was something to kill."""
        return "retention" not in self.config or max(self.ledger.earliest) > 0

    def run(self, crashes: int) -> None:
        while self.ledger.score.crashes < crashes or not self.has_done_its_work():
            self.round()
        self.check(again=True)


class KillingCrowd(Killing):
    """Many writers at once, with little to do each: most of what happens is death."""

    patience = 3
    batch_max = 8

    def __init__(self, nursery: Nursery, path: Path, config: dict, seed: int, writers: int) -> None:
        config = {**config, "segment_bytes_max": 4_000}
        if "retention" in config:
            config["retention"] = {**config["retention"], "bytes_max": 6_000}
        super().__init__(nursery, path, config, seed, writers)


class KillingOnLoop(KillingCrowd):
    """Writers whose event loops commit, without a thread."""

    commit_on = "loop"


class KillingHasty(KillingCrowd):
    """Writers that were told before the record was written."""

    fault = "hasty"


def kill(nursery, request, scored, path, policy, writers, crashes, rig=Killing):
    """Kill so many writers, on one log after the other; a log that is short is read quickly."""
    seed = seed_of(request)
    score = Score()
    with scoring(scored, 1, seed) as tried:
        for number in itertools.count():
            place = path / str(number)
            killing = rig(nursery, place, POLICIES[policy], seed + number, writers)
            killing.ledger.score = score
            try:
                killing.run(min(crashes, score.crashes + KILLS_OF_A_LOG))
            finally:
                tried.count = score.crashes
            shutil.rmtree(place)
            if score.crashes >= crashes:
                break
        tried.measured["acknowledged_before_kills"] = score.acknowledged
        assert score.acknowledged > crashes
    print(f"{request.node.name}: {score}")


FEW = [
    ("every_message", 1, 40),
    ("every_n_messages", 1, 30),
    ("timed", 1, 20),
    ("every_message", 2, 20),
    ("every_n_messages", 3, 21),
    ("with retention", 1, 25),
    ("with retention", 2, 24),
]
IN_A_CROWD = -(-(short_amount(1) - sum(crashes for *_, crashes in FEW)) // len(POLICIES))
"""How many writers of a crowd are killed with each policy, so that all of them are as many as there must be."""


@pytest.mark.parametrize("policy", POLICIES)
def test_killed_writers_that_commit_on_their_loops_lose_nothing(
    nursery, request, scored, folder, policy
):
    kill(nursery, request, scored, folder, policy, 2, 20, KillingOnLoop)


@pytest.mark.acceptance(11, 17, 46)
@pytest.mark.parametrize(("policy", "writers", "crashes"), FEW)
def test_killed_writers_lose_nothing_that_was_acknowledged(
    nursery, request, scored, folder, policy, writers, crashes
):
    kill(nursery, request, scored, folder, policy, writers, crashes)


@pytest.mark.acceptance(11, 17, 46)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_crowd_of_killed_writers_loses_nothing(nursery, request, scored, folder, policy):
    kill(nursery, request, scored, folder, policy, 8, IN_A_CROWD, KillingCrowd)


@pytest.mark.torture
@pytest.mark.acceptance(11)
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("writers", [1, 2, 3])
@pytest.mark.parametrize("policy", POLICIES)
def test_thousands_of_killed_writers_lose_nothing(
    nursery, request, scored, folder, policy, writers
):
    kill(nursery, request, scored, folder, policy, writers, max(50, amount(1) // 100))


@pytest.mark.torture
@pytest.mark.acceptance(11)
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("policy", POLICIES)
def test_crowds_of_killed_writers_lose_nothing(nursery, request, scored, folder, policy):
    kills = max(80, amount(1) * 21 // 100)
    kill(nursery, request, scored, folder, policy, 8, kills, KillingCrowd)


def test_the_rig_sees_an_acknowledgement_that_comes_too_early(nursery, request, folder):
    """The rig bites: what is acknowledged before it is written dies with the process."""
    killing = KillingHasty(nursery, folder, POLICIES["every_message"], seed_of(request), 1)
    with pytest.raises(AssertionError, match=r"lost|given twice") as caught:
        killing.run(300)
    print(f"{request.node.name}: caught: {str(caught.value).splitlines()[0]}")
