"""The five strategies of a stream, each on a real queue."""

from __future__ import annotations

import asyncio
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import System
from penstock.errors import BusyError, Closed, DeadlineExceeded, InvalidOption, LoadShed
from penstock.pressure import (
    BackpressureContext,
    BackpressureStateChanged,
    BackpressureStrategy,
    DegradationDirective,
    Dropped,
    PublishDecision,
    StreamingBackpressureHandler,
)
from penstock.testing import VirtualClock
from penstock.testing.clock import until_idle
from tests.pressure.stream_world import (
    ADAPTIVE,
    BLOCK,
    CRITICAL,
    DEGRADE,
    DROP_OLDEST,
    NORMAL,
    SHED,
    WARNING,
    balanced,
    everything,
    producers,
    publish,
)


@pytest.mark.acceptance(5)
def test_there_are_five_strategies():
    assert [strategy.name for strategy in BackpressureStrategy] == [
        "DROP_OLDEST",
        "BLOCK_PRODUCER",
        "SHED_LOAD",
        "DEGRADE_QUALITY",
        "ADAPTIVE",
    ]


# -- drop oldest


@pytest.mark.acceptance(95)
async def test_drop_oldest_keeps_the_newest(make, caplog):
    stream = make(5, DROP_OLDEST)
    told: list[Dropped] = []
    stream.on_drop(told.append)
    with caplog.at_level(logging.WARNING, "penstock.pressure"):
        await publish(stream, *range(8))
    assert stream.statistics().dropped == 3
    assert [one.item for one in told] == [0, 1, 2]
    assert [(one.subsystem, one.dropped) for one in told] == [
        ("streaming", 1),
        ("streaming", 2),
        ("streaming", 3),
    ]
    assert "streaming discarded" in caplog.text
    assert everything(stream) == [3, 4, 5, 6, 7]
    assert balanced(stream)


async def test_a_flood_of_drops_does_not_flood_the_log(make, clock, caplog):
    stream = make(1, DROP_OLDEST)
    with caplog.at_level(logging.WARNING, "penstock.pressure"):
        await publish(stream, *range(1_001))
        clock.advance(1)
        await publish(stream, 1_001)
    assert [record.message for record in caplog.records] == [
        "streaming discarded 1 items, 1 in all",
        "streaming discarded 1000 items, 1001 in all",
    ]


async def test_after_a_lowered_capacity_the_oldest_go(make):
    stream = make(5, DROP_OLDEST)
    await publish(stream, *range(5))
    stream.capacity = 2
    assert len(stream) == 5
    await publish(stream, 5)
    assert everything(stream) == [4, 5]
    assert stream.statistics().dropped == 4


# -- block producer


@pytest.mark.acceptance(96)
async def test_a_blocked_producer_goes_on_when_the_depth_is_below_the_threshold(make):
    stream = make(20, BLOCK)
    await publish(stream, *range(17))  # 85 %
    (waiting,) = producers(stream, 17)
    await until_idle()
    assert not waiting.done()
    assert stream.statistics().waiting == 1
    assert stream.take_nowait() == [0]
    decision = await waiting
    assert not decision.rejected
    assert everything(stream) == list(range(1, 18))
    figures = stream.statistics()
    assert (figures.blocked, figures.dropped, figures.waiting) == (1, 0, 0)


@pytest.mark.acceptance(96)
async def test_a_blocked_producer_can_be_cancelled(make):
    stream = make(1, BLOCK)
    await publish(stream, 0)
    first, second = producers(stream, 1, 2)
    await until_idle()
    first.cancel()
    await until_idle()
    assert first.cancelled()
    assert stream.take_nowait() == [0]
    await second
    assert everything(stream) == [2]


async def test_a_turn_that_comes_with_the_cancellation_is_passed_on(make):
    stream = make(1, BLOCK)
    await publish(stream, 0)
    first, second = producers(stream, 1, 2)
    await until_idle()
    stream.take_nowait()  # gives the turn to the first
    first.cancel()
    await until_idle()
    assert first.cancelled()
    assert second.done()
    assert everything(stream) == [2]


@pytest.mark.acceptance(96)
async def test_a_blocked_producer_has_a_deadline(make, clock):
    stream = make(1, BLOCK)
    await publish(stream, 0)
    with pytest.raises(DeadlineExceeded):
        await clock.run_until(stream.publish(1, timeout=5))
    assert clock.monotonic() == 5
    assert everything(stream) == [0]
    await publish(stream, 2)  # nobody is left in the row
    assert everything(stream) == [2]


async def test_producers_go_on_in_the_order_in_which_they_came(make):
    stream = make(2, BLOCK)
    await publish(stream, 0, 1)
    waiting = producers(stream, *range(2, 8))
    await until_idle()
    seen: list[int] = []
    while len(seen) < 8:
        seen += stream.take_nowait()
        late = producers(stream, 100 + len(seen)) if len(seen) == 1 else []
        waiting += late
        await until_idle()
    assert seen == list(range(8))
    assert everything(stream) == [101]
    await asyncio.gather(*waiting)


@pytest.mark.parametrize("room", [2, 15])
async def test_who_comes_when_there_is_room_again_does_not_overtake(make, room):
    stream = make(20, BLOCK)
    await publish(stream, *range(17))
    (waiting,) = producers(stream, 17)
    await until_idle()
    stream.take_nowait(room)
    await stream.publish(18)  # the one before has its turn, but did not run yet
    assert waiting.done()
    assert everything(stream) == list(range(room, 19))


async def test_who_applies_pressure_and_puts_nothing_in_passes_its_turn_on(make):
    stream = make(20, BLOCK)
    await publish(stream, *range(17))
    full = BackpressureContext(depth=17, capacity=20)
    applying = asyncio.ensure_future(stream.apply_backpressure(full))
    await until_idle()
    (waiting,) = producers(stream, 17)
    await until_idle()
    stream.take_nowait()
    await until_idle()
    assert applying.result().delayed
    assert waiting.done()


async def test_a_depth_never_exceeds_the_limit_under_a_crowd(make, clock):
    stream = make(10, BLOCK)
    waiting = producers(stream, *range(1_000))
    seen: list[int] = []
    while len(seen) < 1_000:
        await until_idle()
        assert len(stream) <= 9  # 85 % of 10 is reached with the 9th
        seen += await stream.take(3)
    assert seen == list(range(1_000))
    await asyncio.gather(*waiting)
    assert balanced(stream)


async def test_a_higher_capacity_frees_those_who_wait(make):
    stream = make(2, BLOCK)
    await publish(stream, 0, 1)
    waiting = producers(stream, 2, 3, 4)
    await until_idle()
    stream.capacity = 5
    await until_idle()
    assert [task.done() for task in waiting] == [True, True, True]
    assert everything(stream) == [0, 1, 2, 3, 4]


async def test_a_little_more_room_goes_to_the_first_in_the_row(make):
    stream = make(1, BLOCK)
    await publish(stream, 0)
    waiting = producers(stream, 1, 2, 3)
    await until_idle()
    stream.capacity = 2
    await until_idle()
    assert [task.done() for task in waiting] == [True, False, False]
    seen: list[int] = []
    while len(seen) < 4:
        seen += stream.take_nowait()
        await until_idle()
    assert seen == [0, 1, 2, 3]


async def test_closing_ends_all_waits(make):
    stream = make(1, BLOCK)
    await publish(stream, 0)
    waiting = producers(stream, 1)
    await until_idle()
    stream.close()
    stream.close()
    with pytest.raises(Closed):
        await waiting[0]
    with pytest.raises(Closed):
        await stream.publish(2)
    assert await stream.take() == [0]
    with pytest.raises(Closed):
        await stream.take()


# -- shed load


@pytest.mark.acceptance(97)
async def test_shed_load_refuses_and_succeeds_later(make):
    stream = make(20, SHED, retry_after=0.25)
    await publish(stream, *range(19))  # 95 %
    with pytest.raises(LoadShed) as caught:
        await stream.publish(19)
    error = caught.value
    assert (error.code, error.retry_after, error.subsystem) == ("SHED_LOAD", 0.25, "streaming")
    assert isinstance(error, BusyError)
    assert len(stream) == 19
    assert stream.statistics().shed == 1
    assert stream.take_nowait(2) == [0, 1]
    await stream.publish(19)
    assert everything(stream) == list(range(2, 20))
    assert balanced(stream)


async def test_shedding_goes_on_until_the_level_has_ended(make):
    stream = make(100, SHED)
    await publish(stream, *range(95))
    stream.take_nowait(5)  # 90 %: within the gap
    with pytest.raises(LoadShed):
        await stream.publish(0)
    stream.take_nowait(1)
    await stream.publish(0)


async def test_what_is_critical_waits_instead(make):
    stream = make(20, SHED)
    await publish(stream, *range(19))
    await stream.publish(19, critical=True)
    (waiting,) = producers(stream, 20, critical=True)
    await until_idle()
    assert not waiting.done()
    stream.take_nowait()
    await waiting
    assert stream.statistics().shed == 0


# -- degrade quality


@pytest.mark.acceptance(98, 99)
async def test_degrading_leaves_out_more_the_fuller_it_is_and_restores_all(make):
    stream = make(100, DEGRADE)
    seen = {}
    for depth in range(100):
        decision = await stream.publish(depth)
        directive = decision.directive
        seen[depth] = (
            directive.batch_more,
            directive.skip_enrichment,
            directive.reduce_acknowledgements,
        )
        if directive.degraded:
            assert directive.utilisation == depth / 100
    assert [depth for depth in seen if seen[depth][0]] == list(range(70, 100))
    assert [depth for depth in seen if seen[depth][1]] == list(range(85, 100))
    assert [depth for depth in seen if seen[depth][2]] == list(range(95, 100))
    assert stream.statistics().degraded == 30
    assert stream.directive == DegradationDirective(
        skip_enrichment=True, batch_more=True, reduce_acknowledgements=True, utilisation=1.0
    )
    stream.take_nowait(90)
    assert stream.directive == DegradationDirective(utilisation=0.1)
    assert (await stream.publish(0)).directive == DegradationDirective()


async def test_who_degrades_waits_when_nothing_fits_in(make):
    stream = make(10, DEGRADE)
    await publish(stream, *range(10))
    (waiting,) = producers(stream, 10)
    await until_idle()
    assert not waiting.done()
    stream.take_nowait()
    decision = await waiting
    assert decision.directive.skip_enrichment
    assert len(stream) == 10


async def test_other_strategies_leave_nothing_out(make):
    stream = make(10, BLOCK)
    await publish(stream, *range(9))
    assert stream.current_state is CRITICAL
    assert stream.directive == DegradationDirective(utilisation=0.9)


# -- names, consumers, figures


@pytest.mark.acceptance(103)
@pytest.mark.parametrize("name", ["streaming", "ingest"])
async def test_the_name_of_the_subsystem_can_be_chosen(make, name):
    stream = make(10, SHED) if name == "streaming" else make(10, SHED, subsystem=name)
    changes: list[BackpressureStateChanged] = []
    stream.on_backpressure_changed(changes.append)
    await publish(stream, *range(8))
    assert [change.subsystem for change in changes] == [name]
    assert changes[0].current is WARNING


async def test_consumers_wait_and_get_items_in_turn(make):
    stream = make(10, BLOCK)
    takers = [asyncio.ensure_future(stream.take(limit=5)) for _ in range(3)]
    await until_idle()
    await publish(stream, "a", "b")
    await until_idle()
    assert [taker.done() for taker in takers] == [True, True, False]
    assert [takers[0].result(), takers[1].result()] == [["a"], ["b"]]
    await publish(stream, "c", "d")
    assert await takers[2] == ["c", "d"]


async def test_a_consumer_that_is_cancelled_takes_nothing(make):
    stream = make(10, BLOCK)
    first, second = [asyncio.ensure_future(stream.take()) for _ in range(2)]
    await until_idle()
    await stream.publish("a")
    first.cancel()
    await until_idle()
    assert first.cancelled()
    assert second.result() == ["a"]


async def test_a_consumer_whose_item_was_taken_by_another_waits_on(make):
    stream = make(10, BLOCK)
    taker = asyncio.ensure_future(stream.take())
    await until_idle()
    await stream.publish("a")
    assert stream.take_nowait() == ["a"]
    await until_idle()
    assert not taker.done()
    await stream.publish("b")
    assert await taker == ["b"]


async def test_a_consumer_has_a_deadline(make, clock):
    stream = make(10, BLOCK)
    with pytest.raises(DeadlineExceeded):
        await clock.run_until(stream.take(timeout=2))
    assert stream.take_nowait() == []


async def test_without_pressure_a_decision_costs_nothing(make):
    stream = make(100, ADAPTIVE)
    decisions = await publish(stream, *range(50))
    assert all(decision is PublishDecision.PROCEED for decision in decisions)


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_stream_that_holds_nothing_is_refused(make, capacity):
    with pytest.raises(InvalidOption):
        make(capacity, BLOCK)


async def test_a_stream_explains_itself(make, clock):
    stream = make(10, DROP_OLDEST)
    await publish(stream, *range(13))
    clock.advance(2)
    assert stream.statistics().explain() == (
        "streaming is SHEDDING for 2.0 s (100% full); queues: streaming holds 10 of 10. "
        "So far 0 were delayed, 0 degraded, 0 shed, 3 dropped (DROP_OLDEST)."
    )


@given(
    st.sampled_from(list(BackpressureStrategy)),
    st.lists(
        st.tuples(
            st.sampled_from(["publish", "take", "cancel", "strategy", "capacity", "idle"]),
            st.integers(0, 9),
        ),
        max_size=60,
    ),
)
def test_whatever_happens_no_item_is_lost_or_seen_twice(strategy, steps):
    asyncio.run(storm(strategy, steps))


async def storm(strategy, steps):
    clock = VirtualClock()
    stream = StreamingBackpressureHandler[int](5, strategy=strategy, system=System(clock=clock))
    dropped: list[int] = []
    tasks: dict[int, asyncio.Future[PublishDecision]] = {}
    seen: list[int] = []
    stream.on_drop(lambda one: dropped.append(one.item))
    for number, (action, argument) in enumerate(steps):
        if action == "publish":
            tasks[number] = asyncio.ensure_future(stream.publish(number, timeout=60))
        elif action == "take":
            seen += stream.take_nowait(argument)
        elif action == "cancel" and tasks:
            list(tasks.values())[argument % len(tasks)].cancel()
        elif action == "strategy":
            stream.strategy = list(BackpressureStrategy)[argument % 5]
        elif action == "capacity":
            stream.capacity = argument + 1
        else:
            await until_idle()
    while True:
        await until_idle()
        if not (taken := stream.take_nowait(3)):
            break
        seen += taken
    results = await asyncio.gather(*tasks.values(), return_exceptions=True)
    entered = {
        number
        for number, result in zip(tasks, results, strict=True)
        if isinstance(result, PublishDecision)
    }
    assert len(seen) + len(dropped) == len(set(seen) | set(dropped))
    assert set(seen) | set(dropped) == entered
    assert seen == sorted(seen)
    refused = [r for r in results if not isinstance(r, PublishDecision)]
    assert all(isinstance(one, LoadShed | asyncio.CancelledError) for one in refused)
    assert balanced(stream)
    assert stream.statistics().waiting == 0
    assert stream.current_state is NORMAL
