"""SIGKILL at any moment: nothing that was acknowledged is lost, whatever the policy."""

import random
from pathlib import Path

import pytest

from tests.crash.rigs import Child, Ledger, Nursery, listen, seed_of
from tests.crash.writer import Kind, Spec

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


class Killing:
    """Starts writers on one log and kills them, again and again; the log grows."""

    checks = 0.7
    """How often the log is checked. Otherwise the next writer finds it as the dead one left it."""
    patience = 60
    """Up to so many things are heard from a writer before it is killed."""

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
            assert self.nursery.kill(child) == -9, "the writer ended by itself"
            self.ledger.score.crashes += 1
        for child in children:
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


def kill(nursery, request, path, policy, writers, crashes):
    killing = Killing(nursery, path, POLICIES[policy], seed_of(request), writers)
    killing.run(crashes)
    print(f"{request.node.name}: {killing.ledger.score}")
    assert killing.ledger.score.acknowledged > crashes
    if policy == "with retention":
        print(f"{request.node.name}: retention removed up to {killing.ledger.earliest}")


@pytest.mark.acceptance(11, 17, 46)
@pytest.mark.parametrize(
    ("policy", "writers", "crashes"),
    [
        ("every_message", 1, 80),
        ("every_n_messages", 1, 50),
        ("timed", 1, 40),
        ("every_message", 2, 40),
        ("every_n_messages", 3, 30),
        ("with retention", 1, 40),
        ("with retention", 2, 40),
    ],
)
def test_killed_writers_lose_nothing_that_was_acknowledged(
    nursery, request, folder, policy, writers, crashes
):
    kill(nursery, request, folder, policy, writers, crashes)


@pytest.mark.torture
@pytest.mark.acceptance(11)
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("writers", [1, 2, 3])
@pytest.mark.parametrize("policy", POLICIES)
def test_thousands_of_killed_writers_lose_nothing(nursery, request, tmp_path, policy, writers):
    kill(nursery, request, tmp_path, policy, writers, 300)
