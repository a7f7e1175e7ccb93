"""What is on the disk is hostile: links, pipes, names and sizes that somebody else put there."""

import asyncio
import contextlib
import fcntl
import os
import random
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import TopicConfig, WalMessageQueue, repair, verify
from penstock.cli import main
from penstock.errors import PenstockError
from penstock.stores import DirectoryStore, ObjectStore, SqliteStore
from penstock.system import OsFiles
from tests.security.corpus import CONTROLS, MARKUP

ROOT = Path(__file__).parents[2]
OUTSIDE = b"what is outside of the folder stays as it is"


async def fill(folder: Path) -> None:
    """A log with every kind of file."""
    async with WalMessageQueue(folder, maintenance_interval=None) as queue:
        await queue.create_topic("orders", TopicConfig(segment_bytes_max=256))
        await queue.publish_many("orders", [b"value"] * 10)
        await queue.publish_many("orders", [b"value"] * 10)
        async with queue.subscribe("orders", "billing") as records:
            await records.commit(await anext(records))
        async with queue.producer("maker") as producer:
            async with producer.transaction() as transaction:
                await transaction.publish("orders", b"more")
        journal = queue.journal("notes")
        await journal.open()
        await journal.change({"one": b"two"})
        await journal.close()


async def use(folder: Path) -> None:
    """Everything that a program does with a log. Errors of Penstock's own are what is expected."""
    with contextlib.suppress(PenstockError):
        async with WalMessageQueue(folder, maintenance_interval=None) as queue:
            for work in (publish, consume, transact, keep_notes, maintain, scan):
                with contextlib.suppress(PenstockError):
                    await work(queue)
    for check in (verify, repair):
        with contextlib.suppress(PenstockError):
            check(folder, "orders")


async def publish(queue: WalMessageQueue) -> None:
    await queue.publish("orders", b"more")


async def consume(queue: WalMessageQueue) -> None:
    await queue.create_topic("orders")
    async with queue.subscribe("orders", "billing") as records:
        await records.commit(await anext(records))


async def transact(queue: WalMessageQueue) -> None:
    async with queue.producer("maker") as producer:
        async with producer.transaction() as transaction:
            await transaction.publish("orders", b"more")


async def keep_notes(queue: WalMessageQueue) -> None:
    journal = queue.journal("notes")
    await journal.open()
    await journal.close()


async def maintain(queue: WalMessageQueue) -> None:
    await queue.maintain()


async def scan(queue: WalMessageQueue) -> None:
    async for record in queue.replay("orders"):
        assert isinstance(record.value, bytes)


# ------------------------------------------------------------------------------------- links


async def test_nothing_in_the_folder_leads_out_of_it(findings, tmp_path):
    """Each file and each folder of a log in turn is a link to a copy outside, which must not change."""
    await fill(tmp_path / "log")
    names = sorted(str(one.relative_to(tmp_path / "log")) for one in (tmp_path / "log").rglob("*"))
    for number, name in enumerate(names):
        log, outside = tmp_path / f"log-{number}", tmp_path / f"outside-{number}"
        shutil.copytree(tmp_path / "log", log)
        (log / name).rename(outside)
        (log / name).symlink_to(outside)
        before = content_of(outside)
        await use(log)
        findings.check(content_of(outside) == before, f"{name} is a link, and was written through")
        shutil.rmtree(log)


def content_of(place: Path) -> dict[str, bytes]:
    files = [place] if place.is_file() else [one for one in place.rglob("*") if one.is_file()]
    folders = {} if place.is_file() else {str(one): b"" for one in place.rglob("*") if one.is_dir()}
    return folders | {str(one): one.read_bytes() for one in files}


async def test_a_link_that_leads_nowhere_makes_no_file_there(findings, tmp_path):
    await fill(tmp_path / "log")
    for name in ("topics/new", "groups/new", "producers/new", "topics/orders/0/new.log"):
        (tmp_path / "log" / name).symlink_to(tmp_path / "made")
    async with WalMessageQueue(tmp_path / "log", maintenance_interval=None) as queue:
        for work in (
            lambda: queue.create_topic("new"),
            lambda: queue.subscribe("orders", "new").open(),
            lambda: queue.producer("new").open(),
        ):
            try:
                await work()
            except PenstockError:
                continue
            findings.check(False, "a name behind a link was made")
    findings.check(not (tmp_path / "made").exists(), "a file was made where a link led")


# ------------------------------------------------------------------------------ special files


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "folder"])
async def test_what_is_no_file_is_refused_and_never_waited_for(findings, tmp_path, kind):
    await fill(tmp_path / "log")
    names = [one for one in (tmp_path / "log").rglob("*") if one.is_file()]
    for number, name in enumerate(names):
        log = tmp_path / f"log-{number}"
        shutil.copytree(tmp_path / "log", log)
        place = log / name.relative_to(tmp_path / "log")
        place.unlink()
        make(kind, place)
        await use(log)
        findings.check(True, "")
        shutil.rmtree(log)
    place = tmp_path / "one"
    make(kind, place)
    for write in (True, False):
        with pytest.raises(OSError, match=r"regular|directory|No such device|not permitted"):
            OsFiles().open(str(place), write=write)
        findings.check(True, "")


def make(kind: str, place: Path) -> None:
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    elif kind == "device":
        try:
            os.mknod(place, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero: it never ends
        except PermissionError:
            pytest.skip("only root makes devices")
    else:
        with socket.socket(socket.AF_UNIX) as made:
            here = os.open(place.parent, os.O_DIRECTORY)
            try:  # the whole path may be too long for the address of a socket
                made.bind(f"/proc/self/fd/{here}/{place.name}")
            finally:
                os.close(here)


# -------------------------------------------------------------------------- names on the disk


async def test_names_on_the_disk_are_text_and_no_paths(findings, tmp_path):
    """Folders that somebody made beside ours: they are passed over, whatever they are called."""
    await fill(tmp_path)
    odd = [
        MARKUP.replace("/", "_"),
        CONTROLS.replace("\0", ""),
        "é",
        "a b",
        "-rf",
        "%2e%2e",
        "x" * 255,
    ]
    for name in odd:
        for folder in ("topics", "groups", "producers", "topics/orders", "topics/orders/0"):
            (tmp_path / folder / name).mkdir()
            (tmp_path / folder / name / "topic.json").write_bytes(b"{}")
    (tmp_path / "topics" / os.fsdecode(b"\xff\xfe")).mkdir()
    async with WalMessageQueue(tmp_path, maintenance_interval=None) as queue:
        topics = await queue.topics()
        findings.check(not set(topics) & set(odd), f"they are topics: {topics}")
        await queue.publish("orders", b"more")
        await scan(queue)
        await queue.maintain()
    report = verify(tmp_path)
    for problem in report.problems:
        findings.check(str(problem).isprintable(), f"not to be printed: {problem!r}")
    for name in odd:
        left = tmp_path / "topics" / name / "topic.json"
        findings.check(left.exists(), f"{name[:20]!r} of somebody else was removed")


# --------------------------------------------------------------------------------------- sizes

CHILD = """
import asyncio, resource, sys
from pathlib import Path
from tests.security.test_disk import use
asyncio.run(use(Path(sys.argv[1])))  # everything is imported, and every thread had its stack
import pyarrow, zstandard, lz4.block
usage = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
limit = usage + (256 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for one in sys.argv[2:]:
    asyncio.run(use(Path(one)))
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(grown)
assert grown < 64 * 1024, f"it grew by {grown} KiB"
"""
HUGE = [(1 << 31).to_bytes(4, "little"), b"\xff\xff\xff\x7f", b"\xff" * 8, b"\0\0\0\x80" * 2]


@pytest.mark.timeout(600)
async def test_sizes_of_gigabytes_in_every_file_cost_no_memory(findings, request, tmp_path):
    """Numbers of 2 GiB and more, at places all over each file; the process stays below 64 MiB more."""
    whole = request.node.get_closest_marker("torture") is not None
    await fill(tmp_path / "log")
    chance = random.Random(21)
    logs: list[str] = []
    for path in sorted(one for one in (tmp_path / "log").rglob("*") if one.is_file()):
        data = path.read_bytes()
        places = range(0, len(data), 4)
        for place in places if whole else chance.sample(places, min(len(places), 4)):
            number = chance.choice(HUGE)
            log = tmp_path / f"log-{len(logs)}"
            shutil.copytree(tmp_path / "log", log)
            changed = data[:place] + number + data[place + len(number) :]
            (log / path.relative_to(tmp_path / "log")).write_bytes(changed)
            logs.append(str(log))
    for start in range(0, len(logs), 200):
        some = logs[start : start + 200]
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(tmp_path / "log"), *some],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        findings.none([done.stderr[-600:]] if done.returncode else [], len(some))


# --------------------------------------------------------------------------------------- modes


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o027], ids="{:03o}".format)
async def test_files_are_for_the_owner_alone_whatever_the_umask(findings, tmp_path, mask):
    before = os.umask(mask)
    try:
        await fill(tmp_path / "new" / "log")
        with SqliteStore(tmp_path / "new" / "store.db") as store:
            store.write("a/b", b"x")
        with DirectoryStore(tmp_path / "new" / "store") as files:
            files.write("a/b", b"x")
    finally:
        os.umask(before)
    for path in [tmp_path / "new", *(tmp_path / "new").rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        wanted = 0o700 if path.is_dir() else 0o600
        findings.check(mode == wanted, f"{path.relative_to(tmp_path)} is {mode:o}")


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o027], ids="{:03o}".format)
@pytest.mark.parametrize("there", [False, True], ids=["new", "replaced"])
async def test_what_is_exported_is_for_the_owner_alone(findings, tmp_path, mask, there):
    """Also where a file was that everybody could read, and where somebody left a link to write through."""
    pytest.importorskip("pyarrow", reason="needs penstock[arrow]")
    await fill(tmp_path / "log")
    url = f"log:{tmp_path / 'log'}"
    before = os.umask(mask)
    try:
        for ending in ("jsonl", "csv", "parquet", "arrow"):
            file, outside = tmp_path / f"orders.{ending}", tmp_path / f"outside-{ending}"
            outside.write_bytes(OUTSIDE)
            (tmp_path / f".{file.name}.part").symlink_to(outside)
            if there:
                file.touch(0o644)
            code = await asyncio.to_thread(
                main, ["export", "orders", str(file), "--url", url, "--yes"]
            )
            findings.check(code == 0, f"{ending}: it failed")
            mode = stat.S_IMODE(file.stat().st_mode)
            findings.check(mode == 0o600, f"{ending} is {mode:o}")
            findings.check(outside.read_bytes() == OUTSIDE, f"{ending}: a link was written through")
    finally:
        os.umask(before)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o027], ids="{:03o}".format)
def test_object_storage_in_a_folder_is_for_the_owner_alone(findings, tmp_path, mask):
    pytest.importorskip("obstore", reason="needs penstock[objects]")
    before = os.umask(mask)
    try:
        for prefix in ("", "some/where"):
            with ObjectStore(f"file://{tmp_path}/new", prefix) as store:
                store.write("a/b/c", b"first")
                store.write("a/b/c", b"second")
                store.write("d", b"x")
                findings.check(store.read("a/b/c") == b"second", "it reads something else")
                findings.check(store.list() == ["a/b/c", "d"], f"it lists {store.list()}")
    finally:
        os.umask(before)
    for path in [tmp_path / "new", *(tmp_path / "new").rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        wanted = 0o700 if path.is_dir() else 0o600
        findings.check(mode == wanted, f"{path.relative_to(tmp_path)} is {mode:o}")


def test_no_file_is_left_open_in_a_child(findings, tmp_path):
    """A program that the process starts gets none of its descriptors."""
    files = OsFiles()
    descriptor = files.open(str(tmp_path / "one"), create=True)
    try:
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFD)
        findings.check(flags & fcntl.FD_CLOEXEC, "a file is open in programs that are started")
    finally:
        files.close(descriptor)
    (tmp_path / "link").symlink_to(tmp_path / "one")
    with pytest.raises(OSError, match="symbolic"):
        files.open(str(tmp_path / "link"))
    findings.check(True, "")
    watch = files.watch()
    if watch is not None:
        flags = fcntl.fcntl(watch.fileno(), fcntl.F_GETFD)
        findings.check(flags & fcntl.FD_CLOEXEC, "a watch is open in programs that are started")
        watch.close()
