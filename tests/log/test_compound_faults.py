"""Two faults at once: the machine fails again while it recovers from a crash.

A log with records that were promised and records that were not loses power. While it is opened again,
a call of the disk fails, once or from then on, or the power fails again, before any call that changes
something. Whatever comes after that finds all that was promised.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from random import Random

import pytest

from penstock.errors import PenstockError, StorageError
from penstock.log.head import HeadFile
from penstock.log.names import PartitionKeys
from penstock.log.offsets import OffsetFile
from penstock.log.partition import PartitionLog
from penstock.stores.directory import DirectoryStore
from penstock.testing.disk import SimulatedDisk
from penstock.testing.worker import simulated_system
from tests.crash.rigs import seed_of
from tests.log.dying import die_at
from tests.log.strategies import machine
from tests.log.world import GROUP, ROOT, TOPIC, World
from tests.log.world_model import Broken, Row, read_rows
from tests.scoreboard import amount, short_amount

CALLS = ("open", "read", "write", "truncate", "sync", "sync_directory", "status", "unlink")
ERRORS = (errno.EIO, errno.ENOSPC, errno.EMFILE)


def crashed(seed: int) -> World:
    """Sealed segments, an open one with records that nobody was promised, an offset, a description."""
    world = World(seed, states_max=0, segment_bytes_max=300)
    process = world.start()
    world.configure(process)
    for number in range(4):
        world.append(process, 0, [world.make_rows(2)], sync=number % 2 == 1)
        world.commit(process, number + 1)
    world.append(process, 0, [world.make_rows(3)], sync=False)
    return world


def recover(disk: SimulatedDisk, seed: int = 1) -> None:
    """What a process does that opens the log: it recovers, appends, commits."""
    system = simulated_system(seed, disk=disk)
    store = DirectoryStore(ROOT, system=system)
    log = PartitionLog(store, PartitionKeys(TOPIC, 0), system=system, segment_bytes_max=300)
    log.attach()
    OffsetFile(store, GROUP, TOPIC, 0).commit(0, 0)
    HeadFile(store, log.keys.head).read()
    log.close()


def after(disk: SimulatedDisk, fault: str, random: Random) -> Iterator[SimulatedDisk]:
    """The disks that a recovery with this fault may leave, for each place where it may happen."""
    return dying(disk, random) if fault == "death" else failing(disk, fault, random)


def failing(disk: SimulatedDisk, operation: str, random: Random) -> Iterator[SimulatedDisk]:
    """The disks that a recovery leaves in which a call fails."""
    forever = random.random() < 0.5
    for at in itertools.count(1):
        again = disk.kill()
        error, short = random.choice(ERRORS), random.choice((0, 1, 30))
        fault = again.fail(operation, error, at=at, forever=forever, short=short)
        with suppress(PenstockError):
            recover(again)
        if not fault.fired:
            return
        again.heal()
        yield again.kill()
        if operation != "sync_directory":
            yield from again.crash_states(2, random)


def dying(disk: SimulatedDisk, random: Random) -> Iterator[SimulatedDisk]:
    """The disks that a recovery leaves that dies before one of its calls, or with the machine."""
    for at in itertools.count(1):
        again = disk.kill()
        if not die_at(again, at, partial(recover, again)):
            return
        yield again.kill()
        yield from again.crash_states(2, random)


class Checker:
    """Checks the disks that are left of one log; the same disk once."""

    def __init__(self, world: World, random: Random) -> None:
        self._world = world
        self._random = random
        self._seen: set[int] = set()

    def check(self, disk: SimulatedDisk, *, settle: bool) -> None:
        key = hash(tuple((path, disk.content(path)) for path in disk.files()))
        if key not in self._seen:
            self._seen.add(key)
            settled = disk.kill() if settle and self._random.random() < 0.3 else None
            self._world.check_state(disk)
            if settled is not None:
                self._check_settled(settled)

    def _check_settled(self, disk: SimulatedDisk) -> None:
        """What the next process reads after its recovery is durable: no power cut takes it."""
        recover(disk)
        found = rows_on(disk)
        for state in disk.crash_states(3, self._random):
            try:
                recover(state)
            except PenstockError as error:
                raise Broken("I4", error) from error
            if rows_on(state)[: len(found)] != found:
                raise Broken("I1", "records that were recovered are lost")


def rows_on(disk: SimulatedDisk) -> list[Row]:
    store = DirectoryStore(ROOT, system=simulated_system(disk=disk))
    return read_rows(store, PartitionKeys(TOPIC, 0))


def compound_faults(count: int, seed: int) -> tuple[int, int, str]:
    """Try so many: how many were tried, how many broke a promise, and the first that did."""
    random = Random(seed)
    tried = broken = 0
    first = ""
    while tried < count:
        chosen = random.getrandbits(32)
        world = crashed(chosen)
        checker = Checker(world, random)
        for disk in (world.disk.kill(), *world.disk.crash_states(4, random)):
            fault = random.choice((*CALLS, "death"))
            for left in after(disk, fault, random):
                tried += 1
                try:
                    # Where a directory cannot be synced, the file system is down.
                    checker.check(left, settle=fault != "sync_directory")
                except Broken as violation:
                    broken += 1
                    first = first or f"{fault} in {chosen}: {violation}"
    return tried, broken, first


def test_faults_while_it_recovers(scored, request):
    seed = seed_of(request)
    tried, broken, first = compound_faults(short_amount(11), seed)
    print(first)
    scored(11, tried=tried, bad=broken, seed=seed)


@pytest.mark.torture
@pytest.mark.timeout(7_200)
def test_many_faults_while_it_recovers(scored, request):
    seed = seed_of(request)
    tried, broken, first = compound_faults(amount(11), seed)
    print(first)
    scored(11, tried=tried, bad=broken, seed=seed)


def test_caught_a_recovery_that_does_not_write_the_tail_again(monkeypatch):
    """After a failed sync the page cache shows what is not on the disk."""
    monkeypatch.setattr(PartitionLog, "_write_again", lambda self, end: None)
    _, broken, first = compound_faults(400, 7)
    assert broken, first


def test_caught_a_recovery_that_does_not_sync_the_tail(monkeypatch):
    plain = PartitionLog._write_again

    def write_only(self, end):
        monkeypatch.setattr(self._store, "sync", lambda key: None)
        try:
            plain(self, end)
        finally:
            monkeypatch.delattr(self._store, "sync")

    monkeypatch.setattr(PartitionLog, "_write_again", write_only)
    _, broken, _ = compound_faults(400, 7)
    assert broken


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
