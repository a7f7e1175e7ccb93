"""Peers are measured as their makers advise, by one method, and those that are not here are left out by name."""

import itertools
import sqlite3
import subprocess
import sys
import threading
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from benchmarks import brokers, frameworks
from benchmarks.brokers import starting
from benchmarks.durable import postgres, workloads
from benchmarks.durable.client import Client, ServerPeer
from benchmarks.durable.servers import SERVERS
from benchmarks.durable.stores import STORES, library, rocksdb_options
from benchmarks.model import Load, Missing, Scale
from benchmarks.runner import Runner
from benchmarks.spark.kafka_source import FilledKafka
from benchmarks.suites import SUITES
from benchmarks.workloads.double_buffered import publish_double_buffered

ROOT = Path(__file__).parent.parent
TINY = Scale("quick", 1, 0.002, 1 << 14, 1 << 14, 1, 1, settle=False)
AWAY = "away: make services"
READ_BY_2000 = ServerPeer(SERVERS["redis"].open, "", "", "", read_records=5_000, read_batch=2_000)


def need(name):
    """A peer of build/peers; skips where it is not."""
    try:
        return library(name)
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def no_servers(monkeypatch):
    """A machine without any server."""

    def binary():
        pytest.skip(AWAY)

    for name in ("kafka", "pulsar", "rabbitmq"):
        monkeypatch.setattr(f"tests.transports.servers.{name}.MISSING", AWAY)
    for name in ("redis", "nats"):
        monkeypatch.setattr(f"tests.transports.servers.{name}.binary", binary)
    monkeypatch.setattr(postgres, "postgres_binaries", binary)


def server_cases():
    peers = (*brokers.WORKLOADS, *frameworks.WORKLOADS)
    found = [case for one in peers for case in one.cases(TINY)]
    reads = [case for case in workloads.reads(TINY) if case.contender in SERVERS]
    return [*found, *reads]


def test_where_there_are_no_servers_their_cases_are_named_and_nothing_fails(tmp_path, no_servers):
    cases = server_cases()
    runner = Runner(tmp_path, TINY)
    assert runner.measure(cases) == []
    assert runner.failures == {}
    assert runner.skipped == dict.fromkeys((case.name for case in cases), AWAY)


def test_without_kafka_its_rows_are_left_out_of_spark(tmp_path, no_servers):
    with pytest.raises(Missing, match="away"), FilledKafka(tmp_path, 8, 100):
        pass


@pytest.fixture
def unstarted(monkeypatch):
    """The servers that would have been started."""
    found = []

    def started(server, stack, stop):
        assert isinstance(stack, ExitStack)
        found.append(server)

    monkeypatch.setattr(starting, "started", started)
    for name in ("kafka", "pulsar"):
        monkeypatch.setattr(f"tests.transports.servers.{name}.MISSING", None)
    return found


@pytest.mark.parametrize("start", [starting.kafka_server, starting.pulsar_server])
def test_java_runs_as_a_server_and_not_as_in_tests(tmp_path, unstarted, start):
    with start(tmp_path):
        [server] = unstarted
        options = server._java
    assert "-XX:+UseG1GC" in options
    assert "-Xmx1g" in options
    assert not [one for one in options if "Tiered" in one or "SerialGC" in one]


def test_the_page_states_the_options_of_java_and_of_the_servers():
    for suite in ("durable", "brokers"):
        text = " ".join(line.strip() for line in SUITES[suite].how)
        assert all(one in text for one in starting.JAVA if one != "-server")
    text = " ".join(SUITES["durable"].how)
    assert all(f"{name}={value}" in text for name, value in postgres.SETTINGS.items())


class Clock:
    """Time that passes only when something is said to take it."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now


async def test_a_server_is_read_without_what_it_does_once(monkeypatch):
    clock, left, calls = Clock(), [], []
    monkeypatch.setattr(workloads, "time", clock)
    seconds = itertools.chain([9.0], itertools.repeat(0.5))

    async def append(values):
        left.extend(values)

    @asynccontextmanager
    async def reader():
        clock.now += 30.0

        async def take(count):
            clock.now += next(seconds)
            calls.append(count)
            got = left[:count]
            del left[:count]
            return len(got)

        yield take
        clock.now += 30.0

    load = Load(100, 0.1, 0)
    sample = await workloads._read_server(Client(append, reader), load, READ_BY_2000, 5_000)
    assert calls == [2_000, 2_000, 1_000]
    assert sample.value == 3_000 / 1.0
    assert sample.notes == {"records": 5_000, "seconds": 1.0}


async def test_a_server_that_gives_back_less_is_not_measured():
    async def append(values):
        pass

    @asynccontextmanager
    async def reader():
        async def take(count):
            return 0

        yield take

    with pytest.raises(RuntimeError, match="no more records"):
        await workloads._read_server(Client(append, reader), Load(100, 0.1, 0), READ_BY_2000, 5_000)


def test_enough_is_read_of_each_server():
    for name, peer in SERVERS.items():
        assert peer.read_records >= 20 * peer.read_batch, name
    assert SERVERS["kafka"].read_records >= 500_000
    assert SERVERS["postgres"].read_records >= 500_000


@pytest.mark.timeout(120)
async def test_postgres_has_its_own_settings_of_the_log(tmp_path):
    try:
        with postgres.server() as server:
            connection = await asyncpg.connect(server.dsn)
            names = ("wal_writer_delay", "wal_writer_flush_after", "fsync", "synchronous_commit")
            found = [await connection.fetchval(f"SHOW {name}") for name in names]
            await connection.close()
    except Missing as missing:
        pytest.skip(str(missing))
    assert found == ["200ms", "1MB", "on", "on"]


def test_redis_is_parsed_by_hiredis():
    need("hiredis")
    code = "import benchmarks; from redis.utils import HIREDIS_AVAILABLE as h; print(h)"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True) == "True\n"


def test_litequeue_keeps_bytes_as_they_are(tmp_path):
    need("litequeue")
    with STORES["litequeue"].open(tmp_path) as store:
        store.append([b"\x00\xff"])
    with sqlite3.connect(tmp_path / "queue.db") as database:
        assert database.execute("SELECT data, typeof(data) FROM Queue").fetchall() == [
            (b"\x00\xff", "blob")
        ]
    database.close()


def test_threads_of_python_share_no_sync_of_rocksdb(tmp_path):
    """The page says so; when it fails, RocksDB is to be measured with threads."""
    rocks = need("rocksdict")
    options = rocksdb_options(rocks)
    options.enable_statistics()
    database = rocks.Rdict(str(tmp_path / "rocks"), options)
    synced = rocks.WriteOptions()
    synced.sync = True

    def write(first):
        for number in range(10):
            database.put(b"%d-%d" % (first, number), b"x", synced)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told = dict(line.split(" COUNT : ") for line in options.get_statistics().splitlines()
                if line.startswith(("rocksdb.wal.synced", "rocksdb.write.other")))  # fmt: skip
    database.close()
    assert told == {"rocksdb.wal.synced": "320", "rocksdb.write.other": "0"}


def test_with_two_buffers_a_sync_has_two_blocks_at_most(tmp_path):
    load = Load(100, 0.05, 1 << 22)
    sample = publish_double_buffered(tmp_path, load)
    assert sample.value > 0
    assert sample.notes["records per sync"] <= 2 * load.batch


@pytest.mark.parametrize(
    ("target", "folder"), [("bench", "benchmarks/results"), ("bench-full", "")]
)
def test_a_run_ends_with_one_table_and_plots(target, folder):
    recipe = (ROOT / "Makefile").read_text().partition(f"\n{target}:")[2].partition("\n\n")[0]
    measured, summed = recipe.index("-m benchmarks -"), recipe.index(f"benchmarks.summary {folder}")
    assert measured < summed
    assert recipe.rstrip().endswith("exit $$ended")
