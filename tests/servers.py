"""Real servers for tests: PostgreSQL and an S3-speaking one, on this machine, for the length of a run."""

import logging
import os
import shutil
import signal
import subprocess
import tempfile
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

POSTGRES_PLACES = ["/usr/lib/postgresql/15/bin", "/usr/local/bin", "/usr/bin"]
POSTGRES_USER = "postgres"
SECRET = "canary-of-the-tests"
"""A password that must not show up anywhere."""


def postgres_binaries() -> Path:
    """The folder of initdb, pg_ctl and postgres; skips the test when there is none."""
    newest_first = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for place in [*newest_first, *map(Path, POSTGRES_PLACES)]:
        if all((place / name).exists() for name in ("initdb", "pg_ctl", "postgres")):
            return place
    pytest.skip("no PostgreSQL server here: initdb, pg_ctl and postgres are missing")


@dataclass
class PostgresServer:
    """A server of its own in a temporary folder, reached through a socket in that folder."""

    binaries: Path
    folder: Path

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres:{SECRET}@/postgres?host={self.folder}"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def run(self, program: str, *arguments: str) -> None:
        # The server refuses to run as root. Its output goes to a file: a pipe would stay open
        # for as long as the server lives.
        user: dict[str, Any] = {"user": POSTGRES_USER, "group": POSTGRES_USER, "extra_groups": []}
        command = [str(self.binaries / program), "-D", str(self.data), *arguments]
        with (self.folder / "output").open("ab") as output:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,
                check=False,
                **(user if os.geteuid() == 0 else {}),
            )
        assert done.returncode == 0, (self.folder / "output").read_text()

    def make(self) -> None:
        self.run("initdb", "--username=postgres", "--auth=trust", "--no-sync", "--no-instructions")
        self.start()

    def start(self) -> None:
        # The server flushes what nobody asked it to flush as late as it can: a test that relies
        # on luck then has none.
        options = (
            f"-c listen_addresses='' -c unix_socket_directories='{self.folder}'"
            " -c wal_writer_delay=10s -c wal_writer_flush_after=1GB"
        )
        self.run("pg_ctl", "start", "-w", "-t", "30", "-s", "-o", options)

    def stop(self) -> None:
        """Stop it cleanly: what was committed is kept, synced or not."""
        self.run("pg_ctl", "stop", "-w", "-s", "-m", "fast")

    def crash(self) -> None:
        """Stop it as a power cut would: what is not in its log on the disk is lost."""
        self.run("pg_ctl", "stop", "-w", "-s", "-m", "immediate")

    @property
    def pid(self) -> int:
        return int((self.data / "postmaster.pid").read_text().split()[0])


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A new PostgreSQL server; skips when the machine has none."""
    binaries = postgres_binaries()
    folder = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
    server = PostgresServer(binaries, folder)
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, POSTGRES_USER, POSTGRES_USER)
        server.make()
        yield server
    finally:
        if (server.data / "postmaster.pid").exists():
            os.kill(server.pid, signal.SIGQUIT)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def s3_server() -> Iterator[str]:
    """The URL of a bucket on a server of moto's that speaks the S3 API over HTTP."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        server_module = pytest.importorskip("moto.server", reason="moto[server] is not installed")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it tells of every request
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        request = urllib.request.Request(f"{endpoint}/penstock", method="PUT")
        urllib.request.urlopen(request).close()
        secrets = f"access_key_id=test&secret_access_key={SECRET}"
        yield f"s3://penstock?endpoint={endpoint}&region=us-east-1&{secrets}"
    finally:
        server.stop()
