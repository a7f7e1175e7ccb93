"""Publishing through the manager: transports by name, keys, messages, figures."""

import asyncio
from collections import Counter

import pytest

from penstock import Event, topic
from penstock.errors import (
    Closed,
    DeadlineExceeded,
    InvalidName,
    InvalidOption,
    RecordTooLarge,
    StoreFailed,
    UsageError,
)
from penstock.hashing import key_hash
from penstock.streaming import StreamingScalingManager
from penstock.transports import EmbeddedTransport, TransportRegistry
from tests.streaming.manager_world import GatedTransport, take, turns, values, virtual

HASHES_TO_INT_MIN = b"ksfiIY"


@topic("orders", key="order_id")
class OrderPlaced(Event):
    order_id: str
    total: float


@pytest.fixture(params=["memory:", "log:"])
def url(request, tmp_path):
    return request.param if request.param == "memory:" else f"log:{tmp_path}/data"


@pytest.mark.acceptance(68)
async def test_what_is_published_arrives(url):
    async with StreamingScalingManager(url) as streams:
        await streams.publish("orders", b"two teapots", key="customer-7", headers={"trace": "1"})
        await streams.publish_many("orders", [b"a cup", "tea", None], keys=[7, 7, None])
        async with streams.subscribe("orders", "billing") as events:
            got = await take(events, 4)
    assert values(got) == [b"two teapots", b"a cup", b"tea", None]
    assert [event.key for event in got] == [b"customer-7", b"7", b"7", None]
    assert got[0].headers == {"trace": b"1"}
    assert [event.offset for event in got] == [0, 1, 2, 3]
    assert {event.group for event in got} == {"billing"}


@pytest.mark.acceptance(68)
async def test_messages_go_through_the_codec_with_topic_and_key_of_their_class():
    async with StreamingScalingManager() as streams:
        order = OrderPlaced(order_id="o-1", total=9.5)
        await streams.publish(order)
        await streams.publish_many(OrderPlaced, [order, OrderPlaced(order_id="o-2", total=1)])
        async with streams.subscribe(OrderPlaced, "billing") as events:
            got = await take(events, 3)
    assert [event.message for event in got] == [order, order, OrderPlaced(order_id="o-2", total=1)]
    assert [event.key for event in got] == [b"o-1", b"o-1", b"o-2"]
    assert len({event.headers["penstock-id"] for event in got}) == 3


@pytest.mark.acceptance(68)
async def test_a_bus_reads_what_the_manager_published_and_the_other_way_round(tmp_path):
    import penstock

    seen: asyncio.Queue = asyncio.Queue()
    async with StreamingScalingManager(f"log:{tmp_path}") as streams:
        await streams.publish(OrderPlaced(order_id="o-1", total=9.5))
        async with penstock.open(f"log:{tmp_path}") as bus:
            bus.subscribe(OrderPlaced, seen.put_nowait, group="billing")
            assert await asyncio.wait_for(seen.get(), 30) == OrderPlaced(order_id="o-1", total=9.5)
            await bus.publish(OrderPlaced(order_id="o-2", total=1.5))
        async with streams.subscribe(OrderPlaced, "shipping") as events:
            assert [event.message.order_id for event in await take(events, 2)] == ["o-1", "o-2"]


@pytest.mark.acceptance(69)
async def test_several_transports_by_name_and_one_of_them_active(tmp_path):
    async with StreamingScalingManager() as streams:
        streams.register("disk", f"log:{tmp_path}")
        assert streams.transports == ("default", "disk")
        with pytest.raises(UsageError, match="connect"):
            streams.subscribe("orders", "billing", transport="disk")
        await streams.connect("disk")
        assert streams.active == "default"
        await streams.publish("orders", b"in memory")
        await streams.activate("disk")
        assert streams.active == "disk"
        await streams.publish("orders", b"on disk")
        await streams.publish("orders", b"in memory too", transport="default")
        async with streams.subscribe("orders", "billing") as events:
            assert values(await take(events, 1)) == [b"on disk"]
        async with streams.subscribe("orders", "billing", transport="default") as events:
            assert values(await take(events, 2)) == [b"in memory", b"in memory too"]
        figures = streams.statistics()
    assert (figures["default"].published, figures["disk"].published) == (2, 1)


@pytest.mark.acceptance(69)
async def test_a_transport_that_nobody_registered_is_a_typed_error():
    async with StreamingScalingManager() as streams:
        streams.register("other", "memory:")
        for attempt in (
            lambda: streams.activate("kafak"),
            lambda: streams.publish("orders", b"", transport="kafak"),
        ):
            with pytest.raises(InvalidOption, match="kafak") as caught:
                await attempt()
            assert caught.value.known == ("default", "other")
        assert streams.active == "default"
        with pytest.raises(InvalidOption, match="already"):
            streams.register("other", "memory:")
        with pytest.raises(InvalidOption, match="pigeon"):
            streams.register("third", "pigeon://post")


@pytest.mark.acceptance(69)
async def test_third_parties_bring_their_own_transports_through_the_registry():
    class Pigeon(EmbeddedTransport):
        name = "pigeon"

        @classmethod
        def from_url(cls, url, **options):
            return cls("memory:", **options)

    registry = TransportRegistry()
    registry.register("pigeon", Pigeon)
    async with StreamingScalingManager("pigeon://post", registry=registry) as streams:
        await streams.publish("orders", b"coo")
        assert isinstance(streams.transport(), Pigeon)


@pytest.mark.acceptance(70)
async def test_a_key_has_one_partition_also_after_a_restart(tmp_path):
    keys = [f"customer-{number}".encode() for number in range(40)] + [HASHES_TO_INT_MIN]
    assert key_hash(HASHES_TO_INT_MIN) == 0x8000_0000
    for _ in range(2):
        async with StreamingScalingManager(f"log:{tmp_path}") as streams:
            await streams.create_topic("orders", partitions=7)
            await streams.publish_many("orders", keys, keys=keys)
            await streams.publish("orders", HASHES_TO_INT_MIN, key=HASHES_TO_INT_MIN)
    async with StreamingScalingManager(f"log:{tmp_path}") as streams:
        async with streams.subscribe("orders", "billing") as events:
            for event in await take(events, 2 * len(keys) + 2):
                assert event.partition == key_hash(event.key) % 7


@pytest.mark.acceptance(71)
async def test_without_a_key_the_partitions_take_turns():
    async with StreamingScalingManager() as streams:
        await streams.create_topic("orders", partitions=4)
        for number in range(40):
            await streams.publish("orders", b"%d" % number)
        async with streams.subscribe("orders", "billing") as events:
            spread = Counter(event.partition for event in await take(events, 40))
    assert spread == dict.fromkeys(range(4), 10)


@pytest.mark.acceptance(72)
async def test_latency_is_from_the_call_to_the_acknowledgement():
    streams, clock = virtual(transport=GatedTransport)
    async with streams:
        transport = streams.transport()
        for seconds in [*[0.010] * 90, *[0.200] * 9, 3.0]:
            transport.gate.clear()
            publishing = asyncio.ensure_future(streams.publish("orders", b""))
            await turns()
            clock.advance(seconds)
            transport.gate.set()
            await publishing
        figures = streams.statistics()["default"]
    assert figures.published == 100
    assert figures.latency_p50 == pytest.approx(0.010, rel=0.05)
    assert figures.latency_p95 == pytest.approx(0.200, rel=0.05)
    assert figures.latency_p99 == pytest.approx(0.200, rel=0.05)
    assert figures.latency_max == pytest.approx(3.0)


@pytest.mark.acceptance(72)
async def test_errors_of_a_transport_are_told_and_counted():
    streams, _ = virtual(transport=GatedTransport)
    async with streams:
        transport = streams.transport()
        transport.failure = StoreFailed("the disk is gone")
        for _ in range(3):
            with pytest.raises(StoreFailed, match="gone"):
                await streams.publish_many("orders", [b"", b""])
        transport.failure = None
        await streams.publish("orders", b"")
        figures = streams.statistics()["default"]
    assert (figures.published, figures.failed) == (1, 6)
    assert figures.errors == {"StoreFailed": 6}


async def test_what_is_published_at_once_travels_together_in_order():
    streams, _ = virtual(transport=GatedTransport)
    async with streams:
        transport = streams.transport()
        transport.gate.clear()
        first = asyncio.ensure_future(streams.publish("orders", b"first"))
        await turns()
        others = [
            asyncio.ensure_future(
                streams.publish("orders", b"%d" % number, key=None if number % 2 else b"k")
            )
            for number in range(10)
        ]
        others.append(asyncio.ensure_future(streams.publish("orders", b"timed", timestamp=5)))
        elsewhere = asyncio.ensure_future(streams.publish("refunds", b"elsewhere"))
        await turns()
        assert [len(batch) for _, batch in transport.batches] == [1, 1]
        transport.gate.set()
        await asyncio.gather(first, elsewhere, *others)
        assert [len(batch) for _, batch in transport.batches] == [1, 1, 11]
        async with streams.subscribe("orders", "billing") as events:
            got = await take(events, 12)
    assert values(got) == [b"first", *(b"%d" % number for number in range(10)), b"timed"]
    assert got[-1].timestamp == 5
    assert [event.key for event in got[1:4]] == [b"k", None, b"k"]


async def test_one_bad_record_spoils_no_other_that_travels_with_it():
    streams, _ = virtual(transport=GatedTransport)
    async with streams:
        transport = streams.transport()
        transport.gate.clear()
        calls = [
            asyncio.ensure_future(streams.publish("orders", value))
            for value in (b"good", b"first", b"x" * (17 * 1024 * 1024), b"last")
        ]
        await turns()
        transport.gate.set()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(results[2], RecordTooLarge)
        async with streams.subscribe("orders", "billing") as events:
            assert values(await take(events, 3)) == [b"good", b"first", b"last"]


async def test_a_publisher_that_is_cancelled_before_its_turn_sends_nothing():
    streams, _ = virtual(transport=GatedTransport)
    async with streams:
        transport = streams.transport()
        transport.gate.clear()
        calls = [asyncio.ensure_future(streams.publish("orders", b"%d" % n)) for n in range(3)]
        await turns()
        late = asyncio.ensure_future(streams.publish("orders", b"late"))
        await turns()
        late.cancel()
        transport.gate.set()
        await asyncio.gather(*calls)
        assert (await asyncio.gather(late, return_exceptions=True))[0].__class__ is (
            asyncio.CancelledError
        )
        assert [batch for _, batch in transport.batches] == [[b"0", b"1", b"2"]]


async def test_a_publish_has_a_deadline_on_the_injected_clock():
    streams, clock = virtual(transport=GatedTransport)
    async with streams:
        streams.transport().gate.clear()
        publishing = asyncio.ensure_future(streams.publish("orders", b"", timeout=3))
        await turns()
        clock.advance(2.9)
        await turns()
        assert not publishing.done()
        clock.advance(0.2)
        with pytest.raises(DeadlineExceeded):
            await publishing
        streams.transport().gate.set()


async def test_closing_sends_what_was_accepted():
    streams, _ = virtual(transport=GatedTransport)
    await streams.open()
    transport = streams.transport()
    transport.gate.clear()
    calls = [asyncio.ensure_future(streams.publish("orders", b"%d" % n)) for n in range(3)]
    await turns()
    closing = asyncio.ensure_future(streams.close())
    await turns()
    assert not closing.done()
    transport.gate.set()
    await closing
    assert [one.count for one in await asyncio.gather(*calls)] == [3, 3, 3]
    with pytest.raises(Closed):
        await streams.publish("orders", b"")
    await streams.close()


async def test_closing_has_a_deadline_and_tells_who_waits():
    streams, clock = virtual(transport=GatedTransport)
    await streams.open()
    streams.transport().gate.clear()
    publishing = asyncio.ensure_future(streams.publish("orders", b"", timeout=100))
    await turns()
    closing = asyncio.ensure_future(streams.close(5))
    await turns()
    clock.advance(6)
    with pytest.raises(DeadlineExceeded):
        await closing
    with pytest.raises(Closed):
        await publishing


async def test_it_has_to_be_opened_first():
    streams = StreamingScalingManager()
    with pytest.raises(UsageError, match="open it first"):
        await streams.publish("orders", b"")
    with pytest.raises(UsageError, match="open it first"):
        streams.subscribe("orders", "billing")


async def test_wrong_calls_are_refused():
    async with StreamingScalingManager() as streams:
        with pytest.raises(InvalidOption, match="2 keys for 1 values"):
            await streams.publish_many("orders", [b""], keys=[b"", b""])
        with pytest.raises(InvalidOption, match="publish"):
            await streams.publish(OrderPlaced(order_id="", total=0), b"value")
        with pytest.raises(InvalidName):
            streams.register("no good name", "memory:")
        with pytest.raises(InvalidOption, match="options go with a URL"):
            streams.register("made", EmbeddedTransport("memory:"), tail_cache_bytes=1)
    with pytest.raises(InvalidOption, match="look_seconds"):
        StreamingScalingManager(look_seconds=0)
