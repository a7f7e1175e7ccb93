"""The same verbs on brokers, by URL: NATS and Redis."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from penstock.cli.codes import PROBLEMS
from tests.cli.terminal import Terminal
from tests.transports.servers.nats import nats_server
from tests.transports.servers.redis import redis_server


@pytest.fixture(scope="module", params=["nats", "redis"])
def url(request) -> Iterator[str]:
    pytest.importorskip(request.param, reason=f"needs penstock[{request.param}]")
    with (nats_server if request.param == "nats" else redis_server)() as server:
        yield server.url


@pytest.fixture(scope="module")
def broker(url, tmp_path_factory) -> Terminal:
    """A topic with ten records, in two partitions."""
    terminal = Terminal(tmp_path_factory.mktemp("broker"), url)
    terminal("topic", "create", "orders", "-p", 2)
    lines = b"".join(b"k%d:v%d\n" % (number, number) for number in range(10))
    terminal("produce", "orders", "-q", "-K", ":", "-H", "a=1", stdin=lines)
    return terminal


def test_topics_are_listed_and_described(broker):
    found = {one["topic"]: one for one in broker("topic", "list", "-o", "json").json}
    assert found["orders"] == {"topic": "orders", "partitions": 2, "records": 10}
    described = broker("topic", "describe", "orders", "-o", "json").json
    assert sum(one["records"] for one in described["partitions"]) == 10


@pytest.mark.parametrize(
    ("place", "count"), [("start", 10), ("-1", 2), ("0:1", 2), ("@1h:", 10), ("end", 0)]
)
def test_records_are_read_from_a_place_on(broker, place, count):
    before = broker("topic", "describe", "orders", "-o", "json").json["groups"]
    found = broker("consume", "orders", "-o", place, "-f", "json").json_lines
    assert len(found) == count
    assert all(one["headers"] == {"a": "1"} for one in found)
    assert broker("topic", "describe", "orders", "-o", "json").json["groups"] == before


def test_a_group_reads_is_moved_and_forgotten(broker):
    assert len(broker("consume", "orders", "-g", "billing", "-n", 4).lines) == 4
    (found,) = broker("group", "list", "-o", "json").json
    assert (found["group"], found["lag_records"], found["members"]) == ("billing", 6, None)
    assert len(broker("consume", "orders", "-g", "billing").lines) == 6
    moved = broker("group", "seek", "billing", "--to", "start", "--yes", "-o", "json").json
    assert sum(one["difference"] for one in moved) == -10
    (found,) = broker("group", "describe", "billing", "-o", "json").json
    assert found["lag_records"] == 10
    broker("group", "seek", "billing", "--to", "@2999-01-01", "--yes")
    assert broker("group", "list", "-o", "json").json[0]["lag_records"] == 0
    broker("group", "delete", "billing", "--yes")
    assert broker("group", "list", "-o", "json").json == []


def test_an_export_and_a_benchmark(broker, tmp_path):
    told = broker("export", "orders", tmp_path / "x.parquet").errors
    assert told.startswith("10 records")
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs penstock[arrow]")
    assert parquet.read_table(tmp_path / "x.parquet").num_rows == 10
    assert broker("bench", "-n", 500, "-o", "json").json["consume"]["records"] == 500
    assert [
        one["topic"]
        for one in broker("topic", "list", "-o", "json").json
        if "bench" in one["topic"]
    ] == []


def test_dead_letters_in_a_topic(broker):
    broker("topic", "create", "sales")
    for number in range(2):
        broker("produce", "sales.dead-letters", "--create", "-q", f"bad {number}",
               "-H", "penstock-reason=no total")  # fmt: skip
    first, second = broker("dlq", "list", "-o", "json").json
    assert (first["topic"], first["reason"], first["value"]) == ("sales", "no total", "bad 0")
    broker("dlq", "replay", first["id"], "--yes")
    assert broker("consume", "sales").lines == ["bad 0"]
    assert [one["id"] for one in broker("dlq", "list", "-o", "json").json] == [second["id"]]
    broker("dlq", "purge", "--all", "--yes")
    assert broker("dlq", "list", "-o", "json").json == []


def test_what_it_cannot_do_is_told(broker):
    scheme = broker.url.partition(":")[0]
    for words in (["log", "verify"], ["log", "stats"], ["log", "repair", "x", "-y"]):
        assert f"{scheme}: is no log" in broker(*words, code=2).errors
    told = broker("topic", "create", "x", "-s", "fsync=timed", code=2).errors
    assert re.search("no option 'fsync'", told)
    assert "gone" in broker("consume", "gone", code=2).errors
    assert "gone" in broker("produce", "gone", "x", code=2).errors


def test_a_doctor_reaches_it(broker):
    done = broker("doctor", "-o", "json", code=None)
    assert done.code in (0, PROBLEMS)
    found = {one["what"]: one for one in done.json}
    assert found["broker"]["health"] == "ok"
    assert "answers, with" in found["broker"]["detail"]


def test_a_topic_is_deleted(broker):
    broker("produce", "old", "--create", "-q", "x")
    broker("topic", "delete", "old", "--yes")
    assert "old" not in [one["topic"] for one in broker("topic", "list", "-o", "json").json]


def test_it_works_in_processes_too(broker):
    lines = broker.process("consume", "orders", "-f", "%k\\n").lines
    assert sorted(lines) == sorted(f"k{number}" for number in range(10))
