"""What producers feel: of calls that wait, and of groups that lag."""

import asyncio

import pytest

from penstock import Event, critical, topic
from penstock.errors import BufferFull, InvalidOption, LoadShed
from penstock.pressure import BackpressureState, BackpressureStrategy
from penstock.streaming import LagLimit, StreamingScalingManager, StreamLimits
from penstock.transports import EmbeddedTransport
from tests.streaming.manager_world import GatedTransport, take, turns, until, values, virtual

DEPTH = 20


@critical
@topic("alarms")
class Alarm(Event):
    text: str


async def pressed(strategy, waiting):
    """A manager whose transport does not answer, with calls in flight and waiting."""
    limits = StreamLimits(publish_queue_max=DEPTH, publishes_in_flight_max=2)
    streams, clock = virtual(transport=GatedTransport, limits=limits, strategy=strategy)
    await streams.open()
    streams.transport().gate.clear()
    calls = []
    for number in range(waiting + 2):
        calls.append(asyncio.ensure_future(streams.publish("orders", b"%d" % number, timeout=900)))
        await turns()
    return streams, clock, calls


@pytest.mark.acceptance(83)
async def test_above_the_configured_depth_load_is_shed_and_succeeds_later():
    streams, _, calls = await pressed(BackpressureStrategy.SHED_LOAD, 19)
    assert streams.current_backpressure_state is BackpressureState.SHEDDING
    with pytest.raises(LoadShed) as caught:
        await streams.publish("orders", b"too much")
    assert caught.value.code == "SHED_LOAD"
    assert caught.value.retry_after == 1.0
    streams.transport().gate.set()
    await asyncio.gather(*calls)
    await streams.publish("orders", b"later")
    assert streams.statistics()["default"].errors == {"LoadShed": 1}
    await streams.close()


@pytest.mark.acceptance(83)
async def test_producers_are_blocked_until_there_is_room_and_nothing_is_lost():
    streams, _, calls = await pressed(BackpressureStrategy.BLOCK_PRODUCER, 30)
    assert len(streams.handler) == 17, "the critical threshold of 20"
    assert streams.get_scaling_metrics()["publishes_waiting"] == 17
    streams.transport().gate.set()
    await asyncio.gather(*calls)
    async with streams.subscribe("orders", "billing") as events:
        assert values(await take(events, 32)) == [b"%d" % number for number in range(32)]
    await streams.close()


@pytest.mark.acceptance(83)
async def test_the_oldest_are_dropped_and_their_publishers_are_told():
    streams, _, calls = await pressed(BackpressureStrategy.DROP_OLDEST, 23)
    dropped = [await asyncio.gather(one, return_exceptions=True) for one in calls[2:5]]
    assert all(isinstance(error, BufferFull) for [error] in dropped)
    streams.transport().gate.set()
    await asyncio.gather(*calls[:2], *calls[5:])
    assert streams.handler.statistics().dropped == 3
    await streams.close()


@pytest.mark.acceptance(83)
async def test_quality_is_degraded_and_restored():
    streams, _, calls = await pressed(BackpressureStrategy.DEGRADE_QUALITY, 18)
    assert streams.handler.directive.skip_enrichment
    streams.transport().gate.set()
    await asyncio.gather(*calls)
    assert not streams.handler.directive.degraded
    await streams.close()


@pytest.mark.acceptance(83)
async def test_adaptive_follows_the_depth_and_the_strategy_may_change_at_any_time():
    streams, _, calls = await pressed(BackpressureStrategy.ADAPTIVE, 18)
    assert streams.handler.statistics().average > 0.5
    streams.strategy = BackpressureStrategy.SHED_LOAD
    calls.append(asyncio.ensure_future(streams.publish("orders", b"", critical=True)))
    await turns()
    assert len(streams.handler) >= 18
    streams.transport().gate.set()
    await asyncio.gather(*calls)
    await streams.close()


# Lag


async def lagging(streams, clock, records=0, seconds=0.0, group="billing"):
    """Let a group commit nothing of so many records, the first of them so old."""
    async with streams.subscribe("orders", group, auto_commit=None) as events:
        await events.open()
    if records:
        await streams.publish_many("orders", [b""] * records)
    clock.advance(seconds)
    await streams.look()


@pytest.fixture
async def limited():
    limits = {"orders": LagLimit(records_max=100, seconds_max=60)}
    streams, clock = virtual(lag_limits=limits)
    async with streams:
        await streams.create_topic("orders")
        yield streams, clock


async def test_a_group_that_lags_a_little_shows_in_a_header(limited):
    streams, clock = limited
    await lagging(streams, clock, records=75)
    await streams.publish("orders", b"told", headers={"own": "1"})
    await streams.publish("refunds", b"not told")
    async with streams.subscribe("orders", "reader") as events:
        told = (await take(events, 76))[-1]
    assert told.headers == {"own": b"1", "X-Backpressure": b"warning"}
    async with streams.subscribe("refunds", "reader") as events:
        assert (await take(events, 1))[0].headers == {}


async def test_a_group_that_lags_more_slows_producers_and_the_next_look_frees_them(limited):
    streams, clock = limited
    await lagging(streams, clock, records=90)
    publishing = asyncio.ensure_future(streams.publish("orders", b"slowed"))
    await turns()
    assert not publishing.done()
    clock.advance(1.0)
    await publishing
    async with streams.subscribe("orders", "billing") as events:
        await take(events, 91)
        await events.commit()
    await streams.look()
    await streams.publish("orders", b"quick")


async def test_a_group_that_lags_too_much_sheds_what_is_not_critical(limited):
    streams, clock = limited
    await lagging(streams, clock, records=100)
    for _ in range(2):
        with pytest.raises(LoadShed) as caught:
            await streams.publish("orders", b"refused")
        assert (caught.value.topic, caught.value.code) == ("orders", "SHED_LOAD")
    important = asyncio.ensure_future(streams.publish("orders", b"important", critical=True))
    await turns()
    clock.advance(1.0)
    await important
    pressure = streams.lag_pressure.statistics("orders")
    assert pressure.level is BackpressureState.SHEDDING
    assert "billing" in pressure.explain()


async def test_a_message_that_is_marked_critical_is_never_shed():
    streams, clock = virtual(lag_limits={"*": LagLimit(records_max=10)})
    async with streams:
        await streams.create_topic("alarms")
        async with streams.subscribe("alarms", "slow", auto_commit=None) as events:
            await events.open()
        await streams.publish_many("alarms", [b""] * 20)
        await streams.look()
        with pytest.raises(LoadShed):
            await streams.publish("alarms", b"plain")
        alarm = asyncio.ensure_future(streams.publish(Alarm(text="fire")))
        await turns()
        assert not alarm.done(), "it waits the full second"
        clock.advance(1.0)
        await alarm


async def test_lag_counts_in_seconds_too(limited):
    streams, clock = limited
    await lagging(streams, clock, records=1)
    for _ in range(6):
        clock.advance(9.5)
        await turns()
    await streams.look()
    decision = streams.lag_pressure.decide("orders")
    assert decision.rejected or decision.delayed
    assert streams.get_scaling_metrics()["lag_seconds"]["orders"]["billing"] == 57.0


async def test_the_worst_group_counts_and_each_may_have_a_limit_of_its_own():
    limits = {"orders": LagLimit(records_max=100), "orders/reports": LagLimit(records_max=100_000)}
    streams, clock = virtual(lag_limits=limits)
    async with streams:
        await streams.create_topic("orders")
        await lagging(streams, clock, group="reports")
        await streams.publish_many("orders", [b""] * 500)
        await streams.look()
        await streams.publish("orders", b"reports may lag")
        async with streams.subscribe("orders", "billing", start="latest") as events:
            await events.open()
        await streams.publish_many("orders", [b""] * 96)
        await streams.look()
        with pytest.raises(LoadShed):
            await streams.publish("orders", b"billing may not")
        streams.lag_pressure.limits = {}
        await streams.publish("orders", b"nobody is limited")


async def test_it_does_not_matter_whose_group_it_is(tmp_path):
    """The lag is read from what the groups committed: this one is of another program."""
    async with EmbeddedTransport(str(tmp_path)) as elsewhere:
        await elsewhere.create_topic("orders")
        async with elsewhere.subscribe("orders", "spark-pipeline") as consumer:
            await consumer.open()
        limits = {"orders": LagLimit(records_max=10)}
        async with StreamingScalingManager(f"log:{tmp_path}", lag_limits=limits) as streams:
            await streams.publish_many("orders", [b""] * 20)
            await streams.look()
            with pytest.raises(LoadShed):
                await streams.publish("orders", b"")
            async with elsewhere.subscribe("orders", "spark-pipeline") as consumer:
                await consumer.commit({0: 20})
            await streams.look()
            await streams.publish("orders", b"")


async def test_the_topics_are_looked_at_by_themselves():
    streams, clock = virtual(lag_limits={"orders": LagLimit(records_max=10)}, look_seconds=2)
    async with streams:
        await streams.create_topic("orders")
        async with streams.subscribe("orders", "billing", auto_commit=None) as events:
            await events.open()
        await streams.publish_many("orders", [b""] * 20)
        await streams.publish("orders", b"nobody has looked yet")
        for _ in range(2):
            clock.advance(2)
            await until(lambda: streams.lag_pressure.statistics("orders") is not None)
        with pytest.raises(LoadShed):
            await streams.publish("orders", b"")


@pytest.mark.parametrize("wrong", [{"records_max": 0}, {"seconds_max": -1.0}])
def test_a_limit_that_cannot_be_is_refused(wrong):
    with pytest.raises(InvalidOption):
        LagLimit(**wrong)
