"""A stream that changes its strategy: by itself, by its average, and when it is told to."""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import InvalidOption, LoadShed
from penstock.pressure import (
    BackpressureContext,
    BackpressureState,
    BackpressureStrategy,
    BackpressureThresholds,
)
from penstock.pressure.strategies import ADAPTIVE_TABLE, AdaptiveChoice, MovingAverage
from penstock.testing.clock import until_idle
from tests.pressure.stream_world import (
    ADAPTIVE,
    BLOCK,
    CRITICAL,
    DEGRADE,
    DROP_OLDEST,
    NORMAL,
    SHED,
    SHEDDING,
    WARNING,
    balanced,
    everything,
    producers,
    publish,
)

# -- adaptive


@pytest.mark.acceptance(100)
def test_the_average_follows_the_formula():
    average, expected = MovingAverage(), 0.0
    for sample in [1, 1, 0, 0.5, 0.25, 1, 0]:
        expected = 0.3 * sample + 0.7 * expected
        assert average.add(sample) == pytest.approx(expected, abs=1e-12)
    assert MovingAverage().add(1) == pytest.approx(0.3)


@pytest.mark.acceptance(100)
async def test_a_stream_averages_the_depth_that_each_producer_finds(make):
    stream = make(10, ADAPTIVE)
    expected = 0.0
    for depth in range(8):
        await stream.publish(depth)
        expected = 0.3 * depth / 10 + 0.7 * expected
        assert stream.statistics().average == pytest.approx(expected)


@pytest.mark.acceptance(100)
def test_the_table_of_switches():
    choice, marks = AdaptiveChoice(), BackpressureThresholds()
    assert choice.strategy is DEGRADE
    found: dict[BackpressureStrategy, float] = {}
    for _ in range(100):
        strategy = choice.add(1.0, marks)
        found.setdefault(strategy, choice.average)
    assert list(found) == [DEGRADE, BLOCK, SHED]
    assert found[BLOCK] >= 0.85
    assert found[SHED] >= 0.95
    for _ in range(100):
        choice.add(0.0, marks)
    assert choice.strategy is DEGRADE
    assert dict(ADAPTIVE_TABLE) == {
        NORMAL: DEGRADE,
        WARNING: DEGRADE,
        CRITICAL: BLOCK,
        SHEDDING: SHED,
    }


@pytest.mark.acceptance(100)
@pytest.mark.parametrize("centre", [0.85, 0.95])
def test_a_swing_around_a_threshold_does_not_make_it_oscillate(centre):
    choice, marks = AdaptiveChoice(), BackpressureThresholds()
    for step in range(1_000):
        choice.add(centre + (0.04 if step % 2 else -0.03), marks)
    assert choice.switches <= 2
    settled = choice.switches
    for step in range(1_000):
        choice.add(centre + (0.04 if step % 2 else -0.03), marks)
    assert choice.switches == settled


async def test_a_burst_does_not_change_the_strategy(make):
    stream = make(10, ADAPTIVE)
    await publish(stream, *range(10))
    assert stream.current_state is SHEDDING
    assert stream.acting is DEGRADE
    assert stream.statistics().switches == 0


async def test_adaptive_degrades_then_blocks_then_sheds_and_comes_back(make):
    stream = make(100, ADAPTIVE)
    acting: list[BackpressureStrategy] = []

    def note():
        if not acting or acting[-1] is not stream.acting:
            acting.append(stream.acting)

    for item in range(99):
        producer = asyncio.ensure_future(stream.publish(item))
        await until_idle()
        note()
        if not producer.done():  # blocked: the consumers make a little room
            stream.take_nowait(len(stream) - 84)
            await producer
    full = BackpressureContext(depth=100, capacity=100)
    while stream.acting is not SHED:
        waiting = asyncio.ensure_future(stream.apply_backpressure(full))
        await until_idle()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        note()
    with pytest.raises(LoadShed):
        await stream.apply_backpressure(full)
    everything(stream)
    for item in range(20):
        await stream.publish(item)
        note()
    assert acting == [DEGRADE, BLOCK, SHED, DEGRADE]
    assert stream.strategy is ADAPTIVE
    assert balanced(stream)


def average_at(stream, share):
    """Let the stream have had this depth for long."""
    for _ in range(2_000):
        stream._adaptive.add(share, stream.thresholds)


async def test_who_is_refused_at_its_turn_passes_it_on(make):
    stream = make(100, ADAPTIVE, alpha=0.01)
    await publish(stream, *range(100))
    (plain,) = producers(stream, 100)
    (critical,) = producers(stream, 101, critical=True)
    await until_idle()
    assert not plain.done()
    average_at(stream, 1.0)
    assert stream.acting is SHED
    stream.take_nowait()
    with pytest.raises(LoadShed):
        await plain
    await until_idle()
    assert critical.done()
    assert everything(stream)[-1] == 101


async def test_those_who_are_blocked_go_on_when_adaptive_stops_blocking(make):
    stream = make(100, ADAPTIVE)
    average_at(stream, 0.9)
    for item in range(85):
        stream._put(item)
    (waiting,) = producers(stream, 85)
    await until_idle()
    assert stream.acting is BLOCK
    assert not waiting.done()
    calm = BackpressureContext(depth=0, capacity=100)
    applying = [asyncio.ensure_future(stream.apply_backpressure(calm)) for _ in range(3)]
    await until_idle()
    assert stream.acting is DEGRADE
    assert waiting.done()
    await asyncio.gather(*applying)
    assert len(stream) == 86


async def test_who_accepts_loss_says_so_in_the_table(make):
    table = dict(ADAPTIVE_TABLE) | {CRITICAL: DROP_OLDEST, SHEDDING: DROP_OLDEST}
    stream = make(10, ADAPTIVE, table=table, alpha=1.0)
    await publish(stream, *range(15))
    assert everything(stream) == list(range(5, 15))


@pytest.mark.parametrize("table", [{}, dict.fromkeys(BackpressureState, ADAPTIVE)])
def test_a_table_with_gaps_or_circles_is_refused(make, table):
    with pytest.raises(InvalidOption):
        make(10, ADAPTIVE, table=table)


@pytest.mark.parametrize("alpha", [0, -1, 1.1, float("nan")])
def test_an_alpha_that_makes_no_sense_is_refused(make, alpha):
    with pytest.raises(InvalidOption):
        make(10, ADAPTIVE, alpha=alpha)


# -- switching


@pytest.mark.acceptance(2)
@pytest.mark.parametrize("strategy", [DROP_OLDEST, SHED, DEGRADE])
async def test_those_who_wait_feel_a_new_strategy_at_once(make, strategy):
    stream = make(100, BLOCK)
    await publish(stream, *range(85))
    (waiting,) = producers(stream, 85)
    await until_idle()
    assert not waiting.done()
    stream.strategy = strategy
    await until_idle()
    assert waiting.done()
    assert not waiting.result().rejected
    assert len(stream) == 86


async def test_those_who_wait_are_refused_when_the_new_strategy_sheds(make):
    stream = make(10, DEGRADE)
    await publish(stream, *range(10))
    (waiting,) = producers(stream, 10)
    await until_idle()
    stream.strategy = SHED
    with pytest.raises(LoadShed):
        await waiting
    assert len(stream) == 10


async def test_new_thresholds_count_at_once(make):
    stream = make(10, BLOCK)
    await publish(stream, *range(5))
    stream.thresholds = BackpressureThresholds(warning=0.2, critical=0.3, shedding=0.9)
    assert stream.current_state is CRITICAL
    (waiting,) = producers(stream, 5)
    await until_idle()
    assert not waiting.done()
    stream.thresholds = BackpressureThresholds()
    await waiting
    assert stream.current_state is NORMAL
