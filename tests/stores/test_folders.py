"""Folders whose names differ by case alone: found without listing all names again and again."""

import errno
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.stores import folders as module
from penstock.stores.folders import Folders
from penstock.system import OsFiles
from penstock.testing.disk import SimulatedDisk

ROOT = "/data"
TOPICS = f"{ROOT}/topics"


def folders(disk: SimulatedDisk, *names: str) -> Folders:
    one = Folders(disk, ROOT)
    for name in names:
        one.make(f"{TOPICS}/{name}")
    return one


class Uncounted(SimulatedDisk):
    """As some file systems do: every directory has the same number of names."""

    names_of_all = 1

    def links(self, path: str) -> int:
        return self.names_of_all


@pytest.fixture(params=[1, 2])
def uncounted(request: pytest.FixtureRequest) -> Uncounted:
    disk = Uncounted()
    disk.names_of_all = request.param
    return disk


def test_a_thousand_folders_are_made_and_listed_once():
    disk = SimulatedDisk()
    one = folders(disk, "first")
    for number in range(1_000):
        assert one.names_alike("topics", f"Topic-{number}") == []
        one.make(f"{TOPICS}/topic-{number}")
        assert one.names_alike("topics", f"Topic-{number}") == [f"topic-{number}"]
    assert disk.calls["list_directory"] == 1


def test_the_name_itself_is_not_alike():
    one = folders(SimulatedDisk(), "orders", "Orders", "ORDERS", "other")
    assert one.names_alike("topics", "orders") == ["ORDERS", "Orders"]
    assert one.names_alike("topics", "none") == []
    assert one.names_alike("nothing", "orders") == []


def test_what_another_process_makes_is_found():
    disk = SimulatedDisk()
    one, other = folders(disk, "first"), folders(disk)
    assert one.names_alike("topics", "orders") == []
    other.make(f"{TOPICS}/Orders")
    assert one.names_alike("topics", "orders") == ["Orders"]
    one.make(f"{TOPICS}/mine")
    other.make(f"{TOPICS}/Mine")
    assert one.names_alike("topics", "mine") == ["Mine"]


def test_what_two_make_at_the_same_time_is_found_by_both():
    disk = SimulatedDisk()
    one, other = folders(disk, "first"), folders(disk)
    assert one.names_alike("topics", "orders") == other.names_alike("topics", "orders") == []
    one.make(f"{TOPICS}/orders")
    other.make(f"{TOPICS}/Orders")
    assert one.names_alike("topics", "orders") == ["Orders"]
    assert other.names_alike("topics", "Orders") == ["orders"]


def test_where_folders_are_not_counted_they_are_listed_each_time(uncounted):
    one, other = folders(uncounted), folders(uncounted)
    for number in range(3):
        assert one.names_alike("topics", f"orders-{number}") == []
        other.make(f"{TOPICS}/Orders-{number}")
        assert one.names_alike("topics", f"orders-{number}") == [f"Orders-{number}"]


def test_a_folder_that_could_not_be_made_durable_is_not_remembered():
    disk = SimulatedDisk()
    one, other = folders(disk, "first"), folders(disk)
    assert one.names_alike("topics", "orders") == []
    disk.fail("sync_directory", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        one.make(f"{TOPICS}/lost")
    other.make(f"{TOPICS}/Orders")
    assert one.names_alike("topics", "orders") == ["Orders"]


def test_what_cannot_be_a_key_counts_and_is_not_alike(tmp_path):
    (tmp_path / "topics" / ".orders").mkdir(parents=True)
    (tmp_path / "topics" / "\N{KELVIN SIGN}").mkdir()
    (tmp_path / "topics" / "file").touch()
    one = Folders(OsFiles(), str(tmp_path))
    assert one.names_alike("topics", "k") == []
    one.make(f"{tmp_path}/topics/K")
    assert one.names_alike("topics", "k") == ["K"]


def test_more_names_than_are_remembered_are_found(monkeypatch):
    monkeypatch.setattr(module, "FOLDERS_KNOWN_MAX", 2)
    disk = SimulatedDisk()
    one = folders(disk, "a", "b", "Orders")
    assert one.names_alike("topics", "orders") == one.names_alike("topics", "ORDERS") == ["Orders"]
    assert disk.calls["list_directory"] == 2


def test_threads_and_real_directories(tmp_path):
    """Each thread makes its own and finds those of the others at the end."""
    one = Folders(OsFiles(), str(tmp_path))
    one.make(f"{tmp_path}/topics/first")

    def make(letter: str) -> None:
        for number in range(50):
            one.names_alike("topics", f"x{number}")
            one.make(f"{tmp_path}/topics/{letter}{number}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(make, "aAbB"))
    for number in range(50):
        assert one.names_alike("topics", f"a{number}") == [f"A{number}"]
        assert one.names_alike("topics", f"B{number}") == [f"b{number}"]
