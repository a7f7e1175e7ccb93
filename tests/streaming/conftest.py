"""What the tests of streaming start from."""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.streaming import DatabaseCheckpoints
from tests.servers import PostgresServer, postgres_server

MEMORY = "/dev/shm"


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory where there is one: a killed process cannot tell the difference."""
    parent = MEMORY if os.access(MEMORY, os.W_OK) else None
    made = Path(tempfile.mkdtemp(prefix="penstock-streaming-", dir=parent))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def checkpoints():
    return DatabaseCheckpoints("billing")


@pytest.fixture
def plain(tmp_path):
    connection = sqlite3.connect(tmp_path / "plain.db")
    connection.execute("CREATE TABLE balances (account TEXT PRIMARY KEY, cents INTEGER)")
    yield connection
    connection.close()
