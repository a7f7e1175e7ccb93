"""Random runs on a simulated disk; at every sync, every disk that a power cut could leave is opened.

The invariants I1 to I6 are in ``tests/log/world.py``. The rig itself is tested: seeded bugs, here and in
``test_simulation_bugs.py``, each of which must make a named check fail.
"""

import errno
import itertools
import os
import time
from functools import partial

import pytest

from penstock.errors import PenstockError, Poisoned, StoreFailed
from penstock.log.frame import KIND_END
from penstock.log.partition import PartitionLog
from penstock.stores.folders import Folders
from tests.crash.rigs import scoring, seed_of
from tests.log.dying import die_at
from tests.log.strategies import machine
from tests.log.world import Process, World
from tests.log.world_model import expect_broken
from tests.scoreboard import Scores, amount, short_amount

RATE = "states_per_second_of_processor_time"
RATE_MIN = 10_000
SEEDS = int(os.environ.get("PENSTOCK_SIMULATION_SEEDS", "8"))


@pytest.mark.acceptance(46, 53, 56)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_runs_keep_their_promises_in_every_power_cut(seed):
    """Several processes, rolls, kills, power cuts, retention, offsets, topics, a jumping clock."""
    world = World(seed, partitions=1 + seed % 2, states_max=8)
    world.run(18)


def run_until(world: World, states: int) -> None:
    """A run, or so much of it as is wanted."""
    for _ in range(18):
        if world.states < states:
            world.step()


def simulate(
    request: pytest.FixtureRequest, scored: Scores, states: int, first: int = 0, rate_min: float = 0
) -> None:
    """One random run after the other, until so many states were looked at."""
    seed = seed_of(request)
    opened, begin = 0, time.process_time()
    with scoring(scored, 5, seed) as tried:
        for number in itertools.count(first):
            world = World(seed + number, partitions=2 + number % 3, states_max=2_000)
            try:
                run_until(world, states - tried.count)
            except (AssertionError, PenstockError) as failure:
                failure.add_note(f"World({seed + number}, partitions={2 + number % 3})")
                raise
            finally:
                tried.count += world.states
                opened += world.opened
            if tried.count >= states:
                break
        used = time.process_time() - begin
        tried.measured[RATE] = round(tried.count / used)
        tried.measured["different_disks_opened"] = opened
        assert tried.measured[RATE] >= rate_min, "too slow"
    print(f"{request.node.name}: {tried.count} states, {opened} disks, {used:.1f} s")


def test_a_great_many_power_cuts_take_nothing_that_was_promised(request, scored):
    simulate(request, scored, short_amount(5))


@pytest.mark.torture
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("block", range(4))
def test_millions_of_power_cuts_take_nothing_that_was_promised(request, scored, block):
    simulate(request, scored, amount(5) // 4, first=1_000_000 * block, rate_min=RATE_MIN)


@pytest.mark.torture
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("block", range(6))
def test_long_random_runs(block):
    for seed in range(10_000 + 50 * block, 10_050 + 50 * block):
        world = World(seed, partitions=1 + seed % 3, states_max=60)
        try:
            world.run(40)
        except BaseException:
            print(f"seed {seed}")
            raise


def test_a_partition_reads_nothing_of_another():
    """So each part of a crash state can be checked by itself, once for all states that have it."""
    world = World(3, partitions=3, states_max=0)
    process = world.start()
    for partition in range(3):
        world.append(process, partition, [world.make_rows(3)], sync=True)
        world.append(process, partition, [world.make_rows(1)], sync=False)
    world.commit(process, 1)
    world.configure(process)
    for part, keys in enumerate(world.keys):
        disk = world.disk.kill()
        disk.journal.clear()
        world.check_state(disk, {part})
        read = {call.path for call in disk.journal if call.operation in ("read", "list_directory")}
        assert read
        assert {world._part_of(path + "/") for path in read} == {keys.partition}


# Every call fails, once or for ever


def script(world: World) -> None:
    """Touches every kind of file: roll, sync, no sync, offsets, topic, close."""
    process = world.start()
    world.configure(process)
    for number in range(4):
        world.append(process, 0, [world.make_rows(2)], sync=number % 2 == 0)
        world.commit(process, number + 1)
        leave_bytes_of_a_dead_writer(process)
    world.sync(process, 0)
    for log in process.logs:
        log.close()


def leave_bytes_of_a_dead_writer(process: Process) -> None:
    log = process.logs[0]
    process.store.write_at(log._segment_key(log.head), log.head.position, [b"left behind"])


OPERATIONS = ["open", "read", "write", "truncate", "sync", "status", "rename"]
OPERATIONS += ["make_directory", "list_directory", "try_lock", "unlock"]


def run_with_fault(
    operation: str,
    at: int,
    *,
    forever: bool,
    error: int = errno.EIO,
    short: int = 0,
    states_max: int = 12,
) -> bool:
    """Run the script with a fault; whether the fault fired."""
    world = World(at, states_max=0, segment_bytes_max=300)
    fault = world.disk.fail(operation, error, at=at, forever=forever, short=short)
    try:
        script(world)
    except PenstockError:
        assert fault.fired, "an error without a cause"
        check_refusal(world)
    fired = bool(fault.fired)
    world.disk.heal()
    check_afterwards(world, states_max)
    return fired


def check_refusal(world: World) -> None:
    """After a failed write or sync, nothing more is acknowledged and nothing is synced again."""
    for process in world.processes:
        log = process.logs[0]
        if log.poison is None:
            continue
        world.models[0].abandon()
        syncs = world.disk.calls["sync"]
        for call in (log.sync, log.attach, lambda log=log: log.append([], sync=True)):
            with pytest.raises(Poisoned):
                call()
        log.close()
        assert world.disk.calls["sync"] == syncs, "a failed sync was tried again"


def check_afterwards(world: World, states_max: int) -> None:
    """Everything acknowledged is there for the next process, and stays there from then on."""
    world.kill_all()
    world.states_max = states_max
    process = world.start()
    world.attach(process)
    world.append(process, 0, [world.make_rows(1)], sync=True)
    world.commit(process, 99)
    world.configure(process)


@pytest.mark.parametrize("forever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_call_may_fail_and_nothing_acknowledged_is_lost(operation, forever):
    """Fail the first call, then the second, and so on until the script gets through."""
    at = 1
    while run_with_fault(operation, at, forever=forever):
        at += 1 if operation in ("sync", "write", "rename") else 5
        assert at < 2_000
    assert at > 1


@pytest.mark.parametrize("forever", [False, True], ids=["once", "for ever"])
def test_every_sync_of_a_directory_may_fail(forever):
    """No power cut afterwards: where a directory cannot be synced, the file system is down.

    (ext4 aborts its journal, XFS shuts down; a name cannot be made dirty again from outside.)
    """
    at = 1
    while run_with_fault("sync_directory", at, forever=forever, states_max=0):
        at += 1
    assert at > 8


def is_own(world: World) -> bool:
    """Whether a call is one of the script's, and not of a check in between."""
    return not world.nested


def test_a_process_may_die_before_any_call_of_its_first_steps():
    """The next process finds what was acknowledged, and what it acknowledges is durable."""
    call, died = 0, True
    while died:
        call += 1
        world = World(call, states_max=0, segment_bytes_max=300)
        died = die_at(world.disk, call, partial(script, world), partial(is_own, world))
        world.kill_all()
        world.states_max = 6
        process = world.start()
        world.append(process, 0, [world.make_rows(1)], sync=True)
        world.commit(process, 99)
        world.configure(process)
    assert call > 60


@pytest.mark.parametrize("short", [0, 1, 60, 250])
def test_a_full_disk_at_every_write_loses_nothing_acknowledged(short):
    at = 1
    while run_with_fault("write", at, forever=True, error=errno.ENOSPC, short=short):
        at += 1


@pytest.mark.parametrize("caches", ["kept", "dropped"])
def test_after_a_failed_sync_and_a_reopen_what_is_acknowledged_is_durable(caches):
    """The kernel marks the pages clean: only what is written again is ever saved."""
    at = 1
    fired = True
    while fired:
        world = World(at, states_max=12, segment_bytes_max=300)
        fault = world.disk.fail("sync", at=at)
        try:
            script(world)
        except PenstockError:
            world._after_death()
        fired = bool(fault.fired)
        world.disk.heal()
        if caches == "dropped":
            # Buffered records may be gone with the pages; durable ones may not.
            world.disk.drop_caches()
            for model in world.models:
                model.lose_what_is_not_durable()
        world.processes = []
        process = world.start()
        world.attach(process)
        for _ in range(3):
            world.append(process, 0, [world.make_rows(1)], sync=True)
        at += 1
    assert at > 10


def test_a_failed_sync_of_one_process_makes_the_others_check_again():
    """Another process would sync without an error what the kernel has already given up."""
    world = World(1, states_max=20, segment_bytes_max=10_000)
    one, two = world.start(), world.start()
    world.attach(two)
    world.append(one, 0, [world.make_rows(1)], sync=True)
    world.append(one, 0, [world.make_rows(2)], sync=False)
    world.disk.fail("sync", path="*.log")
    with pytest.raises(StoreFailed):
        world.sync(one, 0)
    world.append(two, 0, [world.make_rows(1)], sync=True)
    world.check_power_cuts()


# Crashes and failures during recovery


def test_time_in_the_log_never_goes_back():
    """Given a clock that jumps about and power cuts between, entries and offsets only rise."""
    world = World(5, states_max=0, segment_bytes_max=300)
    times: list[int] = []
    for jump in (0, 10**9, -(10**10), 5, -(10**8), 10**10, -1):
        world.clock.jump(jump)
        if not world.processes:
            world.start()
        appended = world.append(world.processes[0], 0, [world.make_rows(1)], sync=True)
        times.append(appended.timestamp)
        world.append(world.processes[0], 0, [world.make_rows(1)], sync=False)
        world.states_max = 9
        world.power_cut()
        world.states_max = 0
    assert times == sorted(times)
    reader = machine(world.disk.kill()).reader
    stamps = [
        entry.timestamp
        for source in reader.segments()
        for entry in source.entries(0, source.size())
    ]
    assert stamps == sorted(stamps)


# Seeded bugs: the tests above must catch each of them


def test_caught_the_folders_above_are_not_synced(monkeypatch):
    monkeypatch.setattr(
        Folders, "sync_names", lambda self, folder: self._files.sync_directory(folder)
    )
    expect_broken("I1", test_a_process_may_die_before_any_call_of_its_first_steps)


def test_caught_recovery_trusts_the_page_cache(monkeypatch):
    """Without writing the tail again, a failed sync turns into a lie after the reopen."""
    monkeypatch.setattr(PartitionLog, "_write_again", lambda self, end: None)
    expect_broken(
        "I1|I4",
        lambda: test_after_a_failed_sync_and_a_reopen_what_is_acknowledged_is_durable("kept"),
    )


def test_caught_a_failed_sync_is_kept_from_the_others(monkeypatch):
    monkeypatch.setattr(PartitionLog, "_tell_others", lambda self: None)
    expect_broken("I1|I4", test_a_failed_sync_of_one_process_makes_the_others_check_again)


def test_the_script_seals_segments():
    """The faults above would prove little if nothing was rolled."""
    world = World(1, states_max=0, segment_bytes_max=300)
    script(world)
    reader = machine(world.disk.kill()).reader
    kinds = [
        entry.header.kind
        for source in reader.segments()
        for entry in source.entries(0, source.size())
    ]
    assert kinds.count(KIND_END) >= 2
