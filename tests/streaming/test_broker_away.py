"""A broker that goes away under a streaming manager: seen in figures and as pressure, and nothing is lost."""

import asyncio

import pytest

from penstock.pressure import BackpressureState, BackpressureStrategy
from penstock.streaming import StreamingScalingManager, StreamLimits
from tests.streaming.manager_world import take, values
from tests.transports.servers.nats import nats_server

pytest.importorskip("nats")
from penstock.transports.nats import NatsTransport

COUNT = 30


async def until(what):
    async with asyncio.timeout(120):
        while not what():
            await asyncio.sleep(0.01)


async def test_a_broker_that_is_away_is_pressure_and_shows_in_the_figures():
    limits = StreamLimits(publish_queue_max=20, publishes_in_flight_max=2)
    with nats_server() as server:
        strategy = BackpressureStrategy.BLOCK_PRODUCER
        async with StreamingScalingManager(server.url, limits=limits, strategy=strategy) as streams:
            await streams.publish("orders", b"before")
            transport = streams.transport()
            assert isinstance(transport, NatsTransport)
            connection = transport.statistics
            assert connection().connected
            assert streams.current_backpressure_state is BackpressureState.NORMAL
            server.kill()
            calls = [
                asyncio.ensure_future(streams.publish("orders", b"%d" % number, timeout=200))
                for number in range(COUNT)
            ]
            await until(lambda: not connection().connected)
            await until(lambda: streams.current_backpressure_state >= BackpressureState.CRITICAL)
            await asyncio.to_thread(server.start)
            await asyncio.gather(*calls)
            await until(lambda: streams.current_backpressure_state is BackpressureState.NORMAL)
            assert connection().connected
            assert connection().reconnects >= 1
            async with streams.subscribe("orders", "billing") as events:
                found = values(await take(events, COUNT + 1))
    assert found == [b"before", *(b"%d" % number for number in range(COUNT))]
