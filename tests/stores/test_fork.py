"""A forked child lets go of what it shares with its parent."""

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.stores import MemoryStore, ObjectStore, open_store

SCRIPTS = Path(__file__).parent / "scripts.py"


@pytest.fixture(params=["directory", "sqlite", "postgres"])
def url(request, tmp_path):
    if request.param == "postgres":
        return request.getfixturevalue("postgres_dsn")
    return {"directory": str(tmp_path / "store"), "sqlite": f"sqlite:{tmp_path}/store.db"}[
        request.param
    ]


def test_a_lock_dies_with_the_parent_while_a_child_lives(url):
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", str(SCRIPTS), "fork_while_locked", url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        try:
            assert parent.stdout.readline() in {"child Forked\n", "child Closed\n"}
        finally:
            parent.kill()
        with open_store(url) as store, store.lock("a", 10):
            pass


@pytest.mark.parametrize("make", [MemoryStore, lambda: ObjectStore("memory:///")])
def test_a_store_of_the_parent_is_refused_in_the_child(make):
    from penstock.errors import Forked

    store = make()
    store.abandon_after_fork()
    with pytest.raises(Forked, match="open a new one"):
        store.read("a")
    with pytest.raises(Forked):
        store.write("a", b"")
    store.close()
