"""The monitor: sums, levels, changes, and who it looks at."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import pytest

from penstock.bus.timers import Timers
from penstock.errors import InvalidOption
from penstock.pressure import (
    BackpressureState,
    BackpressureStateChanged,
    BackpressureThresholds,
    PressureMonitor,
    Reading,
)
from penstock.pressure.monitor import LOOKS_PER_CAPACITY, LOOKS_TO_MARK, STEP_MAX
from penstock.testing import VirtualClock

NORMAL, WARNING, CRITICAL, SHEDDING = BackpressureState


class Tank:
    """Something that fills; counts how often somebody looks."""

    def __init__(self, name="q", capacity=100, depth=0):
        self.name, self.capacity, self.depth = name, capacity, depth
        self.looks = 0

    def __call__(self):
        self.looks += 1
        return [Reading(self.name, self.depth, self.capacity)]


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def tank():
    return Tank()


@pytest.fixture
def changes():
    return []


@pytest.fixture
def monitor(clock, tank, changes):
    monitor = PressureMonitor(clock, subsystem="orders")
    monitor.add(tank)
    monitor.on_change(changes.append)
    return monitor


def pairs(changes):
    return [(change.previous, change.current) for change in changes]


def bottleneck(monitor):
    found = monitor.statistics().bottleneck
    assert found is not None
    return found


# -- the level


@pytest.mark.acceptance(57)
def test_the_depth_is_the_sum_over_all_partitions_and_the_ring(clock):
    monitor = PressureMonitor(clock)
    partitions = [Tank(f"orders-{n}", 100, depth) for n, depth in enumerate([10, 90, 60, 0])]
    ring = Tank("ring", 1_024, 512)
    for tank in [*partitions, ring]:
        monitor.add(tank)
    statistics = monitor.statistics()
    assert statistics.depth == 160 + 512
    assert statistics.capacity == 400 + 1_024
    assert statistics.utilisation == pytest.approx(672 / 1_424)
    partitions[0].depth += 40
    assert monitor.statistics().depth == 712


def test_one_callable_may_tell_of_partitions_that_come_and_go(clock):
    partitions = {"a-0": 90}
    monitor = PressureMonitor(clock)
    monitor.add(lambda: [Reading(name, depth, 100) for name, depth in partitions.items()])
    assert monitor.evaluate() is CRITICAL
    partitions["a-1"] = 0
    assert monitor.evaluate() is NORMAL
    assert monitor.statistics().stages[0].sources == 2


def test_an_empty_stage_does_not_hide_a_full_one(clock):
    monitor = PressureMonitor(clock)
    monitor.add(Tank("orders-0", 1_000_000, 0))
    monitor.add(Tank("billing on orders", 1_000, 990), stage="lag")
    assert monitor.evaluate() is SHEDDING
    found = bottleneck(monitor)
    assert (found.stage, found.source.source) == ("lag", "billing on orders")


def test_without_sources_there_is_no_pressure(clock):
    statistics = PressureMonitor(clock).statistics()
    assert (statistics.level, statistics.depth, statistics.bottleneck) == (NORMAL, 0, None)


def test_what_has_no_bound_does_not_press(clock):
    monitor = PressureMonitor(clock)
    monitor.add(Tank("unbounded", 0, 10_000))
    assert monitor.evaluate() is NORMAL


def test_a_source_that_is_removed_is_not_looked_at(monitor, tank):
    remove = monitor.add(more := Tank("more", 100, 100))
    tank.depth = 100
    assert monitor.evaluate() is SHEDDING
    remove()
    remove()
    tank.depth = 0
    looks = more.looks
    assert monitor.evaluate() is NORMAL
    assert more.looks == looks


def test_a_lowered_capacity_is_felt(monitor, tank):
    tank.depth = 50
    assert monitor.evaluate() is NORMAL
    tank.capacity = 40
    assert monitor.evaluate() is SHEDDING
    assert monitor.utilisation == 1.25


def test_a_source_that_fails_is_logged_once_and_counts_as_empty(monitor, tank, caplog):
    broken = True

    def read():
        if broken:
            raise OSError("gone")
        return [Reading("late", 99, 100)]

    def failures():
        return [one for one in caplog.records if one.levelno == logging.ERROR]

    monitor.add(read)
    tank.depth = 75
    with caplog.at_level(logging.ERROR, "penstock.pressure"):
        assert monitor.evaluate() is WARNING
        monitor.evaluate()
    assert len(failures()) == 1
    broken = False
    assert monitor.evaluate() is CRITICAL
    broken = True
    monitor.evaluate()
    assert len(failures()) == 2


# -- changes


@pytest.mark.acceptance(2)
def test_each_change_is_told_once(monitor, tank, changes):
    for depth in [0, 70, 84, 85, 94, 95, 100, 90, 89, 80, 79, 65, 64, 0]:
        tank.depth = depth
        monitor.evaluate()
        monitor.evaluate()
    assert pairs(changes) == [
        (NORMAL, WARNING),
        (WARNING, CRITICAL),
        (CRITICAL, SHEDDING),
        (SHEDDING, CRITICAL),
        (CRITICAL, WARNING),
        (WARNING, NORMAL),
    ]
    assert monitor.statistics().transitions == 6


def test_a_jump_over_levels_is_one_change(monitor, tank, changes):
    tank.depth = 99
    monitor.evaluate()
    tank.depth = 0
    monitor.evaluate()
    assert pairs(changes) == [(NORMAL, SHEDDING), (SHEDDING, NORMAL)]


@pytest.mark.acceptance(2)
def test_a_change_carries_the_name_the_time_and_the_cause(monitor, tank, changes, clock):
    clock.advance(90)
    tank.depth = 86
    monitor.evaluate()
    (change,) = changes
    assert change.subsystem == "orders"
    assert change.time == datetime(2026, 1, 1, 0, 1, 30, tzinfo=UTC)
    assert change.time.utcoffset().total_seconds() == 0
    assert change.utilisation == 0.86
    assert change.bottleneck == "queues: q holds 86 of 100"


@pytest.mark.acceptance(64)
def test_a_depth_that_swings_around_a_threshold_does_not_flap(monitor, tank, changes):
    for depth in [84, 86] * 50:
        tank.depth = depth
        monitor.evaluate()
    assert pairs(changes) == [(NORMAL, WARNING), (WARNING, CRITICAL)]


@pytest.mark.acceptance(64)
def test_thresholds_change_at_run_time(monitor, tank, changes):
    tank.depth = 60
    assert monitor.look(1) is NORMAL
    monitor.thresholds = BackpressureThresholds(warning=0.3, critical=0.5, shedding=0.9)
    assert monitor.level is CRITICAL
    assert monitor.look(2) is CRITICAL
    monitor.thresholds = BackpressureThresholds()
    assert monitor.level is NORMAL
    assert monitor.look(3) is NORMAL
    assert pairs(changes) == [(NORMAL, CRITICAL), (CRITICAL, NORMAL)]


def test_what_a_callback_raises_harms_nobody(monitor, tank, changes, caplog):
    def fail(change):
        raise ValueError("no")

    monitor.on_change(fail)
    later: list[BackpressureStateChanged] = []
    monitor.on_change(later.append)
    tank.depth = 75
    assert monitor.evaluate() is WARNING
    assert len(changes) == len(later) == 1


def test_who_is_told_may_look_again_and_all_see_the_changes_in_order(monitor, tank, changes):
    def relieve(change):
        tank.depth = 0
        monitor.evaluate()

    remove = monitor.on_change(relieve)
    seen: list[BackpressureStateChanged] = []
    monitor.on_change(seen.append)
    tank.depth = 99
    assert monitor.evaluate() is NORMAL
    assert pairs(seen) == pairs(changes) == [(NORMAL, SHEDDING), (SHEDDING, NORMAL)]
    remove()
    remove()
    tank.depth = 99
    assert monitor.evaluate() is SHEDDING


# -- how often it looks


def looks_in_a_row(monitor: PressureMonitor, tank: Tank, messages: int = 10_000) -> int:
    """How often it looks while so many messages come, as far as they ask."""
    before = tank.looks
    for sequence in range(1, messages + 1):
        if sequence >= monitor.look_at:
            monitor.look(sequence)
    return tank.looks - before


@pytest.mark.acceptance(101)
@pytest.mark.parametrize("capacity", [12_800, 128, 10])
def test_near_a_mark_it_looks_once_for_each_part_of_the_capacity(clock, capacity):
    monitor = PressureMonitor(clock)
    monitor.add(tank := Tank("q", capacity, int(0.7 * capacity) - 1))
    assert looks_in_a_row(monitor, tank) == 10_000 // max(1, capacity // LOOKS_PER_CAPACITY)


@pytest.mark.acceptance(101)
@pytest.mark.parametrize("capacity", [4_000, 400, 20])
def test_far_from_a_mark_it_looks_once_for_each_part_of_the_way(clock, capacity):
    monitor = PressureMonitor(clock)
    monitor.add(tank := Tank("q", capacity), counted=True)
    way = int(0.7 * capacity)
    assert looks_in_a_row(monitor, tank) == -(-10_000 // max(1, way // LOOKS_TO_MARK))


@pytest.mark.parametrize("sources", [1, 2, 7])
def test_each_message_may_go_to_every_source_and_no_level_is_missed_by_much(clock, sources):
    monitor = PressureMonitor(clock)
    tanks = [Tank(f"q{number}", 1_000) for number in range(sources)]
    for tank in tanks:
        monitor.add(tank, counted=True)
    found: dict[BackpressureState, int] = {}
    for sequence in range(1, 1_001):
        for tank in tanks:
            tank.depth = sequence
        if sequence >= monitor.look_at:
            found.setdefault(monitor.look(sequence), sequence)
    late = sources * 1_000 // LOOKS_PER_CAPACITY
    assert 700 <= found[WARNING] <= 700 + late


def test_it_looks_at_least_every_few_thousand_messages(clock):
    monitor = PressureMonitor(clock)
    monitor.add(Tank("q", 1 << 40), counted=True)
    monitor.look(1)
    assert monitor.look_at == 1 + STEP_MAX


def test_batches_may_jump_over_the_number_that_it_waits_for(clock):
    monitor = PressureMonitor(clock)
    monitor.add(tank := Tank("q", 12_800, 8_900))
    monitor.look(1)
    for sequence in range(1_000, 10_000, 1_000):
        assert sequence >= monitor.look_at
        monitor.look(sequence)
    assert tank.looks == 10


@pytest.mark.acceptance(13)
def test_no_level_is_missed_by_more_than_a_hundredth_of_the_capacity(clock):
    """The depth grows with every message; the level is found late by less than 1 %."""
    monitor = PressureMonitor(clock)
    monitor.add(tank := Tank("q", 10_000), counted=True)
    found: dict[BackpressureState, int] = {}
    for sequence in range(1, 10_001):
        tank.depth = sequence
        if sequence >= monitor.look_at:
            found.setdefault(monitor.look(sequence), sequence)
    assert 7_000 <= found[WARNING] <= 7_100
    assert 8_500 <= found[CRITICAL] <= 8_600
    assert 9_500 <= found[SHEDDING] <= 9_600


def test_under_pressure_every_message_asks(monitor, tank):
    tank.depth = 75
    monitor.look(1)
    assert monitor.look_at == 0
    tank.depth = 0
    monitor.evaluate()
    monitor.look(2)
    assert monitor.look_at > 2


def test_a_change_that_somebody_else_finds_is_felt_by_the_next_message(clock):
    monitor = PressureMonitor(clock)
    monitor.add(tank := Tank("q", 10_000))
    monitor.look(1)
    assert monitor.look_at > 2
    tank.depth = 7_500
    monitor.evaluate()
    assert monitor.look_at == 0


def test_from_critical_on_every_message_is_judged_by_the_depth_of_its_moment(clock):
    monitor = PressureMonitor(clock)
    monitor.add(tank := Tank("q", 10_000, 9_900))
    assert monitor.look(1) is SHEDDING
    tank.depth = 8_600
    assert monitor.look(2) is CRITICAL
    tank.depth = 0
    assert monitor.look(3) is NORMAL


def test_a_new_source_is_looked_at_with_the_next_message(clock):
    monitor = PressureMonitor(clock)
    monitor.add(Tank("q", 1_000_000))
    monitor.look(1)
    assert monitor.look_at > 2
    monitor.add(Tank("small", 10, 10), stage="lag")
    assert monitor.look_at <= 2
    assert monitor.look(2) is SHEDDING


def test_what_others_fill_is_looked_at_soon_however_far_the_mark_is(clock):
    monitor = PressureMonitor(clock)
    monitor.add(Tank("q", 12_800))
    monitor.look(1)
    assert monitor.look_at == 1 + 100


def test_a_stage_that_others_fill_is_looked_at_soon_beside_one_that_is_counted(clock):
    monitor = PressureMonitor(clock)
    monitor.add(Tank("q", 1_000_000), counted=True)
    remove = monitor.add(Tank("imports", 12_800), stage="imports")
    monitor.look(1)
    assert monitor.look_at == 1 + 100
    remove()
    monitor.look(2)
    assert monitor.look_at > 1_000


async def test_while_there_is_pressure_a_timer_looks(clock, tank):
    timers = Timers(clock)
    monitor = PressureMonitor(clock, timers=timers, interval=0.1)
    monitor.add(tank)
    monitor.evaluate()
    assert len(timers) == 0
    tank.depth = 99
    monitor.evaluate()
    monitor.evaluate()
    assert len(timers) == 1
    tank.depth = 0
    clock.advance(0.1)
    assert monitor.level is NORMAL
    assert len(timers) == 0


async def test_a_closed_monitor_sets_no_timer(clock, tank):
    timers = Timers(clock)
    monitor = PressureMonitor(clock, timers=timers)
    monitor.add(tank)
    tank.depth = 99
    monitor.evaluate()
    monitor.close()
    assert len(timers) == 0
    assert monitor.evaluate() is SHEDDING
    assert len(timers) == 0


def test_without_a_running_loop_there_is_no_timer(clock, tank):
    timers = Timers(clock)
    monitor = PressureMonitor(clock, timers=timers)
    monitor.add(tank)
    tank.depth = 99
    assert monitor.evaluate() is SHEDDING
    assert len(timers) == 0


def test_an_interval_of_nothing_is_refused(clock):
    with pytest.raises(InvalidOption):
        PressureMonitor(clock, interval=0)


# -- what it explains


def test_it_tells_how_long_each_level_lasted(monitor, tank, clock):
    for depth, seconds in [(0, 10), (75, 5), (99, 2), (0, 1), (75, 4)]:
        tank.depth = depth
        monitor.evaluate()
        clock.advance(seconds)
    statistics = monitor.statistics()
    assert statistics.seconds == {NORMAL: 11, WARNING: 9, CRITICAL: 0, SHEDDING: 2}
    assert statistics.lasted == 4
    assert statistics.since == datetime(2026, 1, 1, 0, 0, 18, tzinfo=UTC)


def test_the_bottleneck_is_the_fullest_source_of_the_fullest_stage(clock):
    monitor = PressureMonitor(clock)
    queues = [Tank("orders-0", 100, 50), Tank("orders-1", 100, 80)]
    for tank in queues:
        monitor.add(tank)
    lag = Tank("billing", 100, 60)
    monitor.add(lag, stage="lag")
    first = bottleneck(monitor)
    assert (first.stage, first.source) == ("queues", Reading("orders-1", 80, 100))
    clock.advance(5)
    lag.depth = 70
    second = bottleneck(monitor)
    assert (second.stage, second.source.source) == ("lag", "billing")
    clock.advance(5)
    third = bottleneck(monitor)
    assert third.since == second.since == datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC)
    lag.depth = 0
    for tank in queues:
        tank.depth = 0
    assert monitor.statistics().bottleneck is None


def test_it_explains_itself_in_a_sentence(monitor, tank, clock):
    tank.depth = 87
    monitor.evaluate()
    clock.advance(3)
    assert monitor.statistics().explain() == (
        "orders is CRITICAL for 3.0 s (87% full); queues: q holds 87 of 100"
    )
