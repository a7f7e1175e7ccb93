"""A disk that writes down every write and flush, and the disks that a power cut could have left.

The file system is ext4 on a loop device. Below it, a storage daemon logs what arrives, in order. A
crash state is any prefix of that log: what was flushed is there, and of the rest any part, down to
single sectors.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
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

from tests.crash.disks import command, need, need_root, unmount

SECTOR = 512
HEADER = struct.Struct("<QQQQ")
FLUSH, FUA, DISCARD = 1, 2, 4
START_SECONDS = 20.0
FORGET_CACHED = 0x1261
"""BLKFLSBUF: what was read of a device is read anew."""
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
        return self.bytes_of(_piece(entry, entry.sector, entry.sectors))

    def bytes_of(self, piece: Piece) -> bytes:
        if piece.data_at < 0:
            return bytes(piece.sectors * SECTOR)
        return os.pread(self._file.fileno(), piece.sectors * SECTOR, piece.data_at)

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


class Piece(NamedTuple):
    """What is left of a write that was not flushed."""

    sector: int
    data_at: int
    """Where its bytes stand in the log; -1 are zeros."""
    sectors: int


class State(NamedTuple):
    """A disk after a power cut: so much of the log is flushed, and these pieces are there as well.

    States that are equal are the same bytes.
    """

    flushed: int
    pieces: tuple[Piece, ...]


class Replay:
    """Makes the disks that power cuts could have left, in the order of the log.

    There is one device for all of them: its bytes are changed in memory between two mounts.
    """

    def __init__(self, disk: LoggedDisk, folder: Path) -> None:
        self._log = disk.log
        self._flushed = bytearray(disk.size)
        """What is surely on the disk."""
        self._flushed_entries = self._at = 0
        self._pending: list[Entry] = []
        self._path = folder / "state"
        self.root = folder / "state.mounted"
        self.root.mkdir()
        self.pending = self.dropped = 0

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            with self._path.open("w+b") as file:
                file.truncate(len(self._flushed))
                self._image = stack.enter_context(mmap.mmap(file.fileno(), 0))
            self._device = command("losetup", "--find", "--show", self._path)
            stack.callback(command, "losetup", "--detach", self._device)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def _advance(self, position: int) -> None:
        for number in range(self._at, position):
            entry = self._log.entries[number]
            if entry.flags & FLUSH:
                for earlier in self._pending:
                    _put(self._flushed, earlier.sector, self._log.data(earlier))
                self._pending.clear()
                self._flushed_entries = number
            if entry.sectors:
                self._pending.append(entry)
        self._at = position

    def state(self, cut: Cut) -> State:
        """What a cut leaves; cuts come in the order of the log."""
        self._advance(cut.position)
        chance = random.Random(cut.seed)
        pieces: list[Piece] = []
        for entry in self._pending:
            self.pending += 1
            if entry.flags & FUA or chance.random() < cut.keep:
                pieces.append(_piece(entry, entry.sector, entry.sectors))
            elif chance.random() < cut.torn:
                pieces += [_piece(entry, one, 1) for one in _some_sectors(entry, chance)]
            else:
                self.dropped += 1
        return State(self._flushed_entries, tuple(pieces))

    @contextlib.contextmanager
    def mounted(self, state: State) -> Iterator[Path]:
        """The file system as it was left, mounted, which replays its journal."""
        assert state.flushed == self._flushed_entries, "the disk has gone on since"
        self._image[:] = self._flushed
        for piece in state.pieces:
            _put(self._image, piece.sector, self._log.bytes_of(piece))
        with _opened(self._device) as device:
            fcntl.ioctl(device, FORGET_CACHED)
        mount(self._device, self.root)
        try:
            yield self.root
        finally:
            unmount_now(self.root)


def _piece(entry: Entry, sector: int, sectors: int) -> Piece:
    zeros = entry.flags & DISCARD
    return Piece(sector, -1 if zeros else entry.data_at + (sector - entry.sector) * SECTOR, sectors)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


_LIBRARY = ctypes.CDLL(None, use_errno=True)


def _called(result: int, path: object) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(path))


def mount(device: str, folder: Path) -> None:
    """mount(2): a process for each of thousands of mounts would take longer than the mount."""
    _called(
        _LIBRARY.mount(device.encode(), os.fsencode(folder), b"ext4", ctypes.c_ulong(0), b""),
        folder,
    )


def unmount_now(folder: Path) -> None:
    """umount(2); a file that is still open there is an error."""
    _called(_LIBRARY.umount2(os.fsencode(folder), 0), folder)


def _some_sectors(entry: Entry, chance: random.Random) -> list[int]:
    """A torn write: any of its sectors."""
    sectors = range(entry.sector, entry.sector + entry.sectors)
    kept = [sector for sector in sectors if chance.random() < 0.5]
    if any(sector in SUPERBLOCK for sector in kept):
        kept = sorted({*kept, *(sector for sector in SUPERBLOCK if sector in sectors)})
    return kept


def _put(image: bytearray | mmap.mmap, sector: int, data: bytes) -> None:
    image[sector * SECTOR : sector * SECTOR + len(data)] = data
