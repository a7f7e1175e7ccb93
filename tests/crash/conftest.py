"""What the crash tests start from."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.rigs import Nursery

MEMORY = "/dev/shm"


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    with Nursery() as opened:
        yield opened


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory where there is one: a killed process cannot tell the difference."""
    parent = MEMORY if os.access(MEMORY, os.W_OK) else None
    made = Path(tempfile.mkdtemp(prefix="penstock-crash-", dir=parent))
    yield made
    shutil.rmtree(made, ignore_errors=True)
