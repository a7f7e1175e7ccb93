"""What the tests of streaming start from."""

from collections.abc import Iterator

import pytest

from tests.servers import PostgresServer, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server
