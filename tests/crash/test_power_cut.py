"""Real power cuts: a file system of its own is shut down without its log, then mounted again."""

import random
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from tests.crash.disks import Disk
from tests.crash.ledger import Ledger
from tests.crash.rigs import Child, Nursery, listen, scoring, seed_of
from tests.crash.said import Kind, Spec
from tests.crash.windows import Policy, Window
from tests.scoreboard import Scores, amount, short_amount

POLICIES = {
    "every message": Policy({"fsync": "every_message", "partitions": 2}, records=0),
    "every 20": Policy(
        {"fsync": "every_n_messages", "fsync_messages": 20, "partitions": 1}, records=19, seconds=1
    ),
    "timed 30 ms": Policy(
        {"fsync": "timed", "fsync_interval_ms": 30, "partitions": 2}, seconds=0.03
    ),
}
MORE_POLICIES = {
    "every 10,000 or 100 ms": Policy(
        {"fsync": "every_n_messages", "fsync_messages": 10_000, "fsync_interval_ms": 100},
        records=9_999,
        seconds=0.1,
    ),
    "timed 200 ms": Policy({"fsync": "timed", "fsync_interval_ms": 200}, seconds=0.2),
}
CUTS_OF_A_DISK = 50


class Cutting:
    """Writers with each policy work on one disk until its power is cut; again and again."""

    simple = False
    """Writers that publish one record after the other and never ask for a sync."""
    work_seconds = 0.3
    segment_bytes = 20_000

    def __init__(
        self,
        nursery: Nursery,
        disk: Disk,
        seed: int,
        windows: Mapping[str, Window],
        fault: str = "",
    ) -> None:
        self.nursery = nursery
        self.disk = disk
        self.random = random.Random(seed)
        self.fault = fault
        self.numbers = 0
        self.windows = windows
        self.cut_at = 0.0
        self.last: dict[str, Child] = {}
        self.ledgers = {
            name: Ledger(
                disk.root / "log",
                name.replace(" ", "-").replace(",", ""),
                {"segment_bytes_max": self.segment_bytes, **window.policy.config},
            )
            for name, window in windows.items()
        }

    def start(self, name: str) -> Child:
        self.numbers += 1
        ledger = self.ledgers[name]
        spec = Spec(
            path=str(ledger.path),
            topic=ledger.topic,
            writer=self.numbers,
            seed=self.random.getrandbits(32),
            config=ledger.config,
            subscriber=f"reader-of-{ledger.topic}",
            fault=self.fault,
            tells_syncs=not self.fault,
            simple=self.simple,
        )
        return self.nursery.start(spec)

    def cut(self) -> None:
        """One power cut, at any moment from the start of the writers on."""
        self.last = children = {name: self.start(name) for name in self.windows}
        everybody = list(children.values())
        if self.random.random() < 0.8:
            listen(everybody, 5.0, until=[Kind.OPENED])
        listen(everybody, self.random.uniform(0, self.work_seconds))
        self.cut_at = time.monotonic()
        self.disk.cut()
        for child in everybody:
            child.kill()
        for name, child in children.items():
            self.nursery.wait(child)
            # What was said after the cut counts too: it must have been true.
            self.ledgers[name].take(child)
            self.ledgers[name].score.crashes += 1
        self.disk.power_on()

    def check(self, *, again: bool = False) -> None:
        for name, ledger in self.ledgers.items():
            lost_before = len(ledger.lost)
            ledger.check_now(
                again=again,
                exact=self.windows[name].policy.exact,
                subscribers=[f"reader-of-{ledger.topic}"],
            )
            lost = ledger.lost[lost_before:]
            self.windows[name].note(lost, self.last[name], self.cut_at)


class CuttingSimple(Cutting):
    """So that the policy alone decides when the log syncs."""

    simple = True
    work_seconds = 0.6
    # A new segment would sync the one before it.
    segment_bytes = 4 << 20


class CuttingLong(CuttingSimple):
    """Longer than any window that is stated."""

    work_seconds = 2.0


def cut_disk(cutting: Cutting, cuts: int) -> int:
    """So many cuts of one disk; how many records were acknowledged."""
    for number in range(cuts):
        cutting.cut()
        cutting.check(again=number % 10 == 9 or number == cuts - 1)
    return sum(ledger.score.acknowledged for ledger in cutting.ledgers.values())


def cut(
    nursery: Nursery,
    request: pytest.FixtureRequest,
    scored: Scores,
    folder: Path,
    kind: str,
    cuts: int,
) -> None:
    seed = seed_of(request)
    windows = {name: Window(policy) for name, policy in POLICIES.items()}
    acknowledged = 0
    with scoring(scored, 3, seed) as tried:
        for number, done in enumerate(range(0, cuts, CUTS_OF_A_DISK)):
            some = min(CUTS_OF_A_DISK, cuts - done)
            tried.count += some
            with Disk(folder, kind) as disk:
                cutting = Cutting(nursery, disk, seed + number, windows)
                acknowledged += cut_disk(cutting, some)
        tried.measured[f"{kind}_acknowledged_before_cuts"] = acknowledged
        assert acknowledged > cuts
        assert not sum(window.over for window in windows.values()), "over the stated window"


@pytest.mark.acceptance(11, 53, 54, 55)
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_power_cut_takes_no_more_than_the_policy_says(nursery, request, scored, folder, kind):
    cut(nursery, request, scored, folder, kind, short_amount(3) // 2)


@pytest.mark.torture
@pytest.mark.acceptance(11, 53, 54, 55)
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_thousands_of_power_cuts(nursery, request, scored, folder, kind):
    cut(nursery, request, scored, folder, kind, max(1, amount(3) // 2))


@pytest.mark.parametrize("fault", ["lies", "lags"])
def test_the_rig_sees_a_disk_layer_that_does_not_sync(nursery, request, folder, fault):
    """The rig bites: without syncs, or with each done too late, records are lost or nothing opens."""
    windows = {name: Window(policy) for name, policy in POLICIES.items()}
    with Disk(folder) as disk:
        cutting = Cutting(nursery, disk, seed_of(request), windows, fault)
        for _ in range(20):
            cutting.cut()
            try:
                cutting.check()
            except (AssertionError, PenstockError) as failure:
                print(f"{request.node.name}: caught: {str(failure).splitlines()[0]}")
                return
    pytest.fail("twenty power cuts lost nothing: the rig sees nothing")


# --------------------------------------------------------------------------- the window of loss


def measure(
    nursery: Nursery,
    folder: Path,
    seed: int,
    policies: Mapping[str, Policy],
    cuts: int,
    rig: type[Cutting] = CuttingSimple,
) -> dict[str, Window]:
    """The window of each policy over so many cuts."""
    windows = {name: Window(policy) for name, policy in policies.items()}
    for number, done in enumerate(range(0, cuts, CUTS_OF_A_DISK)):
        with Disk(folder) as disk:
            cutting = rig(nursery, disk, seed + number, windows)
            cut_disk(cutting, min(CUTS_OF_A_DISK, cuts - done))
    return windows


def measure_windows(
    nursery: Nursery, request: pytest.FixtureRequest, scored: Scores, folder: Path, cuts: int
) -> None:
    seed = seed_of(request)
    windows = measure(nursery, folder, seed, {**POLICIES, **MORE_POLICIES}, cuts)
    measured: dict[str, float] = {}
    for name, window in windows.items():
        print(
            f"{request.node.name}: {name}: {window.cuts} cuts, at most {window.records} records "
            f"and {window.seconds * 1000:.0f} ms, of it {window.own_seconds * 1000:.0f} ms without "
            f"syncs and waiting; stated {window.policy}; over {window.over}"
        )
        measured[f"{name}:_lost_records"] = window.records
        measured[f"{name}:_lost_ms"] = round(window.seconds * 1000)
        measured[f"{name}:_lost_ms_without_syncs_and_waiting"] = round(window.own_seconds * 1000)
    over = sum(window.over > 0 for window in windows.values())
    scored(20, tried=len(windows), bad=over, seed=seed, **measured)


def test_the_window_of_loss_of_each_policy_is_the_stated_one(nursery, request, scored, folder):
    measure_windows(nursery, request, scored, folder, 8)


@pytest.mark.torture
@pytest.mark.timeout(14_400)
def test_the_window_of_loss_of_each_policy_over_many_cuts(nursery, request, scored, folder):
    measure_windows(nursery, request, scored, folder, max(8, amount(3) // 10))


def test_the_rig_sees_a_window_that_is_greater_than_stated(nursery, request, folder):
    """The rig bites: a topic that syncs every five seconds is not one that syncs every 30 ms."""
    slow = {"fsync": "timed", "fsync_interval_ms": 5_000}
    policies = {"timed 30 ms": Policy(slow, seconds=0.03)}
    windows = measure(nursery, folder, seed_of(request), policies, 6, CuttingLong)
    assert windows["timed 30 ms"].over
