"""What the crash tests start from."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.rigs import Nursery

MEMORY = "/dev/shm"
ROOM_BYTES = 1 << 30


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    with Nursery() as opened:
        yield opened


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory where there is room: a killed process cannot tell the difference."""
    there = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM_BYTES
    parent = MEMORY if there else None
    made = Path(tempfile.mkdtemp(prefix="penstock-crash-", dir=parent))
    yield made
    shutil.rmtree(made, ignore_errors=True)
