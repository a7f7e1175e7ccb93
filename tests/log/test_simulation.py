"""Random runs on a simulated disk; at every sync, every disk that a power cut could leave is opened.

The invariants I1 to I6 are in ``tests/log/world.py``. The rig itself is tested: a list of seeded
bugs, each of which must make a named check fail.
"""

import errno
import itertools
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from penstock.errors import PenstockError, Poisoned, StorageError, StoreFailed
from penstock.log.appending import Writing
from penstock.log.frame import KIND_END
from penstock.log.head import HeadFile
from penstock.log.partition import PartitionLog
from penstock.log.recovery import TailScanner
from penstock.stores.directory import DirectoryStore
from penstock.stores.folders import Folders
from penstock.testing.disk import SimulatedDisk
from tests.crash.rigs import scoring, seed_of
from tests.log.dying import die_at
from tests.log.strategies import KEYS, machine
from tests.log.world import Broken, Process, Row, World, draft_of, expect_broken
from tests.scoreboard import Scores, amount, short_amount

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


def simulate(request: pytest.FixtureRequest, scored: Scores, states: int, first: int = 0) -> None:
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
        tried.measured["states_per_second"] = round(tried.count / used)
        tried.measured["different_disks_opened"] = opened
    print(f"{request.node.name}: {tried.count} states, {opened} disks, {used:.1f} s")


def test_a_great_many_power_cuts_take_nothing_that_was_promised(request, scored):
    simulate(request, scored, short_amount(5))


@pytest.mark.torture
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("block", range(4))
def test_millions_of_power_cuts_take_nothing_that_was_promised(request, scored, block):
    simulate(request, scored, amount(5) // 4, first=1_000_000 * block)


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


def crashed_worlds(seed: int) -> World:
    """A world with unsynced records, sealed segments and a torn tail to recover from."""
    world = World(seed, states_max=0, segment_bytes_max=300)
    process = world.start()
    for number in range(5):
        world.append(process, 0, [world.make_rows(2)], sync=number == 1)
    world.append(process, 0, [world.make_rows(3)], sync=False)
    return world


def _same(disk: SimulatedDisk) -> SimulatedDisk:
    return disk


@pytest.mark.parametrize("seed", range(4))
def test_a_power_cut_during_recovery_is_recovered_from(seed):
    world = crashed_worlds(seed)
    first = list(world.disk.crash_states(12, world.random))
    for disk in first:
        twin = World(seed, states_max=6, segment_bytes_max=300, make_disk=partial(_same, disk))
        twin.models = world.models
        twin.processes = []
        process = twin.start()
        process.logs[0].attach()
        twin.check_power_cuts()


@pytest.mark.parametrize("operation", ["read", "write", "truncate", "sync", "unlink", "status"])
def test_an_error_during_recovery_leaves_it_to_the_next_one(operation):
    world = crashed_worlds(3)
    for disk in world.disk.crash_states(10, world.random):
        at = 1
        while True:
            again = disk.kill()
            fault = again.fail(operation, at=at)
            with suppress(StorageError):
                machine(again).log.attach()
            if not fault.fired:
                break
            again.heal()
            world.check_state(again.kill())
            at += 1


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


# Seeded bugs: the rig must catch each of them


def find(check: str, seeds: range = range(40)) -> Broken:
    """Some run must fail the named check."""

    def runs() -> None:
        for seed in seeds:
            World(seed, partitions=1, states_max=14).run(14)

    return expect_broken(check, runs)


def patch_method(monkeypatch, owner: type, name: str, change: Callable) -> None:
    monkeypatch.setattr(owner, name, change(getattr(owner, name)))


def test_caught_the_head_is_written_before_the_sync(monkeypatch):
    def claim_first(original):
        def append(self, drafts, *, sync, **epoch):
            appended = original(self, drafts, sync=False, **epoch)
            if sync:
                self._head = self._head_file.write(appended.head.synced())
                self._store.sync(self._segment_key(self._head))
                appended = appended._replace(head=self._head)
            return appended

        return append

    patch_method(monkeypatch, PartitionLog, "_append", claim_first)
    find("I4|I1")


def test_caught_acknowledged_without_a_sync(monkeypatch):
    def only_say_so(original):
        def append(self, drafts, *, sync, **epoch):
            appended = original(self, drafts, sync=False, **epoch)
            return appended._replace(head=appended.head.synced() if sync else appended.head)

        return append

    patch_method(monkeypatch, PartitionLog, "_append", only_say_so)
    find("I1|I5")


def test_caught_directories_are_not_synced(monkeypatch):
    monkeypatch.setattr(SimulatedDisk, "sync_directory", lambda self, path: None)
    find("I1")


def test_caught_the_folders_above_are_not_synced(monkeypatch):
    monkeypatch.setattr(
        Folders, "sync_names", lambda self, folder: self._files.sync_directory(folder)
    )
    expect_broken("I1", test_a_process_may_die_before_any_call_of_its_first_steps)


def test_caught_a_failed_sync_is_tried_again(monkeypatch):
    def try_twice(original):
        def sync(self, key):
            try:
                original(self, key)
            except StoreFailed:
                original(self, key)

        return sync

    patch_method(monkeypatch, DirectoryStore, "sync", try_twice)
    world = World(1, states_max=20)
    process = world.start()
    world.attach(process)
    world.disk.fail("sync", path="*.log")
    expect_broken("I1", lambda: world.append(process, 0, [world.make_rows(1)], sync=True))


def test_caught_the_chain_is_not_checked(monkeypatch):
    """A dead writer's bytes behind those of the next writer look whole without the chain."""

    def without_chain(original):
        def take(self, source, entry):
            unchained = entry.header._replace(previous=self._head.checksum)
            original(self, source, entry._replace(header=unchained))

        return take

    patch_method(monkeypatch, TailScanner, "_take", without_chain)
    expect_broken("I2|I4", ghosts_of_a_dead_writer)


def ghosts_of_a_dead_writer() -> None:
    """A dead writer left two entries; the next one overwrites the first with one of its size."""
    world = World(1, states_max=400, segment_bytes_max=10_000)
    one, two = world.start(), world.start()
    world.append(one, 0, [[(None, b"base")]], sync=True)
    world.attach(two)
    dead: list[Row] = [(None, b"dead one"), (None, b"dead two")]
    world.models[0].in_flight = dead
    head = HeadFile(one.store, KEYS.head).read()
    assert head is not None
    writing = Writing(head, head.timestamp)
    for row in dead:
        writing.add(draft_of([row]))
    one.store.write_at(one.logs[0]._segment_key(head), head.position, writing.buffers)
    world.kill_one(one)
    world.append(two, 0, [[(None, b"live one")]], sync=False)
    world.check_power_cuts()


def test_the_ghosts_of_a_dead_writer_never_mix_with_the_living():
    ghosts_of_a_dead_writer()


def test_caught_durable_records_are_cut_like_a_torn_tail(monkeypatch):
    """Damage to what was acknowledged must be refused, not cut."""
    monkeypatch.setattr(TailScanner, "_claims", lambda self, rest: iter(()))
    one = machine()
    for number in range(4):
        one.append(b"%d" % number)
    one.disk.delete(f"/data/log/{KEYS.head}")
    one.disk.flip_bit(f"/data/log/{KEYS.folder}/{0:020d}.log", 8 * 200)
    two = machine(one.disk.kill())
    report = two.log.attach()
    assert report.next_offset < 3, "the mutant cuts what it should refuse"
    monkeypatch.undo()
    with pytest.raises(PenstockError, match="were durable"):
        machine(one.disk.kill()).log.attach()


def test_caught_a_roll_without_a_sync(monkeypatch):
    def no_sync(original):
        def roll(self, head):
            real = self._store.sync
            self._store.sync = lambda key: None if key.endswith(".log") else real(key)
            try:
                return original(self, head)
            finally:
                del self._store.sync

        return roll

    patch_method(monkeypatch, PartitionLog, "_roll", no_sync)
    find("I4|I1")


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


def test_caught_an_append_that_moves_what_is_sealed(monkeypatch):
    """A writer that ignores what others appended overwrites them."""

    def own_head_only(original):
        def take_over(self):
            return self._head if self._head.generation else original(self)

        return take_over

    patch_method(monkeypatch, PartitionLog, "_take_over", own_head_only)
    world = World(1, states_max=4, segment_bytes_max=10_000)
    one, two = world.start(), world.start()

    def take_turns() -> None:
        for process in (one, two, one, two):
            world.append(process, 0, [world.make_rows(1)], sync=True)

    expect_broken("I3|I1|I2|I4", take_turns)


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
