"""Bus, log, groups and streams in thousands of orders of their tasks, with tasks cancelled wherever they wait."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.pressure.buffer import Turns
from penstock.streaming.database_loop import ExactlyOnce
from penstock.testing import ScheduleFailed, SeededSchedule, run_schedule, run_schedules
from tests.crash.rigs import seed_of
from tests.schedules import bus_scenarios, log_scenarios
from tests.scoreboard import Scores, amount, short_amount

LOG, RETRIES, BUS = 0.002, 0.036, 0.19
SHORT_MIN = 100
SHARES: dict[Any, float] = {
    **dict.fromkeys(log_scenarios.SCENARIOS, LOG),
    **dict.fromkeys(bus_scenarios.SCENARIOS, BUS),
    bus_scenarios.resilience: RETRIES,
}
"""How many of all schedules each scenario gets: those that cost more get fewer."""
COLLECT_EVERY = 20_000
PARTS = 8
NAMED = [pytest.param(one, id=one.__name__) for one in SHARES]


@contextmanager
def seldom_collected() -> Iterator[None]:
    """A schedule leaves its loop behind, in cycles: to look for them all the time takes a tenth of it."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def try_schedules(
    scenario: Any, request: pytest.FixtureRequest, count: int, scored: Scores, part: int = 0
) -> None:
    """So many schedules; each part of a run begins where the one before ends."""
    chosen = seed_of(request)
    seed = chosen + part * count
    began = time.process_time()
    try:
        with seldom_collected():
            run_schedules(scenario, range(seed, seed + count))
    except ScheduleFailed as failed:
        scored(15, tried=failed.seed - seed + 1, bad=1, seed=chosen)
        raise
    rate = count / (time.process_time() - began)
    print(f"{count:,} schedules of {scenario.__name__}, {rate:,.0f} a second")
    scored(15, tried=count, bad=0, seed=chosen, **{f"{scenario.__name__}_per_second": rate})


def test_the_shares_are_the_whole():
    assert sum(SHARES.values()) == pytest.approx(1)


@pytest.mark.parametrize("scenario", NAMED)
def test_no_order_of_the_tasks_breaks_anything(request, scenario, scored):
    count = max(SHORT_MIN, round(short_amount(15) * SHARES[scenario]))
    try_schedules(scenario, request, count, scored)


@pytest.mark.torture
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("scenario", NAMED)
def test_millions_of_orders_break_nothing(request, scenario, part, scored):
    count = round(amount(15) * SHARES[scenario] / PARTS) + 1
    try_schedules(scenario, request, count, scored, part)


def cancel_at_steps(
    scenario: Any,
    request: pytest.FixtureRequest,
    steps_max: int | None,
    scored: Scores,
    part: int = 0,
) -> None:
    """One order of the tasks, again for each step at which somebody can be cancelled."""
    chosen = seed_of(request)
    seed = (chosen & ~1) + 2 * part  # even: nobody is cancelled by the schedule itself
    whole = SeededSchedule(seed)
    whole.run(scenario)
    steps = range(0, whole.steps, max(1, whole.steps // (steps_max or whole.steps)))
    for cancel_at in steps:
        run_schedule(scenario, seed, cancel_at=cancel_at)
    scored(15, tried=len(steps), bad=0, seed=chosen)


@pytest.mark.parametrize("scenario", NAMED)
def test_a_task_may_be_cancelled_at_every_step(request, scenario, scored):
    """At every step of a bus, at some dozen of the log."""
    steps_max = None if scenario in bus_scenarios.SCENARIOS else 24
    cancel_at_steps(scenario, request, steps_max, scored)


@pytest.mark.torture
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("scenario", NAMED)
def test_a_task_may_be_cancelled_at_really_every_step(request, scenario, part, scored):
    cancel_at_steps(scenario, request, None, scored, part)


def test_a_lost_wake_up_is_found(monkeypatch):
    """A row in which one that was cancelled is waited for until it notices."""
    forget = Turns._forget

    def forgetful(turns, place):
        if place.turn.done() != place.turn.cancelled():
            forget(turns, place)

    def leave(turns, place):
        forget(turns, place)

    monkeypatch.setattr(Turns, "_forget", forgetful)
    monkeypatch.setattr(Turns, "_leave", leave)
    with pytest.raises(ScheduleFailed, match="could not send to channel") as failed:
        run_schedules(bus_scenarios.channel, range(20_000))
    with pytest.raises(ScheduleFailed, match="could not send to channel"):
        run_schedule(bus_scenarios.channel, failed.value.seed)


def test_a_batch_that_is_put_back_and_forgotten_is_found(monkeypatch):
    """A partition that comes while an exactly-once loop waits would begin behind its first batch."""
    next_batch = ExactlyOnce._next_batch

    async def forgetful(loop):
        try:
            return await next_batch(loop)
        finally:
            loop._put_back = {}

    monkeypatch.setattr(ExactlyOnce, "_next_batch", forgetful)
    with pytest.raises(ScheduleFailed, match="TimeoutError"):
        run_schedules(log_scenarios.booking, range(10_000, 12_000))
