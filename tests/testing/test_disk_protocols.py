"""The simulated disk tells right protocols from wrong ones: each seeded bug is caught."""

import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random

import pytest

from penstock.system import Files
from penstock.testing.disk import SimulatedDisk, SyncPoint

LOG = "/data/topic/log"
STATES = 200
RECORDS = [bytes([number]) * size for number, size in enumerate((3, 700, 40, 1_600, 1, 90), 1)]

Records = list[bytes]
Bugs = frozenset[str]


def frame(record: bytes) -> bytes:
    return len(record).to_bytes(4) + zlib.crc32(record).to_bytes(4) + record


def recover(files: Files, bugs: Bugs) -> Records:
    """The records up to the first one that is not whole."""
    if not files.exists(LOG):
        return []
    descriptor = files.open(LOG)
    data = files.read(descriptor, 1 << 20, 0)
    files.close(descriptor)
    records: Records = []
    while len(data) > 8 and (record := data[8 : 8 + int.from_bytes(data[:4])]):
        if frame(record) != data[: 8 + len(record)] and "no checksum" not in bugs:
            break
        records.append(record)
        data = data[8 + len(record) :]
    return records


class Logger:
    """Appends, syncs, acknowledges. The bugs leave something out."""

    def __init__(self, files: Files, bugs: Bugs) -> None:
        self.files, self.bugs = files, bugs
        self.acknowledged: Records = []
        self.written: Records = []
        self.end = 0
        self._make()

    def _make(self) -> None:
        with suppress(FileExistsError):
            self.files.make_directory("/data/topic")
        if "no sync of the parent" not in self.bugs:
            self.files.sync_directory("/data")
        self.descriptor = self.files.open(LOG, create=True)
        if "no sync of the directory" not in self.bugs:
            self.files.sync_directory("/data/topic")

    def append(self, record: bytes) -> None:
        self.written.append(record)
        self.files.write(self.descriptor, [frame(record)], self.end)
        self.end += len(frame(record))
        if "acknowledge before sync" in self.bugs:
            self.acknowledged.append(record)
        if "no sync" not in self.bugs:
            self._sync()
        if "acknowledge before sync" not in self.bugs:
            self.acknowledged.append(record)

    def _sync(self) -> None:
        try:
            self.files.sync(self.descriptor)
        except OSError:
            if "retry of a failed sync" not in self.bugs:
                raise
            self.files.sync(self.descriptor)


def violations(disk: SimulatedDisk, bugs: Bugs, sync_fails_at: int | None) -> Iterator[str]:
    """Run the logger, cut the power at every sync and after each append, and compare."""
    found: list[str] = []
    logger: list[Logger] = []
    random = Random(5)

    def check(_: SyncPoint | None = None) -> None:
        if not logger:
            return
        for state in disk.crash_states(STATES, random):
            records = recover(state, bugs)
            if records[: len(logger[0].acknowledged)] != logger[0].acknowledged:
                found.append("lost")
            if records != logger[0].written[: len(records)]:
                found.append("invented")

    if sync_fails_at:
        disk.fail("sync", at=sync_fails_at)
    disk.on_sync(check)
    logger.append(Logger(disk, bugs))
    with suppress(OSError):
        for record in RECORDS:
            logger[0].append(record)
            check()
    yield from found


@pytest.mark.parametrize("sync_fails_at", [None, 1, 3, len(RECORDS)])
def test_the_right_protocol_survives_every_state(sync_fails_at):
    assert list(violations(SimulatedDisk(), frozenset(), sync_fails_at)) == []


@pytest.mark.parametrize(
    ("bug", "damage"),
    [
        ("no sync", "lost"),
        ("acknowledge before sync", "lost"),
        ("no sync of the directory", "lost"),
        ("no sync of the parent", "lost"),
        ("retry of a failed sync", "lost"),
        ("no checksum", "invented"),
    ],
)
def test_a_seeded_bug_is_caught(bug, damage):
    fails_at = 3 if bug == "retry of a failed sync" else None
    assert damage in set(violations(SimulatedDisk(), frozenset([bug]), fails_at))


def test_without_a_failing_sync_the_retry_does_no_harm():
    """So it is the failed sync that the disk catches, not the code around it."""
    assert list(violations(SimulatedDisk(), frozenset(["retry of a failed sync"]), None)) == []


VALUE = "/data/value"
OLD, NEW = b"old" * 300, b"new" * 300


def replace(disk: SimulatedDisk, skipped: str) -> None:
    """Write a temporary file, sync it, rename it, sync the directory."""
    descriptor = disk.open(VALUE + ".tmp", create=True)
    disk.write(descriptor, [NEW], 0)
    if skipped != "sync":
        disk.sync(descriptor)
    disk.close(descriptor)
    disk.rename(VALUE + ".tmp", VALUE)
    if skipped != "sync_directory":
        disk.sync_directory("/data")


def overwrite(disk: SimulatedDisk, _: str) -> None:
    """Write in place: never atomic."""
    descriptor = disk.open(VALUE)
    disk.truncate(descriptor, 0)
    disk.write(descriptor, [NEW], 0)
    disk.sync(descriptor)


def values_after_cut(
    save: Callable[[SimulatedDisk, str], None], skipped: str
) -> tuple[set[bytes], set[bytes]]:
    """What can be read after a cut while saving, and after a cut when it has returned."""
    disk = SimulatedDisk()
    disk.put(VALUE, OLD)
    during: set[bytes] = set()

    def look(_operation: str, _path: str) -> None:
        during.update(state.content(VALUE) for state in disk.crash_states(STATES))

    disk.on_call(look)
    save(disk, skipped)
    return during, {state.content(VALUE) for state in disk.crash_states(STATES)}


def test_replacing_by_rename_is_atomic_and_durable():
    assert values_after_cut(replace, "") == ({OLD, NEW}, {NEW})


def test_rename_without_sync_of_the_temporary_file_is_caught():
    during, after = values_after_cut(replace, "sync")
    assert b"" in during
    assert b"" in after


def test_rename_without_sync_of_the_directory_is_caught():
    during, after = values_after_cut(replace, "sync_directory")
    assert during <= {OLD, NEW}
    assert after == {OLD, NEW}


def test_overwriting_in_place_is_caught():
    during, after = values_after_cut(overwrite, "")
    assert during - {OLD, NEW}
    assert after == {NEW}
