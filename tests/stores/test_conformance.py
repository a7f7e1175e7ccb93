"""The conformance suite on every store, each against the real thing."""

from functools import partial

import pytest

from penstock.stores import (
    DirectoryStore,
    MemoryStore,
    ObjectStore,
    PostgresStore,
    SqliteStore,
)
from penstock.testing import StoreConformance


@pytest.mark.acceptance(52)
class TestMemory(StoreConformance):
    state_examples = 100

    @pytest.fixture
    def make_store(self):
        return MemoryStore


@pytest.mark.acceptance(52)
class TestDirectory(StoreConformance):
    @pytest.fixture
    def make_store(self, tmp_path):
        return partial(DirectoryStore, tmp_path / "store")


@pytest.mark.acceptance(52)
class TestSqlite(StoreConformance):
    @pytest.fixture
    def make_store(self, tmp_path):
        return partial(SqliteStore, tmp_path / "store.db")


@pytest.mark.acceptance(52)
class TestPostgres(StoreConformance):
    state_examples = 10

    @pytest.fixture
    def make_store(self, postgres_dsn, unique):
        return partial(PostgresStore, postgres_dsn, schema=unique)


@pytest.mark.acceptance(52)
class TestS3(StoreConformance):
    state_examples = 8

    @pytest.fixture
    def make_store(self, s3_url, unique):
        return partial(ObjectStore, s3_url, prefix=unique)


@pytest.mark.acceptance(52)
class TestObjectsInADirectory(StoreConformance):
    @pytest.fixture
    def make_store(self, tmp_path):
        return partial(ObjectStore, f"file://{tmp_path}/store")


@pytest.mark.acceptance(52)
class TestObjectsInMemory(StoreConformance):
    @pytest.fixture
    def make_store(self):
        return partial(ObjectStore, "memory:///")
