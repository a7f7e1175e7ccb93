"""Programs that the store tests run in processes of their own, under strace or to be killed."""

import os
import sys
import threading
from unittest import mock

from penstock.errors import PenstockError
from penstock.stores import SqliteStore, open_store, sqlite


def mark(text: str) -> None:
    """Leave a mark in the trace, and tell the parent."""
    os.write(1, f"{text}\n".encode())


def trace(path: str) -> None:
    """Do each thing once, with marks between."""
    with SqliteStore(path) as store:
        store.write_at("a", 0, [b"first"])
        for name, action in {
            "write_at": lambda: store.write_at("a", 5, [b"second"]),
            "sync": lambda: store.sync("a"),
            "sync again": lambda: store.sync("a"),
            "write": lambda: store.write("b", b"value"),
            "truncate": lambda: store.truncate("a", 3),
            "delete": lambda: store.delete("b"),
        }.items():
            mark(f"<{name}>")
            action()
            mark(f"</{name}>")


def work_with_failing_syncs(path: str) -> None:
    """Write and sync, saying the outcome of each promise; checkpoints come often."""
    with mock.patch.object(sqlite, "CHECKPOINT_BYTES", 12_000):
        store = SqliteStore(path)
        mark("opened")
        for number in range(2):
            for action in (
                lambda position=number * 1000: store.write_at("a", position, [bytes(1000)]),
                lambda: store.sync("a"),
                lambda number=number: store.write("b", b"%d" % number),
            ):
                try:
                    action()
                    mark("kept")
                except PenstockError as failure:
                    mark(type(failure).__name__)
        mark("closing")


def fork_while_locked(url: str) -> None:
    """Fork while another thread holds a lock; the child lives on when the parent is killed."""
    store = open_store(url)
    locked = threading.Event()

    def hold() -> None:
        with store.lock("a", 10):
            locked.set()
            threading.Event().wait()

    threading.Thread(target=hold, daemon=True).start()
    locked.wait()
    if os.fork() == 0:
        store.abandon_after_fork()
        try:
            store.read("a")
        except PenstockError as failure:
            mark(f"child {type(failure).__name__}")
        sys.stdin.read()  # until the test ends
        os._exit(0)
    threading.Event().wait()


if __name__ == "__main__":
    program, *arguments = sys.argv[1:]
    globals()[program](*arguments)
