"""The suites of peers run on what is here, name what is not, and state what each peer promises."""

import asyncio
import subprocess
import sys
from pathlib import Path

import nats
import pytest

from benchmarks import __main__ as program
from benchmarks import durable, frameworks
from benchmarks.durable import workloads
from benchmarks.durable.servers import SERVERS, redis_client
from benchmarks.durable.stores import STORES, library
from benchmarks.frameworks import brokers
from benchmarks.frameworks.workloads import FRAMEWORKS
from benchmarks.model import POINTS, SCALES, Case, Missing, Sample, Scale
from benchmarks.report import markdown
from benchmarks.results import decode
from benchmarks.runner import Runner, selected
from benchmarks.suites import SUITES
from benchmarks.targets import judge

ROOT = Path(__file__).parent.parent
TINY = Scale("quick", 1, 0.002, 1 << 14, 1 << 14, 1, 1, settle=False)
LIBRARIES = {"rocksdb": "rocksdict", "litequeue": "litequeue", "persist-queue": "persistqueue"}


def need(peer):
    """Skip where a peer is not installed."""
    try:
        library(LIBRARIES.get(peer, "lmdb"))
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("peer", STORES)
def test_a_store_keeps_what_it_was_given_and_reads_it_in_order(tmp_path, peer):
    need(peer)
    with STORES[peer].open(tmp_path) as store:
        store.append([b"a", b"b"])
        store.append([b"c"])
        assert store.read() == 3


@pytest.mark.timeout(120)
def test_a_run_has_libraries_beside_raw_and_penstock(tmp_path, monkeypatch):
    few = {
        name: STORES[name] for name in ("sqlite", "rocksdb")
    }  # those that sync each record are slow
    monkeypatch.setitem(SCALES, "quick", TINY)
    monkeypatch.setattr(workloads, "STORES", few)
    monkeypatch.setattr(workloads, "SERVERS", {})
    file = tmp_path / "durable.json"
    where = ["--json", str(file), "--dir", str(tmp_path)]
    assert program.main(["--suite", "durable", "--quick", *where]) == 0
    report = decode(file.read_bytes())
    assert report.failures == {}
    for workload in durable.WORKLOADS:
        mine = {one.contender for one in report.results if one.workload == workload.name}
        left_out = {name.rpartition("/")[2] for name in report.skipped}  # where it is not installed
        assert mine | left_out >= {"penstock", *few}
    page = markdown(report, "durable")
    assert "| durability |" in page
    assert "synchronous=FULL" in page
    assert "PostgreSQL" in report.machine
    assert report.machine["compiled twin"] in ("in use", "not in use")


def test_every_contender_that_writes_states_its_durability():
    groups = selected(durable.WORKLOADS[:2], SCALES["default"], None)
    assert all("sync" in one.durability for group in groups for one in group)
    peers = {one.contender for group in groups for one in group}
    assert peers >= {"raw", "penstock", *STORES, *SERVERS}


@pytest.mark.parametrize("name", ["durable", "frameworks"])
def test_targets_and_points_are_known(name):
    suite = SUITES[name]
    cases = {case.name: case for one in suite.workloads for case in one.cases(SCALES["default"])}
    for target in suite.targets:
        assert {target.of, target.to or target.of} <= cases.keys()
    assert {case.point for case in cases.values()} <= POINTS.keys()


def test_the_goal_is_ten_times_a_server_and_half_more_than_a_library():
    goals = {target.to.rpartition("/")[2]: target.goal for target in durable.TARGETS if target.to}
    assert {goals[name] for name in SERVERS} == {10}
    assert {goals[name] for name in STORES if name != "lmdb"} == {1.5}


def test_a_peer_that_is_not_here_is_named_and_is_no_failure(tmp_path):
    def away(_: Path) -> Sample:
        raise Missing("no such server: make services")

    cases = [
        Case("durable_read", 100, "read", "away", "a fake", away),
        Case("durable_read", 100, "read", "penstock", "a fake", lambda _: Sample(1.0)),
    ]
    runner = Runner(tmp_path, TINY)
    results = runner.measure(cases)
    assert [one.contender for one in results] == ["penstock"]
    assert runner.skipped == {"durable_read/100/read/away": "no such server: make services"}
    assert runner.failures == {}
    assert judge(results, durable.TARGETS) == []


def test_a_library_that_is_not_here_is_missing():
    with pytest.raises(Missing, match="scripts/peers"):
        library("no_such_peer")


@pytest.mark.timeout(120)
async def test_a_server_gives_back_what_was_acknowledged(tmp_path):
    try:
        async with redis_client(tmp_path) as client:
            await client.append([b"a"] * 1_500)
            async with client.reader() as take:
                assert [await take(1_000) for _ in range(3)] == [1_000, 500, 0]
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "contender", ["penstock", "penstock-commit", "faststream", "faststream-confirmed"]
)
def test_a_service_on_a_broker_handles_everything(tmp_path, contender):
    cases = frameworks.WORKLOADS[1].cases(TINY)
    [case] = [one for one in cases if (one.point, one.contender) == ("handle", contender)]
    try:
        assert case.run(tmp_path).value > 0
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.mark.timeout(120)
def test_a_peer_that_waits_for_the_broker_has_confirmed_a_record_before_the_next(tmp_path):
    """What ``await event.commit()`` promises; the other pairs are marked as unequal."""
    confirmed: list[int] = []

    async def work(started):
        done = asyncio.Event()

        async def handle(_: bytes) -> None:
            info = await client.jetstream().consumer_info(brokers.TOPIC, brokers.GROUP)
            confirmed.append(info.ack_floor.stream_seq)
            if len(confirmed) == 20:
                done.set()

        async with FRAMEWORKS["faststream-confirmed"](started) as service:
            client = await nats.connect(started.url)
            for _ in range(20):
                await service.publish(b"x")
            async with service.serve(handle):
                await done.wait()
            await client.close()

    try:
        with brokers.nats(tmp_path) as started:
            asyncio.run(work(started))
    except Missing as missing:
        pytest.skip(str(missing))
    assert confirmed == list(range(20))


def test_the_peers_are_fetched_from_a_lock_with_hashes_and_touch_no_environment():
    lock = (ROOT / "benchmarks" / "requirements.txt").read_text()
    packages = [line for line in lock.splitlines() if line[:1].isalpha()]
    assert all("==" in line and line.endswith("\\") for line in packages)
    assert "://" not in lock
    code = "import sys, benchmarks; print(sys.path[-1])"
    told = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
    assert told.strip() == str(ROOT / "build" / "peers")
