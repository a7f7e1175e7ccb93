"""What others do on the rigs that Penstock is on: kills, power cuts, damaged files, a sync that fails.

Nothing here is asserted of them, except that the rigs see what they are known to see. The figures go to the
scoreboard, beside Penstock's.
"""

import contextlib
import os
import random
import select
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.disks import Disk, need
from tests.crash.peer import NUMBER
from tests.crash.peer_stores import FETCHED
from tests.crash.peer_writer import PEERS
from tests.crash.rigs import environment, seed_of
from tests.scoreboard import amount
from tests.transports.servers import nats

NO_ROCKS = pytest.mark.skipif(
    not (FETCHED / "rocksdict").exists(), reason="rocksdict is not here: scripts/peers fetches it"
)
NAMES = [
    pytest.param(name, marks=NO_ROCKS) if "RocksDB" in name else name for name in sorted(PEERS)
]
PROGRAM = "tests.crash.peer_writer"
READ_SECONDS = 60
OPEN_SECONDS = 10
"""One that has not read a small copy by then, or not even started, does not open."""
FLIP_NUMBERS = 1_500
SYNC_NUMBERS = 40
WORDS_MAX = 150


def start(
    name: str, folder: Path, *arguments: object, strace: tuple[str, ...] = ()
) -> subprocess.Popen[bytes]:
    """The peer's program, leader of a group, so that servers it started die with it."""
    if name.startswith("Redis"):
        need("redis-server", "redis-server")
    elif name.startswith("NATS"):
        nats.binary()
    words = [sys.executable, "-m", PROGRAM, name, str(folder), *map(str, arguments)]
    return subprocess.Popen(
        [*strace, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(),
        start_new_session=True,
    )


def numbers_in(data: bytes) -> list[int]:
    whole = len(data) - len(data) % NUMBER.size
    return [number for (number,) in NUMBER.iter_unpack(data[:whole])]


def end(process: subprocess.Popen[bytes]) -> list[int]:
    """Kill all of it, and wait until its servers are gone too: they hold the disk. What it had said."""
    handles = handles_of(process.pid)
    for handle in handles:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    said, _ = process.communicate(timeout=READ_SECONDS)
    for handle in handles:
        select.select([handle], [], [], READ_SECONDS)
        os.close(handle)
    return numbers_in(said)


def handles_of(group: int) -> list[int]:
    """One for each process of a group."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(int(one.name)) == group:
                found.append(os.pidfd_open(int(one.name)))
    return found


def read(name: str, folder: Path) -> list[int] | None:
    """What is there; None if it does not open, or says that something is wrong."""
    process = start(name, folder, "read")
    try:
        said, _ = process.communicate(timeout=OPEN_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    finally:
        end(process)
    return numbers_in(said) if process.returncode == 0 else None


def kill(name: str, folder: Path, words: int) -> Counter[str]:
    """SIGKILL after so many words, of its server too: how many were acknowledged, and how many are gone."""
    process = start(name, folder, "write")
    assert process.stdout is not None
    said = numbers_in(process.stdout.read(words * NUMBER.size)) + end(process)
    acknowledged = {number for number in said if number > 0}
    lost = acknowledged - set(read(name, folder) or ())
    return Counter(acknowledged=len(acknowledged), lost=len(lost))


@pytest.mark.torture
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", NAMES)
def test_kills_of_others(request, folder, scored, name):
    seed = seed_of(request)
    chance = random.Random(seed)
    found: Counter[str] = Counter()
    for number in range(max(2, amount(1) // 2_000)):
        place = folder / f"{number}"
        place.mkdir()
        found += kill(name, place, chance.randint(1, WORDS_MAX))
    scored.peer(1, name, tried=found["acknowledged"], bad=found["lost"], seed=seed)


def test_the_rig_of_kills_sees_what_was_acknowledged(folder):
    found = kill("a file, flushed", folder, 20)
    assert found["acknowledged"] >= 20
    assert found["lost"] == 0, "the kernel has what was flushed"


def cut(disk: Disk, name: str, folder: Path, words: int) -> tuple[int, int]:
    """A power cut after so many words: how many numbers were acknowledged, and how many are gone.

    What is said after the cut does not count: some go on when a sync has failed, and a machine without power does not.
    """
    process = start(name, folder, "write")
    assert process.stdout is not None
    said = process.stdout.read(words * NUMBER.size)
    os.set_blocking(process.stdout.fileno(), False)
    said += process.stdout.read() or b""
    disk.cut()
    end(process)
    acknowledged = {number for number in numbers_in(said) if number > 0}
    disk.power_on()
    return len(acknowledged), len(acknowledged - set(read(name, folder) or ()))


def cut_often(name: str, folder: Path, seed: int, cuts: int) -> Counter[str]:
    chance = random.Random(seed)
    sum_of: Counter[str] = Counter()
    with Disk(folder) as disk:
        for number in range(cuts):
            place = disk.root / f"{number}"
            place.mkdir()
            os.sync()
            acknowledged, lost = cut(disk, name, place, chance.randint(1, WORDS_MAX))
            sum_of.update(acknowledged=acknowledged, lost=lost)
            shutil.rmtree(place, ignore_errors=True)
    return sum_of


def test_the_rig_tells_who_syncs_from_who_does_not(request, folder):
    assert cut_often("a file, flushed", folder, seed_of(request), 1)["lost"] > 0
    synced = cut_often("SQLite WAL (FULL)", folder, seed_of(request), 2)
    assert synced["acknowledged"] > 0
    assert synced["lost"] == 0


@pytest.mark.torture
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", NAMES)
def test_power_cuts_of_others(request, folder, scored, name):
    seed = seed_of(request)
    found = cut_often(name, folder, seed, max(2, amount(3) // 100))
    scored.peer(3, name, tried=found["acknowledged"], bad=found["lost"], seed=seed)


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


def flip(folder: Path, chance: random.Random) -> None:
    """One bit of all that is in the files."""
    files = files_of(folder)
    sizes = [path.stat().st_size for path in files]
    [path] = chance.choices(files, sizes)
    at = chance.randrange(path.stat().st_size)
    with path.open("r+b") as file:
        file.seek(at)
        [byte] = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1 << chance.randrange(8)]))


def verdict(there: list[int] | None) -> str:
    if there is None:
        return "told"
    if not set(there) <= set(range(1, FLIP_NUMBERS + 1)):
        return "wrong"
    return "harmless" if len(there) == FLIP_NUMBERS else "lost"


def written(name: str, folder: Path) -> Path:
    """Where the peer has kept all numbers, and ended in good order."""
    whole = folder / "whole"
    whole.mkdir()
    process = start(name, whole, "write", 1, FLIP_NUMBERS)
    process.communicate(timeout=READ_SECONDS)
    assert process.returncode == 0
    return whole


def flip_often(name: str, folder: Path, seed: int, flips: int) -> Counter[str]:
    whole, copy, chance = written(name, folder), folder / "copy", random.Random(seed)
    found: Counter[str] = Counter()
    for _ in range(flips):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(whole, copy)
        flip(copy, chance)
        found[verdict(read(name, copy))] += 1
    return found


def test_the_rig_sees_a_value_that_changed(request, folder):
    found = flip_often("a file, flushed", folder, seed_of(request), 4)
    assert found["told"] == found["harmless"] == 0


@pytest.mark.torture
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", NAMES)
def test_flipped_bits_of_others(request, folder, scored, name):
    seed, flips = seed_of(request), max(5, amount(3) // 15)
    found = flip_often(name, folder, seed, flips)
    scored.peer(6, name, tried=flips, bad=found["wrong"], seed=seed)
    scored.peer(7, name, tried=flips, bad=found["lost"], seed=seed)


Damage = Callable[[Path, Path], object]
"""Does something to a file; another one is there for a swap."""


def swap(path: Path, other: Path) -> None:
    mine = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(mine)


DAMAGES: dict[str, Damage] = {
    "cut": lambda path, _: os.truncate(path, path.stat().st_size // 2),
    "zeroed": lambda path, _: path.write_bytes(bytes(path.stat().st_size)),
    "removed": lambda path, _: path.unlink(),
    "swapped": swap,
}


def damage_all(name: str, folder: Path) -> Counter[str]:
    """Each file damaged in each way, alone."""
    whole, copy = written(name, folder), folder / "copy"
    files = [one.relative_to(whole) for one in files_of(whole)]
    found: Counter[str] = Counter()
    for at, file in enumerate(files):
        for damage in DAMAGES.values():
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(whole, copy)
            damage(copy / file, copy / files[at - 1])
            found[verdict(read(name, copy))] += 1
    return found


@pytest.mark.torture
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", NAMES)
def test_damaged_files_of_others(folder, scored, name):
    found = damage_all(name, folder)
    scored.peer(8, name, tried=found.total(), bad=found["wrong"] + found["lost"])


def test_the_rig_sees_a_file_that_is_damaged(folder):
    assert damage_all("a file, flushed", folder) == Counter(lost=2, wrong=1, harmless=1)


@pytest.mark.torture
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_a_failed_sync_of_others(folder, scored, name):
    """One of its syncs fails, and it says so; what does it acknowledge from then on?"""
    for number in range(9, 13):
        numbers = write_with_failing_sync(name, folder / f"{number}", number)
        refused = next((at for at, one in enumerate(numbers) if one < 0), None)
        if refused is not None:
            after = sum(one > 0 for one in numbers[refused:])
            scored.peer(9, name, tried=SYNC_NUMBERS - refused, bad=after)
            return


def write_with_failing_sync(name: str, folder: Path, number: int) -> list[int]:
    folder.mkdir()
    calls = "fsync,fdatasync,msync"
    faults = ("-e", f"trace={calls}", "-e", f"inject={calls}:error=EIO:when={number}")
    strace = (need("strace", "strace"), "-f", "-qq", "-o", "/dev/null", *faults)
    process = start(name, folder, "write", 1, SYNC_NUMBERS, strace=strace)
    try:
        said, _ = process.communicate(timeout=READ_SECONDS)
    except subprocess.TimeoutExpired:
        return end(process)
    return numbers_in(said)
