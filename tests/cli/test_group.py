"""``penstock group``."""

from __future__ import annotations

import asyncio
import re
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.transports import EmbeddedTransport


@pytest.fixture
def shop(penstock):
    """Ten records in two partitions, four of them consumed."""
    penstock("topic", "create", "orders", "-p", 2)
    lines = b"".join(b"k%d:%d\n" % (number, number) for number in range(10))
    penstock("produce", "orders", "-q", "-K", ":", stdin=lines)
    penstock("consume", "orders", "-g", "billing", "-n", 4)
    return penstock


@contextmanager
def a_member(path, topic: str, group: str):
    """A live member in another thread, with a loop of its own."""
    ready, end = threading.Event(), threading.Event()

    async def be() -> None:
        async with (
            EmbeddedTransport(path) as transport,
            transport.subscribe(topic, group) as consumer,
        ):
            while not consumer.assignment().partitions:
                await asyncio.sleep(0.01)
            ready.set()
            await asyncio.to_thread(end.wait)

    thread = threading.Thread(target=lambda: asyncio.run(be()))
    thread.start()
    try:
        assert ready.wait(120)
        yield
    finally:
        end.set()
        thread.join()


def test_lag_in_records_and_seconds(shop):
    (found,) = shop("group", "list", "-o", "json").json
    assert (found["group"], found["topic"], found["lag_records"]) == ("billing", "orders", 6)
    assert found["lag_seconds"] > 0
    assert found["members"] == []
    shown = shop("group", "list").lines
    assert shown[0].split() == ["group", "topic", "lag", "seconds", "members", "state", "why"]
    assert shown[1].split()[:3] == ["billing", "orders", "6"]


def test_a_group_that_stands_still_is_stalled_with_a_cause(shop):
    (found,) = shop("group", "describe", "billing", "-w", "0.05", "-o", "json").json
    assert found["state"] == "stalled"
    assert found["cause"] == "no member"
    assert found["stalls"][0]["detail"]
    assert sum(one["lag_records"] for one in found["partitions"]) == 6
    shown = shop("group", "describe", "billing", "-w", "0.05").text
    assert "billing on orders: stalled (no member), 6 records" in shown
    assert re.search(r"billing stands still on orders/\d at offset \d", shown)


def test_a_group_that_is_far_behind_is_late(shop):
    assert shop("group", "list", "-o", "json").json[0]["late"] is False
    Path("penstock.toml").write_text("[thresholds]\nlag_records = 5\n")
    (found,) = shop("group", "list", "-o", "json").json
    assert (found["late"], found["cause"]) == (True, None)
    assert shop("group", "list").lines[1].split()[-1] == "late"


def test_the_members_are_shown(shop, tmp_path):
    with a_member(tmp_path / "data", "orders", "billing"):
        (found,) = shop("group", "list", "-o", "json").json
        assert len(found["members"]) == 1
        assert f"member {found['members'][0]}" in shop("group", "describe", "billing").text


def test_a_seek_is_shown_before_it_is_done(shop):
    before = shop("group", "seek", "billing", "--to", "start", "--dry-run", "-o", "json").json
    assert sum(one["difference"] for one in before) == -4
    assert all(one["dry_run"] for one in before)
    assert shop("group", "list", "-o", "json").json[0]["lag_records"] == 6, "nothing was done"
    assert "Say --yes" in shop("group", "seek", "billing", "--to", "start", code=2).errors
    shown = shop("group", "seek", "billing", "--to", "start", "--yes").lines
    assert shown[0].split() == ["topic", "partition", "was", "at", "is", "at", "records"]
    assert shop("group", "list", "-o", "json").json[0]["lag_records"] == 10


@pytest.mark.parametrize(
    ("to", "lag"), [("end", 0), ("-1", 2), ("+1", 8), ("@1h", 10), ("@2999-01-01", 0)]
)
def test_where_a_group_goes(shop, to, lag):
    shop("group", "seek", "billing", "--to", to, "--yes")
    assert shop("group", "list", "-o", "json").json[0]["lag_records"] == lag


def test_one_partition_is_moved_alone(shop):
    shop("group", "seek", "billing", "--to", "end", "--yes")
    (moved,) = shop("group", "seek", "billing", "--to", "0", "-p", 1, "--yes", "-o", "json").json
    assert (moved["partition"], moved["after"]) == (1, 0)
    (found,) = shop("group", "describe", "billing", "-o", "json").json
    assert found["partitions"][0]["lag_records"] == 0


def test_a_group_with_members_is_not_moved_and_not_deleted(shop, tmp_path):
    with a_member(tmp_path / "data", "orders", "billing"):
        assert "members" in shop("group", "seek", "billing", "--to", "start", "-y", code=2).errors
        assert "members" in shop("group", "delete", "billing", "-y", code=2).errors
    assert shop("group", "list", "-o", "json").json[0]["group"] == "billing"


def test_a_group_is_forgotten(shop):
    told = shop("group", "delete", "billing", "--dry-run").text
    assert told == "would forget where billing was in orders\n"
    assert "Say --yes" in shop("group", "delete", "billing", code=2).errors
    shop("group", "delete", "billing", "--yes")
    assert shop("group", "list", "-o", "json").json == []
    assert "there are no groups" in shop("group", "list").errors


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["group", "describe", "gone"], "no group 'gone' reads any topic"),
        (["group", "seek", "gone", "--to", "start", "-y"], "no group 'gone' reads any topic"),
        (["group", "seek", "billing", "--to", "1:2", "-y"], "is a range"),
        (["group", "seek", "billing", "--to", "x", "-y"], "is no place to read"),
        (["group", "seek", "billing", "--to", "0", "-p", "9", "-y"], "not 9"),
        (["group", "seek", "billing"], "Missing option '--to'"),
        (["group", "delete", "gone", "-y"], "no group 'gone'"),
        (["group", "list", "-o", "yaml"], "--output"),
        (["group", "list", "-w", "-1"], "--watch"),
    ],
)
def test_what_is_wrong_is_told(shop, words, told):
    assert told in shop(*words, code=2).errors


def test_a_group_of_two_topics_asks_which_one(shop):
    shop("produce", "returns", "--create", "-q", "x")
    shop("consume", "returns", "-g", "billing")
    told = shop("group", "seek", "billing", "--to", "start", "-y", code=2).errors
    assert "reads orders, returns: say which one with --topic" in told
    shop("group", "seek", "billing", "--to", "start", "-y", "-t", "returns")
    found = shop("group", "list", "-t", "returns", "-o", "json").json
    assert [(one["topic"], one["lag_records"]) for one in found] == [("returns", 1)]
