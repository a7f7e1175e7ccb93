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


class Looked(Handle):
    """Counts how often somebody asks whether its name is synced."""

    looks = 0

    @property
    def name_synced(self) -> bool:
        type(self).looks += 1
        return True

    @name_synced.setter
    def name_synced(self, synced: bool) -> None:
        pass


def test_a_file_is_passed_over_once_not_each_time_one_has_to_go():
    handles, files = Handles(100), OsFiles()
    for number in range(1_000):
        handles.keep(f"{number}", Looked(files, -1))
    assert Looked.looks < 1_100
    assert [number for number in range(1_000) if handles.get(f"{number}")] == [*range(900, 1_000)]


def test_of_files_with_synced_names_the_one_that_was_not_used_for_longest_goes_first():
    handles, files = Handles(3), OsFiles()
    for key in "abcd":
        handles.keep(key, synced(files))
    assert handles.get("b")
    kept = handles.get("c")
    assert handles.keep("c", synced(files)) is kept
    for key in "ef":
        handles.keep(key, synced(files))
    assert [key for key in "abcdef" if handles.get(key)] == ["c", "e", "f"]


def test_files_without_synced_names_go_before_all_others():
    handles, files = Handles(3), OsFiles()
    for key in "ab":
        handles.keep(key, synced(files))
    for key in "uvwx":
        handles.keep(key, Handle(files, -1))
    assert [key for key in "abuvwx" if handles.get(key)] == ["a", "b", "x"]
    handles.forget("a")
    assert handles.get("a") is None
