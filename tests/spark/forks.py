"""Pythons for Spark that are forked, from one that has loaded what they load: ``python -m tests.spark.forks NAME``.

Spark starts a Python for each streaming source and some for each session. To load PySpark, Arrow and the package takes
each of them more than a second of the processor, and Spark waits ten seconds for it. The tests' launcher
(tests/java.py) asks here instead, where ``FORKS_FOR_SPARK`` has the name of a server. A process that was forked is named
after its module, so that it can be told from the others, and killed.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAME = "FORKS_FOR_SPARK"
ROOT = Path(__file__).parents[2]
LOADED = (
    *("pyspark.daemon", "pyspark.worker", "pyarrow", "pyarrow.dataset", "pyarrow.parquet"),
    *("pyspark.sql.streaming.python_streaming_source_runner", "pyarrow.compute"),
    *(f"pyspark.sql.worker.{name}_data_source" for name in ("create", "write_into")),
    *("pyspark.sql.worker.lookup_data_sources", "pyspark.sql.worker.plan_data_source_read"),
    *("pyspark.sql.worker.commit_data_source_write", "pyspark_penstock", "pyspark_penstock_table"),
    *("penstock.spark.source", "penstock.spark.stream", "penstock.spark.sink"),
)
SINGLE = {"OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
"""What is forked has no other threads; and hashes are what Spark asks for."""
END_SECONDS = 60.0


@contextmanager
def forks() -> Iterator[str]:
    """A server of forks for a while; its name."""
    name = f"penstock-forks-{uuid.uuid4()}"
    with subprocess.Popen(
        [sys.executable, "-m", "tests.spark.forks", name], cwd=ROOT,
        env=os.environ | SINGLE, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as server:  # fmt: skip
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield name
        server.communicate(timeout=END_SECONDS)


class Server:
    """Forks a process for each that connects, and tells it how that one ended."""

    def __init__(self, name: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"\0{name}")
        self._listener.listen(64)
        self._poll = select.poll()
        for one in (0, self._listener.fileno()):
            self._poll.register(one, select.POLLIN)
        self._forked: dict[int, tuple[int, socket.socket]] = {}

    def serve(self) -> None:
        """Until standard input ends."""
        while True:
            for number, _ in self._poll.poll():
                if number == 0:
                    return
                if number in self._forked:
                    self._ended(number)
                else:
                    self._fork()

    def _fork(self) -> None:
        client, _ = self._listener.accept()
        with suppress(ValueError, OSError):  # its client was killed
            wanted, files = _received(client)
            child = os.fork()
            if child == 0:
                _become(client, wanted, files)
            for one in files:
                os.close(one)
            handle = os.pidfd_open(child)
            self._forked[handle] = child, client
            self._poll.register(handle, select.POLLIN)

    def _ended(self, handle: int) -> None:
        child, client = self._forked.pop(handle)
        self._poll.unregister(handle)
        os.close(handle)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with suppress(OSError), client:
            client.send(bytes([code % 256]))


def _received(client: socket.socket) -> tuple[dict[str, Any], list[int]]:
    _, files, _, _ = socket.recv_fds(client, 1, 3)
    with client.makefile("rb") as lines:
        return json.loads(lines.readline()), files


def _become(client: socket.socket, wanted: dict[str, Any], files: list[int]) -> None:
    """In the child: what was asked for. It does not return."""
    code: object = 1
    try:
        for target, one in enumerate(files):
            os.dup2(one, target)
        os.closerange(3, client.fileno())
        os.closerange(client.fileno() + 1, 1_024)
        threading.Thread(target=_end_with, args=(client,), daemon=True).start()
        _dress(wanted)
        runpy.run_module(wanted["arguments"][1], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            atexit._run_exitfuncs()
        with suppress(Exception):
            sys.stdout.flush()
        os._exit(code % 256 if isinstance(code, int) else 1)


def _dress(wanted: dict[str, Any]) -> None:
    """The surroundings that it would have had."""
    os.chdir(wanted["folder"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    os.environ.pop(NAME, None)
    sys.argv = wanted["arguments"][1:]
    Path("/proc/self/comm").write_text(sys.argv[0].removeprefix("pyspark.sql.streaming."))
    extra = [one for one in os.environ.get("PYTHONPATH", "").split(":") if one]
    sys.path[:] = [wanted["folder"], *extra, *(one for one in sys.path[1:] if one not in extra)]
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    warnings.simplefilter("ignore", RuntimeWarning)  # what is run was loaded before


def _end_with(client: socket.socket) -> None:
    """End when the client does, as if the signal had come here."""
    with suppress(OSError):
        client.recv(1)
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(END_SECONDS)
    os._exit(1)


def main(name: str) -> None:
    warnings.simplefilter("ignore")
    for module in LOADED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    server = Server(name)
    print("ready", flush=True)
    server.serve()


if __name__ == "__main__":
    main(sys.argv[1])
