"""What the crash tests share: writers to kill, a ledger of promises, disks to cut."""

import asyncio
import contextlib
import fcntl
import os
import random
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest

from penstock.errors import PenstockError
from penstock.log.queue import WalMessageQueue
from penstock.log.receipts import Acknowledgement
from penstock.log.records import Record
from penstock.log.topic import TopicConfig
from tests.crash import writer as program
from tests.crash.writer import FRAME, Kind, Spec
from tests.scoreboard import Scores

PROGRAM = Path(program.__file__)
F_SETPIPE_SZ = 1031
DEADLINE_SECONDS = 150.0


def seed_of(request: pytest.FixtureRequest) -> int:
    """The seed of a run: PENSTOCK_SEED, or a new one that is printed with the test's name."""
    chosen = os.environ.get("PENSTOCK_SEED")
    seed = int(chosen) if chosen else random.SystemRandom().randrange(1 << 32)
    print(f"{request.node.name}: PENSTOCK_SEED={seed}")
    return seed


@dataclass
class Tried:
    """What a test tells the scoreboard of one line."""

    count: int = 0
    measured: dict[str, float] = field(default_factory=dict)


@contextlib.contextmanager
def scoring(scored: Scores, number: int, seed: int | str) -> Iterator[Tried]:
    """Tell the scoreboard what was tried inside; a check that fails there is one that went wrong."""
    tried = Tried()
    begin = time.monotonic()
    try:
        yield tried
    except (AssertionError, PenstockError) as failure:
        failure.add_note(f"PENSTOCK_SEED={seed}")
        with contextlib.suppress(AssertionError):
            scored(number, tried=max(1, tried.count), bad=1, seed=seed, **tried.measured)
        raise
    tried.measured["seconds_in_all"] = time.monotonic() - begin
    scored(number, tried=tried.count, bad=0, seed=seed, **tried.measured)


# --------------------------------------------------------------------------------------- writers


@dataclass
class Frame:
    """One thing that a writer said."""

    kind: Kind
    writer: int
    partition: int
    a: int
    b: int
    c: int
    time: float


class Child:
    """A writer in a process of its own, and what it has said so far."""

    def __init__(self, spec: Spec, pid: int, pipe: int) -> None:
        self.spec = spec
        self.pid = pid
        self.pipe = pipe
        self.frames: list[Frame] = []
        self.ended = False
        self._rest = b""

    def drain(self) -> None:
        """Take in what is in the pipe now; never blocks."""
        while not self.ended and select.select([self.pipe], [], [], 0)[0]:
            data = os.read(self.pipe, 1 << 20)
            self.ended = not data
            data = self._rest + data
            whole = len(data) - len(data) % FRAME.size
            self._rest = data[whole:]
            for numbers in FRAME.iter_unpack(data[:whole]):
                self.frames.append(Frame(Kind(numbers[0]), *numbers[1:]))

    def said(self, *kinds: Kind) -> list[Frame]:
        return [frame for frame in self.frames if frame.kind in kinds]

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def listen(
    children: Sequence[Child], seconds: float, *, until: Sequence[Kind] = (), count: int = 1
) -> None:
    """Take in what the children say for so long, or until they have said so many of these kinds."""
    deadline = time.monotonic() + seconds
    while alive := [child for child in children if not child.ended]:
        left = deadline - time.monotonic()
        if left <= 0 or (until and sum(len(one.said(*until)) for one in children) >= count):
            return
        ready = select.select([child.pipe for child in alive], [], [], left)[0]
        for child in alive:
            if child.pipe in ready:
                child.drain()


class Nursery:
    """A process without threads that forks writers: a few milliseconds each."""

    def __enter__(self) -> Self:
        self._link, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM), "nursery", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=environment(),
            )
        self._children: dict[int, Child] = {}
        return self

    def __exit__(self, *exc_info: object) -> None:
        for child in list(self._children.values()):
            self.kill(child)
        self._link.close()
        self._process.wait(DEADLINE_SECONDS)

    def fork(self, request: str) -> tuple[int, int]:
        """A new process, and the pipe that it speaks into."""
        ours, theirs = os.pipe()
        with contextlib.suppress(OSError):
            fcntl.fcntl(ours, F_SETPIPE_SZ, 1 << 20)
        socket.send_fds(self._link, [request.encode()], [theirs])
        os.close(theirs)
        return int(self._link.recv(64)), ours

    def reap(self, pid: int) -> int:
        """Wait until a process is gone; its exit code, or minus the signal."""
        self._link.sendall(f"wait {pid}".encode())
        return os.waitstatus_to_exitcode(int(self._link.recv(64)))

    def start(self, spec: Spec) -> Child:
        child = Child(spec, *self.fork(f"fork {spec.encode()}"))
        self._children[child.pid] = child
        return child

    def wait(self, child: Child) -> int:
        """Hear the child out and wait until it is gone; its exit code, or minus the signal."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not child.ended:
            assert time.monotonic() < deadline, f"{child.spec} does not end"
            listen([child], 1.0)
        code = self.reap(child.pid)
        del self._children[child.pid]
        os.close(child.pipe)
        return code

    def kill(self, child: Child) -> int:
        child.kill()
        return self.wait(child)


def environment() -> dict[str, str]:
    # The same source as the test's own, wherever that was found.
    places = [str(PROGRAM.parents[2]), *filter(None, sys.path)]
    return {**os.environ, "PYTHONPATH": ":".join(places), "PYTHONDONTWRITEBYTECODE": "1"}


def run_under_strace(spec: Spec, options: Sequence[str], trace: Path) -> tuple[Child, int]:
    """Run a writer in an interpreter of its own under strace, to its end."""
    command = ["strace", "-f", "-qq", "-o", str(trace), *options]
    if not any(":signal=" in option for option in options):
        # Quicker; but with it, strace 6.1 leaves out nearly all signals that it is to inject.
        command.insert(1, "--seccomp-bpf")
    process = subprocess.Popen(
        [*command, sys.executable, str(PROGRAM), "write", spec.encode()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    child = Child(spec, process.pid, process.stdout.fileno())
    with process:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not child.ended:
            listen([child], 1.0)
            if time.monotonic() > deadline:
                process.kill()
                raise AssertionError(f"{spec} does not end under {options}")
        errors = process.stderr.read().decode()
    assert process.returncode != 4, errors
    return child, process.returncode


# ---------------------------------------------------------------------------------------- ledger


@dataclass
class Score:
    """Counts for the line that a run prints."""

    crashes: int = 0
    acknowledged: int = 0
    lost: int = 0
    recovered: int = 0
    """Records that were found though nobody was told about them; they are real ones."""
    commits: int = 0
    bytes_cut: int = 0

    def __str__(self) -> str:
        return (
            f"{self.crashes} crashes, {self.acknowledged} acknowledged, {self.lost} lost, "
            f"{self.recovered} found unacknowledged, {self.commits} commits, "
            f"{self.bytes_cut} bytes cut"
        )


@dataclass
class Promise:
    """An acknowledged record."""

    writer: int
    sequence: int
    durable: bool
    time: float


GONE = (-1, -1)
"""A record that retention has removed before it was looked at."""


@dataclass
class Range:
    """Records that were acknowledged together, and the parts of the partitions they are in."""

    frame: Frame
    numbers: range
    places: list[tuple[int, int, int]]


@dataclass
class Ledger:
    """Everything that the writers of one topic were promised, and what was found of it."""

    path: Path
    topic: str
    config: dict[str, Any]
    record_bytes: int = 0
    score: Score = field(default_factory=Score)
    tears: bool = False
    """Writes may be torn, so that a slot of an offset file may be damaged; the other one counts."""
    varied: bool = False
    """The writers publish varied keys and tombstones."""
    tier: str = ""

    def __post_init__(self) -> None:
        self.partitions: int = self.config.get("partitions", 1)
        self.tried: dict[int, int] = defaultdict(int)
        self.promises: list[dict[int, Promise]] = [{} for _ in range(self.partitions)]
        self.ranges: list[Range] = []
        self.found: list[list[tuple[int, int]]] = [[] for _ in range(self.partitions)]
        self.durable = [0] * self.partitions
        self.earliest = [0] * self.partitions
        self.committing: dict[tuple[str, int], set[int]] = defaultdict(set)
        self.committed: dict[tuple[str, int], int] = defaultdict(int)
        self._seen: set[tuple[int, int]] = set()
        self._newest: list[dict[int, int]] = [{} for _ in range(self.partitions)]
        self._times = [0] * self.partitions
        self.lost: list[Promise] = []
        self._said = self._unsaid = 0

    def take(self, child: Child) -> None:
        """Write down what a writer said."""
        frames = iter(child.frames)
        names = child.spec.subscriber, child.spec.lagging
        for frame in frames:
            match frame.kind:
                case Kind.TRYING:
                    self.tried[frame.writer] = frame.a
                case Kind.ACKNOWLEDGED:
                    self._promise(frame)
                case Kind.MANY:
                    self.ranges.append(Range(frame, range(frame.a, frame.b), []))
                    self._count(frame.b - frame.a)
                case Kind.RANGE:
                    self.ranges[-1].places.append((frame.partition, frame.a, frame.b))
                case Kind.DURABLE:
                    self.durable[frame.partition] = max(self.durable[frame.partition], frame.a)
                case Kind.COMMITTING:
                    self.committing[names[frame.b], frame.partition].add(frame.a)
                case Kind.COMMITTED:
                    self.committed[names[frame.b], frame.partition] = frame.a
                    self.score.commits += 1
        self.tried[child.spec.writer] = max(self.tried[child.spec.writer], 0)

    def _promise(self, frame: Frame) -> None:
        promises = self.promises[frame.partition]
        assert frame.a not in promises, f"offset {frame.a} was given twice"
        promises[frame.a] = Promise(frame.writer, frame.b, bool(frame.c), frame.time)
        self._count(1)

    def _count(self, acknowledged: int) -> None:
        self._said += acknowledged
        self.score.acknowledged += acknowledged

    # After a crash

    async def check(
        self, queue: WalMessageQueue, *, again: bool = False, exact: bool = True
    ) -> None:
        """Compare the log with what was promised; ``again`` also reads what was read before.

        With ``exact`` every promise must be kept. Without it (a power cut with a policy that does
        not sync each record) only those that were said to be durable; the others are counted.
        """
        # The topic is made here when the first writer died before it could.
        await queue.create_topic(self.topic, msgspec.convert(self.config, TopicConfig))
        for report in await queue.recovery(self.topic):
            self.score.bytes_cut += report.bytes_cut
        for partition in range(self.partitions):
            await self._check_partition(queue, partition, again=again, exact=exact)
        self._check_ranges(exact=exact)

    async def _check_partition(
        self, queue: WalMessageQueue, partition: int, *, again: bool, exact: bool
    ) -> None:
        found = self.found[partition]
        earliest = await self._skip_what_retention_took(queue, partition)
        start = earliest if again else max(earliest, len(found))
        expected = start
        async for record in queue.replay(self.topic, start=start, partition=partition):
            assert record.offset == expected, "a gap, or a record twice"
            self._check_record(record, partition)
            expected += 1
        assert expected >= len(found), f"partition {partition} has become shorter"
        assert expected >= self.durable[partition], "less is there than was durable"
        self._settle_promises(partition, exact=exact)

    async def _skip_what_retention_took(self, queue: WalMessageQueue, partition: int) -> int:
        """The first offset that is there; what no subscriber needs may have gone."""
        earliest = (await queue.retention(self.topic))[partition].earliest_offset
        if earliest == 0:
            return 0
        assert "retention" in self.config, "records went, and nothing asked for it"
        found, promises = self.found[partition], self.promises[partition]
        for offset in range(len(found), earliest):
            kept = promises.pop(offset, None)
            found.append((kept.writer, kept.sequence) if kept else GONE)
        for offset in [offset for offset in promises if offset < earliest]:
            del promises[offset]
        self.earliest[partition] = earliest
        return earliest

    def parts_of(self, writer: int, sequence: int) -> program.Parts:
        return program.parts_of(writer, sequence, self.record_bytes, varied=self.varied)

    def _check_content(self, record: Record, partition: int) -> tuple[int, int]:
        """The numbers of a record that is in all its parts the one that was published."""
        assert record.partition == partition
        writer, sequence = numbers = program.numbers_in(record)
        read = program.Parts(record.value, record.key, dict(record.headers))
        assert read == self.parts_of(*numbers), record
        assert sequence < self.tried[writer], f"{numbers} was never published"
        return numbers

    def _check_record(self, record: Record, partition: int) -> None:
        writer, sequence = numbers = self._check_content(record, partition)
        found = self.found[partition]
        if record.offset < len(found):
            assert found[record.offset] == numbers, "a record has changed its place"
            return
        assert numbers not in self._seen, f"{numbers} is there twice"
        assert sequence > self._newest[partition].get(writer, -1), f"{numbers} is out of order"
        assert record.timestamp >= self._times[partition], "time goes back"
        self._seen.add(numbers)
        self._newest[partition][writer] = sequence
        self._times[partition] = record.timestamp
        found.append(numbers)

    def _settle_promises(self, partition: int, *, exact: bool) -> None:
        found = self.found[partition]
        promises = self.promises[partition]
        for offset in list(promises):
            promise = promises.pop(offset)
            if offset < len(found) and found[offset] == (promise.writer, promise.sequence):
                continue
            assert not exact, f"lost: {promise} at {partition}/{offset} of {len(found)}"
            assert not promise.durable, f"lost though durable: {promise} at {partition}/{offset}"
            assert offset >= self.durable[partition], f"lost: {offset} below the durable offset"
            self.lost.append(promise)
            self.score.lost += 1

    def _check_ranges(self, *, exact: bool) -> None:
        for one in self.ranges:
            frame = one.frame
            there = {
                numbers
                for part, first, end in one.places
                for numbers in self.found[part][first:end]
            }
            missing = [number for number in one.numbers if (frame.writer, number) not in there]
            if GONE in there:
                missing = []
            assert not (missing and exact), f"lost: {missing[:5]} of {one}"
            assert not (missing and frame.c), f"lost though durable: {missing[:5]} of {one}"
            self.score.lost += len(missing)
            self.lost += [Promise(frame.writer, number, False, frame.time) for number in missing]
        self.ranges.clear()

    async def check_subscriber(self, queue: WalMessageQueue, name: str) -> None:
        """The subscriber stands between what it has committed and what it was committing."""
        async with queue.subscribe(self.topic, name) as subscription:
            assert self.tears or not subscription.damaged_offsets
            for partition, position in subscription.positions().items():
                self._check_position(name, partition, position)
            if subscription.lag():
                async for batch in subscription.batches(10):
                    first = batch.records[0].offset
                    assert first == self.committed[name, batch.partition]
                    break

    def _check_position(self, name: str, partition: int, position: int) -> None:
        tried = self.committing[name, partition]
        done = self.committed.get((name, partition))
        if done is None:
            # It may have begun when retention had removed the first records.
            done = 0 if tried else self.earliest[partition]
        allowed = {done, *(offset for offset in tried if offset > done)}
        assert position in allowed, f"{name} resumes at {position}, not in {allowed}"
        assert position >= self.earliest[partition], "what a subscriber needs is gone"
        self.committed[name, partition] = position
        tried.clear()

    def check_now(
        self, *, again: bool = False, exact: bool = True, subscribers: Sequence[str] = ()
    ) -> None:
        """Open the log, check everything, and publish one more record to show that it goes on."""
        asyncio.run(self._check_now(again, exact, subscribers))
        self.count_recovered()

    def count_recovered(self) -> None:
        unsaid = len(self._seen) - self._said + len(self.lost)
        self.score.recovered += unsaid - self._unsaid
        self._unsaid = unsaid

    async def _check_now(self, again: bool, exact: bool, subscribers: Sequence[str]) -> None:
        async with WalMessageQueue(self.path, tier=self.tier or None) as queue:
            await self.check(queue, again=again, exact=exact)
            for name in subscribers:
                await self.check_subscriber(queue, name)
            await self._go_on(queue)

    async def _go_on(self, queue: WalMessageQueue) -> None:
        acknowledged = await self._publish_one(queue)
        assert acknowledged.offset == len(self.found[acknowledged.partition])
        await self._check_partition(queue, acknowledged.partition, again=False, exact=True)

    async def _publish_one(self, queue: WalMessageQueue) -> Acknowledgement:
        sequence = self.tried[0]
        self.tried[0] += 1
        value, key, headers = self.parts_of(0, sequence)
        acknowledged = await queue.publish(
            self.topic, value, key=key, headers=headers, durable=True
        )
        self._count(1)
        assert acknowledged.durable
        return acknowledged


# ------------------------------------------------------------------------------------ real disks


def need_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a file system of its own")


def need(program_name: str, package: str) -> str:
    path = shutil.which(program_name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if path is None:
        pytest.skip(f"{program_name} is missing (Debian package {package})")
    return path


def command(*arguments: object) -> str:
    done = subprocess.run(
        [str(one) for one in arguments], capture_output=True, check=False, text=True
    )
    assert done.returncode == 0, (arguments, done.stderr)
    return done.stdout.strip()


def is_mounted(folder: Path) -> bool:
    return any(
        line.split()[1] == str(folder) for line in Path("/proc/mounts").read_text().splitlines()
    )


def unmount(folder: Path) -> None:
    if is_mounted(folder):
        done = subprocess.run(["umount", str(folder)], capture_output=True, check=False)
        if done.returncode:
            subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=False)


@contextlib.contextmanager
def mounted_tmpfs(folder: Path, size: str) -> Iterator[Path]:
    """A file system in memory of a given size."""
    need_root()
    folder.mkdir(exist_ok=True)
    command("mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "penstock-test", folder)
    try:
        yield folder
    finally:
        unmount(folder)


SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN, which XFS calls GOINGDOWN."""
WITHOUT_LOG_FLUSH = 2


class Disk:
    """A real file system in a file, whose power can be cut."""

    def __init__(self, folder: Path, kind: str = "ext4", size_mib: int = 96) -> None:
        need_root()
        self.make = need(f"mkfs.{kind}", {"ext4": "e2fsprogs", "xfs": "xfsprogs"}[kind])
        self.kind = kind
        self.image = folder / f"{kind}.image"
        self.root = folder / f"{kind}.mounted"
        self.root.mkdir(parents=True, exist_ok=True)
        self.size_mib = size_mib

    def __enter__(self) -> Self:
        size = max(self.size_mib, 320) if self.kind == "xfs" else self.size_mib
        with self.image.open("wb") as file:
            file.truncate(size << 20)
        options = ["-q", "-F"] if self.kind == "ext4" else ["-q", "-f"]
        command(self.make, *options, self.image)
        try:
            self.mount()
        except AssertionError as failure:
            pytest.skip(f"cannot mount a loop device here: {failure}")
        return self

    def __exit__(self, *exc_info: object) -> None:
        unmount(self.root)
        self.image.unlink(missing_ok=True)

    def mount(self, options: str = "loop") -> None:
        command("mount", "-t", self.kind, "-o", options, self.image, self.root)

    def cut(self) -> None:
        """Cut the power: what is not on the disk, in files and in names, is lost."""
        descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, SHUTDOWN, struct.pack("I", WITHOUT_LOG_FLUSH))
        finally:
            os.close(descriptor)

    def power_on(self) -> None:
        self.remount()

    def remount(self, options: str = "loop") -> None:
        command("umount", self.root)
        self.mount(options)


class ThinDisk:
    """ext4 on a device that promises more space than it has, as thin provisioning does.

    The device is a loop device on a file in memory. What the journal needs is there before the
    space runs out, so only records fail. Writes go in single pages: the loop driver takes a write
    that was cut short for a good one.
    """

    def __init__(self, folder: Path, spare_bytes: int) -> None:
        need_root()
        self._make = need("mkfs.ext4", "e2fsprogs")
        self._memory = folder / "thin"
        self._image = self._memory / "image"
        self._device = ""
        self._spare = spare_bytes
        self.root = folder / "thin.mounted"

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(mounted_tmpfs(self._memory, "128m"))
            with self._image.open("wb") as file:
                file.truncate(64 << 20)
            options = ["-J", "size=4", "-E", "lazy_itable_init=0"]
            command(self._make, "-q", "-F", *options, self._image)
            try:
                self._device = command("losetup", "--find", "--show", self._image)
            except AssertionError as failure:
                pytest.skip(f"no loop device here: {failure}")
            stack.callback(command, "losetup", "--detach", self._device)
            queue = Path("/sys/block", Path(self._device).name, "queue/max_sectors_kb")
            queue.write_text("4")
            self.root.mkdir(exist_ok=True)
            command("mount", self._device, self.root)
            stack.callback(unmount, self.root)
            self._fill_journal()
            self._limit()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def _fill_journal(self) -> None:
        with (self.root / "journal").open("wb") as file:
            for _ in range(2_000):
                file.write(b"x")
                file.flush()
                os.fsync(file.fileno())

    def _limit(self) -> None:
        status = os.statvfs(self._memory)
        used = (status.f_blocks - status.f_bfree) * status.f_bsize
        command("mount", "-o", f"remount,size={used + self._spare}", self._memory)

    def extend(self) -> None:
        """Give it space, as an operator would; what was lost stays lost."""
        command("mount", "-o", "remount,size=128m", self._memory)

    def forget_cache(self) -> None:
        """From now on everything comes from the device."""
        command("umount", self.root)
        command("mount", self._device, self.root)
