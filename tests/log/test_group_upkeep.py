"""Groups in what looks after the log: retention, compaction, lag, verify, repair, forgetting."""

import pytest

from penstock import repair, verify
from penstock.errors import DamagedFile
from penstock.log.names import group_state_key
from penstock.log.topic import Retention
from penstock.stores import MemoryStore
from penstock.system import System
from penstock.testing import VirtualClock
from penstock.testing.transport_fixtures import take
from penstock.transports import EmbeddedTransport

DAY_SECONDS = 24 * 60 * 60
SMALL = {"segment_bytes_max": 2_000, "batch_records_max": 10}
KEY = group_state_key("billing")


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def store():
    with MemoryStore() as store:
        yield store


@pytest.fixture
async def transport(store, clock):
    system = System(clock=clock)
    options = {"system": system, "maintenance_interval": None}
    async with EmbeddedTransport(store, **options) as transport:
        yield transport


async def fill(transport, count=300):
    for _ in range(count // 10):
        await transport.produce("orders", [bytes(100)] * 10, keys=[b"k"] * 10)


async def earliest(transport):
    (info,) = await transport.queue.retention("orders")
    return info.earliest_offset


async def test_retention_waits_for_a_group_whether_it_has_members_or_not(transport, clock):
    retention = Retention(age_ms_max=1_000)
    await transport.create_topic("orders", partitions=1, retention=retention, **SMALL)
    async with transport.subscribe("orders", "billing") as consumer:
        await fill(transport)
        await take(consumer, 100)
        await consumer.commit({0: 50})
    clock.advance(DAY_SECONDS)
    await transport.queue.maintain()
    assert 0 < await earliest(transport) <= 50
    async with transport.subscribe("orders", "billing") as consumer:
        assert consumer.positions() == {0: 50}
        await take(consumer, 250)
        await consumer.commit()
        await transport.queue.maintain()
        assert await earliest(transport) > 250


async def test_a_group_that_is_forgotten_keeps_nothing(transport, clock):
    retention = Retention(age_ms_max=1_000)
    await transport.create_topic("orders", partitions=1, retention=retention, **SMALL)
    async with transport.subscribe("orders", "billing"):
        await fill(transport)
    clock.advance(DAY_SECONDS)
    await transport.queue.maintain()
    assert await earliest(transport) == 0
    await transport.forget("orders", "billing")
    assert await transport.groups("orders") == []
    await transport.queue.maintain()
    assert await earliest(transport) > 250


async def test_compaction_keeps_a_deletion_until_every_group_has_seen_it(transport, clock):
    await transport.create_topic("orders", partitions=1, compact_keys=True, **SMALL)

    async def upkept():
        clock.advance(30 * DAY_SECONDS)
        await transport.queue.maintain()
        return [(one.key, one.value) async for one in transport.queue.replay("orders")]

    async with transport.subscribe("orders", "billing") as consumer:
        await transport.produce("orders", [b"1", None], keys=[b"gone", b"gone"])
        await fill(transport)
    assert (await upkept())[0] == (b"gone", None)
    async with transport.subscribe("orders", "billing") as consumer:
        await consumer.seek("latest")
    assert (b"gone", None) not in await upkept()


async def test_a_damaged_group_is_told_by_verify_and_emptied_by_repair(transport, store):
    await transport.create_topic("orders")
    await transport.create_topic("bills")
    for topic in ("orders", "bills"):
        await transport.produce(topic, [b"x"] * 10)
        async with transport.subscribe(topic, "billing") as consumer:
            await take(consumer, 10)
            await consumer.commit({0: 7})
    assert verify(store).sound
    data = bytearray(store.read(KEY))
    data[-3] ^= 1
    store.write(KEY, bytes(data))
    with pytest.raises(DamagedFile):
        await transport.subscribe("orders", "billing").open()
    (problem,) = verify(store).problems
    assert (problem.file, problem.kind) == (KEY, "group")
    report = repair(store, "orders", dry_run=True)
    assert [action.kind for action in report.actions] == ["group"]
    assert not verify(store).sound
    repair(store, "orders")
    assert verify(store).sound
    async with transport.subscribe("orders", "billing") as consumer:
        assert consumer.positions() == {0: 7}
