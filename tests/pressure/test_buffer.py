"""Turns: first come, first served, whatever happens to those who wait."""

from __future__ import annotations

import asyncio

from penstock.pressure.buffer import Turns
from penstock.testing.clock import until_idle


async def test_who_got_a_turn_in_vain_waits_before_those_who_came_later():
    turns, order = Turns(), []

    async def wait(name, times):
        ticket = turns.ticket()
        for _ in range(times):
            await turns.wait(ticket)
        order.append(name)

    tasks = [asyncio.ensure_future(wait(name, 1 + (name != "c"))) for name in "abc"]
    await until_idle()
    turns.give(2)
    await until_idle()
    assert len(turns) == 3
    for _ in range(3):
        turns.give(1)
        await until_idle()
    assert order == ["a", "b", "c"]
    await asyncio.gather(*tasks)


async def test_those_who_leave_the_row_take_no_turn():
    turns = Turns()
    tasks = [asyncio.ensure_future(turns.wait(turns.ticket())) for _ in range(100)]
    await until_idle()
    for task in tasks[:99]:
        task.cancel()
    turns.give(1)  # before those who were cancelled know it
    await until_idle()
    assert tasks[99].done()
    assert not tasks[99].cancelled()
    assert len(turns) == turns.given == 0


async def test_a_turn_for_nobody_is_not_kept():
    turns = Turns()
    turns.give(5)
    waiting = asyncio.ensure_future(turns.wait(turns.ticket()))
    await until_idle()
    assert not waiting.done()
    turns.give(1)
    await waiting


async def test_nobody_waits_behind_one_that_is_cancelled_and_does_not_know_it_yet():
    """A producer that found the room taken by the dead would wait for ever: nobody gives it again."""
    turns = Turns()
    waiting = asyncio.ensure_future(turns.wait(turns.ticket()))
    await until_idle()
    waiting.cancel()
    turns.give(1)  # there is room; it is for nobody
    assert len(turns) == 0
    await until_idle()
    assert len(turns) == turns.given == 0
