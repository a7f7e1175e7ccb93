"""The simulated disk answers like the real one, call by call, errors included."""

import errno
import tempfile
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.system import Files, OsFiles
from penstock.testing.disk import SimulatedDisk

PATHS = st.sampled_from(["", "/a", "/b", "/d", "/d/a", "/d/e", "/d/e/a", "/d/e/f", "/none/a"])
BELOW = PATHS.filter(bool)
SLOTS = st.integers(0, 3)
SIZES = st.integers(0, 1_200)
BUFFERS = st.lists(st.binary(max_size=700), min_size=1, max_size=3)


def step(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(st.just(name), *arguments)


OPEN = step("open", PATHS, st.booleans(), st.booleans(), SLOTS)
MAKE = step("make_directory", PATHS)
STEPS = st.one_of(
    OPEN,
    OPEN,
    MAKE,
    step("write", SLOTS, BUFFERS, SIZES),
    step("read", SLOTS, SIZES, SIZES),
    step("truncate", SLOTS, SIZES),
    step("sync", SLOTS),
    step("status", SLOTS),
    step("close", SLOTS),
    step("try_lock", SLOTS),
    step("unlock", SLOTS),
    step("rename", BELOW, BELOW),
    step("unlink", PATHS),
    step("remove_directory", BELOW),
    step("list_directory", PATHS),
    step("sync_directory", PATHS),
    step("exists", PATHS),
)


class Runner:
    """Runs steps on one disk below one folder, and remembers descriptors by slot."""

    def __init__(self, files: Files, root: str) -> None:
        self.files, self.root = files, root
        self.slots: dict[int, int] = {}

    def run(self, name: str, *arguments: Any) -> object:
        special: Callable[..., object] | None = getattr(self, f"run_{name}", None)
        try:
            return special(*arguments) if special else self.plain(name, *arguments)
        except OSError as failed:
            return f"error {errno.errorcode[failed.errno or 0]}"

    def plain(self, name: str, *arguments: Any) -> object:
        if isinstance(arguments[0], int):
            if arguments[0] not in self.slots:
                return "not open"
            return getattr(self.files, name)(self.slots[arguments[0]], *arguments[1:])
        return getattr(self.files, name)(*(self.root + path for path in arguments))

    def run_open(self, path: str, create: bool, write: bool, slot: int) -> object:
        if slot in self.slots:
            return "in use"
        write = write or self.is_directory(path)  # reading one is no part of the contract
        self.slots[slot] = self.files.open(self.root + path, create=create, write=write)
        return "opened"

    def is_directory(self, path: str) -> bool:
        return not str(self.run("list_directory", path)).startswith("error")

    def run_close(self, slot: int) -> object:
        if slot not in self.slots:
            return "not open"
        self.files.close(self.slots.pop(slot))
        return "closed"

    def run_list_directory(self, path: str) -> object:
        return sorted(self.files.list_directory(self.root + path))

    def run_status(self, slot: int) -> object:
        return self.files.status(self.slots[slot]) if slot in self.slots else "not open"

    def tree(self, path: str = "") -> dict[str, bytes | None]:
        found: dict[str, bytes | None] = {}
        for name, is_directory in self.files.list_directory(self.root + path):
            below = f"{path}/{name}"
            found |= (
                {below: None, **self.tree(below)} if is_directory else {below: self.read(below)}
            )
        return found

    def read(self, path: str) -> bytes:
        descriptor = self.files.open(self.root + path, write=False)
        data = self.files.read(descriptor, 1 << 20, 0)
        self.files.close(descriptor)
        return data

    def close(self) -> None:
        for slot in list(self.slots):
            self.run_close(slot)


@given(st.lists(STEPS, max_size=40))
def test_the_simulated_disk_answers_like_the_real_one(steps):
    simulated = Runner(SimulatedDisk(), "/data")
    with tempfile.TemporaryDirectory() as folder:
        real = Runner(OsFiles(), folder)
        try:
            for each in [("make_directory", "/d"), *steps]:
                assert (each, simulated.run(*each)) == (each, real.run(*each))
            assert simulated.tree() == real.tree()
        finally:
            real.close()
