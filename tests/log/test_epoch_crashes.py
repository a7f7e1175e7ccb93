"""A process dies, or the power goes, at any call of a repartition: old epoch or new, never both."""

from functools import partial
from random import Random

import pytest

from penstock.errors import PenstockError
from penstock.log.topic import FsyncPolicy, TopicConfig
from penstock.testing.disk import SimulatedDisk
from tests.crash.rigs import scoring
from tests.log.dying import die_at
from tests.log.epoch_world import Publisher, check_disk, check_order

RECORDS = 12
FULL = [(2, 4), (4, 2), (1, 3), (3, 1)]
LONG = [
    pytest.param(before, after, marks=[pytest.mark.torture, pytest.mark.timeout(3_600)])
    for before, after in FULL
]
STEPS = [(1, 2), (2, 1), *LONG]


def topic_with_records(
    partitions: int, policy: FsyncPolicy = FsyncPolicy.EVERY_MESSAGE
) -> tuple[SimulatedDisk, Publisher, Publisher]:
    """A topic with two epochs, and two processes that have it open."""
    disk = SimulatedDisk()
    one = Publisher(disk, TopicConfig(partitions=3, fsync=policy))
    for value in range(RECORDS // 2):
        one.publish(value)
    one.repartition(partitions)
    other = Publisher(disk)
    for value in range(RECORDS // 2, RECORDS):
        (one if value % 2 else other).publish(value)
    return disk, one, other


@pytest.mark.parametrize(("before", "after"), STEPS)
def test_a_process_that_dies_at_any_call_leaves_one_truth_to_those_that_go_on(
    before, after, scored
):
    with scoring(scored, 5, "every one") as tried:
        tried.count = die_at_every_call(before, after)


def die_at_every_call(before: int, after: int) -> int:
    """How many calls there are."""
    call, died = 0, True
    while died:
        call += 1
        disk, one, other = topic_with_records(before)
        died = die_at(disk, call, partial(one.repartition, after))
        for value in range(RECORDS, RECORDS + 10):
            other.publish(value)
        assert check_order(other.replay()) == list(range(RECORDS + 10))
        assert other.topic.state.partitions in (before, after)
        assert set(other.heads()) == {other.topic.state.epoch}
        check_disk(disk.kill(), RECORDS + 10, (before, after))
    assert call > 20
    return call


@pytest.mark.parametrize("policy", [FsyncPolicy.EVERY_MESSAGE, FsyncPolicy.TIMED])
@pytest.mark.parametrize(("before", "after"), STEPS)
def test_every_power_cut_during_a_repartition_leaves_one_truth(before, after, policy, scored):
    with scoring(scored, 5, before) as tried:
        tried.count = cut_at_every_sync(before, after, policy, 20 if (before, after) in FULL else 3)


def cut_at_every_sync(before: int, after: int, policy: FsyncPolicy, limit: int) -> int:
    """How many disks were looked at."""
    disk, one, _ = topic_with_records(before, policy)
    random = Random(before)
    durable = RECORDS if policy is FsyncPolicy.EVERY_MESSAGE else 0
    written = RECORDS
    checked = 0

    def check_all() -> None:
        nonlocal checked
        for state in disk.crash_states(limit, random):
            check_disk(state, durable, (before, after), written)
            checked += 1

    disk.on_sync(lambda point: check_all())
    one.repartition(after)
    durable = RECORDS
    check_all()
    for written in range(RECORDS + 1, RECORDS + 4):
        one.publish(written - 1)
    assert checked > 10
    return checked


@pytest.mark.parametrize("operation", ["write", "sync", "rename", "try_lock", "read"])
def test_any_call_of_a_repartition_may_fail(operation):
    at, fired = 0, True
    while fired:
        at += 1
        disk, one, other = topic_with_records(1)
        fault = disk.fail(operation, at=at)
        try:
            one.repartition(2)
        except PenstockError:
            assert fault.fired, "an error without a cause"
        fired = bool(fault.fired)
        disk.heal()
        for value in range(RECORDS, RECORDS + 10):
            other.publish(value)
        assert check_order(other.replay()) == list(range(RECORDS + 10))
        check_disk(disk.kill(), RECORDS + 10, (1, 2))
    assert at > 1
