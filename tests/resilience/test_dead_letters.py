"""Dead letters: the bound, looking at them, editing, replaying with its guards, purging."""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass

import pytest

from penstock.errors import (
    BufferFull,
    InvalidMessage,
    InvalidOption,
    NotSupported,
    ReplayRefused,
    UnknownDeadLetter,
    UsageError,
)
from penstock.messages import Event, marks_of
from penstock.resilience.dead_letters import (
    DeadLetterCommandEvent,
    DeadLetterEvent,
    DeadLetterFilter,
    DeadLetterOptions,
    DeadLetterQueue,
    Reason,
    WhenDeadLettersFull,
    event_of,
)
from penstock.system import System
from tests.resilience.letter_world import OrderPlaced, World, ids


@pytest.fixture
def world():
    return World()


def filled(world, count, **options):
    queue = world.queue(**options)
    for _ in range(count):
        queue.add_nowait(world.letter())
    return queue


# -- the bound


@pytest.mark.acceptance(111)
def test_by_default_a_thousand_letters_are_kept_and_the_oldest_go(world, caplog):
    with caplog.at_level(logging.CRITICAL):
        queue = filled(world, 1_003)
    assert len(queue) == 1_000
    assert ids(queue)[0] == "letter-4"
    figures = queue.statistics()
    assert (figures.letters, figures.added, figures.dropped) == (1_000, 1_003, 3)


@pytest.mark.acceptance(111)
def test_a_drop_is_logged_and_told(world, caplog):
    queue = filled(world, 2, letters_max=2)
    gone = []
    queue.on_removed(lambda letter: gone.append(letter.id))
    queue.add_nowait(world.letter())
    assert gone == ["letter-1"]
    assert "letter-1" in caplog.text


@pytest.mark.acceptance(111)
def test_reject_raises_at_the_bound_and_counts(world):
    queue = filled(world, 2, letters_max=2, when_full=WhenDeadLettersFull.REJECT)
    with pytest.raises(BufferFull, match="replay or purge"):
        queue.add_nowait(world.letter())
    assert ids(queue) == ["letter-1", "letter-2"]
    assert queue.statistics().rejected == 1


@pytest.mark.acceptance(111)
async def test_spill_writes_the_oldest_elsewhere(world):
    spilled = []

    async def spill(data):
        spilled.append(world.codec().decode("?", data))

    queue = world.queue(letters_max=2, when_full=WhenDeadLettersFull.SPILL, parts={"spill": spill})
    for _ in range(5):
        await queue.add(world.letter())
    assert ids(queue) == ["letter-4", "letter-5"]
    assert [letter.id for letter in spilled] == ["letter-1", "letter-2", "letter-3"]
    assert spilled[0].message == OrderPlaced("o-1")
    assert (queue.statistics().spilled, queue.statistics().dropped) == (3, 0)


@pytest.mark.acceptance(111)
async def test_a_spill_that_fails_drops_and_counts(world, caplog):
    async def spill(data):
        raise OSError("no disk")

    queue = world.queue(letters_max=1, when_full=WhenDeadLettersFull.SPILL, parts={"spill": spill})
    await queue.add(world.letter())
    await queue.add(world.letter())
    assert ids(queue) == ["letter-2"]
    assert queue.statistics().dropped == 1
    assert "no disk" in caplog.text


async def test_a_letter_stays_when_its_spilling_is_cancelled(world):
    started = asyncio.Event()

    async def spill(data):
        started.set()
        await asyncio.Event().wait()

    queue = world.queue(letters_max=1, when_full=WhenDeadLettersFull.SPILL, parts={"spill": spill})
    await queue.add(world.letter())
    task = asyncio.create_task(queue.add(world.letter()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ids(queue) == ["letter-1", "letter-2"]


async def test_letters_that_go_to_a_disk_cannot_be_added_without_waiting(world):
    queue = await world.durable()
    assert queue.waits
    with pytest.raises(NotSupported):
        queue.add_nowait(world.letter())


def test_parts_that_are_missing_are_named(world):
    system = System(clock=world.clock, random=world.random)
    with pytest.raises(InvalidOption, match="SPILL"):
        DeadLetterQueue(DeadLetterOptions(when_full=WhenDeadLettersFull.SPILL), system)
    with pytest.raises(InvalidOption, match="codec"):
        DeadLetterQueue(DeadLetterOptions(), system, journal=world.disk)
    with pytest.raises(InvalidOption):
        DeadLetterOptions(letters_max=0)
    with pytest.raises(InvalidOption):
        DeadLetterOptions(replays_max=-1)


# -- looking


@pytest.mark.acceptance(110)
def test_a_letter_has_the_cause_the_attempts_and_the_times(world):
    queue = filled(world, 1)
    letter = queue.show("letter-1")
    assert letter.message == OrderPlaced("o-1")
    assert (letter.error_type, letter.error, letter.attempts) == ("OSError", "disk", 3)
    assert letter.first_failed_ms == letter.last_failed_ms == world.clock.time_ms()


def test_a_letter_that_is_not_there_says_so(world):
    with pytest.raises(UnknownDeadLetter) as caught:
        world.queue().show("nope")
    assert caught.value.id == "nope"


@pytest.mark.acceptance(111)
@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, ["a", "b", "c"]),
        ({"topic": "orders"}, ["a", "b"]),
        ({"topic": "order*"}, ["a", "b", "c"]),
        ({"handler": "shop.bill"}, ["a"]),
        ({"handler": "shop.*"}, ["a", "b"]),
        ({"error_type": "BillError"}, ["a"]),
        ({"error_type": "shop.BillError"}, ["a"]),
        ({"error_type": "Error"}, []),
        ({"reason": Reason.CIRCUIT_OPEN}, ["b"]),
        ({"session": "s1"}, ["c"]),
        ({"key": "k"}, ["c"]),
        ({"since_ms": 2_000}, ["b", "c"]),
        ({"until_ms": 2_000}, ["a"]),
        ({"since_ms": 2_000, "until_ms": 3_000}, ["b"]),
        ({"where": lambda letter: letter.attempts > 5}, ["b"]),
        ({"topic": "orders", "where": lambda letter: letter.attempts <= 5}, ["a"]),
    ],
    ids=lambda value: re.sub(" at 0x[0-9a-f]+", "", str(value)),  # the same in every process
)
def test_a_filter_chooses(world, wanted, found):
    queue = world.queue()
    for fields in (
        {
            "id": "a",
            "handler": "shop.bill",
            "error_type": "shop.BillError",
            "last_failed_ms": 1_000,
        },
        {
            "id": "b",
            "handler": "shop.ship",
            "reason": Reason.CIRCUIT_OPEN,
            "attempts": 9,
            "last_failed_ms": 2_000,
        },
        {"id": "c", "topic": "orders.late", "session": "s1", "key": "k", "last_failed_ms": 3_000},
    ):
        queue.add_nowait(world.letter(**fields))
    assert [letter.id for letter in queue.list(DeadLetterFilter(**wanted))] == found


@pytest.mark.acceptance(111)
async def test_the_length_and_the_statistics_follow(world):
    queue = filled(world, 3)
    queue.add_nowait(world.letter(reason=Reason.CIRCUIT_OPEN, handler="ship"))
    figures = queue.statistics()
    assert figures.letters == len(queue) == 4
    assert figures.by_reason == {Reason.FAILED: 3, Reason.CIRCUIT_OPEN: 1}
    assert figures.by_handler == {"bill": 3, "ship": 1}
    assert figures.oldest_ms == world.clock.time_ms()
    await queue.replay("letter-1")
    await queue.purge("letter-2")
    figures = queue.statistics()
    assert (figures.letters, figures.replayed, figures.purged) == (2, 1, 1)


def test_ids_are_unique_also_between_queues(world):
    one, other = world.queue(), world.queue()
    made = [queue.next_id() for queue in (one, one, other, other)]
    assert len(set(made)) == 4


def test_callbacks_are_told_and_their_errors_harm_nobody(world, caplog):
    queue = world.queue()
    told = []

    def broken(letter):
        raise RuntimeError("callback")

    queue.on_added(broken)
    stop = queue.on_added(lambda letter: told.append(letter.id))
    queue.add_nowait(world.letter())
    stop()
    queue.add_nowait(world.letter())
    assert told == ["letter-1"]
    assert len(queue) == 2
    assert "callback" in caplog.text


# -- editing


@pytest.mark.acceptance(111)
async def test_an_edit_keeps_the_original_and_a_note(world):
    queue = filled(world, 1)
    await queue.edit("letter-1", changes={"total": 2.0}, note="wrong price")
    world.clock.advance(1.0)
    letter = await queue.edit("letter-1", message=OrderPlaced("o-9"), headers={"a": "b"})
    assert letter == queue.show("letter-1")
    assert letter.message == OrderPlaced("o-9")
    assert letter.original == OrderPlaced("o-1")
    assert letter.headers == {"a": "b"}
    assert [(edit.what, edit.note) for edit in letter.edits] == [
        ("message", "wrong price"),
        ("message", ""),
        ("headers", ""),
    ]
    assert letter.edits[-1].time_ms == world.clock.time_ms()


async def test_an_edit_that_would_not_decode_changes_nothing(world):
    queue = filled(world, 1)
    before = queue.show("letter-1")
    with pytest.raises(InvalidMessage):
        await queue.edit("letter-1", changes={"total": "much"})
    with pytest.raises(InvalidMessage):
        await queue.edit("letter-1", raw=b"no json")
    with pytest.raises(UsageError):
        await queue.edit("letter-1", changes={"no_field": 1})
    with pytest.raises(UsageError):
        await queue.edit("letter-1", message="text")
    assert queue.show("letter-1") is before


async def test_bytes_that_did_not_decode_can_be_mended(world):
    queue = world.queue()
    queue.add_nowait(world.letter(message=None, raw=b'{"order_id": 1}', reason=Reason.NOT_DECODED))
    letter = await queue.edit("letter-1", raw=b'{"order_id": "1"}')
    assert letter.message == OrderPlaced("1")
    assert letter.original_raw == b'{"order_id": 1}'
    assert letter.raw is None


async def test_dataclasses_can_be_edited_by_field(world):
    @dataclass(frozen=True)
    class Paid:
        amount: int

    world.messages.register(Paid)
    queue = world.queue()
    queue.add_nowait(world.letter(message=Paid(1)))
    letter = await queue.edit("letter-1", changes={"amount": 2})
    assert letter.message == Paid(2)


# -- replaying


@pytest.mark.acceptance(111)
async def test_a_dry_run_says_what_would_happen_and_does_nothing(world):
    queue = filled(world, 2)
    queue.add_nowait(world.letter(replays=3))
    queue.add_nowait(world.letter(message=None, raw=b"x"))
    report = await queue.replay(DeadLetterFilter(), dry_run=True)
    assert report.dry_run
    assert report.replayed == 2
    assert [(step.id, step.topic, step.handler, step.replays) for step in report.steps[:2]] == [
        ("letter-1", "orders", "bill", 1),
        ("letter-2", "orders", "bill", 1),
    ]
    assert ["came back 3 times" in str(step.refused) for step in report.left] == [True, False]
    assert world.published == []
    assert len(queue) == 4


@pytest.mark.acceptance(111)
async def test_a_replay_publishes_oldest_first_and_removes(world):
    queue = filled(world, 3)
    gone = []
    queue.on_removed(lambda letter: gone.append(letter.id))
    report = await queue.replay(DeadLetterFilter(topic="orders"))
    assert report.replayed == 3
    assert [(letter.id, letter.replays) for letter in world.published] == [
        ("letter-1", 1),
        ("letter-2", 1),
        ("letter-3", 1),
    ]
    assert gone == ["letter-1", "letter-2", "letter-3"]
    assert len(queue) == 0


@pytest.mark.acceptance(111)
async def test_a_letter_that_keeps_coming_back_is_refused_unless_forced(world):
    queue = world.queue()
    queue.add_nowait(world.letter())
    for _ in range(3):
        (letter,) = queue.list()
        await queue.replay(letter.id)
        queue.add_nowait(world.letter(replays=world.published[-1].replays))
    (letter,) = queue.list()
    with pytest.raises(ReplayRefused, match="came back 3 times") as caught:
        await queue.replay(letter.id)
    assert (caught.value.id, caught.value.replays) == (letter.id, 3)
    assert len(queue) == 1
    await queue.replay(letter.id, force=True)
    assert len(world.published) == 4


async def test_some_of_many_may_be_refused_or_fail(world):
    async def republish(letter):
        if letter.key == "o-2":
            raise OSError("broker")
        await world.republish(letter)

    queue = world.queue(parts={"republish": republish})
    for fields in ({}, {}, {"replays": 3}, {}):
        queue.add_nowait(world.letter(**fields))
    report = await queue.replay([*ids(queue), "unknown"])
    assert report.replayed == 2
    assert [(step.id, step.error) for step in report.left] == [
        ("letter-2", "OSError: broker"),
        ("letter-3", None),
        ("unknown", None),
    ]
    assert ids(queue) == ["letter-2", "letter-3"]
    with pytest.raises(OSError, match="broker"):
        await queue.replay("letter-2")
    with pytest.raises(UnknownDeadLetter):
        await queue.replay("unknown")


async def test_a_letter_is_not_replayed_twice_at_the_same_time(world):
    gate = asyncio.Event()

    async def republish(letter):
        await gate.wait()
        await world.republish(letter)

    queue = filled(world, 1, parts={"republish": republish})
    first = asyncio.create_task(queue.replay("letter-1"))
    await asyncio.sleep(0)
    with pytest.raises(ReplayRefused, match="being replayed"):
        await queue.replay("letter-1")
    gate.set()
    await first
    assert len(world.published) == 1


async def test_a_cancelled_replay_leaves_the_letter(world):
    async def republish(letter):
        await asyncio.Event().wait()

    queue = filled(world, 1, parts={"republish": republish})
    task = asyncio.create_task(queue.replay("letter-1"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ids(queue) == ["letter-1"]
    assert (await queue.replay("letter-1", dry_run=True)).replayed == 1


@pytest.mark.acceptance(111)
async def test_a_message_that_comes_back_at_once_is_not_lost_in_a_full_queue(world):
    async def republish(letter):
        queue.add_nowait(world.letter(replays=letter.replays))

    queue = filled(world, 1, letters_max=1, parts={"republish": republish})
    await queue.replay("letter-1")
    assert ids(queue) == ["letter-2"]
    assert queue.statistics().dropped == 0


async def test_a_letter_that_is_being_replayed_does_not_make_room_for_others(world):
    gate = asyncio.Event()

    async def republish(letter):
        await gate.wait()
        raise OSError("broker")

    queue = filled(world, 2, letters_max=2, parts={"republish": republish})
    replay = asyncio.create_task(queue.replay(["letter-1"]))
    await asyncio.sleep(0)
    queue.add_nowait(world.letter())
    queue.add_nowait(world.letter())
    gate.set()
    assert (await replay).replayed == 0
    assert ids(queue) == ["letter-1", "letter-3", "letter-4"]
    queue.add_nowait(world.letter())
    assert ids(queue) == ["letter-4", "letter-5"]


async def test_without_a_way_to_publish_nothing_is_replayed(world):
    queue = filled(world, 1, parts={"republish": None})
    with pytest.raises(ReplayRefused):
        await queue.replay("letter-1")


# -- purging


@pytest.mark.acceptance(111)
async def test_purging_by_id_by_ids_and_by_filter_returns_the_count(world):
    queue = filled(world, 6)
    assert await queue.purge("letter-1") == 1
    assert await queue.purge("letter-1") == 0
    assert await queue.purge(["letter-2", "letter-2", "unknown"]) == 1
    assert await queue.purge(DeadLetterFilter(where=lambda letter: letter.key == "o-3")) == 1
    assert await queue.purge(DeadLetterFilter()) == 3
    assert len(queue) == 0
    assert queue.statistics().purged == 6


# -- the events


@pytest.mark.acceptance(112)
def test_an_event_tells_of_a_letter(world):
    event = event_of(world.letter())
    assert type(event) is DeadLetterEvent
    assert isinstance(event, Event)
    assert (event.letter_id, event.topic, event.handler) == ("letter-1", "orders", "bill")
    assert (event.error_type, event.error, event.attempts) == ("OSError", "disk", 3)
    assert type(event_of(world.letter(command=True))) is DeadLetterCommandEvent
    assert marks_of(DeadLetterEvent).topic != marks_of(DeadLetterCommandEvent).topic
