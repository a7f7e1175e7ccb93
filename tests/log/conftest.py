"""Real servers for queues, started once a run."""

import itertools
from collections.abc import Iterator

import pytest

from tests.servers import postgres_server, s3_server

# Before the suite is imported: its assertions then explain themselves as those of tests do.
pytest.register_assert_rewrite(
    "penstock.testing.queue_fixtures",
    "penstock.testing.queue_life",
    "penstock.testing.queue_publishing",
    "penstock.testing.queue_reading",
    "penstock.testing.queue_seeking",
    "penstock.testing.queue_subscribing",
    "penstock.testing.queue_topics",
)

_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres_dsn() -> Iterator[str]:
    with postgres_server() as server:
        yield server.dsn


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def unique() -> str:
    """A name that no other test of this run has."""
    return f"q{next(_numbers)}"
