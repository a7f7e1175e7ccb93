"""A load generator on virtual time drives the scaler over a real log: up, and down again."""

import asyncio
from collections import Counter
from contextlib import contextmanager
from itertools import pairwise

import pytest

from penstock.streaming import (
    ScalabilityConfig,
    ScalingAction,
    ScalingOutcome,
    StreamingScalingManager,
)
from penstock.system import System
from penstock.testing import VirtualClock
from penstock.transports import EmbeddedTransport
from tests.streaming.manager_world import turns, until, virtual

KEYS = 20


class World:
    """Publishes at a rate, second by second, and looks."""

    def __init__(self, streams, clock):
        self.streams = streams
        self.clock = clock
        self.published: dict[bytes, int] = dict.fromkeys((b"%d" % n for n in range(KEYS)), 0)
        self.handled: dict[bytes, list[int]] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.turn = 0

    async def handle(self, event):
        await self.gate.wait()
        self.handled.setdefault(event.key, []).append(int(event.value))

    async def publish(self, count):
        keys = []
        for _ in range(count):
            keys.append(b"%d" % (self.turn % KEYS))
            self.turn += 1
        values = []
        for key in keys:
            values.append(b"%d" % self.published[key])
            self.published[key] += 1
        await self.streams.publish_many("orders", values, keys=keys)

    async def seconds(self, count, rate=0):
        for _ in range(count):
            if rate:
                await self.publish(rate)
            self.clock.advance(1)
            await turns()
            await self.streams.look()

    @contextmanager
    def nothing_handled(self):
        """Let all handlers wait meanwhile."""
        self.gate.clear()
        try:
            yield
        finally:
            self.gate.set()

    @property
    def count(self):
        return sum(map(len, self.handled.values()))

    async def drain(self):
        """Let time pass until all is handled."""
        for _ in range(200):
            if self.count >= self.turn:
                break
            await self.seconds(1)
            await asyncio.sleep(0.01)
        assert self.count >= self.turn

    def assert_conserved_and_in_order(self):
        assert {key: len(several) for key, several in self.handled.items()} == {
            key: count for key, count in self.published.items() if count
        }, "none lost, none twice"
        for several in self.handled.values():
            assert several == sorted(several), "in the order of its key"

    async def partitions(self):
        return await self.streams.transport().partitions("orders")


def world(**config):
    streams, clock = virtual(config=ScalabilityConfig(**config), look_seconds=1_000_000)
    return World(streams, clock)


@pytest.mark.acceptance(78)
async def test_partitions_follow_the_rate_and_nothing_is_lost_or_reordered():
    load = world(target_throughput_per_partition=10, cooldown_seconds=10, max_partitions=8)
    async with load.streams as streams:
        async with streams.run("orders", "billing", load.handle, auto_commit=1.0):
            await load.seconds(12, rate=5)
            assert await load.partitions() == 1
            await load.seconds(45, rate=30)
            assert 30 / 8 <= await load.partitions() <= 6, "between the mark and its middle"
            await load.seconds(70, rate=2)
            assert await load.partitions() == 1
            await load.drain()
        load.assert_conserved_and_in_order()
        decisions = streams.decisions("orders")
    assert {one.outcome for one in decisions} == {ScalingOutcome.DONE}
    ups = [one for one in decisions if one.decision.action is ScalingAction.ADD_PARTITIONS]
    downs = [one for one in decisions if one.decision.action is ScalingAction.REMOVE_PARTITIONS]
    assert ups
    assert downs
    first = ups[0].decision
    assert (first.metric, first.before) == ("rate", 1)
    assert first.value > first.threshold == 8.0
    assert "records/s" in ups[0].explain()


@pytest.mark.acceptance(79)
async def test_partitions_are_added_above_the_threshold_and_never_past_the_maximum():
    load = world(
        target_throughput_per_partition=10,
        scale_up_threshold=0.8,
        cooldown_seconds=5,
        max_partitions=3,
    )
    async with load.streams as streams:
        async with streams.run("orders", "billing", load.handle, auto_commit=1.0):
            await load.seconds(35, rate=8)
            assert streams.decisions() == (), "8 records/s are the threshold, and not above it"
            await load.seconds(4, rate=30)
            [record] = streams.decisions()
            assert record.decision.threshold == pytest.approx(8.0)
            await load.seconds(60, rate=100)
            assert await load.partitions() == 3
            await load.drain()
        assert max(one.decision.after for one in streams.decisions()) == 3
    load.assert_conserved_and_in_order()


@pytest.mark.acceptance(80)
async def test_consumers_follow_the_lag_up_to_the_maximum_and_down_again():
    load = world(
        max_lag_ms=5_000, max_consumers=3, cooldown_seconds=10, target_throughput_per_partition=5
    )
    async with load.streams as streams:
        await streams.create_topic("orders", partitions=8)
        async with streams.run("orders", "billing", load.handle, auto_commit=1.0) as run:
            with load.nothing_handled():
                await load.seconds(5, rate=20)
                assert run.consumers == 1, "the oldest is 5 s old, and that is not too much"
                await load.seconds(2, rate=20)
                assert run.consumers == 2
                await load.seconds(25, rate=20)
                assert run.consumers == 3, "not more than the maximum"
            [first, *_] = [
                one
                for one in streams.decisions()
                if one.decision.action is ScalingAction.ADD_CONSUMERS
            ]
            assert (first.decision.metric, first.group) == ("lag_ms", "billing")
            assert first.decision.value > first.decision.threshold == 5_000
            await load.drain()
            await load.seconds(40)
            assert run.consumers == 1
        lag = await streams.transport().lag("orders", "billing")
        assert sum(one.records for one in lag) == 0


@pytest.mark.acceptance(80)
async def test_what_is_handled_and_not_committed_yet_is_no_lag():
    load = world(max_lag_ms=2_000, cooldown_seconds=5)
    async with load.streams as streams:
        await streams.create_topic("orders", partitions=4)
        async with streams.run("orders", "billing", load.handle, auto_commit=1_000) as run:
            for _ in range(10):
                await load.seconds(1, rate=20)
                await until(lambda: load.count == load.turn)
            metrics = streams.get_scaling_metrics()
            assert metrics["lag_seconds"]["orders"]["billing"] > 5
            assert run.consumers == 1


@pytest.mark.acceptance(82)
async def test_there_are_no_two_decisions_within_the_cool_down():
    load = world(target_throughput_per_partition=10, cooldown_seconds=20, max_partitions=16)
    async with load.streams as streams:
        async with streams.run("orders", "billing", load.handle, auto_commit=1.0):
            for rate in (5, 40, 2, 60):
                await load.seconds(30, rate=rate)
            await load.drain()
        times = sorted({one.decision.decided_at for one in streams.decisions()})
    assert len(times) >= 3
    assert all((later - sooner).total_seconds() >= 20 for sooner, later in pairwise(times))


@pytest.mark.acceptance(82)
async def test_nothing_is_taken_away_before_it_was_looked_at_for_a_cool_down():
    load = world(cooldown_seconds=300)
    assert load.streams.config == ScalabilityConfig()
    async with load.streams as streams:
        await streams.create_topic("orders", partitions=4)
        async with streams.run("orders", "billing", load.handle, consumers=2) as run:
            for _ in range(99):
                await load.seconds(1)
                load.clock.advance(2)
            assert (await load.partitions(), run.consumers) == (4, 2)
            for _ in range(3):
                await load.seconds(1)
                load.clock.advance(2)
            assert (await load.partitions(), run.consumers) == (1, 1)


@pytest.mark.acceptance(90)
async def test_lower_limits_take_partitions_and_consumers_away_without_a_restart():
    load = world(cooldown_seconds=1, max_partitions=8, max_consumers=4)
    async with load.streams as streams:
        await streams.create_topic("orders", partitions=6)
        async with streams.run(
            "orders", "billing", load.handle, consumers=4, auto_commit=1.0
        ) as run:
            limits = streams.current_limits.with_(max_partitions=2, max_consumers=1)
            streams.reconfigure_limits(limits)
            await load.seconds(1, rate=40)
            assert (await load.partitions(), run.consumers) == (2, 1)
            await load.drain()
    assert Counter({key: len(one) for key, one in load.handled.items()}) == Counter(load.published)


async def test_a_transport_that_cannot_repartition_says_so_in_the_record():
    class Fixed(EmbeddedTransport):
        async def repartition(self, topic, partitions):
            await super(EmbeddedTransport, self).repartition(topic, partitions)

    clock = VirtualClock()
    system = System(clock=clock)
    streams = StreamingScalingManager(
        Fixed("memory:", system=system),
        config=ScalabilityConfig(target_throughput_per_partition=1, cooldown_seconds=5),
        look_seconds=1_000_000,
        system=system,
    )
    load = World(streams, clock)
    async with streams:
        streams.autoscale("orders")
        await load.seconds(10, rate=20)
        outcomes = {one.outcome for one in streams.decisions("orders")}
        assert outcomes == {ScalingOutcome.NOT_SUPPORTED}
        assert "cannot" in streams.decisions()[0].explain()
        assert await load.partitions() == 1


async def test_the_scaler_looks_by_itself():
    streams, clock = virtual(
        config=ScalabilityConfig(target_throughput_per_partition=1, cooldown_seconds=5)
    )
    load = World(streams, clock)
    async with streams:
        streams.autoscale("orders")
        for _ in range(5):
            await load.publish(20)
            clock.advance(1)
            await turns()
        await until(lambda: streams.decisions("orders"))
        assert streams.decisions("refunds") == ()
