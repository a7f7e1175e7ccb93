"""Dead letters: of a bus in this process, of one that left them in a log, and in a topic."""

import asyncio

import pytest

import penstock
from penstock import Event, WalMessageQueue, topic
from penstock.dashboard import letters
from penstock.dashboard.board import Board
from penstock.dashboard.letters import Choice, Listed, LiveShelf, Shelf
from penstock.dashboard.letters_log import LogShelf
from penstock.dashboard.letters_topic import TopicShelf
from penstock.errors import DeadlineExceeded, InvalidMessage, NotSupported, SubscriberBusy
from penstock.observe import Observer
from penstock.upkeep import LETTERS_GROUP


@topic("bills", key="number")
class BillSent(Event):
    number: int
    total: float = 0.0


@pytest.fixture
async def shop(tmp_path):
    """A bus with three dead letters of bills, and the bills that got through."""
    paid: list[float] = []

    async def pay(bill: BillSent) -> None:
        if bill.total < 0:
            raise ValueError(f"{bill.total} is too little")
        paid.append(bill.total)

    async with penstock.open(f"log:{tmp_path}", name="shop") as bus:
        bus.subscribe(BillSent, pay, group="bank", retries=0)
        for number in range(3):
            await bus.publish(BillSent(number=number, total=-1.0 - number))
        await bus.settle()
        yield bus, paid


def board_of(*parts: object) -> Board:
    observer = Observer()
    for part in parts:
        observer.watch(part)
    return Board(observer, asyncio.get_running_loop())


async def shelves_of(board: Board) -> list[Shelf]:
    return board.shelves((await board.topics()).found)


def test_a_choice_fits_everything_that_is_given():
    letter = penstock.resilience.DeadLetter(
        id="1",
        topic="orders.eu",
        message_type="x.Order",
        reason=penstock.resilience.Reason.FAILED,
        raw=b'{"city":"Ulm"}',
        handler="shop.bill",
        error_type="builtins.ValueError",
        error="too little",
        key=b"o-1",
    )
    for right in (
        Choice(),
        Choice(topic="orders.*", handler="bill", error="valueerror", reason="FAILED"),
        Choice(key="o-1", text="Ulm", error="TOO LITTLE"),
    ):
        assert right.matches(letter)
    for wrong in (
        Choice(topic="bills"),
        Choice(key="o"),
        Choice(text="Bonn"),
        Choice(reason="EXPIRED"),
        Choice(error="KeyError"),
    ):
        assert not wrong.matches(letter)
    assert letters.listed([letter], Choice(text="Bonn")) == Listed((), 0, 1)


async def test_letters_of_a_bus_are_tried_edited_and_replayed(shop):
    bus, paid = shop
    [shelf] = await shelves_of(board_of(bus))
    assert isinstance(shelf, LiveShelf)
    found = letters.listed(await shelf.letters(), Choice(error="-2.0"))
    assert (found.chosen, found.all) == (1, 3)
    [letter] = found.letters
    [step] = await shelf.replay([letter.id], dry_run=True, force=False)
    assert (step.refused, step.topic) == (None, "bills")
    assert len(await shelf.letters()) == 3, "a dry run changes nothing"
    with pytest.raises(InvalidMessage, match="BillSent"):
        await shelf.edit(letter, '{"number": "one"}')
    await shelf.edit(letter, letters.payload_text(letter).replace("-2.0", "2.0"))
    edited = next(one for one in await shelf.letters() if one.id == letter.id)
    assert '"total": -2.0' in letters.original_text(edited)
    await shelf.replay([letter.id], dry_run=False, force=False)
    await bus.settle()
    assert paid == [2.0]
    assert len(await shelf.letters()) == 2
    assert await shelf.purge([one.id for one in await shelf.letters()]) == 2
    assert not await shelf.letters()


async def test_letters_in_a_log_are_seen_while_the_bus_runs_and_changed_when_it_does_not(
    shop, tmp_path
):
    bus, _ = shop
    async with WalMessageQueue(tmp_path, read_only=True) as files:
        board = board_of(files)
        [shelf] = await shelves_of(board)
        assert isinstance(shelf, LogShelf)
        kept = await shelf.letters()
        assert len(kept) == 3
        with pytest.raises(SubscriberBusy, match="stop it first"):
            await shelf.purge([kept[0].id])
        await bus.stop()
        assert await shelf.purge([kept[0].id]) == 1
        await shelf.edit(kept[1], '{"number":1,"total":7.0}')
        [step] = await shelf.replay([kept[1].id], dry_run=True, force=False)
        assert step.refused is None
        assert len(await shelf.letters()) == 2
        await shelf.replay([kept[1].id], dry_run=False, force=False)
        [left] = await shelf.letters()
        assert left.id == kept[2].id
        sent = [one async for one in files.replay("bills")][-1]
        assert sent.value == b'{"number":1,"total":7.0}'
        assert sent.headers["penstock-group"] == b"bank"
        assert sent.key == b"1"
        await board.close()


async def test_a_bus_goes_on_with_what_was_replayed_from_its_log(shop, tmp_path):
    bus, paid = shop
    async with WalMessageQueue(tmp_path, read_only=True) as files:
        board = board_of(files)
        [shelf] = await shelves_of(board)
        [first, *_] = await shelf.letters()
        await bus.stop()
        await shelf.edit(first, '{"number":0,"total":9.0}')
        await shelf.replay([first.id], dry_run=False, force=False)
        await board.close()
    async with penstock.open(f"log:{tmp_path}", name="shop") as again:
        again.subscribe(BillSent, lambda bill: paid.append(bill.total), group="bank")
        await again.settle()
        assert len(again.dead_letters) == 2
    assert paid == [9.0]


async def test_letters_in_a_topic_go_from_the_oldest_on(tmp_path):
    async with WalMessageQueue(tmp_path) as queue:
        for number in range(4):
            await queue.publish(
                "orders.dead-letters",
                b"%d" % number,
                key=b"k",
                headers={"penstock-reason": b"NOT_DECODED", "penstock-topic": b"orders"},
            )
        board = board_of(queue)
        await board.observer.look()
        [shelf] = await shelves_of(board)
        assert isinstance(shelf, TopicShelf)
        kept = await shelf.letters()
        assert [one.raw for one in kept] == [b"0", b"1", b"2", b"3"]
        assert {one.topic for one in kept} == {"orders"}
        with pytest.raises(NotSupported, match="oldest"):
            await shelf.purge([kept[2].id])
        with pytest.raises(NotSupported):
            await shelf.edit(kept[0], "x")
        assert await shelf.purge([kept[0].id]) == 1
        [step] = await shelf.replay([kept[1].id], dry_run=True, force=False)
        assert step.note == ""
        await shelf.replay([kept[1].id], dry_run=False, force=False)
        [sent] = [one async for one in queue.replay("orders")]
        assert (sent.value, sent.headers["penstock-attempts"]) == (b"1", b"1")
        assert [one.raw for one in await shelf.letters()] == [b"2", b"3"]
        [late] = await shelf.replay([kept[3].id], dry_run=True, force=False)
        assert "older ones" in late.note
        assert LETTERS_GROUP in await (await board.source("log").transport()).groups(shelf.name)  # type: ignore[attr-defined]
        await board.close()


async def test_a_program_that_does_not_answer_is_said_so(monkeypatch):
    monkeypatch.setattr("penstock.dashboard.board.HOME_SECONDS", 0.05)
    elsewhere = asyncio.new_event_loop()
    board = Board(Observer(), elsewhere)

    async def nothing() -> None:
        pass

    work = nothing()
    with pytest.raises(DeadlineExceeded, match="stalls"):
        await board.at_home(work)
    work.close()
    elsewhere.close()
