"""Open files that are kept, with threads that use them while others open more."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from penstock.stores.handles import Handle, Handles
from penstock.system import OsFiles

KEPT, OPENED = 4, 20_000


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def synced(files: OsFiles) -> Handle:
    made = Handle(files, -1)
    made.name_synced = True
    return made


@pytest.mark.usefixtures("hasty")
def test_files_are_used_while_others_are_opened():
    handles, files, over = Handles(KEPT), OsFiles(), threading.Event()

    def use() -> None:
        while not over.is_set():
            for number in range(KEPT):
                handles.get(f"{number}")

    users = [threading.Thread(target=use) for _ in range(2)]
    for one in users:
        one.start()
    try:
        for number in range(OPENED):
            handles.keep(f"{number % (2 * KEPT)}", synced(files))
    finally:
        over.set()
        for one in users:
            one.join()
