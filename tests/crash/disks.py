"""Real disks to cut, to fill and to freeze, and the commands that they need."""

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest


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


def cut_power(root: Path | str) -> None:
    """Cut the power of a file system: what is not on the disk, in files and in names, is lost."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(descriptor, SHUTDOWN, struct.pack("I", WITHOUT_LOG_FLUSH))
    finally:
        os.close(descriptor)


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
        cut_power(self.root)

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
