"""The circuit breaker: when it opens, what it lets through, how it closes."""

from __future__ import annotations

import asyncio
import logging

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.errors import CircuitOpen, InvalidOption, NoHandler
from penstock.resilience.breaker import BreakerOptions, BreakerState, CircuitBreaker
from penstock.testing import VirtualClock

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


class CountingClock(VirtualClock):
    looks = 0

    def monotonic(self) -> float:
        self.looks += 1
        return super().monotonic()


@pytest.fixture
def clock():
    return CountingClock()


def make(clock, **options):
    return CircuitBreaker(BreakerOptions(**options), clock, "bill")


def fail(breaker, times=1, error=None):
    for _ in range(times):
        assert breaker.admits()
        breaker.failed(error or OSError())


def succeed(breaker, times=1):
    for _ in range(times):
        assert breaker.admits()
        breaker.succeeded()


def opened(clock, **options):
    breaker = make(clock, **options)
    fail(breaker, breaker.options.failures)
    assert breaker.state is OPEN
    return breaker


# -- closed


@pytest.mark.acceptance(118)
def test_the_fifth_failure_opens_the_circuit(clock):
    breaker = make(clock)
    fail(breaker, 4)
    assert breaker.state is CLOSED
    fail(breaker)
    assert breaker.state is OPEN
    assert not breaker.admits()


@pytest.mark.acceptance(118)
def test_a_success_in_between_does_not_erase_failures(clock):
    breaker = make(clock)
    for _ in range(4):
        fail(breaker)
        succeed(breaker, 100)
    fail(breaker)
    assert breaker.state is OPEN


@pytest.mark.acceptance(118)
def test_failures_outside_the_window_do_not_count(clock):
    breaker = make(clock)
    fail(breaker, 4)
    clock.advance(60.0)
    fail(breaker, 4)
    assert breaker.state is CLOSED
    clock.advance(59.9)
    fail(breaker)
    assert breaker.state is OPEN


@pytest.mark.acceptance(118)
def test_the_rate_opens_the_circuit_when_there_are_enough_calls(clock):
    breaker = make(clock, failures=None, failure_rate=0.5, minimum_calls=10)
    fail(breaker, 4)
    succeed(breaker, 5)
    assert breaker.state is CLOSED
    fail(breaker)
    assert breaker.state is OPEN


@pytest.mark.acceptance(118)
def test_a_rate_below_the_threshold_leaves_the_circuit_closed(clock):
    breaker = make(clock, failures=None, failure_rate=0.5, minimum_calls=10)
    for _ in range(1000):
        succeed(breaker, 2)
        fail(breaker)
        clock.advance(0.1)
    assert breaker.state is CLOSED
    assert breaker.statistics().failure_rate == pytest.approx(1 / 3, abs=0.02)


@pytest.mark.acceptance(118)
def test_old_successes_do_not_hide_that_every_call_fails_now(clock):
    breaker = make(clock, failures=None, failure_rate=0.5)
    for _ in range(10_000):
        succeed(breaker, 10)
        clock.advance(1.0)
    needed = 0
    while breaker.state is CLOSED:
        fail(breaker)
        clock.advance(1.0)
        needed += 1
    assert needed <= 60


@pytest.mark.acceptance(118)
def test_a_success_in_the_closed_state_does_not_look_at_the_clock(clock):
    breaker = make(clock)
    looks = clock.looks
    succeed(breaker, 10_000)
    assert clock.looks == looks


def test_with_a_rate_the_clock_is_looked_at_now_and_then(clock):
    breaker = make(clock, failure_rate=0.5)
    looks = clock.looks
    succeed(breaker, 6_400)
    assert clock.looks - looks == 100


def test_a_cancelled_call_is_no_failure(clock):
    breaker = make(clock)
    fail(breaker, 10, asyncio.CancelledError())
    assert breaker.state is CLOSED
    assert breaker.statistics().abandoned == 10


def test_an_ignored_error_is_no_failure(clock):
    breaker = make(clock, ignore=(NoHandler,))
    fail(breaker, 10, NoHandler("nobody"))
    assert breaker.state is CLOSED
    fail(breaker, 5, OSError())
    assert breaker.state is OPEN


# -- open


@pytest.mark.acceptance(118)
def test_an_open_circuit_refuses_and_says_when_to_come_back(clock):
    breaker = opened(clock)
    clock.advance(20.0)
    assert not breaker.admits()
    assert breaker.retry_after == 40.0
    error = breaker.refusal()
    assert isinstance(error, CircuitOpen)
    assert (error.handler, error.retry_after) == ("bill", 40.0)
    assert breaker.statistics().refused == 1


def test_the_wall_clock_does_not_matter(clock):
    breaker = opened(clock)
    clock.jump(3_600_000)
    assert not breaker.admits()
    assert breaker.retry_after == 60.0


def test_a_late_success_or_failure_leaves_an_open_circuit_as_it_is(clock):
    breaker = make(clock)
    assert all(breaker.admits() for _ in range(7))
    for _ in range(5):
        breaker.failed(OSError())
    clock.advance(30.0)
    breaker.failed(OSError())
    breaker.succeeded()
    assert breaker.state is OPEN
    assert breaker.retry_after == 30.0


# -- half open


@pytest.mark.acceptance(118)
def test_three_good_probes_close_the_circuit(clock):
    breaker = opened(clock)
    clock.advance(60.0)
    succeed(breaker, 2)
    assert breaker.state is HALF_OPEN
    succeed(breaker)
    assert breaker.state is CLOSED


@pytest.mark.acceptance(118)
def test_a_failed_probe_opens_the_circuit_for_the_whole_time_again(clock):
    breaker = opened(clock)
    clock.advance(60.0)
    succeed(breaker, 2)
    fail(breaker)
    assert breaker.state is OPEN
    clock.advance(59.9)
    assert not breaker.admits()
    clock.advance(0.1)
    succeed(breaker, 2)
    assert breaker.state is HALF_OPEN  # the good probes of the first time do not count


@pytest.mark.acceptance(118)
@pytest.mark.parametrize("probes", [1, 2, 5])
def test_half_open_admits_a_bounded_number_of_probes_at_a_time(clock, probes):
    breaker = opened(clock, probes_max=probes, successes=10)
    clock.advance(60.0)
    assert [breaker.admits() for _ in range(100)].count(True) == probes
    breaker.succeeded()
    assert [breaker.admits() for _ in range(100)].count(True) == 1


@pytest.mark.acceptance(118)
def test_no_more_probes_go_out_than_are_needed_to_close(clock):
    breaker = opened(clock, probes_max=10, successes=3)
    clock.advance(60.0)
    assert [breaker.admits() for _ in range(100)].count(True) == 3


@pytest.mark.acceptance(118)
async def test_concurrent_callers_get_no_more_than_the_bound(clock):
    breaker = opened(clock, probes_max=2, successes=6)
    clock.advance(60.0)
    running = most = 0

    async def call():
        nonlocal running, most
        if not breaker.admits():
            return False
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        breaker.succeeded()
        return True

    first = await asyncio.gather(*(call() for _ in range(50)))
    assert (sum(first), most, breaker.state) == (2, 2, HALF_OPEN)
    await asyncio.gather(*(call() for _ in range(50)))
    await asyncio.gather(*(call() for _ in range(50)))
    assert most == 2
    assert breaker.state is CLOSED


def test_an_abandoned_probe_makes_room_for_another(clock):
    breaker = opened(clock, probes_max=1)
    clock.advance(60.0)
    assert breaker.admits()
    assert not breaker.admits()
    breaker.abandoned()
    assert breaker.admits()
    assert breaker.state is HALF_OPEN


def test_a_probe_that_never_ends_is_given_up(clock):
    breaker = opened(clock, probes_max=1, successes=1)
    clock.advance(60.0)
    assert breaker.admits()
    clock.advance(59.9)
    assert not breaker.admits()
    clock.advance(0.1)
    succeed(breaker)
    assert breaker.state is CLOSED


def test_a_late_failure_does_not_count_as_that_of_a_probe(clock):
    breaker = make(clock, probes_max=1)
    assert all(breaker.admits() for _ in range(6))
    for _ in range(5):
        breaker.failed(OSError())
    clock.advance(60.0)
    assert breaker.admits()
    breaker.failed(OSError())  # the sixth of the calls from before
    assert breaker.state is HALF_OPEN
    assert not breaker.admits()
    breaker.failed(OSError())
    assert breaker.state is OPEN


def test_a_call_that_was_given_up_is_not_waited_for_the_next_time(clock):
    breaker = make(clock, probes_max=1, successes=1)
    breaker.admits()  # nobody will ever tell what became of it
    fail(breaker, 5)
    clock.advance(60.0)
    succeed(breaker)  # taken for the outcome of that call
    assert not breaker.admits()
    clock.advance(60.0)
    fail(breaker)
    assert breaker.state is OPEN
    clock.advance(60.0)
    succeed(breaker)
    assert breaker.state is CLOSED


def test_asking_for_the_time_while_probes_are_out_gets_rarer(clock):
    breaker = opened(clock, probes_max=1)
    clock.advance(60.0)
    assert breaker.retry_after == 0.0
    assert breaker.admits()
    asked = 0
    while (after := breaker.retry_after) > 0.0:
        clock.advance(after)
        asked += 1
        if breaker.admits():
            break
    assert asked < 20


# -- closed again


def test_a_circuit_that_closed_begins_with_an_empty_window(clock):
    breaker = opened(clock, recovery=1.0)
    clock.advance(1.0)
    succeed(breaker, 3)
    fail(breaker, 4)
    assert breaker.state is CLOSED
    fail(breaker)
    assert breaker.state is OPEN


def test_reset_closes_the_circuit(clock):
    breaker = opened(clock)
    breaker.reset()
    breaker.reset()
    assert breaker.state is CLOSED
    succeed(breaker)


# -- who is told


@pytest.mark.acceptance(118)
def test_callbacks_are_told_each_change_once(clock):
    breaker = make(clock, recovery=1.0)
    changes = []
    stop = breaker.on_change(lambda *change: changes.append(change))
    fail(breaker, 5)
    clock.advance(1.0)
    succeed(breaker, 3)
    assert changes == [(CLOSED, OPEN), (OPEN, HALF_OPEN), (HALF_OPEN, CLOSED)]
    stop()
    stop()
    fail(breaker, 5)
    assert len(changes) == 3


def test_a_callback_that_raises_harms_nobody(clock, caplog):
    breaker = make(clock)
    told = []

    def broken(previous, current):
        raise RuntimeError("callback")

    breaker.on_change(broken)
    breaker.on_change(lambda *change: told.append(change))
    with caplog.at_level(logging.ERROR):
        fail(breaker, 5)
    assert told == [(CLOSED, OPEN)]
    assert "callback" in caplog.text


def test_a_callback_that_changes_the_state_is_told_in_order(clock):
    breaker = make(clock)
    told = []
    breaker.on_change(lambda previous, current: breaker.reset() if current is OPEN else None)
    breaker.on_change(lambda *change: told.append(change))
    fail(breaker, 5)
    assert told == [(CLOSED, OPEN), (OPEN, CLOSED)]


@pytest.mark.acceptance(119)
def test_breakers_are_independent_and_named(clock):
    one, other = (CircuitBreaker(BreakerOptions(), clock, name) for name in ("a", "b"))
    fail(one, 5)
    assert [(b.statistics().name, b.statistics().state) for b in (one, other)] == [
        ("a", OPEN),
        ("b", CLOSED),
    ]


def test_statistics_add_up(clock):
    breaker = make(clock)
    succeed(breaker, 3)
    fail(breaker, 5)
    breaker.admits()
    figures = breaker.statistics()
    assert (figures.admitted, figures.succeeded, figures.failed) == (8, 3, 5)
    assert (figures.refused, figures.opened) == (1, 1)
    assert figures.failure_rate == 5 / 8
    assert figures.changed_ms == clock.time_ms()


@pytest.mark.parametrize(
    "options",
    [
        {"failures": 0},
        {"failures": None},
        {"failure_rate": 0.0},
        {"failure_rate": 1.1},
        {"minimum_calls": 0},
        {"window": 0.0},
        {"recovery": -1.0},
        {"successes": 0},
        {"probes_max": 0},
        {"ignore": OSError},
    ],
    ids=str,
)
def test_an_option_outside_its_range_is_refused(options):
    with pytest.raises(InvalidOption) as caught:
        BreakerOptions(**options)
    assert caught.value.option in options


class BreakerMachine(RuleBasedStateMachine):
    """Any mix of calls: the bound on probes holds, and the circuit never stays shut for ever."""

    @initialize(
        probes=st.integers(1, 3), successes=st.integers(1, 4), rate=st.none() | st.just(0.5)
    )
    def start(self, probes, successes, rate):
        self.clock = VirtualClock()
        self.breaker = CircuitBreaker(
            BreakerOptions(
                failures=3,
                failure_rate=rate,
                recovery=10.0,
                probes_max=probes,
                successes=successes,
            ),
            self.clock,
        )
        self.out: list[BreakerState] = []
        self.breaker.on_change(lambda *_: self.forget_probes())

    def forget_probes(self):
        """What was admitted in another state is no probe of this one."""
        self.out = [CLOSED for _ in self.out]

    @rule(times=st.integers(1, 5))
    def call(self, times):
        for _ in range(times):
            if self.breaker.admits():
                self.out.append(self.breaker.state)

    @precondition(lambda self: self.out)
    @rule(data=st.data(), how=st.sampled_from(["succeeded", "failed", "abandoned"]))
    def end(self, data, how):
        # Calls from before the circuit opened end first, as the breaker takes them to.
        old = [at for at, state in enumerate(self.out) if state is not HALF_OPEN]
        self.out.pop(old[0] if old else data.draw(st.integers(0, len(self.out) - 1)))
        getattr(self.breaker, how)(*([OSError()] if how == "failed" else []))

    @rule(seconds=st.floats(0, 9))
    def time_passes(self, seconds):
        since = self.breaker._since
        self.clock.advance(min(seconds, max(0.0, since + 9.9 - self.clock.monotonic())))

    @precondition(lambda self: self.breaker.state is OPEN)
    @rule()
    def recovery_passes(self):
        self.clock.advance(self.breaker.retry_after)

    @invariant()
    def the_bound_holds(self):
        if hasattr(self, "breaker"):
            assert self.out.count(HALF_OPEN) <= self.breaker.options.probes_max

    def teardown(self):
        if not hasattr(self, "breaker"):
            return
        for _ in range(20):
            self.clock.advance(10.0)
            if self.breaker.admits():
                self.breaker.succeeded()
        assert self.breaker.state is CLOSED


TestBreakerMachine = BreakerMachine.TestCase
