"""Seeded bugs of the log: random runs on a simulated disk must catch each of them, by a named check."""

from collections.abc import Callable

import pytest

from penstock.errors import PenstockError, StoreFailed
from penstock.log.appending import Writing
from penstock.log.head import HeadFile
from penstock.log.partition import PartitionLog
from penstock.log.recovery import TailScanner
from penstock.stores.directory import DirectoryStore
from penstock.testing.disk import SimulatedDisk
from tests.log.strategies import KEYS, machine
from tests.log.world import World
from tests.log.world_model import Broken, Row, draft_of, expect_broken


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
    one.store.write_at(one.logs[0]._segment_key(head), *writing.take())
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
