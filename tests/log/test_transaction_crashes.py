"""A transaction on a simulated disk: killed, cut off or failed at every call, it is all or nothing."""

import errno
from contextlib import suppress
from random import Random

import pytest

from penstock.errors import PenstockError, StoreFailed, TransactionPending
from penstock.testing.disk import SimulatedDisk
from tests.crash.rigs import scoring
from tests.log.dying import Killed
from tests.log.transaction_world import (
    NAME,
    Process,
    State,
    attach_all,
    prepared,
    read_state,
    reopened,
)
from tests.scoreboard import Scores

BEFORE = State().after(0)
AFTER = BEFORE.after(1)
CONFIGS = [{}, {"segment_bytes_max": 300}]


def run(disk: SimulatedDisk, *, staged: bool) -> None:
    process = Process(disk, 1)
    process.commit(process.transactions.open(NAME), 1, staged=staged)


def states_on_the_way(staged: bool, config: dict, power: int, random: Random):
    """Every disk that a kill, or some that a power cut, at any call could leave."""
    disk = prepared(**config)
    found: list[SimulatedDisk] = []

    def look(*_: object) -> None:
        found.append(disk.kill())
        found.extend(disk.crash_states(power, random))

    disk.on_call(look)
    run(disk, staged=staged)
    done = len(found)
    look()
    return found, done


def all_or_nothing(scored: Scores, staged: bool, config: dict, power: int, stride: int) -> None:
    seed = f"{staged} {config}"
    random = Random(seed)
    states, done = states_on_the_way(staged, config, power, random)
    with scoring(scored, 5, seed) as tried:
        tried.count = len(states)
        check_states(states, done, stride, random)


def check_states(states: list[SimulatedDisk], done: int, stride: int, random: Random) -> None:
    seen = set()
    for number, disk in enumerate(states):
        process, state = reopened(disk, random)
        assert state in (BEFORE, AFTER), f"{number}: {disk.describe()}"
        assert state == AFTER or number < done, "a commit that returned is lost"
        seen.add(state == AFTER)
        if number % stride == 0:
            go_on(process, state)
    assert seen == {True, False}


def go_on(process: Process, state: State) -> None:
    """Whatever was left, the same number and the next one can be committed."""
    outcome = process.commit(process.transactions.open(NAME), 1)
    assert outcome.repeated == (state == AFTER)
    assert read_state(process.store) == AFTER
    process.commit(process.transactions.open(NAME), 2, staged=True)
    assert read_state(process.store) == AFTER.after(2)


@pytest.mark.acceptance(84)
@pytest.mark.parametrize(("staged", "config"), [(False, CONFIGS[0]), (True, CONFIGS[1])])
def test_a_crash_at_any_call_leaves_all_or_nothing(staged, config, scored):
    all_or_nothing(scored, staged, config, power=1, stride=10)


@pytest.mark.torture
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("staged", [False, True])
def test_any_crash_at_any_call_leaves_all_or_nothing(staged, config, scored):
    all_or_nothing(scored, staged, config, power=40, stride=1)


def crashed_after_the_decision(staged: bool) -> list[SimulatedDisk]:
    """Disks on which the transaction is decided, durably or not, and not finished."""
    states, _ = states_on_the_way(staged, {}, 0, Random(0))
    return [disk for disk in states if is_decided(disk.kill()) and read_state_of(disk) != AFTER]


def read_state_of(disk: SimulatedDisk) -> State:
    return read_state(Process(disk.kill()).store)


def is_decided(disk: SimulatedDisk) -> bool:
    return Process(disk).transactions.last_number(NAME) == 1


@pytest.mark.parametrize("staged", [False, True])
def test_a_crash_while_it_is_rolled_forward_loses_and_doubles_nothing(staged, scored):
    random = Random(staged)
    with scoring(scored, 5, staged) as tried:
        tried.count = crash_while_opening(staged, random)


def crash_while_opening(staged: bool, random: Random) -> int:
    """How many disks were looked at."""
    looked_at = 0
    pending = crashed_after_the_decision(staged)
    # The first of them was killed between the write of the decision and its sync.
    assert not all(map(is_decided, pending[0].crash_states(8, random)))
    for disk in pending[:1] + pending[9::20]:
        durable = all(map(is_decided, disk.crash_states(8, random)))
        at = 1
        while left := kill_while_opening(disk.kill(), at, random, durable=durable):
            looked_at += left
            at += random.randint(2, 5)
    return looked_at


def kill_while_opening(disk: SimulatedDisk, at: int, random: Random, *, durable: bool) -> int:
    """Kill whoever rolls forward at a call, look, and let another one do it; how many disks that left, 0 at the end.

    A decision that was not durable may be lost, as long as nothing has followed from it.
    """
    calls = []

    def die(*call: str) -> None:
        calls.append(call)
        if len(calls) == at:
            raise Killed

    disk.on_call(die)
    with suppress(Killed):
        process = Process(disk)
        if random.random() < 0.5:
            attach_all(process)
        process.transactions.open(NAME)
        return 0
    lefts = [disk.kill(), *disk.crash_states(2, random)]
    for left in lefts:
        _, state = reopened(left, random)
        assert state == AFTER or (state == BEFORE and not durable), left.describe()
    return len(lefts)


OPERATIONS = ["open", "read", "write", "truncate", "sync", "sync_directory", "status", "unlink"]
FAULTS = [(operation, False) for operation in OPERATIONS] + [("write", True), ("sync", True)]


@pytest.mark.parametrize(("operation", "forever"), FAULTS)
def test_a_failing_disk_is_told_truly_and_mended_later(operation, forever):
    at = 1
    while fail_at(operation, at, forever=forever, error=errno.ENOSPC if at % 3 else errno.EIO):
        # There are many looks and reads, and all are much the same.
        at += 1 if operation not in ("status", "read") else 7


def fail_at(operation: str, at: int, *, forever: bool, error: int) -> bool:
    """Whether the fault fired; what was told must be what is there once the disk is well again."""
    disk = prepared()
    process = Process(disk, 1)
    lease = process.transactions.open(NAME)
    fault = disk.fail(operation, error, at=at, forever=forever, short=at % 40)
    allowed = [AFTER]
    try:
        process.commit(lease, 1, staged=at % 2 == 0)
    except TransactionPending:
        pass
    except StoreFailed as told:
        unknown = "happened" in told.fields and told.fields["happened"] is None
        allowed = [BEFORE, AFTER] if unknown else [BEFORE]
    except PenstockError:
        allowed = [BEFORE]
    if not fault.fired:
        return False
    disk.heal()
    random = Random(at)
    for left in (disk.kill(), *disk.crash_states(1, random)):
        _, state = reopened(left, random)
        assert state in allowed, (at, allowed, left.describe())
    # The same process may go on too.
    assert process.commit(process.transactions.open(NAME), 1).number == 1
    assert read_state(process.store) == AFTER
    return True
