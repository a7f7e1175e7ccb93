"""Dead letters on a disk: what survives, in which order it is written, and what a failure leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bus.encoding import MessageCodec
from penstock.errors import ReplayRefused, StoreFailed
from penstock.resilience.dead_letters import DeadLetterFilter, Reason, WhenDeadLettersFull
from tests.resilience.letter_world import OrderPlaced, World, ids


@pytest.fixture
def world():
    return World()


async def turns(count=10):
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.acceptance(111)
async def test_letters_survive_a_restart_with_all_they_have(world):
    queue = await world.durable()
    letter = world.letter(
        headers={"trace": "1"}, partition=2, offset=17, correlation_id="c", replays=1, session="s"
    )
    await queue.add(letter)
    world.disk.open_now = False  # the process died
    again = await world.durable()
    assert again.list() == (letter,)


@pytest.mark.acceptance(111)
async def test_a_letter_is_on_the_disk_before_add_returns(world):
    queue = await world.durable()
    world.disk.gate.clear()
    adding = asyncio.create_task(queue.add(world.letter()))
    await turns()
    assert not adding.done()
    assert len(queue) == 1  # it can be seen already
    assert queue.statistics().unsaved == 1
    world.disk.gate.set()
    await adding
    assert list(world.disk.facts) == ["letter-1"]
    assert queue.statistics().unsaved == 0


async def test_letters_that_come_together_share_a_write(world):
    queue = await world.durable()
    await asyncio.gather(*(queue.add(world.letter()) for _ in range(100)))
    assert len(world.disk.facts) == 100
    assert world.disk.writes <= 2


async def test_a_cancelled_add_is_written_all_the_same(world):
    queue = await world.durable()
    world.disk.gate.clear()
    adding = asyncio.create_task(queue.add(world.letter()))
    await turns()
    adding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding
    world.disk.gate.set()
    await queue.close()
    assert list(world.disk.facts) == ["letter-1"]
    assert not world.disk.open_now


@pytest.mark.acceptance(111)
async def test_a_failing_disk_is_told_and_the_letter_stays_to_be_written(world):
    queue = await world.durable()
    world.disk.fails = True
    with pytest.raises(StoreFailed):
        await queue.add(world.letter())
    assert ids(queue) == ["letter-1"]
    assert queue.statistics().unsaved == 1
    world.disk.fails = False
    await queue.add(world.letter())
    assert list(world.disk.facts) == ["letter-1", "letter-2"]


async def test_closing_writes_what_a_failing_disk_left(world):
    queue = await world.durable()
    world.disk.fails = True
    with pytest.raises(StoreFailed):
        await queue.add(world.letter())
    with pytest.raises(StoreFailed):
        await queue.close()
    world.disk.fails = False
    await queue.close()
    assert list(world.disk.facts) == ["letter-1"]


@pytest.mark.acceptance(111)
async def test_what_is_dropped_replayed_or_purged_leaves_the_disk(world):
    queue = await world.durable(letters_max=3)
    for _ in range(5):
        await queue.add(world.letter())
    assert list(world.disk.facts) == ["letter-3", "letter-4", "letter-5"]
    await queue.replay("letter-3")
    assert list(world.disk.facts) == ["letter-4", "letter-5"]
    await queue.purge(DeadLetterFilter())
    assert world.disk.facts == {}


async def test_an_edit_survives_with_its_original(world):
    queue = await world.durable()
    await queue.add(world.letter())
    await queue.edit("letter-1", changes={"total": 5.0}, note="price")
    await queue.close()
    (letter,) = (await world.durable()).list()
    assert (letter.message.total, letter.original.total) == (5.0, 1.0)
    assert letter.edits[0].note == "price"


@pytest.mark.acceptance(110, 111)
async def test_letters_whose_class_is_gone_can_be_listed_shown_and_purged(world):
    await (queue := await world.durable()).add(world.letter())
    await queue.close()
    world.messages, known = MessageCodec(), world.messages
    again = await world.durable()
    (letter,) = again.list()
    assert letter.message is None
    assert msgspec.json.decode(letter.raw) == {"order_id": "o-1", "total": 1.0}
    with pytest.raises(ReplayRefused, match="register its class"):
        await again.replay("letter-1")
    world.messages.register(OrderPlaced)
    assert again.show("letter-1").message == OrderPlaced("o-1")
    await again.replay("letter-1")
    assert world.published[-1].message == OrderPlaced("o-1")
    assert known is not world.messages


async def test_bytes_that_are_no_letter_are_shown_as_one_and_can_be_purged(world):
    world.disk.facts = {"old": b"\xff not a letter"}
    queue = await world.durable()
    (letter,) = queue.list()
    assert (letter.id, letter.reason, letter.raw) == (
        "old",
        Reason.NOT_DECODED,
        b"\xff not a letter",
    )
    assert await queue.purge("old") == 1
    assert world.disk.facts == {}


async def test_bytes_that_are_no_letter_stay_as_they_are_on_the_disk(world):
    """A newer version may read them."""
    world.disk.facts = {"old": b"\xff not a letter"}
    queue = await world.durable()
    await queue.add(world.letter())
    assert world.disk.facts["old"] == b"\xff not a letter"


async def test_a_message_that_does_not_encode_does_not_stop_the_letter(world):
    queue = await world.durable()
    await queue.add(world.letter(message=OrderPlaced("o-1", total=float("nan"))))
    await queue.add(world.letter(key=object()))
    await queue.close()
    letter, other = (await world.durable()).list()
    assert (letter.message, letter.error) == (None, "disk")
    assert letter.edits[0].what == "the message was lost"
    assert other.message == OrderPlaced("o-2")


async def test_a_letter_leaves_the_disk_only_when_it_is_spilled(world):
    seen = []

    async def spill(data):
        seen.append(list(world.disk.facts))

    queue = await world.durable(
        letters_max=1, when_full=WhenDeadLettersFull.SPILL, parts={"spill": spill}
    )
    await queue.add(world.letter())
    await queue.add(world.letter())
    assert seen == [["letter-1", "letter-2"]]
    assert list(world.disk.facts) == ["letter-2"]


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "purge", "edit", "replay", "fail", "mend", "wait"]),
        st.integers(1, 12),
    ),
    max_size=40,
)


@pytest.mark.acceptance(111)
@given(steps=steps)
def test_in_the_end_the_disk_has_what_the_memory_has(steps):
    """Whatever is done at the same time, and whatever fails in between."""

    async def run():
        world = World()
        queue = await world.durable(letters_max=4)
        tasks: list[Coroutine[Any, Any, object]] = []
        for what, number in steps:
            letter_id = f"letter-{number}"
            if what == "add":
                tasks.append(queue.add(world.letter(id=letter_id)))
            elif what == "purge":
                tasks.append(queue.purge(letter_id))
            elif what == "edit":
                tasks.append(queue.edit(letter_id, changes={"total": float(number)}))
            elif what == "replay":
                tasks.append(queue.replay([letter_id]))
            elif what == "wait":
                await asyncio.gather(*tasks, return_exceptions=True)
                tasks = []
            else:
                world.disk.fails = what == "fail"
        await asyncio.gather(*tasks, return_exceptions=True)
        world.disk.fails = False
        await queue.close()
        assert len(queue) <= 4
        assert queue.statistics().unsaved == 0
        assert {key: world.codec().decode(key, data) for key, data in world.disk.facts.items()} == {
            letter.id: letter for letter in queue.list()
        }

    asyncio.run(run())
