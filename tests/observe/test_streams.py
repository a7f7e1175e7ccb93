"""Groups of streams: runs, brokers, members that come and go."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from penstock import StreamingScalingManager, System, WalMessageQueue
from penstock.observe import Cause, GroupActivity, GroupKind, Observer
from penstock.testing import VirtualClock
from penstock.transports import ConnectionStatistics, EmbeddedTransport, Transport

STALL = 30.0


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def observer(clock):
    return Observer(stall_seconds=STALL, system=System(clock=clock))


async def until(wanted):
    async with asyncio.timeout(120):
        while not wanted():
            await asyncio.sleep(0.005)


async def stall_of(observer, clock):
    await observer.look()
    clock.advance(STALL)
    [stall] = (await observer.look()).stalls
    return stall


async def test_a_run_tells_the_offset_and_where_its_handler_waits(observer, clock):
    gate = asyncio.Event()
    seen = []

    async def bill(event):
        seen.append(event.offset)
        if event.offset == 2:
            await gate.wait()

    async with StreamingScalingManager("memory:", look_seconds=1_000) as streams:
        observer.watch(streams, name="shop")
        await streams.create_topic("orders", partitions=1)
        options: Any = {"auto_commit": 0.01, "stop_seconds": 1}
        async with streams.run("orders", "billing", bill, **options):
            for number in range(4):
                await streams.publish("orders", str(number))
            while [one.partitions[0].committed for one in (await observer.look()).groups] != [2]:
                await asyncio.sleep(0.005)
            stall = await stall_of(observer, clock)
            assert (stall.group, stall.topic, stall.offset) == ("billing", "orders", 2)
            assert stall.cause is Cause.HANDLER
            assert "bill: await gate.wait()" in stall.stack[0]
            assert stall.local
            snapshot = observer.snapshot()
            [run] = snapshot.streams[0].runs
            assert (run.group, run.consumers) == ("billing", 1)
            gate.set()
            await until(lambda: len(seen) == 4)


async def test_a_parked_record_is_the_cause(observer, clock):
    async def bill(event):
        raise ValueError("never")

    async with StreamingScalingManager("memory:", look_seconds=1_000) as streams:
        observer.watch(streams)
        await streams.create_topic("orders", partitions=1)
        run = streams.run("orders", "billing", bill, attempts=1)
        async with run:
            await streams.publish("orders", "1")
            await until(lambda: run.statistics().parked == 1)
            stall = await stall_of(observer, clock)
            assert (stall.cause, stall.offset) == (Cause.PARKED, 0)
            assert "ValueError('never')" in stall.detail
            assert observer.health().alive


async def test_members_that_come_and_go_and_commit_nothing_are_a_loop(tmp_path, observer, clock):
    transport = EmbeddedTransport(tmp_path)
    async with transport, WalMessageQueue(tmp_path, read_only=True) as files:
        await transport.create_topic("orders", partitions=1)
        async with transport.subscribe("orders", "billing"):
            pass
        await transport.produce("orders", [b"1"])
        observer.watch(files)
        await observer.look()
        for _ in range(2):
            async with transport.subscribe("orders", "billing"):
                pass
        clock.advance(STALL)
        [stall] = (await observer.look()).stalls
        assert stall.cause is Cause.REBALANCING
        assert "the members changed 4 times" in stall.detail


async def test_a_group_without_members_is_told_apart(tmp_path, observer, clock):
    transport = EmbeddedTransport(tmp_path)
    async with transport, WalMessageQueue(tmp_path, read_only=True) as files:
        await transport.create_topic("orders", partitions=1)
        async with transport.subscribe("orders", "billing") as consumer:
            await transport.produce("orders", [b"1"])
            await consumer.next_batch()
            observer.watch(files)
            snapshot = await observer.look()
            [group] = snapshot.groups
            assert len(group.members) == 1
            assert group.local, "the member is of this process"
        assert (await stall_of(observer, clock)).cause is Cause.NO_MEMBER


class Broker(Transport):
    """A transport to a broker that can be away; the broker is an embedded log."""

    name = "broker"

    def __init__(self):
        self._log = EmbeddedTransport("memory:")
        self.capabilities = replace(self._log.capabilities, shared=False)
        self.away = False

    @classmethod
    def from_url(cls, url, **options):
        return cls()

    async def open(self):
        await self._log.open()

    async def close(self, timeout=30.0):
        await self._log.close(timeout)

    async def produce(self, topic, values, **options):
        return await self._log.produce(topic, values, **options)

    def subscribe(self, topic, group, **options):
        return self._log.subscribe(topic, group, **options)

    async def create_topic(self, topic, *, partitions=None, **options):
        await self._log.create_topic(topic, partitions=partitions, **options)

    async def topics(self):
        return await self._log.topics()

    async def partitions(self, topic):
        return await self._log.partitions(topic)

    async def groups(self, topic):
        return await self._log.groups(topic)

    async def lag(self, topic, group):
        if self.away:
            raise ConnectionError("no route")
        return await self._log.lag(topic, group)

    async def forget(self, topic, group):
        await self._log.forget(topic, group)

    def statistics(self):
        return ConnectionStatistics(
            transport=self.name,
            connected=not self.away,
            reconnects=0,
            errors=int(self.away),
            last_error=None,
        )


async def test_a_broker_that_is_away_is_the_cause(observer, clock, caplog):
    async with Broker() as broker:
        await broker.create_topic("orders", partitions=1)
        async with broker.subscribe("orders", "billing"):
            pass
        observer.watch(broker)
        assert (await observer.look()).groups[0].state is GroupActivity.IDLE
        await broker.produce("orders", [b"1"])
        [group] = (await observer.look()).groups
        assert (group.kind, group.lag_records) == (GroupKind.BROKER, 1)
        assert observer.health().ready
        broker.away = True
        clock.advance(2)
        [group] = (await observer.look()).groups
        assert (group.state, group.cause) == (GroupActivity.PAUSED, Cause.BROKER_SILENT)
        assert not observer.health().ready
        clock.advance(STALL)
        snapshot = await observer.look()
        [stall] = snapshot.stalls
        assert stall.cause is Cause.BROKER_SILENT
        assert "broker does not answer: ConnectionError: no route" in stall.detail
        assert not snapshot.transports[0].connection.connected
        assert observer.health().alive, "a new process would find the same broker"
        broker.away = False
        assert (await observer.look()).groups[0].cause is not Cause.BROKER_SILENT


async def test_the_groups_of_a_manager_on_a_broker_are_seen(observer, clock):
    broker = Broker()
    async with StreamingScalingManager(broker) as streams:
        observer.watch(streams)
        await streams.create_topic("orders", partitions=1)
        async with streams.subscribe("orders", "billing", auto_commit=None) as events:
            await streams.publish("orders", "1")
            await anext(aiter(events))
            await streams.look()
            snapshot = await observer.look()
            [group] = snapshot.groups
            assert (group.kind, group.lag_records, group.local) == (GroupKind.BROKER, 1, True)
            assert [one.name for one in snapshot.transports] == ["broker"]
            assert snapshot.streams[0].transports["default"].published == 1
