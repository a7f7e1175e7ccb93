"""Decisions on scale: by measured rates and lags, within limits, with time in between, and told."""

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidOption
from penstock.streaming import Autoscaler, Measurement, ScalabilityConfig, ScalingAction
from penstock.system import System
from penstock.testing import VirtualClock
from tests.streaming.load import Load


def measured(**changes):
    fields = {"topic": "t", "rate": 5_000, "lag_ms": 2_000, "partitions": 1, "consumers": 1}
    return Measurement(**{**fields, **changes})


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def make(clock):
    return lambda **options: Autoscaler(ScalabilityConfig(**options), system=System(clock=clock))


def steps(decisions):
    return [(one.action, one.before, one.after) for one in decisions]


def test_the_defaults_are_those_of_the_page():
    config = ScalabilityConfig()
    assert (config.max_partitions, config.max_consumers) == (128, 10)
    assert (config.target_throughput_per_partition, config.max_lag_ms) == (10_000, 5_000)
    assert (config.scale_up_threshold, config.scale_down_threshold) == (0.8, 0.2)
    assert config.cooldown_seconds == 300


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_partitions": 0},
        {"max_partitions": 1.5},
        {"max_consumers": True},
        {"max_lag_ms": 0},
        {"target_throughput_per_partition": 0},
        {"target_throughput_per_partition": float("nan")},
        {"cooldown_seconds": -1},
        {"cooldown_seconds": float("inf")},
        {"scale_up_threshold": 1.1},
        {"scale_up_threshold": 0.2},
        {"scale_down_threshold": -0.1},
        {"scale_down_threshold": 0.8},
    ],
)
def test_a_configuration_that_cannot_be_is_refused(wrong):
    with pytest.raises(InvalidOption) as told:
        ScalabilityConfig(**wrong)
    assert str(told.value.option).startswith(("max", "target", "cooldown", "scale"))


@pytest.mark.parametrize(
    "wrong",
    [{"rate": -1}, {"rate": float("nan")}, {"lag_ms": -1}, {"partitions": 0}, {"consumers": 0}],
)
def test_a_measurement_that_cannot_be_is_refused(wrong):
    with pytest.raises(InvalidOption):
        measured(**wrong)


@pytest.mark.acceptance(79)
@pytest.mark.parametrize(("partitions", "mark"), [(1, 8_000), (3, 24_000), (10, 80_000)])
def test_partitions_are_added_above_the_threshold_of_the_target_and_not_at_it(
    make, partitions, mark
):
    assert make().decide(measured(rate=mark, partitions=partitions)) == ()
    (decision,) = make().decide(measured(rate=mark + 1, partitions=partitions))
    assert decision.action is ScalingAction.ADD_PARTITIONS
    assert decision.after > partitions
    assert decision.threshold == pytest.approx(mark)


@pytest.mark.acceptance(79)
def test_partitions_are_never_more_than_allowed(make):
    scaler = make(max_partitions=6)
    (decision,) = scaler.decide(measured(rate=1e9, partitions=4))
    assert decision.after == 6
    assert make(max_partitions=6).decide(measured(rate=1e9, partitions=6)) == ()


@pytest.mark.acceptance(81)
def test_the_target_of_a_partition_says_how_many_there_are(make):
    for target, wanted in [(10_000, 8), (1_000, 80), (40_000, 2)]:
        scaler = make(target_throughput_per_partition=target)
        (decision,) = scaler.decide(measured(rate=40_000, partitions=1))
        assert decision.after == wanted


@pytest.mark.acceptance(82)
def test_partitions_go_below_the_low_mark_and_one_always_stays(make):
    assert make().decide(measured(rate=20_000, partitions=10)) == ()
    (decision,) = make().decide(measured(rate=19_999, partitions=10))
    assert steps([decision]) == [(ScalingAction.REMOVE_PARTITIONS, 10, 4)]
    (decision,) = make().decide(measured(rate=0, partitions=10))
    assert decision.after == 1
    assert make().decide(measured(rate=0, partitions=1)) == ()


@pytest.mark.acceptance(80)
def test_consumers_are_added_above_the_lag_and_not_at_it(make):
    assert make().decide(measured(lag_ms=5_000, partitions=8, rate=30_000)) == ()
    (decision,) = make().decide(measured(lag_ms=5_001, partitions=8, rate=30_000))
    assert steps([decision]) == [(ScalingAction.ADD_CONSUMERS, 1, 2)]
    assert (decision.metric, decision.value, decision.threshold) == ("lag_ms", 5_001, 5_000)
    (decision,) = make().decide(measured(lag_ms=7_500, partitions=8, consumers=4, rate=30_000))
    assert decision.after == 6


@pytest.mark.acceptance(80)
@pytest.mark.parametrize(("partitions", "most"), [(100, 10), (7, 7)])
def test_consumers_are_never_more_than_allowed_or_than_partitions(make, partitions, most):
    rate = partitions * 5_000
    (decision,) = make().decide(measured(rate=rate, lag_ms=1e6, partitions=partitions, consumers=6))
    assert decision.after == most
    full = measured(rate=rate, lag_ms=1e6, partitions=partitions, consumers=most)
    assert make().decide(full) == ()


def test_consumers_go_one_by_one_when_there_is_hardly_a_lag_and_one_always_stays(make):
    assert make().decide(measured(rate=20_000, lag_ms=1_000, partitions=4, consumers=3)) == ()
    (decision,) = make().decide(measured(rate=20_000, lag_ms=999, partitions=4, consumers=3))
    assert steps([decision]) == [(ScalingAction.REMOVE_CONSUMERS, 3, 2)]
    assert make().decide(measured(rate=20_000, lag_ms=0, partitions=4)) == ()


def test_fewer_partitions_need_fewer_consumers_at_once(make):
    decisions = make().decide(measured(rate=10_000, partitions=20, consumers=9))
    assert steps(decisions) == [
        (ScalingAction.REMOVE_PARTITIONS, 20, 2),
        (ScalingAction.REMOVE_CONSUMERS, 9, 2),
    ]
    assert decisions[1].metric == "consumers"


def test_lower_limits_take_effect_at_the_next_look(make):
    scaler = make()
    scaler.reconfigure(ScalabilityConfig(max_partitions=3, max_consumers=2))
    assert scaler.config.max_partitions == 3
    decisions = scaler.decide(measured(rate=40_000, partitions=8, consumers=5))
    assert steps(decisions) == [
        (ScalingAction.REMOVE_PARTITIONS, 8, 3),
        (ScalingAction.REMOVE_CONSUMERS, 5, 2),
    ]
    assert (decisions[0].metric, decisions[0].value, decisions[0].threshold) == ("partitions", 8, 3)


@pytest.mark.acceptance(82)
def test_a_topic_cools_down_and_others_do_not_wait_for_it(make, clock):
    scaler = make()
    busy = measured(rate=1e6)
    assert scaler.decide(busy)
    assert scaler.decide(measured(topic="other", rate=1e6))
    clock.advance(299.9)
    assert scaler.decide(busy) == ()
    assert scaler.cooldown_left("t") == pytest.approx(0.1)
    clock.advance(0.1)
    assert scaler.cooldown_left("t") == 0
    assert scaler.decide(busy)


def test_every_decision_is_kept_and_says_why(make, clock):
    scaler = make()
    clock.advance(60)
    (decision,) = scaler.decide(measured(rate=9_000))
    assert scaler.decisions() == scaler.decisions("t") == (decision,)
    assert scaler.decisions("other") == ()
    assert decision.decided_at == datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
    assert (decision.metric, decision.value, decision.threshold) == ("rate", 9_000, 8_000)
    assert decision.reason == (
        "9,000 records/s are more than the 8,000 that 1 partitions should carry"
    )


def test_the_history_is_bounded(clock):
    scaler = Autoscaler(history_max=3, system=System(clock=clock))
    for number in range(5):
        scaler.decide(measured(topic=f"t{number}", rate=1e6))
    assert [one.topic for one in scaler.decisions()] == ["t2", "t3", "t4"]
    with pytest.raises(InvalidOption):
        Autoscaler(history_max=0)


fractions = st.tuples(st.floats(0, 0.95), st.floats(0.01, 1)).filter(lambda one: one[0] < one[1])


@given(
    fractions,
    st.integers(1, 40),
    st.integers(1, 15),
    st.lists(
        st.tuples(st.floats(0, 1e6), st.floats(0, 1e5), st.floats(0, 400)), min_size=1, max_size=20
    ),
)
def test_whatever_is_measured_it_stays_within_its_limits_and_waits(
    marks, partitions, consumers, looks
):
    clock = VirtualClock()
    config = ScalabilityConfig(
        max_partitions=partitions,
        max_consumers=consumers,
        scale_down_threshold=marks[0],
        scale_up_threshold=marks[1],
    )
    scaler = Autoscaler(config, system=System(clock=clock))
    now = {"partitions": 1, "consumers": 1}
    moments = []
    for rate, lag, wait in looks:
        clock.advance(wait)
        decisions = scaler.decide(measured(rate=rate, lag_ms=lag, **now))
        moments += [clock.monotonic()] if decisions else []
        for one in decisions:
            which = one.action.rpartition("_")[2]
            assert one.before == now[which] != one.after
            assert (one.after > one.before) == one.action.startswith("add")
            now[which] = one.after
        assert 1 <= now["partitions"] <= partitions
        assert 1 <= now["consumers"] <= min(consumers, now["partitions"])
    assert all(b - a >= 300 - 1e-6 for a, b in pairwise(moments))


@given(fractions, st.floats(0, 1e6), st.integers(1, 40))
def test_a_rate_that_stays_has_one_answer(marks, rate, partitions):
    config = ScalabilityConfig(
        scale_down_threshold=marks[0], scale_up_threshold=marks[1], cooldown_seconds=0
    )
    scaler = Autoscaler(config, system=System(clock=VirtualClock()))
    for decision in scaler.decide(measured(rate=rate, partitions=partitions)):
        partitions = decision.after
    assert scaler.decide(measured(rate=rate, partitions=partitions)) == ()


# With a load


def apart(times):
    return [later - earlier for earlier, later in pairwise(times) if later > earlier]


@pytest.mark.acceptance(78, 79, 80, 82)
def test_a_load_that_rises_and_falls_takes_the_topic_up_and_down():
    load = Load(speed=9_000)
    load.run(rate=5_000, seconds=600)
    assert (load.partitions, load.consumers) == (1, 1)
    assert load.scaler.decisions() == ()
    load.run(rate=40_000, seconds=300)
    assert load.partitions > 1  # by what was measured while the rate rose
    load.run(rate=40_000, seconds=300)
    assert load.partitions == 8
    load.run(rate=40_000, seconds=3_000)
    assert load.partitions == 8
    assert 5 <= load.consumers <= 8  # five can do it, eight were there to catch up
    assert max(one.after for one in load.scaler.decisions() if "consumers" in one.action) == 8
    assert load.lag_ms() <= load.config.max_lag_ms
    load.run(rate=1_000, seconds=900)
    assert load.partitions == 1
    assert load.consumers == 1
    assert load.backlog == type(load.backlog)()
    assert all(time >= 300 for time in apart(load.times))


@pytest.mark.acceptance(80)
def test_consumers_come_and_go_with_the_lag_while_partitions_stay():
    load = Load(speed=500, target_throughput_per_partition=400, max_partitions=20)
    load.run(rate=4_000, seconds=7_200)
    assert 8 <= load.consumers <= 10
    assert max(one.after for one in load.scaler.decisions() if "consumers" in one.action) == 10
    assert load.lag_ms() <= load.config.max_lag_ms
    partitions = load.partitions
    load.run(rate=3_000, seconds=7_200)
    assert load.partitions == partitions
    assert 6 <= load.consumers <= 8


@pytest.mark.acceptance(81)
def test_a_decision_moves_partitions_to_the_new_consumers():
    load = Load(speed=9_000)
    load.run(rate=40_000, seconds=2_000)
    assert load.moved > 0
    assert sorted(one for several in load.assignment.values() for one in several) == list(
        range(load.partitions)
    )
    assert len(load.assignment) == load.consumers


def test_a_steady_load_does_not_make_consumers_come_and_go():
    load = Load(speed=1_000)
    load.run(rate=4_500, seconds=2_400)
    before = len(load.times)
    load.run(rate=4_500, seconds=3_000)
    assert len(load.times) == before


def test_what_was_too_much_once_is_tried_again_later(make, clock):
    scaler = make()
    look = {"rate": 20_000, "partitions": 4}
    assert scaler.decide(measured(lag_ms=60_000, consumers=1, **look))
    clock.advance(300)
    assert scaler.decide(measured(lag_ms=0, consumers=2, **look)) == ()
    clock.advance(12 * 300)
    assert steps(scaler.decide(measured(lag_ms=0, consumers=2, **look))) == [
        (ScalingAction.REMOVE_CONSUMERS, 2, 1)
    ]


def test_what_is_known_of_topics_is_bounded(make, monkeypatch):
    monkeypatch.setattr("penstock.streaming.autoscaling.TOPICS_MAX", 3)
    scaler = make()
    for number in range(5):
        scaler.decide(measured(topic=f"t{number}", rate=1e6))
    assert scaler.cooldown_left("t1") == 0
    assert scaler.cooldown_left("t2") == 300
