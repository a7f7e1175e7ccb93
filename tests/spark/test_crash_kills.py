"""Kills with -9 of everything that takes part; then each record is in the table and the topic once."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec
import pytest

from penstock.errors import NotSupported
from penstock.spark.java import find_java
from penstock.spark.tables import WarehouseTable
from tests.java import quick_pythons
from tests.scoreboard import Scores
from tests.spark.forks import NAME
from tests.spark.processes import EXECUTOR, JAVA, READER, WORKER, below, kill, of_kind

ROOT = Path(__file__).parent.parent.parent
ITEMS = 7
PARTITIONS = 2
START_SECONDS = 240.0
END_SECONDS = 400.0
POWER = "power"
"""Not a process: all of them, and the files that Spark did not sync are empty afterwards."""
WORK_FIRST = 0.6
"""How many kills wait until a micro-batch is done; the others may come while queries start."""
TICKS_MAX = 400
PAUSE_TICKS = 5
VICTIMS = (JAVA, EXECUTOR, WORKER, READER, POWER)
FEW_STARTS = {JAVA: 1, POWER: 1, READER: 2, EXECUTOR: 2, WORKER: 14}
"""Twenty kills of which few make a Java start again, which takes longest."""


def plain_environment() -> dict[str, str]:
    """In which Spark's processes are its own, to be killed."""
    return {name: text for name, text in os.environ.items() if name != NAME} | quick_pythons()


class Driver:
    """The program as a process of its own, and what it says."""

    def __init__(self, log: str, folder: Path, *, forked: bool) -> None:
        self._errors = (folder / "driver.err").open("a")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.crash_program", log, str(folder), *(["forked"] if forked else [])],
            cwd=ROOT, env=plain_environment(),
            stdout=subprocess.PIPE, stderr=self._errors, text=True,
        )  # fmt: skip
        self._said: list[str] = []
        self._more = threading.Condition()
        self._listener = threading.Thread(target=self._listen, args=(self._process.stdout,))
        self._listener.start()

    def wait_for(self, word: str, seconds: float, *, times: int = 1) -> None:
        with self._more:
            self._more.wait_for(
                lambda: self.times(word) >= times or self._process.poll() is not None, seconds
            )
        assert self.times(word) >= times, f"no {word!r} but {self._said}"

    def times(self, word: str) -> int:
        return sum(line.startswith(word) for line in self._said)

    def is_up(self) -> bool:
        return self._process.poll() is None

    def processes(self) -> dict[int, str]:
        return below(self._process.pid)

    def kill(self) -> None:
        """All of it, the driver first: it cannot tidy up."""
        kill([self._process.pid, *self.processes()])
        self.close()

    def close(self) -> None:
        if self.is_up():
            kill([*self.processes(), self._process.pid])
        self._process.wait(60)
        self._listener.join(60)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    def _listen(self, lines: IO[str] | None) -> None:
        for line in lines or ():
            with self._more:
                self._said.append(line.strip())
                self._more.notify_all()
        with self._more:
            self._more.notify_all()


class Publisher:
    """Publishes all the time, from a thread."""

    def __init__(self, log: Any, seed: int) -> None:
        self._log = log
        self._random = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._publish)
        self._published = threading.Semaphore(0)
        self._thread.start()

    def wait_for_more(self, times: int) -> None:
        """Until so many calls more were made."""
        while self._published.acquire(blocking=False):
            pass
        for _ in range(times):
            self._published.acquire(timeout=60)

    def wait_until(self, met: Callable[[], bool]) -> bool:
        """Until something is so, or has had enough time to be; whether it was."""
        for _ in range(TICKS_MAX):
            if met():
                return True
            self.wait_for_more(1)
        return False

    def stop(self) -> None:
        self._over.set()
        self._thread.join(60)

    def _publish(self) -> None:
        while not self._over.wait(0.2):
            items = [f"item-{self._random.randrange(ITEMS)}" for _ in range(10)]
            values = [
                msgspec.json.encode({"item": one, "amount": self._random.randrange(1_000)})
                for one in items
            ]
            self._log.publish("sold", values, [one.encode() for one in items])
            self._published.release()


Totals = dict[str, tuple[int, int, int, int]]


def totals(rows: Iterable[Mapping[str, Any]]) -> Totals:
    """Count, sum, smallest and largest amount of each item."""
    amounts = defaultdict(list)
    for row in rows:
        amounts[row["item"]].append(row["amount"])
    return {item: (len(of), sum(of), min(of), max(of)) for item, of in amounts.items()}


def places(rows: Iterable[Mapping[str, Any]]) -> list[tuple[int, int]]:
    return sorted((row["partition"], row["offset"]) for row in rows)


@pytest.fixture
def driven(log: Any, tmp_path: Path) -> tuple[Any, Path]:
    try:
        find_java()
    except NotSupported as missing:
        pytest.skip(str(missing))
    log.create("sold", partitions=PARTITIONS)
    return log, tmp_path / "warehouse"


def empty_checkpoints(folder: Path) -> None:
    """What a power cut leaves of files that were never synced."""
    for file in (folder / "checkpoints").rglob("*"):
        if file.is_file() and ".damaged-" not in str(file):
            file.write_bytes(b"")


def micro_batch(folder: Path) -> int:
    """The last one that Spark noted as done, of the table."""
    commits = (folder / "checkpoints" / "to-table" / "commits").glob("[0-9]*")
    return max((int(file.name) for file in commits), default=-1)


def strike(driver: Driver, victim: str, folder: Path, choice: random.Random) -> int:
    """Kill the victim; how many were there to be killed."""
    there = of_kind(driver.processes(), victim)
    if victim in {EXECUTOR, WORKER, READER}:
        return kill([choice.choice(there)] if there else [])
    if victim == JAVA:
        everything = list(driver.processes())
        kill(there)
        kill(everything)
    driver.kill()
    if victim == POWER:
        empty_checkpoints(folder)
    return 1


def kill_again_and_again(
    log: Any, folder: Path, victims: list[str], seed: int, *, forked: bool
) -> None:
    choice = random.Random(seed)
    folder.mkdir()
    publisher = Publisher(log, seed)
    driver = Driver(log.path, folder, forked=forked)
    done = -1
    try:
        for victim in victims:
            driver.wait_for("running", START_SECONDS, times=driver.times("failed") + 1)
            if choice.random() < WORK_FIRST:
                publisher.wait_until(lambda: micro_batch(folder) > done)  # noqa: B023 - called here
            publisher.wait_for_more(choice.randrange(PAUSE_TICKS))  # any stage of a micro-batch
            done = micro_batch(folder)
            assert publisher.wait_until(lambda: strike(driver, victim, folder, choice) > 0)  # noqa: B023
            if not driver.is_up():
                driver.close()
                driver = Driver(log.path, folder, forked=forked)
        publisher.stop()
        (folder / "stop").touch()
        driver.wait_for("done", END_SECONDS)
    finally:
        publisher.stop()
        driver.close()


def check(log: Any, folder: Path) -> int:
    """Compare the table and the topic with the topic that all came from; how many records there are."""
    given = log.rows(subscribe="sold")
    expected = [
        {
            **msgspec.json.decode(row["value"]),
            "partition": row["partition"],
            "offset": row["offset"],
        }
        for row in given
    ]
    table = WarehouseTable(str(folder / "sold")).arrow().to_pylist()
    again = [msgspec.json.decode(row["value"]) for row in log.rows(subscribe="sold-again")]
    for found in (table, again):
        assert totals(found) == totals(expected)
        assert places(found) == places(expected), "each record once"
    return len(expected)


def run(driven: tuple[Any, Path], victims: list[str], seed: int, *, forked: bool) -> None:
    print(f"seed {seed}, victims {victims}")
    log, folder = driven
    kill_again_and_again(log, folder, victims, seed, forked=forked)
    assert check(log, folder) > 0


@pytest.mark.timeout(900)
def test_twenty_kills_and_a_power_cut_lose_and_double_nothing(
    driven: tuple[Any, Path], scored: Scores
) -> None:
    victims = [victim for victim, times in FEW_STARTS.items() for _ in range(times)]
    random.Random(6).shuffle(victims)
    run(driven, victims, seed=6, forked=True)
    scored(13, tried=len(victims), bad=0, seed=6)


@pytest.mark.torture
@pytest.mark.parametrize("kills", [20, 200])
def test_many_kills_at_random_stages(driven: tuple[Any, Path], kills: int, scored: Scores) -> None:
    seed = int(os.environ.get("PENSTOCK_SEED", random.randrange(1 << 32)))
    kills = int(os.environ.get("PENSTOCK_KILLS", kills))
    choice = random.Random(seed)
    run(driven, choice.choices(VICTIMS, [4, 4, 6, 4, 4], k=kills), seed, forked=False)
    scored(13, tried=kills, bad=0, seed=seed)
