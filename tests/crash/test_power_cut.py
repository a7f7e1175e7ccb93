"""Real power cuts: a file system of its own is shut down without its log, then mounted again."""

import random
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from tests.crash.rigs import Child, Disk, Ledger, Nursery, listen, seed_of
from tests.crash.writer import Kind, Spec

EVERY_N = 20
POLICIES = {
    "every_message": {"fsync": "every_message", "partitions": 2},
    "every_n_messages": {"fsync": "every_n_messages", "fsync_messages": EVERY_N, "partitions": 1},
    "timed": {"fsync": "timed", "fsync_interval_ms": 30, "partitions": 2},
}
SMALL_SEGMENTS = {"segment_bytes_max": 20_000}


class Cutting:
    """Writers with each policy work on one disk until its power is cut; again and again."""

    def __init__(self, nursery: Nursery, disk: Disk, seed: int, fault: str = "") -> None:
        self.nursery = nursery
        self.disk = disk
        self.random = random.Random(seed)
        self.fault = fault
        self.numbers = 0
        self.ledgers = {
            policy: Ledger(
                disk.root / "log", policy.replace("_", "-"), {**SMALL_SEGMENTS, **config}
            )
            for policy, config in POLICIES.items()
        }
        self.windows: list[float] = []

    def start(self, policy: str) -> Child:
        self.numbers += 1
        ledger = self.ledgers[policy]
        spec = Spec(
            path=str(ledger.path),
            topic=ledger.topic,
            writer=self.numbers,
            seed=self.random.getrandbits(32),
            config=ledger.config,
            subscriber=f"reader-of-{ledger.topic}",
            fault=self.fault,
        )
        return self.nursery.start(spec)

    def cut(self) -> None:
        """One power cut, at any moment from the start of the writers on."""
        children = {policy: self.start(policy) for policy in POLICIES}
        if self.random.random() < 0.8:
            listen(list(children.values()), 5.0, until=[Kind.OPENED])
        listen(list(children.values()), self.random.uniform(0, 0.3))
        self.disk.cut()
        for policy, child in children.items():
            self.nursery.kill(child)
            # What was said after the cut counts too: it must have been true.
            self.ledgers[policy].take(child)
            self.ledgers[policy].score.crashes += 1
        self.disk.power_on()
        self.last = children

    def check(self, *, again: bool = False) -> None:
        for policy, ledger in self.ledgers.items():
            lost_before = len(ledger.lost)
            ledger.check_now(
                again=again,
                exact=policy == "every_message",
                subscribers=[f"reader-of-{ledger.topic}"],
            )
            lost = ledger.lost[lost_before:]
            if policy == "every_n_messages":
                assert len(lost) < EVERY_N, "more is lost than the policy says"
            if policy == "timed":
                self.note_window([promise.time for promise in lost])

    def note_window(self, lost: list[float]) -> None:
        """How far back the records that TIMED lost reach; a virtual clock tells it exactly."""
        if lost:
            last = self.last["timed"].frames[-1].time
            self.windows.append(last - min(lost))

    def print_scores(self, name: str) -> None:
        for policy, ledger in self.ledgers.items():
            print(f"{name} {policy}: {ledger.score}")
        longest = max(self.windows, default=0) * 1000
        print(f"{name} timed: longest window {longest:.0f} ms, interval 30 ms and a sync")


def cut(
    nursery: Nursery, request: pytest.FixtureRequest, folder: Path, kind: str, cuts: int
) -> None:
    seed = seed_of(request)
    with Disk(folder, kind) as disk:
        cutting = Cutting(nursery, disk, seed)
        for number in range(cuts):
            cutting.cut()
            cutting.check(again=number % 10 == 9)
        cutting.check(again=True)
        cutting.print_scores(request.node.name)
        assert cutting.ledgers["every_message"].score.acknowledged > cuts
        assert cutting.ledgers["every_message"].score.lost == 0


@pytest.mark.acceptance(11, 53, 54, 55)
@pytest.mark.timeout(180)
def test_a_power_cut_takes_no_more_than_the_policy_says(nursery, request, tmp_path):
    cut(nursery, request, tmp_path, "ext4", 20)


@pytest.mark.torture
@pytest.mark.acceptance(11, 53, 54, 55)
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_hundreds_of_power_cuts(nursery, request, tmp_path, kind):
    cut(nursery, request, tmp_path, kind, 300)


def test_the_rig_sees_a_disk_layer_that_does_not_sync(nursery, request, tmp_path):
    """The rig bites: without syncs the same cuts lose records, or the log does not open."""
    with Disk(tmp_path) as disk:
        cutting = Cutting(nursery, disk, seed_of(request), fault="lies")
        for _ in range(10):
            cutting.cut()
            try:
                cutting.check()
            except (AssertionError, PenstockError) as failure:
                print(f"{request.node.name}: caught: {str(failure).splitlines()[0]}")
                return
    pytest.fail("ten power cuts without syncs lost nothing: the rig sees nothing")
