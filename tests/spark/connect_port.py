"""Spark Connect listens on one fixed port, so tests of all processes take turns."""

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def connect_port() -> Iterator[None]:
    """The port is ours until the end of the block."""
    with (Path(tempfile.gettempdir()) / "penstock-tests-connect.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
