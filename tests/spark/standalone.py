"""A real Spark cluster on this machine: a master and workers as processes of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import venv
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pyspark

from penstock.spark.java import find_java
from tests.spark.conftest import QUICK
from tests.spark.processes import below, kill

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
SOURCE = Path(__file__).parent.parent.parent / "src"
WAIT_SECONDS = 120.0
PAUSE_SECONDS = 0.1
EXECUTOR = "CoarseGrainedExecutorBackend"


class Cluster:
    """A master on loopback, and workers with one core each."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._log = (folder / "cluster.log").open("wb")
        port = free_port()
        self.url = f"spark://127.0.0.1:{port}"
        self._start("master.Master", "--port", str(port), "--webui-port", "0")
        wait_for_port(port)
        for number in range(workers):
            work = folder / f"worker-{number}"
            self._start(
                "worker.Worker", "--cores", "1", "--memory", "700m", "--webui-port", "0",
                "--work-dir", str(work), self.url,
            )  # fmt: skip

    def executors(self) -> list[int]:
        """The processes that run tasks."""
        found: dict[int, str] = {}
        for process in self._processes:
            found |= below(process.pid)
        return [number for number, command in found.items() if EXECUTOR in command]

    def stop(self) -> None:
        """All of it, at once."""
        for process in reversed(self._processes):
            kill([process.pid, *below(process.pid)])
            process.wait(60)
        self._log.close()

    def _start(self, kind: str, *arguments: str) -> None:
        environment = os.environ | {
            "JAVA_HOME": find_java().home,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_NO_DAEMONIZE": "1",
        }
        # What the tests themselves import must not be found by executors by way of the environment.
        environment.pop("PYTHONPATH", None)
        command = [str(SPARK_CLASS), f"org.apache.spark.deploy.{kind}", "--host", "127.0.0.1"]
        self._processes.append(
            subprocess.Popen(
                [*command, *arguments],
                env=environment,
                cwd=self._folder,
                stdout=self._log,
                stderr=self._log,
            )
        )


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """A cluster for a while."""
    running = Cluster(folder, workers)
    try:
        yield running
    finally:
        running.stop()


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int) -> None:
    """Until somebody listens."""
    pause = threading.Event()
    for _ in range(int(WAIT_SECONDS / PAUSE_SECONDS)):
        with suppress(OSError), closing(socket.create_connection(("127.0.0.1", port), 1.0)):
            return
        pause.wait(PAUSE_SECONDS)
    raise AssertionError(f"nobody listens at port {port}")


def python_without_the_package(folder: Path) -> str:
    """A Python with all that the package needs, and without the package itself."""
    place = folder / "bare"
    venv.create(place, with_pip=False)
    (packages,) = (place / "lib").glob("python*/site-packages")
    here = next(path for path in sys.path if path.endswith("site-packages"))
    # The folder is searched; what its own .pth files name, the package among it, is not.
    (packages / "needed.pth").write_text(f"{here}\n")
    return str(place / "bin" / "python")


def package_as_zip(folder: Path) -> str:
    """The package as ``--py-files`` takes it."""
    target = folder / "penstock.zip"
    with zipfile.ZipFile(target, "w") as archive:
        for name in ("penstock", "pyspark_penstock", "pyspark_penstock_table"):
            for file in sorted((SOURCE / name).rglob("*.py")):
                archive.write(file, file.relative_to(SOURCE))
    return str(target)


def end_quietly(process: subprocess.Popen[str]) -> None:
    """A driver and all that it started."""
    with suppress(ProcessLookupError):
        kill([*below(process.pid), process.pid])
    process.wait(60)
