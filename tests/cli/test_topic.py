"""``penstock topic``."""

from __future__ import annotations

import pytest

from penstock import FsyncPolicy, WalMessageQueue


def test_a_topic_is_made_listed_described_and_deleted(penstock):
    assert penstock("topic", "create", "orders", "-p", 3).text == "orders: made, 3 partitions\n"
    assert penstock("topic", "create", "orders").text == "orders: was there, 3 partitions\n"
    penstock("produce", "orders", "a", "b", "c", "d")
    assert penstock("topic", "list", "-o", "json").json == [
        {"topic": "orders", "partitions": 3, "records": 4}
    ]
    assert penstock("topic", "list").lines == [
        "topic   partitions  records",
        "orders           3        4",
    ]
    described = penstock("topic", "describe", "orders", "-o", "json").json
    assert sum(one["records"] for one in described["partitions"]) == 4
    assert described["groups"] == []
    assert described["settings"]["fsync"] == "every_message"
    shown = penstock("topic", "describe", "orders").text
    assert "groups: none yet" in shown
    assert "fsync=every_message" in shown
    told = penstock("topic", "delete", "orders", "--dry-run").text
    assert told == "would delete 4 records of orders and the offsets of 0 groups\n"
    refused = penstock("topic", "delete", "orders", code=2).errors
    assert "there is no terminal to ask at. Say --yes" in refused
    assert len(penstock("topic", "list", "-o", "json").json) == 1
    penstock("topic", "delete", "orders", "--yes")
    assert penstock("topic", "list", "-o", "json").json == []
    assert "`penstock topic create NAME` makes one" in penstock("topic", "list").errors


async def test_settings_reach_the_log(tmp_path, penstock):
    import asyncio

    words = ["fsync=timed", "retention.age_ms_max=none", "retention.bytes_max=1_000", "codec=zlib"]
    given = [word for one in words for word in ("-s", one)]
    await asyncio.to_thread(penstock, "topic", "create", "orders", *given)
    async with WalMessageQueue(tmp_path / "data") as queue:
        config = (await queue.create_topic("orders")).config
    assert config.fsync is FsyncPolicy.TIMED
    assert (config.retention.age_ms_max, config.retention.bytes_max) == (None, 1_000)
    assert config.codec.name == "ZLIB"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["topic", "create", "-p", "0", "x"], "Invalid value for '--partitions'"),
        (["topic", "create", "a/b"], "is not a topic name"),
        (
            ["topic", "create", "x", "-s", "fsnyc=timed"],
            r"no option 'fsnyc' \(did you mean 'fsync'\?\)",
        ),
        (["topic", "create", "x", "-s", "fsync=never"], "every_message"),
        (["topic", "create", "x", "-s", "codec=best"], "there is no codec 'best': use none"),
        (["topic", "create", "x", "-s", "retention.age=1"], "there is no retention.age; there are"),
        (["topic", "create", "x", "-s", "fsync"], "write NAME=VALUE"),
        (["topic", "creat", "x"], "No such command 'creat'"),
        (["topic"], ""),
    ],
)
def test_what_is_wrong_is_told(penstock, words, told):
    done = penstock(*words, code=None)
    assert done.code == 2
    import re

    assert re.search(told, done.errors), done.errors


def test_a_log_that_is_not_there_is_not_made_by_looking(penstock, tmp_path):
    for words in (["topic", "list"], ["consume", "x"], ["group", "list"], ["log", "verify"]):
        assert "there is no log at" in penstock(*words, code=2).errors
    assert not (tmp_path / "data").exists()


def test_a_topic_that_is_not_there_is_told(penstock):
    penstock("topic", "create", "orders")
    for words in (
        ["topic", "describe", "gone"],
        ["topic", "delete", "gone", "--yes"],
        ["consume", "gone"],
        ["produce", "gone", "x"],
        ["export", "gone", "x.csv"],
        ["log", "verify", "gone"],
        ["log", "stats", "gone"],
        ["log", "repair", "gone", "--yes"],
        ["group", "list", "--topic", "gone"],
    ):
        assert "gone" in penstock(*words, code=2).errors


def test_what_buses_keep_is_shown_when_asked_for(penstock):
    penstock("produce", "journal.x", "a", "--create")
    assert penstock("topic", "list", "-o", "json").json == []
    assert [one["topic"] for one in penstock("topic", "list", "--all", "-o", "json").json] == [
        "journal.x"
    ]
