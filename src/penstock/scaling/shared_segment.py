"""The memory of a shared ring: a named file without a disk, that all processes map."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from penstock.errors import DeadlineExceeded, InvalidName, InvalidOption, StoreFailed, UsageError
from penstock.scaling.shared_places import CONSUMERS_MAX, FIRST_CONSUMER, PLACE_WORDS, Place, Places
from penstock.system import System, map_shared

DIRECTORY = "/dev/shm"  # noqa: S108  the place of POSIX shared memory on Linux
PREFIX = "penstock-ring-"
MAGIC = 0x0001_474E_4952_5350
"""Version 1 and the letters PSRING."""
IDENTITY = 3
"""The word that tells two rings of the same name apart."""
PAGE_BYTES = 4_096
LOCK_SECONDS_MAX = 10.0
LOCK_PAUSE_SECONDS = 0.001
STAT_BYTES_MAX = 1_024
GONE = "ZXx"
NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


def path_of(name: str) -> str:
    """The file of a ring."""
    if not NAME.fullmatch(name):
        raise InvalidName(f"a shared ring is named by 1 to 100 of A-Z a-z 0-9 _ . -, not {name!r}")
    return f"{DIRECTORY}/{PREFIX}{name}"


def started(system: System, pid: int) -> int:
    """When the process started, in ticks since boot; 0 when there is none, or only its remains."""
    try:
        descriptor = system.files.open(f"/proc/{pid}/stat", write=False)
    except OSError:
        return 0
    try:
        text = system.files.read(descriptor, STAT_BYTES_MAX, 0)
    except OSError:  # it ended while we looked
        return 0
    finally:
        system.files.close(descriptor)
    fields = text.rpartition(b")")[2].split()  # a program's name may contain anything
    return 0 if fields[0].decode() in GONE else int(fields[19])


def alive(system: System, owner: tuple[int, int]) -> bool:
    """Whether the very process that took a place is still there."""
    return 0 not in owner and started(system, owner[0]) == owner[1]


def myself(system: System) -> tuple[int, int]:
    """This process, as an owner."""
    pid = os.getpid()
    return pid, started(system, pid)


class Segment:
    """Mapped memory: the words of the header and the bytes of the entries."""

    __slots__ = ("_memory", "_system", "area", "capacity", "identity", "name", "places", "words")

    def __init__(self, system: System, name: str, descriptor: int) -> None:
        self._system = system
        self.name = name
        self._memory = memoryview(map_shared(descriptor, system.files.status(descriptor).size))
        self.words = self._memory[:PAGE_BYTES].cast("Q")
        self.capacity: int = self.words[1]
        self.area = self._memory[PAGE_BYTES : PAGE_BYTES + self.capacity]
        self.identity: int = self.words[IDENTITY]
        self.places = Places(self.words, self.words[2])

    @classmethod
    def create(cls, system: System, name: str, capacity: int, consumers_max: int) -> Segment:
        """Make the memory of a new ring. One left by dead processes is replaced."""
        if not 1 <= consumers_max <= CONSUMERS_MAX:
            raise InvalidOption(f"a shared ring has 1 to {CONSUMERS_MAX} consumers")
        with locked(system, path_of(name), create=True) as descriptor:
            if in_use(system, descriptor):
                raise UsageError(f"a shared ring named {name} is in use", name=name)
            system.files.truncate(descriptor, 0)
            system.files.truncate(descriptor, PAGE_BYTES + capacity)
            words = memoryview(map_shared(descriptor, PAGE_BYTES)).cast("Q")
            words[1], words[2] = capacity, consumers_max
            words[IDENTITY] = system.random.getrandbits(64)
            words[0] = MAGIC
            segment = cls(system, name, descriptor)
            segment.places.creator.own(myself(system))
        return segment

    @classmethod
    def attach(cls, system: System, name: str) -> Segment:
        """Map the memory of a ring that exists; UsageError when it does not."""
        try:
            with locked(system, path_of(name)) as descriptor:
                if not is_ring(system, descriptor):
                    raise StoreFailed(f"{path_of(name)} is not a shared ring", name=name)
                return cls(system, name, descriptor)
        except FileNotFoundError:
            raise UsageError(f"there is no shared ring named {name}", name=name) from None

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock that everyone takes who comes or goes. Not needed to publish or read."""
        with ExitStack() as stack:
            with suppress(FileNotFoundError):  # the name is gone: nobody can come any more
                stack.enter_context(locked(self._system, path_of(self.name)))
            yield

    def lives(self, place: Place) -> bool:
        """Whether the process of a consumer is alive; for a group, that or one of its members."""
        owners = [place.owner, *(one.owner for one in self.places.members(place))]
        return any(alive(self._system, owner) for owner in owners)

    def remove_dead(self) -> None:
        """Free the places of consumers whose process is gone, so that they gate no more."""
        if all(self.lives(place) for place in self.places.gates()):
            return
        with self.lock():
            for place in self.places.gates():
                if not self.lives(place):
                    self.places.free(place)

    def unlink_if_unused(self) -> None:
        """Remove the name when nobody takes part any more."""
        files = self._system.files
        with suppress(FileNotFoundError), locked(self._system, path_of(self.name)) as descriptor:
            # The name may belong to a younger ring.
            same = files.read(descriptor, 8, IDENTITY * 8) == self._memory[IDENTITY * 8 :][:8]
            if same and not in_use(self._system, descriptor):
                files.unlink(path_of(self.name))


@contextmanager
def locked(system: System, path: str, *, create: bool = False) -> Iterator[int]:
    """Open the file and hold its lock. A process that dies lets go of it."""
    files, clock = system.files, system.clock
    deadline = clock.monotonic() + LOCK_SECONDS_MAX
    while True:
        descriptor = files.open(path, create=create)
        try:
            if files.try_lock(descriptor) and files.status(descriptor).links:
                yield descriptor
                return
        finally:
            # To close is not enough: memory that was mapped meanwhile keeps the file open.
            files.unlock(descriptor)
            files.close(descriptor)
        if clock.monotonic() >= deadline:
            raise DeadlineExceeded(f"{path} was locked for {LOCK_SECONDS_MAX} seconds")
        clock.sleep(LOCK_PAUSE_SECONDS)


def is_ring(system: System, descriptor: int) -> bool:
    """Whether the file is the finished memory of a ring of this version."""
    head = system.files.read(descriptor, PAGE_BYTES, 0)
    if len(head) < PAGE_BYTES:
        return False
    words = memoryview(head).cast("Q")
    size = system.files.status(descriptor).size
    return words[0] == MAGIC and size == PAGE_BYTES + words[1] and words[2] <= CONSUMERS_MAX


def in_use(system: System, descriptor: int) -> bool:
    """Whether a live process takes part in the ring. The lock is held."""
    if not is_ring(system, descriptor):
        return False
    words = memoryview(system.files.read(descriptor, PAGE_BYTES, 0)).cast("Q")
    places = Places(words, words[2])
    return any(alive(system, place.owner) for place in places.everyone())


def sweep(system: System) -> list[str]:
    """Remove the memory of rings whose processes are all dead; the names of those rings."""
    swept = []
    for file, _ in system.files.list_directory(DIRECTORY):
        name = file.removeprefix(PREFIX)
        if file.startswith(PREFIX) and NAME.fullmatch(name) and _sweep_one(system, name):
            swept.append(name)
    return swept


def _sweep_one(system: System, name: str) -> bool:
    try:
        with locked(system, path_of(name)) as descriptor:
            if in_use(system, descriptor):
                return False
            system.files.unlink(path_of(name))
            return True
    except (OSError, DeadlineExceeded):
        return False  # another user's, or another process swept it first


assert FIRST_CONSUMER + PLACE_WORDS * CONSUMERS_MAX <= PAGE_BYTES // 8
