"""Real servers for the stores, started once a run."""

import itertools
from collections.abc import Iterator

import pytest

from tests.servers import PostgresServer, postgres_server, s3_server

# Before the suite is imported: its assertions then explain themselves as those of tests do.
pytest.register_assert_rewrite(
    "penstock.testing.store_values",
    "penstock.testing.store_log",
    "penstock.testing.store_sharing",
    "penstock.testing.store_machine",
)

_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_dsn(postgres: PostgresServer) -> str:
    return postgres.dsn


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def unique() -> str:
    """A name that no other test of this run has."""
    return f"t{next(_numbers)}"
