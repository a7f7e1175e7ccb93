"""The container file: durability seen from outside, failing syncs, files that are not ours."""

import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

import penstock
from penstock.errors import (
    DamagedFile,
    DeadlineExceeded,
    InvalidOption,
    StoreFailed,
    UnsupportedFormat,
)
from penstock.stores import SqliteStore, sqlite

SCRIPTS = Path(__file__).parent / "scripts.py"

# Runs a program of scripts.py without penstock's public door, which imports numpy and the whole
# log: these programs start many times and need the stores only.
WITHOUT_THE_DOOR = """
import runpy, sys, types
package = sys.modules["penstock"] = types.ModuleType("penstock")
package.__path__ = [sys.argv.pop(1)]
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


def under_strace(tmp_path: Path, program: str, *options: str) -> tuple[str, str]:
    """What the program printed, and its trace; skips where strace is absent or not allowed."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    trace = tmp_path / "trace"
    base = ["strace", "-f", "--seccomp-bpf", "-y", "-o", str(trace)]
    if subprocess.run([*base, "true"], capture_output=True, check=False).returncode:
        pytest.skip("strace may not trace here")
    python = [sys.executable, "-c", WITHOUT_THE_DOOR, *penstock.__path__]
    done = subprocess.run(
        [*base, *options, *python, str(SCRIPTS), program, str(tmp_path / "store.db")],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout, trace.read_text()


def test_what_promises_durability_syncs(tmp_path):
    calls = "trace=write,pwrite64,fsync,fdatasync"
    _, trace = under_strace(tmp_path, "trace", "-e", calls)

    def calls_of(name: str, call: str) -> int:
        part = re.search(rf'"<{name}>.*?"</{name}>', trace, re.DOTALL)
        assert part is not None, trace
        return len(re.findall(rf"{call}\(\d+<[^>]*store\.db-wal>", part[0]))

    for name in ("sync", "sync again", "write", "delete"):
        assert calls_of(name, "pwrite64") >= 1, name
        assert calls_of(name, "f(?:data)?sync") >= 1, name
    for name in ("write_at", "truncate"):
        assert calls_of(name, "pwrite64") >= 1, name
        assert calls_of(name, "f(?:data)?sync") == 0, name


def test_the_sync_comes_after_the_last_frame(tmp_path):
    _, trace = under_strace(tmp_path, "trace", "-e", "trace=write,pwrite64,fsync,fdatasync")
    for name in ("sync", "write", "delete"):
        part = re.search(rf'"<{name}>.*?"</{name}>', trace, re.DOTALL)
        assert part is not None
        order = re.findall(r"(pwrite64|f(?:data)?sync)\(\d+<[^>]*-wal>", part[0])
        assert order[-1].endswith("sync"), order


def with_failing_sync(folder: Path, call: str, number: int) -> str:
    """Fail that sync of the program: what became of it."""
    folder.mkdir()
    options = ["-e", f"trace=write,{call}", "-e", f"inject={call}:error=EIO:when={number}"]
    printed, trace = under_strace(folder, "work_with_failing_syncs", *options)
    if "EIO" not in trace:
        return "no such sync"
    if re.search(rf"fdatasync\(\d+<{folder}>\).*EIO", trace):
        return "SQLite overlooks its own sync of the directory; the store does one itself"
    if "closing" in trace.partition("EIO")[0]:
        return "nothing is promised by closing"
    before, _, after = printed.partition("StoreFailed")
    assert ("opened" in before) == bool(after), printed
    assert set(after.split()) <= {"Poisoned", "closing"}, (number, printed)
    return "refused"


@pytest.mark.parametrize(("call", "numbers"), [("fdatasync", range(5, 19)), ("fsync", range(1, 3))])
def test_after_a_failed_sync_nothing_is_promised(tmp_path, call, numbers):
    """Fail the N-th sync, for every N until none is left to fail."""
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(lambda n: with_failing_sync(tmp_path / str(n), call, n), numbers))
    assert outcomes[-1] == "no such sync", outcomes
    assert outcomes.count("refused") >= {"fdatasync": 7, "fsync": 1}[call], outcomes


def test_checkpoints_happen_and_keep_the_values(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite, "CHECKPOINT_BYTES", 50_000)
    path = tmp_path / "store.db"
    with SqliteStore(path) as store:
        for number in range(100):
            store.write_at("a", number * 1000, [bytes([number]) * 1000])
        assert path.stat().st_size > 50_000
        assert (tmp_path / "store.db-wal").stat().st_size < 500_000
        assert store.read("a") == b"".join(bytes([number]) * 1000 for number in range(100))


def test_files_are_private(tmp_path):
    old = os.umask(0)
    try:
        with SqliteStore(tmp_path / "store.db") as store:
            store.write("a", b"value")
            with store.lock("a", 1):
                modes = {
                    str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode)
                    for path in tmp_path.rglob("*")
                }
    finally:
        os.umask(old)
    assert modes.pop("store.db.locks") == 0o700
    assert len(modes) >= 5
    assert set(modes.values()) == {0o600}, modes


def test_the_database_of_another_program_is_refused(tmp_path):
    path = tmp_path / "other.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE users (name)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(InvalidOption, match="another program"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_refused(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_bytes(b"dear diary, " * 1000)
    with pytest.raises(DamagedFile, match=re.escape("notes.txt")):
        SqliteStore(path)
    assert path.read_bytes() == b"dear diary, " * 1000


def test_a_newer_container_is_refused(tmp_path):
    path = tmp_path / "store.db"
    SqliteStore(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(UnsupportedFormat, match="99"):
        SqliteStore(path)


def test_a_container_that_was_only_begun_is_finished(tmp_path):
    path = tmp_path / "store.db"
    path.touch()
    with SqliteStore(path) as store:
        store.write("a", b"value")
        assert store.read("a") == b"value"


def test_damage_in_the_structure_is_reported(tmp_path):
    path = tmp_path / "store.db"
    with SqliteStore(path) as store:
        for number in range(200):
            store.write(f"key-{number}", bytes(500))
    data = bytearray(path.read_bytes())
    for page in range(1, len(data) // 4096):
        data[page * 4096 : page * 4096 + 12] = b"\xff" * 12
    path.write_bytes(data)
    with pytest.raises(DamagedFile), SqliteStore(path) as store:
        store.read("key-7")


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(StoreFailed, match="absent"):
        SqliteStore(tmp_path / "absent" / "store.db")


def test_a_busy_container_is_waited_for_until_the_deadline(tmp_path):
    path = tmp_path / "store.db"
    with SqliteStore(path, busy_seconds=0.05) as store:
        store.write("a", b"value")
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(DeadlineExceeded, match="nothing was written"):
            store.write("a", b"other")
        assert store.read("a") == b"value"
        holder.execute("ROLLBACK")
        holder.close()
        store.write("a", b"other")
        assert store.read("a") == b"other"


def test_a_read_touches_only_the_pieces_it_needs(tmp_path):
    with SqliteStore(tmp_path / "store.db") as store:
        for number in range(100):
            store.write_at("a", number * 1000, [bytes([number]) * 1000])
        with store._snapshot() as connection:
            base = sqlite._base(connection, "a")
            pieces = sqlite._pieces(connection, base, 41_500, 42_500)
        assert [at for at, _ in pieces] == [41_000, 42_000]


def test_a_failing_read_gives_the_connection_back_or_closes_it(tmp_path):
    with SqliteStore(tmp_path / "store.db") as store:
        for _ in range(sqlite.READERS_MAX * 3):
            with pytest.raises(KeyError):
                store.read("absent")
        assert len(store._idle_readers) <= sqlite.READERS_MAX


def test_many_handles_open_at_once(tmp_path):
    from penstock.testing.store_values import in_threads

    make = partial(SqliteStore, tmp_path / "store.db")

    def work(number: int) -> None:
        for _ in range(5):
            with make() as store:
                store.write(f"own/{number}", b"value")
                assert store.read(f"own/{number}") == b"value"

    in_threads(6, work)
