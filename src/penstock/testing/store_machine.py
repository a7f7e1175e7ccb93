"""State machines of hypothesis: any sequence of calls on a store equals a dictionary of bytes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from penstock.errors import InvalidOption, KeyNotFound
from penstock.stores.base import PersistentBackingStore
from penstock.testing.store_fixtures import MakeStore

# No key is a folder of another one: a directory of files cannot have both.
NAMES = st.sampled_from(["a", "b.log", "folder/a", "folder/b", "folder/deep/c"])
DATA = st.binary(max_size=60)
PLACES = st.integers(0, 80)

_runs = itertools.count()


class ValueMachine(RuleBasedStateMachine):
    """Whole values, against a dictionary. Each run has a folder of the store to itself."""

    def __init__(self, store: PersistentBackingStore, make_store: MakeStore) -> None:
        super().__init__()
        self.shared = store.capabilities.shared
        self.make_store = make_store
        self.store = make_store() if self.shared else store
        self.folder = f"run-{next(_runs)}"
        self.model: dict[str, bytes] = {}

    def key(self, name: str) -> str:
        """The key of a name in this run."""
        return f"{self.folder}/{name}"

    @rule(name=NAMES, data=DATA)
    def write(self, name: str, data: bytes) -> None:
        self.store.write(self.key(name), data)
        self.model[name] = data

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.store.delete(self.key(name))
        self.model.pop(name, None)

    @rule(name=NAMES, start=PLACES, length=st.none() | PLACES)
    def read(self, name: str, start: int, length: int | None) -> None:
        if name in self.model:
            end = None if length is None else start + length
            assert self.store.read(self.key(name), start, length) == self.model[name][start:end]
        else:
            with pytest.raises(KeyNotFound):
                self.store.read(self.key(name), start, length)

    @rule(name=NAMES)
    def look(self, name: str) -> None:
        assert self.store.exists(self.key(name)) == (name in self.model)
        if name in self.model:
            assert self.store.size(self.key(name)) == len(self.model[name])

    @rule(prefix=st.sampled_from(["", "a", "f", "folder", "folder/", "folder/d", "x"]))
    def list_keys(self, prefix: str) -> None:
        expected = sorted(self.key(name) for name in self.model if name.startswith(prefix))
        assert self.store.list(self.key(prefix)) == expected

    @precondition(lambda self: self.shared)
    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = self.make_store()

    def teardown(self) -> None:
        for name, value in self.model.items():
            assert self.store.read(self.key(name)) == value
        if self.shared:
            self.store.close()


class LogMachine(ValueMachine):
    """As :class:`ValueMachine`, with the log's half."""

    @rule(name=NAMES, position=PLACES, buffers=st.lists(DATA, max_size=3))
    def write_at(self, name: str, position: int, buffers: list[bytes]) -> None:
        old = self.model.get(name, b"")
        data = b"".join(buffers)
        if position > len(old):
            with pytest.raises(InvalidOption):
                self.store.write_at(self.key(name), position, buffers)
            # Whether the refused call made an empty value is not promised.
            self.model.update({name: b""} if self.store.exists(self.key(name)) and not old else {})
            return
        self.store.write_at(self.key(name), position, buffers)
        self.model[name] = old[:position] + data + old[position + len(data) :]

    @rule(name=NAMES, data=DATA)
    def append(self, name: str, data: bytes) -> None:
        old = self.model.get(name, b"")
        self.store.write_at(self.key(name), len(old), [data])
        self.model[name] = old + data

    @rule(name=NAMES, size=PLACES)
    def truncate(self, name: str, size: int) -> None:
        if name not in self.model:
            with pytest.raises(KeyNotFound):
                self.store.truncate(self.key(name), size)
        elif size > len(self.model[name]):
            with pytest.raises(InvalidOption):
                self.store.truncate(self.key(name), size)
        else:
            self.store.truncate(self.key(name), size)
            self.model[name] = self.model[name][:size]

    @rule(name=NAMES)
    def sync_under_the_lock(self, name: str) -> None:
        with self.store.lock(self.key(name), 5):
            self.model.setdefault(name, b"")
            self.store.sync(self.key(name))


def run_machine(
    machine: type[ValueMachine],
    store: PersistentBackingStore,
    make_store: MakeStore,
    examples: int,
    steps: int,
) -> None:
    """Run the machine on a store."""
    run_state_machine_as_test(
        lambda: machine(store, make_store),  # type: ignore[arg-type]  # any callable will do
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
