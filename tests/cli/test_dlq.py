"""``penstock dlq``: the letters of a bus, and those in a topic."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager

import pytest

import penstock as library
from penstock import Event, Retry, topic
from penstock.cli.codes import PROBLEMS


@topic("orders", key="order_id")
class OrderPlaced(Event):
    order_id: str
    total: float


class World:
    """A shop whose billing fails on negative totals, and whose shipping takes everything."""

    def __init__(self, path) -> None:
        self.path = path
        self.billed: list[float] = []
        self.shipped: list[float] = []

    @asynccontextmanager
    async def running(self):
        async with library.open(f"log:{self.path}", name="shop") as bus:

            @bus.on(OrderPlaced, group="billing", retry=Retry(attempts=1), breaker=None)
            async def bill(order: OrderPlaced) -> None:
                if order.total < 0:
                    raise ValueError(f"a total of {order.total}")
                self.billed.append(order.total)

            @bus.on(OrderPlaced, group="shipping", retry=Retry(attempts=1), breaker=None)
            async def ship(order: OrderPlaced) -> None:
                self.shipped.append(order.total)

            yield bus

    async def sell(self, *totals: float, billed: int, letters: int) -> None:
        """Publish, and wait until all are handled or dead."""
        async with self.running() as bus:
            for number, total in enumerate(totals):
                await bus.publish(OrderPlaced(order_id=f"o-{number}", total=total))
            async with asyncio.timeout(120):
                while len(self.billed) < billed or len(bus.dead_letters) != letters:
                    await asyncio.sleep(0.01)
            await bus.settle()


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path / "data")


@pytest.fixture
def dead(world, penstock):
    """Two orders that cannot be billed, and one that can."""
    asyncio.run(world.sell(-1.0, 5.0, -2.0, billed=1, letters=2))
    return penstock


def ids(terminal, *words: str) -> list[str]:
    return [one["id"] for one in terminal("dlq", "list", "-o", "json", *words).json]


def test_letters_are_listed_and_shown(dead):
    first, second = dead("dlq", "list", "-o", "json").json
    assert (first["source"], first["topic"], first["reason"]) == ("shop", "orders", "FAILED")
    assert (first["key"], first["group"]) == ("o-0", "billing")
    assert first["error"] == "a total of -1.0"
    assert second["value"] == '{"order_id":"o-2","total":-2.0}'
    lines = dead("dlq", "list").lines
    assert lines[0].split()[:3] == ["id", "topic", "reason"]
    assert len(lines) == 3
    shown = dead("dlq", "show", first["id"]).text
    assert "ValueError" in shown
    assert "orders, partition 0, offset 0" in shown
    assert (second["partition"], second["offset"]) == (0, 2)
    assert "Traceback" in shown
    assert shown.endswith('{"order_id":"o-0","total":-1.0}\n')
    assert dead("dlq", "show", first["id"], "-o", "json").json["id"] == first["id"]


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["--topic", "ord*"], 2),
        (["--topic", "other"], 0),
        (["--reason", "failed"], 2),
        (["--error", "ValueError"], 2),
        (["--error", "total of -2"], 1),
        (["--group", "billing"], 2),
        (["--group", "shipping"], 0),
        (["--key", "o-2"], 1),
        (["--contains", '"total":-1.0'], 1),
        (["--since", "1h"], 2),
        (["--until", "1h"], 0),
        (["--source", "shop"], 2),
        (["-n", "1"], 1),
    ],
)
def test_filters(dead, words, count):
    assert len(ids(dead, *words)) == count


def test_a_letter_is_edited_and_replayed_to_its_group_alone(dead, world):
    first, second = ids(dead)
    assert "which ones?" in dead("dlq", "replay", code=2).errors
    planned = dead("dlq", "replay", first, "--dry-run", "-o", "json").json
    assert [(one["id"], one["to"] if "to" in one else one["topic"]) for one in planned] == [
        (first, "orders")
    ]
    assert ids(dead) == [first, second]
    assert "Say --yes" in dead("dlq", "replay", first, code=2).errors
    assert (
        "was JSON, and the new one is none"
        in dead("dlq", "edit", first, "--value", "oops", code=2).errors
    )
    dead("dlq", "edit", first, "--value", '{"order_id":"o-0","total":10.0}')
    shown = dead("dlq", "show", first, "-o", "json").json
    assert shown["original"] == '{"order_id":"o-0","total":-1.0}'
    assert shown["edits"] == ["message on the command line"]
    done = dead("dlq", "replay", first, "--yes").text
    assert "for group billing" in done
    assert ids(dead) == [second]
    asyncio.run(world.sell(billed=2, letters=1))
    assert sorted(world.billed) == [5.0, 10.0]
    assert sorted(world.shipped) == [-2.0, -1.0, 5.0], "the other group does not get it again"


def test_a_letter_that_fails_again_comes_back_and_is_refused_in_the_end(dead, world):
    for number in range(1, 4):
        dead("dlq", "replay", "--key", "o-0", "--yes")
        asyncio.run(world.sell(billed=0, letters=2))
        assert dead("dlq", "list", "--key", "o-0", "-o", "json").json[0]["replays"] == number
    done = dead("dlq", "replay", "--key", "o-0", "--yes", code=PROBLEMS)
    assert "it came back 3 times" in done.text
    assert len(ids(dead, "--key", "o-0")) == 1
    assert "replayed" in dead("dlq", "replay", "--key", "o-0", "--yes", "--force").text


def test_an_editor_changes_a_letter(dead, tmp_path, monkeypatch):
    first = ids(dead)[0]
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nsed -i 's/-1.0/7.5/' \"$1\"\n")
    editor.chmod(0o700)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("EDITOR", str(editor))
    monkeypatch.delenv("VISUAL", raising=False)
    assert dead("dlq", "edit", first).text == f"{first}: changed\n"
    assert dead("dlq", "show", first, "-o", "json").json["value"].endswith('"total":7.5}')
    assert dead("dlq", "edit", first).text == f"{first}: nothing was changed\n"
    monkeypatch.setenv("EDITOR", "false")
    assert "the editor ended with 1" in dead("dlq", "edit", first, code=2).errors
    monkeypatch.setenv("EDITOR", str(tmp_path / "gone"))
    assert "does not start" in dead("dlq", "edit", first, code=2).errors
    monkeypatch.delenv("EDITOR")
    assert "Set EDITOR" in dead("dlq", "edit", first, code=2).errors
    assert [name for name in os.listdir(tmp_path) if name.startswith("penstock-")] == []


def test_letters_are_purged(dead):
    assert "which ones?" in dead("dlq", "purge", code=2).errors
    assert dead("dlq", "purge", "--all", "--dry-run").text == "would purge 2 dead letters\n"
    assert "Say --yes" in dead("dlq", "purge", "--all", code=2).errors
    assert dead("dlq", "purge", "--key", "o-2", "--yes").text == "purged 1 dead letter\n"
    assert len(ids(dead)) == 1
    dead("dlq", "purge", "--all", "--yes")
    assert ids(dead) == []
    assert "there are no such dead letters" in dead("dlq", "list").errors
    assert dead("dlq", "purge", "--all", "--yes").text == "purged 0 dead letters\n"


def test_letters_of_a_running_bus_are_seen_and_not_changed(dead, world):
    async def while_it_runs() -> list[str]:
        async with world.running():
            assert len(await asyncio.to_thread(ids, dead)) == 2
            purged = await asyncio.to_thread(dead, "dlq", "purge", "--all", "--yes", code=2)
            words = ("dlq", "edit", (await asyncio.to_thread(ids, dead))[0], "--value", "{}")
            edited = await asyncio.to_thread(dead, *words, code=2)
            return [purged.errors, edited.errors]

    told = asyncio.run(while_it_runs())
    assert all("the bus 'shop' runs, and has its dead letters in memory" in one for one in told)
    assert len(ids(dead)) == 2


def test_a_running_bus_handles_a_letter_that_is_replayed_and_takes_it_away(dead, world):
    first, second = ids(dead)

    async def while_it_runs() -> None:
        async with world.running() as bus, asyncio.timeout(30):
            good = '{"order_id":"o-0","total":11.0}'
            words = ("dlq", "replay", first, "--value", good, "--yes")
            done = await asyncio.to_thread(dead, *words)
            assert "the running bus takes it away" in done.text
            while len(bus.dead_letters) != 1:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(dead, "dlq", "replay", second, "--yes")
            while [one.replays for one in bus.dead_letters.list()] != [1]:
                await asyncio.sleep(0.01)

    asyncio.run(while_it_runs())
    assert world.billed == [5.0, 11.0]
    assert sorted(world.shipped) == [-2.0, -1.0, 5.0], "the other group does not get it again"
    (left,) = dead("dlq", "list", "-o", "json").json
    assert (left["replays"], left["key"]) == (1, "o-2"), "it failed again: a new letter, not two"
    assert left["id"] != second


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["dlq", "show", "gone"], "there is no dead letter 'gone'"),
        (["dlq", "replay", "gone", "-y"], "there is no dead letter 'gone'"),
        (["dlq", "purge", "gone", "-y"], "there is no dead letter 'gone'"),
        (["dlq", "list", "--source", "gone"], "there are shop"),
        (["dlq", "list", "--since", "soon"], "'soon' is no time"),
        (
            ["dlq", "replay", "--all", "--value", "{}", "-y"],
            "is for one dead letter, and these are 2",
        ),
    ],
)
def test_what_is_wrong_is_told(dead, words, told):
    assert told in dead(*words, code=2).errors


# In a topic


@pytest.fixture
def bad_records(penstock):
    """Three bad records of a pipeline."""
    penstock("topic", "create", "sales")
    for number in range(3):
        penstock("produce", "sales.dead-letters", "--create", "-q", "-k", f"k{number}", f"bad {number}",
                 "-H", "penstock-reason=no total", "-H", "penstock-topic=sales", "-H", "penstock-offset=7",
                 "-H", "penstock-partition=0")  # fmt: skip
    return penstock


def test_bad_records_in_a_topic_are_letters_too(bad_records):
    found = bad_records("dlq", "list", "-o", "json").json
    assert [one["id"] for one in found] == [f"sales.dead-letters/0/{one}" for one in range(3)]
    assert (found[0]["topic"], found[0]["reason"], found[0]["offset"]) == ("sales", "no total", 7)
    done = bad_records("dlq", "replay", found[0]["id"], "--value", "good 0", "--yes", "-o", "json")
    assert done.json[0]["note"] == ""
    (sent,) = bad_records("consume", "sales", "-f", "json").json_lines
    assert (sent["key"], sent["value"]) == ("k0", "good 0")
    assert sent["headers"]["penstock-attempts"] == "1"
    assert ids(bad_records) == [one["id"] for one in found[1:]]


def test_a_topic_is_emptied_from_the_oldest_on(bad_records):
    first, second, third = ids(bad_records)
    told = bad_records("dlq", "purge", third, "-y", code=2).errors
    assert "purged from the oldest on" in told
    (step,) = bad_records("dlq", "replay", second, "--yes", "-o", "json").json
    assert "stays in the list" in step["note"]
    assert "records never change" in bad_records("dlq", "edit", first, "-v", "x", code=2).errors
    assert bad_records("dlq", "purge", first, second, "-y").text == "purged 2 dead letters\n"
    assert ids(bad_records) == [third]
    bad_records("dlq", "replay", "--all", "--yes")
    assert ids(bad_records) == []


def test_what_would_steer_a_terminal_is_not_written_to_it(penstock):
    evil = b"\x1b]0;owned\x07\x1b[31mred\r\x9b2J\n"
    penstock("produce", "sales.dead-letters", "--create", "-q", "--whole", stdin=evil)
    (letter,) = ids(penstock)
    for words in (["dlq", "list"], ["dlq", "show", letter]):
        shown = penstock(*words).data
        assert b"red" in shown
        assert not any(code in shown.decode() for code in "\x1b\x07\r\x9b")
    assert penstock("consume", "sales.dead-letters", "-f", "%v").data == evil, "as it is"
