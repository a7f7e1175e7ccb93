"""The five ways in which a channel overflows, with exact counts."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import System
from penstock.errors import Closed, DeadlineExceeded, InvalidOption
from penstock.pressure import Channel, OverflowMode, Throttle
from penstock.testing import VirtualClock
from penstock.testing.clock import until_idle

BLOCK, DROP_NEWEST, DROP_OLDEST, SAMPLE, DYNAMIC_THROTTLE = OverflowMode


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def make(clock):
    def make(capacity, mode, **options):
        return Channel(capacity, mode=mode, system=System(clock=clock), **options)

    return make


async def send(channel, *items):
    return [await channel.send(item) for item in items]


def everything(channel):
    return channel.take_nowait(len(channel))


def balanced(channel):
    figures = channel.statistics()
    return figures.sent == figures.taken + figures.depth + figures.dropped


@pytest.mark.acceptance(102)
async def test_block_waits_for_room_and_loses_nothing(make):
    channel = make(3, BLOCK)
    assert await send(channel, 0, 1, 2) == [True] * 3
    waiting = [asyncio.ensure_future(channel.send(item)) for item in (3, 4)]
    await until_idle()
    assert not any(task.done() for task in waiting)
    assert channel.take_nowait() == [0]
    await until_idle()
    assert [task.done() for task in waiting] == [True, False]
    assert channel.take_nowait(3) == [1, 2, 3]
    await waiting[1]
    assert everything(channel) == [4]
    figures = channel.statistics()
    assert (figures.sent, figures.dropped, figures.blocked) == (5, 0, 2)


@pytest.mark.acceptance(102)
async def test_drop_newest_keeps_the_oldest(make):
    channel = make(5, DROP_NEWEST)
    lost = []
    channel.on_drop(lambda one: lost.append(one.item))
    assert await send(channel, *range(8)) == [True] * 5 + [False] * 3
    assert lost == [5, 6, 7]
    assert channel.statistics().dropped == 3
    assert everything(channel) == [0, 1, 2, 3, 4]
    assert balanced(channel)


@pytest.mark.acceptance(102)
async def test_drop_oldest_keeps_the_newest(make):
    channel = make(5, DROP_OLDEST)
    assert await send(channel, *range(8)) == [True] * 8
    assert channel.statistics().dropped == 3
    assert everything(channel) == [3, 4, 5, 6, 7]
    assert balanced(channel)


@pytest.mark.acceptance(102)
async def test_sample_takes_every_second_item_above_the_high_watermark(make):
    channel = make(10, SAMPLE)
    await send(channel, *range(20))
    # 8 fill it to 80 %; of those that follow every second one gets in until it is full
    assert channel.statistics().dropped == 10
    assert everything(channel) == [0, 1, 2, 3, 4, 5, 6, 7, 9, 11]
    assert balanced(channel)


@pytest.mark.acceptance(102)
@pytest.mark.parametrize(
    ("ratio", "kept"), [(0.5, 100), (0.25, 50), (0.1, 20), (0.29, 58), (1.0, 200)]
)
async def test_the_ratio_of_a_sample_can_be_chosen(make, ratio, kept):
    channel = make(1_000, SAMPLE, sample_ratio=ratio)
    await send(channel, *range(800))
    taken = await send(channel, *range(200))
    assert sum(taken) == kept
    assert channel.statistics().dropped == 200 - kept


async def test_below_the_watermark_a_sample_takes_all(make):
    channel = make(10, SAMPLE)
    for _ in range(3):  # and begins anew above it
        assert await send(channel, *range(9)) == [True] * 8 + [False]
        everything(channel)


@pytest.mark.acceptance(102)
def test_the_delay_of_a_throttle_grows_from_the_low_to_the_high_watermark():
    throttle = Throttle()
    assert throttle.rate(0.0) == throttle.rate(0.3) == pytest.approx(100_000)
    assert throttle.rate(0.8) == throttle.rate(1.0) == pytest.approx(100)
    assert throttle.delay(0.55) == pytest.approx((0.000_01 * 0.01) ** 0.5)
    delays = [throttle.delay(percent / 100) for percent in range(30, 81)]
    assert delays == sorted(set(delays))
    assert delays[0] == pytest.approx(0.000_01)
    assert delays[-1] == pytest.approx(0.01)


@given(st.floats(0, 2))
def test_no_rate_is_outside_of_its_bounds(share):
    assert 100 - 1e-6 <= Throttle().rate(share) <= 100_000


@pytest.mark.acceptance(102)
async def test_a_full_channel_slows_its_senders_to_the_lowest_rate(make, clock):
    channel = make(1_000, DYNAMIC_THROTTLE)
    while len(channel) < 900:
        await clock.run_until(channel.send(0))
    before = clock.monotonic()
    for _ in range(50):
        await clock.run_until(channel.send(0))
    assert clock.monotonic() - before == pytest.approx(0.5, abs=0.02)
    figures = channel.statistics()
    assert figures.dropped == 0
    assert figures.throttled_seconds == pytest.approx(clock.monotonic(), abs=0.01)


async def test_an_empty_channel_takes_items_at_the_highest_rate(make, clock):
    channel = make(1_000, DYNAMIC_THROTTLE)
    for _ in range(20_000):
        await clock.run_until(channel.send(0))
        everything(channel)
    assert clock.monotonic() == pytest.approx(0.2, abs=0.002)


async def test_many_senders_share_one_rate(make, clock):
    channel = make(1_000, DYNAMIC_THROTTLE, throttle=Throttle(rate_min=10, rate_max=10))
    senders = asyncio.gather(*(channel.send(item) for item in range(20)))
    await clock.run_until(senders)
    assert clock.monotonic() == pytest.approx(1.9)
    assert everything(channel) == list(range(20))


async def test_a_throttled_sender_waits_for_room_when_it_is_full(make, clock):
    channel = make(2, DYNAMIC_THROTTLE)
    await clock.run_until(send(channel, 0, 1))
    sender = asyncio.ensure_future(channel.send(2))
    await until_idle()
    clock.advance(1)
    await until_idle()
    assert not sender.done()
    channel.take_nowait()
    assert await sender
    assert everything(channel) == [1, 2]


@pytest.mark.parametrize("mode", [BLOCK, DYNAMIC_THROTTLE])
async def test_a_sender_has_a_deadline_and_then_has_sent_nothing(make, clock, mode):
    channel = make(1, mode)
    await clock.run_until(channel.send(0))
    with pytest.raises(DeadlineExceeded):
        await clock.run_until(channel.send(1, timeout=1))
    assert channel.statistics().sent == 1
    assert everything(channel) == [0]
    assert balanced(channel)


async def test_a_sender_can_be_cancelled(make):
    channel = make(1, BLOCK)
    await channel.send(0)
    sender = asyncio.ensure_future(channel.send(1))
    await until_idle()
    sender.cancel()
    await until_idle()
    assert everything(channel) == [0]
    await channel.send(2)
    assert everything(channel) == [2]
    assert balanced(channel)


async def test_a_new_mode_is_felt_by_those_who_wait(make):
    channel = make(1, BLOCK)
    await channel.send(0)
    sender = asyncio.ensure_future(channel.send(1))
    await until_idle()
    channel.mode = DROP_NEWEST
    assert not await sender
    assert channel.mode is DROP_NEWEST
    assert everything(channel) == [0]


async def test_who_comes_after_a_change_does_not_overtake_those_who_wait(make):
    channel = make(1, BLOCK)
    await channel.send(0)
    lost = []
    channel.on_drop(lambda one: lost.append(one.item))
    sender = asyncio.ensure_future(channel.send(1))
    await until_idle()
    channel.mode = DROP_NEWEST
    assert not await channel.send(2)
    assert sender.done()
    assert lost == [1, 2]


async def test_closing_ends_all_waits(make, clock):
    channel = make(1, DYNAMIC_THROTTLE, throttle=Throttle(rate_min=1, rate_max=1))
    await channel.send(0)
    sender = asyncio.ensure_future(channel.send(1))
    await until_idle()
    channel.close()
    with pytest.raises(Closed):
        await clock.run_until(sender)
    assert await channel.take() == [0]
    with pytest.raises(Closed):
        await channel.take()
    with pytest.raises(Closed):
        await channel.send(2)


async def test_a_consumer_waits_for_an_item(make):
    channel = make(10, BLOCK)
    taker = asyncio.ensure_future(channel.take(limit=3))
    await until_idle()
    await send(channel, 0, 1)
    assert await taker == [0, 1]
    assert channel.statistics().taken == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"low": 0.8},
        {"high": 1.1},
        {"low": -0.1},
        {"rate_min": 0},
        {"rate_min": 200_000},
        {"rate_max": float("inf")},
    ],
)
def test_a_throttle_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(InvalidOption):
        Throttle(**wrong)


@pytest.mark.parametrize("ratio", [0, 1.1, -0.5, float("nan")])
def test_a_ratio_that_makes_no_sense_is_refused(make, ratio):
    with pytest.raises(InvalidOption):
        make(10, SAMPLE, sample_ratio=ratio)


@given(
    st.sampled_from(list(OverflowMode)),
    st.lists(
        st.tuples(st.sampled_from(["send", "take", "cancel", "mode"]), st.integers(0, 9)),
        max_size=60,
    ),
)
def test_every_item_is_taken_or_counted_as_dropped(mode, steps):
    asyncio.run(storm(mode, steps))


async def storm(mode, steps):
    clock = VirtualClock()
    channel = Channel[int](5, mode=mode, system=System(clock=clock))
    lost: list[int] = []
    tasks: dict[int, asyncio.Future[bool]] = {}
    seen: list[int] = []
    channel.on_drop(lambda one: lost.append(one.item))
    for number, (action, argument) in enumerate(steps):
        if action == "send":
            tasks[number] = asyncio.ensure_future(channel.send(number, timeout=3_600))
        elif action == "take":
            clock.advance(argument / 100)
            await until_idle()
            seen += channel.take_nowait(argument)
        elif action == "cancel" and tasks:
            list(tasks.values())[argument % len(tasks)].cancel()
        else:
            channel.mode = list(OverflowMode)[argument % 5]
    while not all(task.done() for task in tasks.values()) or len(channel):
        await until_idle()
        seen += channel.take_nowait(3)
        clock.advance_to_next()
    results = await asyncio.gather(*tasks.values(), return_exceptions=True)
    sent = {number: one for number, one in zip(tasks, results, strict=True) if one in {True, False}}
    assert sorted(seen + lost) == sorted(sent)
    assert {number for number, taken in sent.items() if not taken} <= set(lost)
    assert channel.statistics().dropped == len(lost)
    assert balanced(channel)
