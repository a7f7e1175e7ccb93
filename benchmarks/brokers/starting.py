"""How servers of the benchmarks are started: those of the tests, with the options that their makers advise.

The tests start Java so that it is up soon, compiles little and needs little memory. That is no way to measure a
server, so each one here gets what its own start script or its documentation gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.model import Missing
from tests.java import SILENT, archive_of
from tests.transports.servers import kafka, pulsar, rabbitmq
from tests.transports.servers.kafka import KafkaServer
from tests.transports.servers.nats import NatsServer
from tests.transports.servers.pulsar import PulsarServer
from tests.transports.servers.rabbitmq import RabbitServer
from tests.transports.servers.redis import RedisServer

JAVA = (
    "-server", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
)  # fmt: skip
"""As ``kafka-server-start.sh`` has it; all stages of compilation are on, which is Java's default."""
PULSAR_JAVA = (*JAVA, "-XX:MaxDirectMemorySize=1g", "-XX:+PerfDisableSharedMem")
PULSAR_SETTINGS = {
    # The broker lets everybody in.
    "authenticationEnabled": "false",
    "authorizationEnabled": "false",
    # Shares of the direct memory, as they come: a fifth for what is kept, a quarter for each of the bookie's.
    "managedLedgerCacheSizeMB": "204",
    "dbStorage_writeCacheMaxSizeMb": "256",
    "dbStorage_readAheadCacheMaxSizeMb": "256",
    "dbStorage_rocksDB_blockCacheSize": "107374182",
}


def started(server: Any, stack: ExitStack, stop: Callable[[], object]) -> None:
    """Start a server of the tests; what is missing for it leaves the case out."""
    stack.callback(stop)
    try:
        server.start()
    except pytest.skip.Exception as missing:
        raise Missing(str(missing)) from missing


@contextmanager
def redis_server(folder: Path) -> Iterator[RedisServer]:
    """One that syncs before it answers."""
    with ExitStack() as stack:
        server = RedisServer(folder)
        started(server, stack, server.stop)
        yield server


@contextmanager
def nats_server(folder: Path, *, sync: bool = False) -> Iterator[NatsServer]:
    """JetStream in files: as it comes, or synced before it answers."""
    with ExitStack() as stack:
        always = f'jetstream {{ store_dir: "{folder / "data"}", sync_interval: always }}'
        server = NatsServer(folder, always if sync else "")
        server.jetstream = not sync  # its own block would have no sync_interval
        started(server, stack, server.stop)
        yield server


@contextmanager
def kafka_server(folder: Path, *, sync: bool = False) -> Iterator[KafkaServer]:
    """A broker: as it comes, or with a flush of its log before each answer."""
    _need(kafka.MISSING)
    with ExitStack() as stack:
        settings = {"log.flush.interval.messages": "1"} if sync else {}
        server = KafkaServer(folder, settings, _java("kafka", kafka.JARS, JAVA))
        started(server, stack, server.kill)
        yield server


@contextmanager
def pulsar_server(folder: Path) -> Iterator[PulsarServer]:
    """A broker with one bookie, which syncs its journal."""
    _need(pulsar.MISSING)
    with ExitStack() as stack:
        java = _java("pulsar", pulsar.JARS, PULSAR_JAVA)
        server = PulsarServer(folder, PULSAR_SETTINGS, java)
        started(server, stack, server.kill)
        yield server


@contextmanager
def rabbit_server(folder: Path) -> Iterator[RabbitServer]:
    """A node, as it comes."""
    _need(rabbitmq.MISSING)
    with ExitStack() as stack:
        server = RabbitServer(folder)
        started(server, stack, server.stop)
        yield server


def _need(missing: str | None) -> None:
    if missing is not None:
        raise Missing(missing)


def _java(name: str, jars: Path, options: Sequence[str]) -> list[str]:
    """Options of a Java; its archive of classes makes the start shorter, and nothing else."""
    archive = archive_of(name, jars)
    return [*options, *([*SILENT, f"-XX:SharedArchiveFile={archive}"] if archive.exists() else [])]
