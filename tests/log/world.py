"""A simulated machine with several writers on one log, and a model that says what must be there.

Invariants, checked on every disk that a power cut could leave:

- I1 every record that was acknowledged as durable is there, byte for byte, at its offset;
- I2 nothing that was never appended;
- I3 offsets are dense and in order;
- I4 the log opens: a power cut never needs repair;
- I5 appending works afterwards;
- I6 a second recovery finds nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from random import Random

from penstock.errors import PenstockError, Poisoned, StoreFailed, UnknownTopic
from penstock.log.head import HeadFile
from penstock.log.names import PartitionKeys
from penstock.log.offsets import OffsetFile
from penstock.log.partition import PartitionLog
from penstock.log.reader import PartitionReader
from penstock.log.retention import Needs, plan_retention, remove_planned
from penstock.log.sealed import maintenance
from penstock.log.topic import Retention, TopicConfig, TopicFile
from penstock.stores.base import PersistentBackingStore
from penstock.stores.directory import DirectoryStore
from penstock.testing.clock import VirtualClock
from penstock.testing.disk import SimulatedDisk, SyncPoint
from penstock.testing.worker import simulated_system
from tests.log.dying import Killed
from tests.log.world_model import Broken, PartitionModel, Row, draft_of, read_rows

ROOT = "/data/log"
TOPIC = "orders"
DESCRIBED = "invoices"
"""The topic whose description comes and changes; a description is there before any record is."""
GROUP = "billing"
PROBE = (None, b"probe after recovery")
SMALL_FILES = -1
"""The part of a disk that is no partition: offsets, topics."""


class Process:
    """One process: its own handles and objects, on the disk that all share."""

    def __init__(self, world: World) -> None:
        self.store = DirectoryStore(ROOT, system=world.system)
        self.logs = [
            PartitionLog(
                self.store, keys, system=world.system, segment_bytes_max=world.segment_bytes_max
            )
            for keys in world.keys
        ]


class World:
    """Runs operations on the log and checks what every power cut would leave."""

    def __init__(
        self,
        seed: int = 0,
        *,
        partitions: int = 1,
        states_max: int = 30,
        segment_bytes_max: int = 400,
        make_disk: Callable[[], SimulatedDisk] = SimulatedDisk,
    ) -> None:
        self.random = Random(seed)
        self.states_max = states_max
        self.segment_bytes_max = segment_bytes_max
        self.keys = [PartitionKeys(TOPIC, number) for number in range(partitions)]
        self.models = [PartitionModel() for _ in self.keys]
        self.clock = VirtualClock()
        self.committed = 0
        self.committing: set[int] = set()
        """What running and dead calls may have left instead."""
        self.config: TopicConfig | None = None
        self.configuring: list[TopicConfig | None] = []
        self.states = self.opened = 0
        self._seen: dict[tuple[int, ...], object] = {}
        self.rows_made = 0
        self.nested = False
        self.disk = make_disk()
        self._restart(self.disk)
        self.processes: list[Process] = []

    def _restart(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.system = simulated_system(self.random.getrandbits(32), disk=disk, clock=self.clock)
        disk.on_sync(self._at_sync)

    # Operations

    def start(self) -> Process:
        """A new process, not attached yet."""
        process = Process(self)
        self.processes.append(process)
        return process

    def make_rows(self, count: int | None = None) -> list[Row]:
        """Records that were never written before."""
        rows: list[Row] = []
        for _ in range(self.random.choice((1, 1, 2, 5)) if count is None else count):
            self.rows_made += 1
            filler = self.random.randbytes(self.random.choice((0, 3, 40, 700)))
            key = self.random.choice((None, b"", b"key-%d" % self.rows_made))
            rows.append((key, b"%d:" % self.rows_made + filler))
        return rows

    def attach(self, process: Process, partition: int = 0) -> None:
        """Recover; afterwards all that is there is durable."""
        log = process.logs[partition]
        log.attach()
        self.learn(process, partition)

    def learn(self, process: Process, partition: int) -> None:
        """Read what is there after a recovery in this machine's life."""
        model = self.models[partition]
        rows = read_rows(process.store, self.keys[partition], model.earliest)
        model.check(rows, len(model.written), model.earliest)
        model.adopt(rows)

    def append(self, process: Process, partition: int, batches: Sequence[list[Row]], *, sync: bool):
        """Append, and note what was acknowledged."""
        model = self.models[partition]
        log = process.logs[partition]
        attached = log._attached
        if not attached:
            self.attach(process, partition)
        model.in_flight = [row for rows in batches for row in rows]
        appended = log.append([draft_of(rows) for rows in batches], sync=sync)
        model.catch_up(appended.base_offsets[0])
        expected = len(model.written)
        for rows, base in zip(batches, appended.base_offsets, strict=True):
            if base != expected:
                raise Broken("I3", f"acknowledged at {base}, expected {expected}")
            expected += len(rows)
        model.written += model.in_flight
        model.in_flight = []
        self._note(model, appended.head.durable_offset, sync=sync)
        return appended

    def sync(self, process: Process, partition: int) -> None:
        """Make everything durable."""
        if not process.logs[partition]._attached:
            self.attach(process, partition)
        head = process.logs[partition].sync()
        self.models[partition].catch_up(head.next_offset)
        self._note(self.models[partition], head.durable_offset, sync=True)

    def _note(self, model: PartitionModel, durable: int, *, sync: bool) -> None:
        if sync and durable != len(model.written):
            raise Broken("I1", f"synced up to {durable}, not {len(model.written)}")
        model.durable = max(model.durable, durable)
        self.check_power_cuts()

    def commit(self, process: Process, offset: int) -> None:
        """Commit a subscriber's offset."""
        self.committing.add(offset)
        stands = OffsetFile(process.store, GROUP, TOPIC, 0).commit(offset, self.clock.time_ms())
        if stands < max(offset, self.committed) or stands > max(self.committed, *self.committing):
            raise Broken("I1", f"committed {offset} after {self.committed}, stands at {stands}")
        self.committed = stands
        self.committing = set()
        self.check_power_cuts()

    def configure(self, process: Process) -> None:
        """Create the topic, or change it."""
        file = TopicFile(process.store, DESCRIBED)
        linger = self.random.randrange(60_000)
        config = TopicConfig(linger_ms=linger)
        self.configuring.append(config)
        file.create(config, self.clock.time_ms())
        self.config = file.change_config(linger_ms=linger).config
        self.configuring = []
        self.check_power_cuts()

    def retain(self, process: Process, partition: int) -> None:
        """Remove old segments."""
        if not process.logs[partition]._attached:
            self.attach(process, partition)
        reader = PartitionReader(process.store, self.keys[partition])
        limit = Retention(age_ms_max=None, bytes_max=self.random.choice((1, 700)))
        plan = plan_retention(reader, limit, Needs(), self.clock.time_ms())
        if plan.removals:
            self.models[partition].earliest = plan.removals[-1].next_offset
            with maintenance(process.store, plan.keys) as held:
                assert held
                remove_planned(plan, process.store, [process.store])
            self.check_power_cuts()

    def kill_all(self) -> None:
        """Every process dies; the page cache stays."""
        self._after_death()
        self.processes = []
        self._restart(self.disk.kill())

    def power_cut(self) -> None:
        """Go on with one of the disks that a power cut could leave."""
        states = list(self.disk.crash_states(self.states_max, self.random))
        self._after_death()
        self.processes = []
        self._restart(self.random.choice(states))
        process = self.start()
        for keys, model in zip(self.keys, self.models, strict=True):
            process.logs[keys.partition].attach()
            earliest = PartitionReader(process.store, keys).earliest()
            rows = read_rows(process.store, keys, model.earliest)
            model.check(rows, model.durable, model.earliest)
            model.adopt(rows)
            assert earliest <= model.earliest
        self._learn_small_files(process)

    def kill_one(self, process: Process) -> None:
        """One process died in the middle of a call; the others go on."""
        self._after_death()
        self.processes.remove(process)
        for keys, model in zip(self.keys, self.models, strict=True):
            head, damaged = HeadFile(process.store, keys.head).look()
            if head is not None and not damaged:
                model.catch_up(head.next_offset)
                model.durable = max(model.durable, head.durable_offset)

    def _after_death(self) -> None:
        for model in self.models:
            model.abandon()

    def _learn_small_files(self, process: Process) -> None:
        found = OffsetFile(process.store, GROUP, TOPIC, 0).read()
        self._check_commit(found.offset if found else 0)
        self.committed = found.offset if found else 0
        self.committing = set()
        self.config = self._check_config(process.store)
        self.configuring = []

    # Checks

    def _at_sync(self, point: SyncPoint) -> None:
        self.check_power_cuts()

    def check_power_cuts(self) -> None:
        """Open every disk that a power cut could leave right now."""
        if self.nested:
            return
        self.nested = True
        try:
            for state in self.disk.crash_states_once(self.states_max, self.random):
                self.states += 1
                if state is not None and (parts := self._new_parts(state)):
                    self.opened += 1
                    self.check_state(state, parts)
        finally:
            self.nested = False

    def _new_parts(self, disk: SimulatedDisk) -> set[int]:
        """The parts of this disk that were not opened yet with as much to be found.

        A part is a partition, or (SMALL_FILES) all the rest. Opening one reads nothing of another.
        """
        files: dict[int, list[int]] = {part: [] for part in (SMALL_FILES, *range(len(self.keys)))}
        for path in disk.files():
            files[self._part_of(path)].append(hash((path, disk.content(path))))
        promised: dict[int, object] = {SMALL_FILES: (self.committed, self.config is not None)}
        promised |= {part: (one.durable, one.earliest) for part, one in enumerate(self.models)}
        new: set[int] = set()
        for part, found in files.items():
            key = (part, *found)
            if self._seen.get(key) != promised[part]:
                self._seen[key] = promised[part]
                new.add(part)
        return new

    def _part_of(self, path: str) -> int:
        below = path.removeprefix(f"{ROOT}/")
        for keys in self.keys:
            if below.startswith(f"{keys.folder}/"):
                return keys.partition
        return SMALL_FILES

    def check_state(self, disk: SimulatedDisk, parts: Collection[int] | None = None) -> None:
        """Open the disk as after a power cut and check everything, or these parts of it."""
        story = disk.describe()
        try:
            self._check_state(
                disk, {SMALL_FILES, *range(len(self.keys))} if parts is None else parts
            )
        except Broken as broken:
            broken.add_note("\n".join(story))
            raise
        except PenstockError as error:
            unopened = Broken("I4", f"{type(error).__name__}: {error}")
            unopened.add_note("\n".join(story))
            raise unopened from error

    def _check_state(self, disk: SimulatedDisk, parts: Collection[int]) -> None:
        system = simulated_system(1, disk=disk, clock=VirtualClock(self.clock.time_ms()))
        store = DirectoryStore(ROOT, system=system)
        for keys, model in zip(self.keys, self.models, strict=True):
            if keys.partition not in parts:
                continue
            log = PartitionLog(store, keys, system=system, segment_bytes_max=self.segment_bytes_max)
            log.attach()
            bytes_max = self.random.choice((1, 100, 1_000, 1 << 20))
            rows = read_rows(store, keys, model.earliest, bytes_max)
            model.check(rows, model.durable, model.earliest)
            if self.random.random() < 0.2:
                self._check_second_recovery(disk, keys)
            if self.random.random() < 0.3:
                self._check_append(store, log, keys, model.earliest, rows)
        if SMALL_FILES in parts:
            self._check_small_files(store)

    def _check_second_recovery(self, disk: SimulatedDisk, keys: PartitionKeys) -> None:
        again = disk.kill()
        before = {path: again.content(path) for path in again.files() if not path.endswith("head")}
        system = simulated_system(2, disk=again, clock=VirtualClock(self.clock.time_ms()))
        log = PartitionLog(DirectoryStore(ROOT, system=system), keys, system=system)
        report = log.attach()
        after = {path: again.content(path) for path in again.files() if not path.endswith("head")}
        if not report.clean or report.bytes_checked or before != after:
            raise Broken("I6", f"the second recovery had work: {report}")

    def _check_append(
        self,
        store: DirectoryStore,
        log: PartitionLog,
        keys: PartitionKeys,
        start: int,
        rows: list[Row],
    ) -> None:
        appended = log.append([draft_of([PROBE])], sync=True)
        if appended.base_offsets != [start + len(rows)]:
            raise Broken("I5", f"the next record got {appended.base_offsets}")
        if read_rows(store, keys, start) != [*rows, PROBE]:
            raise Broken("I5", "the record after recovery does not read back")

    def _check_small_files(self, store: DirectoryStore) -> None:
        found = OffsetFile(store, GROUP, TOPIC, 0).read()
        self._check_commit(found.offset if found else 0)
        self._check_config(store)

    def _check_config(self, store: PersistentBackingStore) -> TopicConfig | None:
        try:
            config = TopicFile(store, DESCRIBED).read().config
        except UnknownTopic:
            config = None
        if config != self.config and config not in self.configuring:
            raise Broken("I1", f"the topic has another config: {config}")
        return config

    def _check_commit(self, offset: int) -> None:
        if offset != self.committed and offset not in self.committing:
            raise Broken("I1", f"the committed offset is {offset}, not {self.committed}")

    # Random runs

    def run(self, steps: int) -> None:
        """Do random things."""
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        """One random operation of a random process."""
        if not self.processes or self.random.random() < 0.08:
            self.start()
        process = self.random.choice(self.processes)
        partition = self.random.randrange(len(self.keys))
        if self.random.random() < 0.3:
            self.clock.jump(self.random.choice((1, 1_000, -5_000, 10**10, -(10**10))))
        choices: list[Callable[[], object]] = [
            lambda: self._random_append(process, partition),
            lambda: self._random_append(process, partition),
            lambda: self._random_append(process, partition),
            lambda: self.sync(process, partition),
            lambda: self.commit(process, max(0, self.committed + self.random.randrange(-2, 4))),
            lambda: self.configure(process),
            lambda: self.retain(process, partition),
            lambda: self._close(process),
            lambda: self._die_in(process, partition),
            lambda: self._fail_in(process, partition),
            self.kill_all,
            self.power_cut,
        ]
        try:
            self.random.choice(choices)()
        except Poisoned:
            # It has acknowledged records that a failed sync of another process may have taken.
            self.kill_one(process)

    def _random_append(self, process: Process, partition: int) -> None:
        batches = [self.make_rows() for _ in range(self.random.choice((1, 1, 2)))]
        self.append(process, partition, batches, sync=self.random.random() < 0.5)

    def _close(self, process: Process) -> None:
        for model, log in zip(self.models, process.logs, strict=True):
            log.close()
            if log._attached and log.head.generation:
                model.catch_up(log.head.next_offset)
                self._note(model, log.head.durable_offset, sync=True)
        self.processes.remove(process)

    def _fail_in(self, process: Process, partition: int) -> None:
        """A call to the disk fails; the process gives up, the others go on."""
        operation = self.random.choice(("write", "write", "sync", "sync", "truncate", "read"))
        at, short = self.random.randrange(1, 6), self.random.choice((0, 1, 100))
        self.disk.fail(operation, at=at, short=short if operation == "write" else 0)
        try:
            self._random_append(process, partition)
            self.commit(process, self.committed + 1)
        except StoreFailed:
            self.kill_one(process)
        finally:
            self.disk.heal()

    def _die_in(self, process: Process, partition: int) -> None:
        """The process dies before one of its calls to the disk."""
        remaining = self.random.randrange(1, 14)
        disk = self.disk

        def count_down(operation: str, path: str) -> None:
            nonlocal remaining
            if self.nested:
                return
            remaining -= 1
            if remaining == 0:
                raise Killed

        disk.on_call(count_down)
        try:
            self.random.choice(
                [
                    lambda: self._random_append(process, partition),
                    lambda: self.commit(process, self.committed + 1),
                    lambda: self.configure(process),
                ]
            )()
        except Killed:
            if self.random.random() < 0.5:
                self.kill_one(process)
            else:
                self.kill_all()
        finally:
            disk._call_hooks.remove(count_down)
