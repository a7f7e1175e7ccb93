"""The manager as a subsystem that scales and presses back: figures, limits, state."""

import asyncio

import pytest

from penstock.errors import InvalidOption
from penstock.pressure import (
    BackpressureAware,
    BackpressureContext,
    BackpressureState,
    BackpressureStrategy,
)
from penstock.streaming import ScalabilityConfig, StreamingScalingManager, StreamLimits
from penstock.testing import ScalableSubsystemConformance
from tests.streaming.manager_world import GatedTransport, take, turns, virtual


class TestTheManagerAsASubsystem(ScalableSubsystemConformance):
    @pytest.fixture
    async def subsystem(self):
        async with StreamingScalingManager() as streams:
            await streams.publish("orders", b"")
            await streams.look()
            yield streams


@pytest.mark.acceptance(89)
async def test_the_figures_are_all_there_and_right():
    streams, clock = virtual()
    async with streams:
        await streams.create_topic("orders", partitions=4)
        async with streams.subscribe("orders", "billing", auto_commit=None) as events:
            await events.open()
            await streams.look()
            for _ in range(10):
                await streams.publish_many("orders", [b"x"] * 40)
                clock.advance(1)
                await turns()
                await streams.look()
            for event in await take(events, 100):
                await event.commit()
            await streams.look()
            metrics = streams.get_scaling_metrics()
            stands = await streams.transport().lag("orders", "billing")
    assert metrics["partitions"] == {"orders": 4}
    assert metrics["throughput"]["orders"] == pytest.approx(40, rel=0.05)
    assert metrics["lag_records"] == {"orders": {"billing": 300}}
    oldest = max(one.milliseconds for one in stands)
    assert metrics["lag_seconds"] == {"orders": {"billing": oldest / 1_000}}
    assert oldest > 0
    assert metrics["checkpoints"]["orders"]["billing"] == {
        f"partition-{one.partition}": one.committed for one in stands
    }
    assert sum(one.committed for one in stands) == 100
    assert metrics["transports"]["default"]["published"] == 400


@pytest.mark.acceptance(91)
async def test_limits_and_config_agree():
    config = ScalabilityConfig(max_partitions=8, max_consumers=3)
    async with StreamingScalingManager(config=config) as streams:
        assert streams.current_limits == StreamLimits(max_partitions=8, max_consumers=3)
        other = StreamLimits(max_partitions=5, max_consumers=2, publish_queue_max=7)
        streams.reconfigure_limits(other)
        assert streams.current_limits == other
        assert (streams.config.max_partitions, streams.config.max_consumers) == (5, 2)
        assert streams.config.max_lag_ms == config.max_lag_ms
        with pytest.raises(InvalidOption):
            streams.reconfigure_limits(None)  # type: ignore[arg-type]
        assert streams.current_limits == other


@pytest.mark.acceptance(90)
async def test_the_size_of_the_queue_changes_while_publishers_wait():
    limits = StreamLimits(publish_queue_max=10, publishes_in_flight_max=1)
    streams, _ = virtual(
        transport=GatedTransport, limits=limits, strategy=BackpressureStrategy.BLOCK_PRODUCER
    )
    async with streams:
        streams.transport().gate.clear()
        calls = [asyncio.ensure_future(streams.publish("orders", b"%d" % n)) for n in range(30)]
        await turns()
        assert len(streams.handler) == 9
        streams.reconfigure_limits(limits.with_(publish_queue_max=20))
        await turns()
        assert len(streams.handler) == 17
        streams.reconfigure_limits(limits.with_(publishes_in_flight_max=6))
        await turns()
        assert streams.get_scaling_metrics()["publishes_in_flight"] == 6
        streams.transport().gate.set()
        await asyncio.gather(*calls)


@pytest.mark.acceptance(90, 93)
async def test_the_size_of_the_checkpoint_cache_changes_and_all_are_in_the_store():
    async with StreamingScalingManager() as streams:
        await streams.create_topic("orders", partitions=8)
        await streams.publish_many("orders", [b""] * 80)
        async with streams.subscribe("orders", "billing", auto_ack=False) as events:
            for event in await take(events, 80):
                if event.offset % 2:
                    event.ack()
        checkpoints = streams._transports.find().checkpoints
        assert checkpoints is not None
        assert checkpoints.statistics().entries == 8
        streams.reconfigure_limits(streams.current_limits.with_(checkpoint_cache_entries_max=3))
        assert checkpoints.statistics().entries == 3
        found = await checkpoints.checkpoints("billing", "orders")
        assert [one.partition for one in found] == list(range(8))


@pytest.mark.acceptance(92)
async def test_the_state_is_that_of_the_handler():
    streams, _ = virtual(
        transport=GatedTransport,
        limits=StreamLimits(publish_queue_max=10, publishes_in_flight_max=1),
        strategy=BackpressureStrategy.DEGRADE_QUALITY,
    )
    async with streams:
        streams.transport().gate.clear()
        calls, states = [], set()
        told: list = []
        stop = streams.on_backpressure_changed(told.append)
        for number in range(11):
            calls.append(asyncio.ensure_future(streams.publish("orders", b"%d" % number)))
            await turns()
            assert streams.current_backpressure_state is streams.handler.current_state
            assert streams.current_state is streams.handler.current_state
            states.add(streams.current_backpressure_state)
        assert states == set(BackpressureState)
        assert [one.subsystem for one in told] == ["streaming"] * 3
        stop()
        streams.transport().gate.set()
        await asyncio.gather(*calls)
        assert streams.current_backpressure_state is BackpressureState.NORMAL


async def test_it_presses_back_as_the_contract_says():
    async with StreamingScalingManager() as streams:
        assert isinstance(streams, BackpressureAware)
        for strategy in BackpressureStrategy:
            streams.strategy = strategy
            assert streams.strategy is streams.handler.strategy is strategy
        streams.strategy = BackpressureStrategy.DEGRADE_QUALITY
        decision = await streams.apply_backpressure(BackpressureContext(depth=90, capacity=100))
        assert decision.directive.skip_enrichment
