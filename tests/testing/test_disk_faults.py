"""Faults, capacity, locks, counters and damage on the simulated disk."""

import errno

import pytest

from penstock.testing.disk import SimulatedDisk
from penstock.testing.disk_faults import OPERATIONS

PATH = "/data/f"


@pytest.fixture
def disk():
    disk = SimulatedDisk()
    disk.put(PATH, b"content")
    return disk


def call(disk: SimulatedDisk, operation: str, descriptor: int) -> object:
    """Call an operation with arguments that make it succeed."""
    arguments: dict[str, tuple[object, ...]] = {
        "open": (PATH,),
        "read": (descriptor, 1, 0),
        "write": (descriptor, [b"x"], 0),
        "truncate": (descriptor, 1),
        "sync_directory": ("/data",),
        "rename": (PATH, "/data/g"),
        "unlink": (PATH,),
        "make_directory": ("/data/new",),
        "remove_directory": ("/data/empty",),
        "list_directory": ("/data",),
        "exists": (PATH,),
        "links": ("/data",),
        "watch": (),
    }
    return getattr(disk, operation)(*arguments.get(operation, (descriptor,)))


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_every_operation_can_fail_once_and_does_nothing_then(operation):
    disk = SimulatedDisk(directories=["/data/empty"])
    disk.put(PATH, b"content")
    descriptor = disk.open(PATH)
    before = (disk.files(), disk.content(PATH), disk.list_directory("/data"))
    fault = disk.fail(operation, errno.ENOMEM)
    with pytest.raises(OSError) as failed:
        call(disk, operation, descriptor)
    assert failed.value.errno == errno.ENOMEM
    assert (fault.seen, fault.fired) == (1, 1)
    disk.heal()
    assert (disk.files(), disk.content(PATH), disk.list_directory("/data")) == before
    if operation != "close":  # as on Linux: a descriptor is gone even when closing it failed
        call(disk, operation, descriptor)
    assert descriptor not in disk.open_descriptors() or operation != "close"


def test_the_nth_call_fails_once_or_for_ever(disk):
    descriptor = disk.open(PATH)
    disk.fail("read", at=2)
    disk.fail("status", at=2, forever=True)
    for method, wanted in (
        (lambda: disk.read(descriptor, 1, 0), [True, False, True, True]),
        (lambda: disk.status(descriptor), [True, False, False, False]),
    ):
        outcomes = []
        for _ in range(4):
            try:
                method()
                outcomes.append(True)
            except OSError:
                outcomes.append(False)
        assert outcomes == wanted


def test_a_fault_can_be_bound_to_a_path(disk):
    disk.put("/data/other", b"")
    disk.fail("open", path="*/oth*", forever=True)
    disk.open(PATH)
    with pytest.raises(OSError, match="other"):
        disk.open("/data/other")


def test_a_rename_fails_by_either_path(disk):
    disk.fail("rename", path="*/target")
    with pytest.raises(OSError):
        disk.rename(PATH, "/data/target")
    assert disk.files() == [PATH]


def test_a_wrong_operation_is_refused(disk):
    with pytest.raises(ValueError, match="fsync"):
        disk.fail("fsync")


def test_a_short_write_leaves_its_bytes_behind(disk):
    descriptor = disk.open(PATH)
    disk.fail("write", errno.ENOSPC, short=2)
    with pytest.raises(OSError) as failed:
        disk.write(descriptor, [b"a", b"bcd"], 7)
    assert failed.value.errno == errno.ENOSPC
    assert disk.content(PATH) == b"contentab"


def test_a_full_disk_takes_what_fits_and_goes_on_when_space_is_freed():
    disk = SimulatedDisk(capacity=10)
    disk.put("/data/ballast", b"12345")
    descriptor = disk.open(PATH, create=True)
    with pytest.raises(OSError) as failed:
        disk.write(descriptor, [b"abcdefgh"], 0)
    assert failed.value.errno == errno.ENOSPC
    assert disk.content(PATH) == b"abcde"
    disk.write(descriptor, [b"ABCDE"], 0)
    disk.unlink("/data/ballast")
    disk.sync_directory("/data")
    disk.write(descriptor, [b"fgh"], 5)
    assert disk.content(PATH) == b"ABCDEfgh"


def test_an_open_file_without_a_name_still_takes_space():
    disk = SimulatedDisk(capacity=4)
    descriptor = disk.open(PATH, create=True)
    disk.write(descriptor, [b"1234"], 0)
    disk.unlink(PATH)
    disk.sync_directory("/data")
    other = disk.open("/data/g", create=True)
    with pytest.raises(OSError):
        disk.write(other, [b"1"], 0)
    disk.close(descriptor)
    disk.write(other, [b"1"], 0)


def test_locks_belong_to_the_open_file_and_end_with_it(disk):
    first, second = disk.open(PATH), disk.open(PATH)
    assert disk.try_lock(first)
    assert disk.try_lock(first)
    assert not disk.try_lock(second)
    disk.unlock(second)
    assert not disk.try_lock(second)
    disk.close(first)
    assert disk.try_lock(second)
    disk.unlock(second)
    assert disk.try_lock(disk.open(PATH))


def test_a_lock_follows_the_file_and_not_the_name(disk):
    first = disk.open(PATH)
    assert disk.try_lock(first)
    disk.unlink(PATH)
    assert disk.try_lock(disk.open(PATH, create=True))


def test_calls_are_counted_and_written_down(disk):
    descriptor = disk.open(PATH)
    disk.write(descriptor, [b"ab", b"c"], 5)
    disk.write(descriptor, [b"d"], 8)
    disk.sync(descriptor)
    assert disk.calls == {"open": 1, "write": 2, "sync": 1}
    assert disk.journal[1] == ("write", PATH, (5, 3))


def test_on_call_comes_before_each_change_and_not_for_reads(disk):
    seen = []
    disk.on_call(lambda operation, path: seen.append((operation, path, disk.content(PATH))))
    descriptor = disk.open(PATH)
    disk.write(descriptor, [b"C"], 0)
    disk.read(descriptor, 1, 0)
    disk.rename(PATH, "/data/g")
    assert seen == [
        ("open", PATH, b"content"),
        ("write", PATH, b"content"),
        ("rename", PATH, b"Content"),
    ]


def test_leaked_descriptors_are_named(disk):
    descriptor = disk.open(PATH)
    disk.close(disk.open(PATH))
    assert disk.open_descriptors() == {descriptor: PATH}


def test_damage_is_durable(disk):
    disk.flip_bit(PATH, 8)
    assert disk.content(PATH) == b"cnntent"
    disk.zero(PATH, 5, 99)
    assert disk.content(PATH) == b"cnnte\0\0"
    disk.truncate_file(PATH, 3)
    assert [state.content(PATH) for state in disk.crash_states(9)] == [b"cnn"]
    disk.truncate_file(PATH, 4)
    assert disk.content(PATH) == b"cnn\0"
    disk.delete(PATH)
    assert [state.files() for state in disk.crash_states(9)] == [[]]


def test_descriptors_are_checked(disk):
    reader = disk.open(PATH, write=False)
    with pytest.raises(OSError, match="Bad file descriptor"):
        disk.write(reader, [b"x"], 0)
    disk.close(reader)
    with pytest.raises(OSError, match="Bad file descriptor"):
        disk.close(reader)


def test_a_relative_path_is_refused(disk):
    with pytest.raises(ValueError, match="absolute"):
        disk.exists("data")
