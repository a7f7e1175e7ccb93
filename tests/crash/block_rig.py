"""A disk that writes down every write and flush, and the disks that a power cut could have left.

The file system is ext4 on a loop device. Below it, a storage daemon logs what arrives, in order. A
crash state is any prefix of that log: what was flushed is there, and of the rest any part, down to
single sectors.
"""

import contextlib
import os
import random
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import pytest

from tests.crash.rigs import command, need, need_root, unmount

SECTOR = 512
HEADER = struct.Struct("<QQQQ")
FLUSH, FUA, DISCARD = 1, 2, 4
START_SECONDS = 20.0
SUPERBLOCK = range(2, 4)
"""The file system cannot be mounted when one half of these is old: they are kept or lost together."""


class Entry(NamedTuple):
    """A line of the log: a write of so many sectors, or a flush."""

    sector: int
    sectors: int
    flags: int
    data_at: int


class WriteLog:
    """What the daemon wrote down, as it grows."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self._end = SECTOR
        self.entries: list[Entry] = []

    def position(self) -> int:
        """How many entries there are now."""
        while len(header := os.pread(self._file.fileno(), SECTOR, self._end)) == SECTOR:
            sector, sectors, flags, _ = HEADER.unpack_from(header)
            if not (sectors or flags):
                break
            entry = Entry(sector, sectors, flags, self._end + SECTOR)
            self._end += SECTOR + (0 if flags & DISCARD else sectors * SECTOR)
            self.entries.append(entry)
        return len(self.entries)

    def data(self, entry: Entry) -> bytes:
        if entry.flags & DISCARD:
            return bytes(entry.sectors * SECTOR)
        return os.pread(self._file.fileno(), entry.sectors * SECTOR, entry.data_at)

    def close(self) -> None:
        self._file.close()


class LoggedDisk:
    """ext4 on a device of which every write and flush is written down, in order."""

    def __init__(self, folder: Path, size_mib: int = 24) -> None:
        need_root()
        self._make = need("mkfs.ext4", "e2fsprogs")
        self._daemon = need("qemu-storage-daemon", "qemu-system-common")
        if not Path("/dev/fuse").exists():
            pytest.skip("/dev/fuse is missing, so no device can be exported as a file")
        self._folder = folder
        self.size = size_mib << 20
        self.root = folder / "mounted"

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            exported = stack.enter_context(self._exported())
            try:
                device = command("losetup", "--find", "--show", exported)
            except AssertionError as failure:
                pytest.skip(f"no loop device here: {failure}")
            stack.callback(command, "losetup", "--detach", device)
            self.log = WriteLog(self._folder / "writes")
            stack.callback(self.log.close)
            command(self._make, "-q", "-F", "-b", "4096", "-J", "size=4", device)
            self.root.mkdir()
            command("mount", device, self.root)
            stack.callback(unmount, self.root)
            command("sync", "--file-system", self.root)
            self.start = self.log.position()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    @contextlib.contextmanager
    def _exported(self) -> Iterator[Path]:
        """The device as a file, behind the daemon that logs."""
        image, log, exported = (self._folder / name for name in ("image", "writes", "device"))
        with image.open("wb") as file:
            file.truncate(self.size)
        log.touch()
        exported.touch()
        layers = [
            f"driver=file,node-name=data,filename={image}",
            f"driver=file,node-name=log,filename={log}",
            "driver=blklogwrites,node-name=top,file=data,log=log,log-sector-size=512",
        ]
        options = [part for layer in layers for part in ("--blockdev", layer)]
        export = f"type=fuse,id=export,node-name=top,mountpoint={exported},writable=on"
        daemon = subprocess.Popen(
            [self._daemon, *options, "--export", export], stderr=subprocess.PIPE
        )
        with daemon:
            try:
                self._wait_for_the(daemon, exported)
                yield exported
            finally:
                daemon.terminate()
                daemon.wait(START_SECONDS)

    def _wait_for_the(self, daemon: subprocess.Popen[bytes], exported: Path) -> None:
        deadline = time.monotonic() + START_SECONDS
        while exported.stat().st_size != self.size:
            assert time.monotonic() < deadline, "the daemon does not export its device"
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(0.01)
                assert daemon.stderr is not None
                pytest.skip(f"the daemon does not export: {daemon.stderr.read().decode()}")


@dataclass
class Cut:
    """A power cut: how much of the log had arrived, and what of the unflushed part is left."""

    position: int
    keep: float
    torn: float
    """How many of the unflushed writes are kept, and how many are torn into sectors."""
    seed: int

    def __str__(self) -> str:
        return f"after {self.position} entries, {self.keep:.0%} kept, {self.torn:.0%} torn"


def choose_cuts(chance: random.Random, positions: list[int], last: int, count: int) -> list[Cut]:
    """Cuts in the order of the log: half of them where something was just promised."""
    cuts = []
    for _ in range(count):
        anywhere = chance.randint(positions[0], last)
        position = chance.choice(positions) if chance.random() < 0.5 else anywhere
        keep = chance.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        torn = chance.choice((0.0, 0.3, 1.0))
        cuts.append(Cut(position, keep, torn, chance.getrandbits(32)))
    return sorted(cuts, key=lambda cut: cut.position)


class Replay:
    """Makes the disks that power cuts could have left, in the order of the log."""

    def __init__(self, disk: LoggedDisk, folder: Path) -> None:
        self._log = disk.log
        self._flushed = bytearray(disk.size)
        """What is surely on the disk."""
        self._at = 0
        self._pending: list[Entry] = []
        self._image = folder / "state"
        self.root = folder / "state.mounted"
        self.root.mkdir()
        self.pending = self.dropped = 0

    def _advance(self, position: int) -> None:
        for entry in self._log.entries[self._at : position]:
            if entry.flags & FLUSH:
                for earlier in self._pending:
                    _put(self._flushed, earlier.sector, self._log.data(earlier))
                self._pending.clear()
            if entry.sectors:
                self._pending.append(entry)
        self._at = position

    def _left(self, cut: Cut) -> bytearray:
        self._advance(cut.position)
        image = self._flushed.copy()
        chance = random.Random(cut.seed)
        for entry in self._pending:
            data = self._log.data(entry)
            self.pending += 1
            if entry.flags & FUA or chance.random() < cut.keep:
                _put(image, entry.sector, data)
            elif chance.random() < cut.torn:
                for sector in _some_sectors(entry, chance):
                    at = (sector - entry.sector) * SECTOR
                    _put(image, sector, data[at : at + SECTOR])
            else:
                self.dropped += 1
        return image

    @contextlib.contextmanager
    def mounted(self, cut: Cut) -> Iterator[Path]:
        """The file system after the cut, mounted, which replays its journal."""
        self._image.write_bytes(self._left(cut))
        command("mount", "-t", "ext4", "-o", "loop", self._image, self.root)
        try:
            yield self.root
        finally:
            unmount(self.root)


def _some_sectors(entry: Entry, chance: random.Random) -> list[int]:
    """A torn write: any of its sectors."""
    sectors = range(entry.sector, entry.sector + entry.sectors)
    kept = [sector for sector in sectors if chance.random() < 0.5]
    if any(sector in SUPERBLOCK for sector in kept):
        kept = sorted({*kept, *(sector for sector in SUPERBLOCK if sector in sectors)})
    return kept


def _put(image: bytearray, sector: int, data: bytes) -> None:
    image[sector * SECTOR : sector * SECTOR + len(data)] = data
