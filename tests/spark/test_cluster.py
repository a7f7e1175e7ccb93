"""A standalone cluster: the package comes as a zip, executors are killed, every row arrives once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import NotSupported
from penstock.spark.java import find_java
from penstock.spark.tables import WarehouseTable
from tests.java import quick_python, quick_start_of

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Any]:
    try:
        find_java()
    except NotSupported as missing:
        pytest.skip(str(missing))
    from tests.spark.standalone import cluster

    with cluster(tmp_path) as running:
        yield running


class Job:
    """The driver, and what it says, line by line."""

    def __init__(self, master: str, log: str, folder: Path, batch: int, *, zipped: bool) -> None:
        from tests.spark.standalone import package_as_zip, python_without_the_package

        package = package_as_zip(folder) if zipped else ""
        environment = dict(os.environ)
        if zipped:
            # Executors get this Python. The driver's own processes find the package by the path.
            environment["PYSPARK_PYTHON"] = quick_start_of(python_without_the_package(folder))
            environment["PYSPARK_DRIVER_PYTHON"] = quick_python()
            environment["PYTHONPATH"] = str(ROOT / "src")
        arguments = [master, log, str(folder), str(batch), package]
        self._errors = folder / "driver.err"
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.cluster_program", *arguments],
                cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip

    def says(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self._errors.read_text()[-4000:]
        said: dict[str, Any] = json.loads(line)
        return said


def run(machine: Any, log: Any, folder: Path, records: int, *, zipped: bool, kills: int) -> None:
    from tests.spark.processes import kill
    from tests.spark.standalone import end_quietly

    log.create("orders", partitions=2)
    log.numbers("orders", 0, records)
    job = Job(machine.url, log.path, folder, records // 5, zipped=zipped)
    try:
        places = job.says()["places"]
        assert all((".zip" in place) == zipped for place in places), places
        for sink in ("penstock", "penstock_table"):
            assert job.says() == {"running": sink}
            kill(machine.executors()[:kills])
        assert job.says() == {"done": True}
    finally:
        end_quietly(job.process)
        assert job.process.stdout is not None
        job.process.stdout.close()
    wanted = list(range(records))
    assert sorted(int(row["value"]) for row in log.rows(subscribe="copy")) == wanted
    table = WarehouseTable(str(folder / "table")).arrow()
    assert sorted(int(value) for value in table["value"].to_pylist()) == wanted


@pytest.mark.timeout(600)
def test_the_package_comes_as_a_zip_and_a_killed_executor_costs_no_row(
    forks: str, machine: Any, log: Any, tmp_path: Path
) -> None:
    run(machine, log, tmp_path, 2_000, zipped=True, kills=1)


@pytest.mark.torture
def test_all_executors_are_killed_and_every_row_arrives_once(
    machine: Any, log: Any, tmp_path: Path
) -> None:
    run(machine, log, tmp_path, 200_000, zipped=False, kills=2)
