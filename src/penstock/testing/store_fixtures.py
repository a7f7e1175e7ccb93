"""What the parts of the store suite share: how a store is made, and how it is skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from penstock.stores.base import PersistentBackingStore

MakeStore = Callable[[], PersistentBackingStore]

LOCK_SECONDS = 100.0
"""A wait for a lock that is about to be free, or for another process: long, as nothing waits that long unless it fails."""


class StoreFixtures:
    """The fixtures of the suite; ``make_store`` is yours to define."""

    @pytest.fixture
    def make_store(self) -> MakeStore:
        """A callable that opens a handle on one place, empty at first."""
        raise NotImplementedError("define the fixture make_store in your subclass")

    @pytest.fixture
    def store(self, make_store: MakeStore) -> Iterator[PersistentBackingStore]:
        """An open store."""
        with make_store() as store:
            yield store

    @pytest.fixture
    def log_store(self, store: PersistentBackingStore) -> PersistentBackingStore:
        """An open store with the log capability."""
        if not store.capabilities.log:
            pytest.skip(f"{type(store).__name__} has no log capability")
        return store

    @pytest.fixture
    def other(
        self, store: PersistentBackingStore, make_store: MakeStore
    ) -> Iterator[PersistentBackingStore]:
        """A second handle on the same place."""
        if not store.capabilities.shared:
            pytest.skip(f"{type(store).__name__} is not shared")
        with make_store() as other:
            yield other
