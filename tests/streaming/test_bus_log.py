"""A transport in the place of a bus's log: what is sent, again and in order; what is read and shared."""

import asyncio
import threading
from dataclasses import replace

import pytest

import penstock
from penstock import Event, ScalableMessageBus, TopicConfig, errors, topic
from penstock.resilience.bus import ResilientMessageBus
from penstock.streaming import bus_reading, bus_sending
from penstock.streaming.bus_log import TransportLog
from penstock.system import System
from penstock.testing import VirtualClock
from penstock.transports.embedded import EmbeddedTransport
from penstock.transports.registry import TransportRegistry

TOPIC = "parcels"


@topic(TOPIC, key="place")
class Parcel(Event):
    place: str
    number: int


class Shaky(EmbeddedTransport):
    """Fails as it is told to before it sends anything, and can be held up."""

    def __init__(self, store="memory:", **options):
        super().__init__(store, **options)
        self.failures = []
        self.batches = []
        self.open_gate = asyncio.Event()
        self.open_gate.set()
        self.called = asyncio.Event()

    async def produce(self, topic, values, **options):
        self.called.set()
        await self.open_gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.batches.append(list(values))
        return await super().produce(topic, values, **options)


def unreachable():
    return errors.TransportError("gone for a while")


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
async def transport():
    return Shaky()


@pytest.fixture
async def log(transport, clock):
    log = TransportLog(transport, system=System(clock=clock), buffer_records_max=5)
    async with log:
        await log.create_topic(TOPIC)
        yield log
        transport.open_gate.set()


async def read_all(log, count):
    reader = log.subscribe(TOPIC, "all")
    await reader.open()
    values: list[bytes | None] = []
    while len(values) < count:
        values += [one.value for one in await reader.next_batch(records_max=100)]
    await reader.close()
    return values


async def flushed(log, clock):
    await clock.run_until(log.flush(), patience=0.2)


# Sending


async def test_an_event_alone_is_told_where_it_went(log):
    sent = await log.publish(TOPIC, b"1", key=b"k", headers={"a": b"b"})
    assert (sent.topic, sent.partition, sent.offset) == (TOPIC, 0, 0)
    assert (await log.publish(TOPIC, b"2")).offset == 1


async def test_what_is_published_meanwhile_travels_together_in_order(log, transport):
    transport.open_gate.clear()
    first = asyncio.create_task(log.publish(TOPIC, b"0"))
    await transport.called.wait()
    others = [asyncio.create_task(log.publish(TOPIC, b"%d" % one)) for one in range(1, 5)]
    await asyncio.sleep(0)
    transport.open_gate.set()
    await asyncio.gather(first, *others)
    assert transport.batches == [[b"0"], [b"1", b"2", b"3", b"4"]]


async def test_who_waits_hears_of_a_failure_and_is_not_sent_again(log, transport):
    transport.failures = [unreachable()]
    with pytest.raises(errors.TransportError, match="gone"):
        await log.publish(TOPIC, b"lost")
    await log.publish(TOPIC, b"next")
    assert await read_all(log, 1) == [b"next"]


async def test_what_nobody_waits_for_is_sent_again_in_order(log, transport, clock):
    transport.failures = [unreachable() for _ in range(7)]
    for one in range(3):
        log.publish_nowait(TOPIC, b"%d" % one)
    await flushed(log, clock)
    assert await read_all(log, 3) == [b"0", b"1", b"2"]
    waits = bus_sending.AGAIN_SECONDS * (1 + 2 + 4 + 8 + 16) + 2 * bus_sending.AGAIN_SECONDS_MAX
    assert clock.monotonic() == pytest.approx(waits)


async def test_the_one_to_blame_is_refused_alone(log, transport):
    wrong = errors.InvalidOption("no good", option="value")
    transport.open_gate.clear()
    first = asyncio.create_task(log.publish(TOPIC, b"0"))
    await transport.called.wait()
    others = [asyncio.create_task(log.publish(TOPIC, one)) for one in (b"1", b"2")]
    await asyncio.sleep(0)
    # The batch of both is refused, then the first of them.
    produce = transport.produce

    async def fussy(topic, values, **options):
        if b"1" in values:
            raise wrong
        return await produce(topic, values, **options)

    transport.produce = fussy
    transport.open_gate.set()
    results = await asyncio.gather(first, *others, return_exceptions=True)
    assert results[1] is wrong
    assert await read_all(log, 2) == [b"0", b"2"]


async def test_the_buffer_has_a_bound(log, transport):
    transport.open_gate.clear()
    log.publish_nowait(TOPIC, b"on its way")
    await transport.called.wait()
    for one in range(5):
        log.publish_nowait(TOPIC, b"%d" % one)
    with pytest.raises(errors.BufferFull, match="publish less") as full:
        log.publish_nowait(TOPIC, b"too many")
    assert full.value.fields["topic"] == TOPIC
    waiting = asyncio.create_task(log.publish(TOPIC, b"waits for room"))
    await asyncio.sleep(0)
    assert not waiting.done()
    transport.open_gate.set()
    await waiting
    assert len(await read_all(log, 7)) == 7


async def test_a_publisher_that_gave_up_is_not_sent(log, transport, clock):
    transport.open_gate.clear()
    log.publish_nowait(TOPIC, b"on its way")
    await transport.called.wait()
    with pytest.raises(errors.DeadlineExceeded, match=f"publish to {TOPIC}"):
        await clock.run_until(log.publish(TOPIC, b"too late", timeout=3.0), patience=0.01)
    transport.open_gate.set()
    await log.publish(TOPIC, b"next")
    assert await read_all(log, 2) == [b"on its way", b"next"]


async def test_threads_may_publish(log, transport):
    def work(thread):
        for one in range(100):
            while True:
                try:
                    log.publish_nowait(TOPIC, b"%d:%d" % (thread, one))
                    break
                except errors.BufferFull:
                    pass

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))
    await log.flush()
    values = await read_all(log, 300)
    for number in range(3):
        mine = [one for one in values if one.startswith(b"%d:" % number)]
        assert mine == [b"%d:%d" % (number, one) for one in range(100)]


async def test_closing_sends_what_waits_and_then_refuses(transport, clock):
    log = TransportLog(transport, system=System(clock=clock))
    await transport.open()
    await log.create_topic(TOPIC)
    sender = log._senders[TOPIC]
    log.publish_nowait(TOPIC, b"1")
    await log.close()
    assert transport.batches == [[b"1"]]
    with pytest.raises(errors.Closed):
        sender.add_nowait(bus_sending.Outgoing(b"2", None, None, None))


async def test_closing_has_a_deadline_and_tells_what_is_lost(transport, clock, caplog):
    log = TransportLog(transport, system=System(clock=clock))
    await transport.open()
    await log.create_topic(TOPIC)
    transport.open_gate.clear()
    log.publish_nowait(TOPIC, b"1")
    log.publish_nowait(TOPIC, b"2")
    with pytest.raises(errors.DeadlineExceeded):
        await clock.run_until(log.close(5.0), patience=0.05)
    assert "2 events were not sent to embedded" in caplog.text


async def test_there_are_no_atomic_groups(log):
    async with ScalableMessageBus(ResilientMessageBus(), log=log) as bus:
        with pytest.raises(errors.NotSupported, match="no atomic groups"):
            async with bus.atomic() as group:
                group.publish(Parcel("x", 1))


async def test_a_transport_that_cannot_carry_a_bus_is_refused(transport):
    transport.capabilities = replace(transport.capabilities, headers=False)
    with pytest.raises(errors.NotSupported, match="has no headers"):
        TransportLog(transport)


# Reading


async def test_lag_counts_what_others_wrote_after_a_look(log, transport, monkeypatch):
    monkeypatch.setattr(bus_reading, "LOOK_SECONDS", 0.01)
    reader = log.subscribe(TOPIC, "billing")
    await reader.open()
    assert reader.lag() == 0
    await log.publish(TOPIC, b"mine")
    assert reader.lag() == 1
    [record] = await reader.next_batch()
    assert reader.lag() == 0
    await transport.queue.publish_many(TOPIC, [b"theirs"] * 3)
    await reader.pause([0])
    assert list(await reader.next_batch()) == []
    assert reader.lag() == 3
    await reader.commit(record)
    await reader.close()
    assert reader.lag() == 0
    with pytest.raises(errors.Closed):
        await reader.next_batch()


async def test_members_share_the_partitions_and_lose_nothing(tmp_path):
    seen: dict[str, list[int]] = {"a": [], "b": []}
    numbers = range(400)

    def collect(name, bus):
        @bus.on(Parcel, group="sorting")
        async def sort(parcel: Parcel) -> None:
            await asyncio.sleep(0)
            seen[name].append(parcel.number)

    transport = lambda: EmbeddedTransport(tmp_path)  # noqa: E731
    async with (
        TransportLog(transport(), partitions=4) as here,
        TransportLog(transport(), partitions=4) as there,
    ):
        async with ScalableMessageBus(ResilientMessageBus(name="a"), log=here) as one:
            collect("a", one)
            for number in numbers[:200]:
                await one.publish(Parcel(str(number % 16), number))
            async with ScalableMessageBus(ResilientMessageBus(name="b"), log=there) as two:
                collect("b", two)
                for number in numbers[200:]:
                    await one.publish(Parcel(str(number % 16), number))
                while len({*seen["a"], *seen["b"]}) < len(numbers):
                    await asyncio.sleep(0.01)
    assert seen["b"], "the second member got no partition"
    assert {*seen["a"], *seen["b"]} == set(numbers)
    for place in range(16):
        mine = [number for number in seen["b"] if number % 16 == place]
        assert mine == sorted(mine)


async def until(is_so):
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.001)


async def two_members(log, transport):
    """One has read a record of each of two partitions when another one comes."""
    await transport.produce("pairs", [b"0", b"1"])  # without keys they go round
    first, second = log.subscribe("pairs", "sorting"), log.subscribe("pairs", "sorting")
    await first.open()
    records = [record for _ in range(2) for record in await first.next_batch()]
    await second.open()
    await until(lambda: len(first.positions()) == 1)
    [gone] = {0, 1} - first.positions().keys()
    return first, second, next(one for one in records if one.partition == gone)


async def test_a_partition_goes_when_the_handlers_have_done_with_it(log, transport):
    await transport.create_topic("pairs", partitions=2)
    first, second, last = await two_members(log, transport)
    assert not second.positions()
    await first.commit(last)
    await until(lambda: second.positions() == {last.partition: last.offset + 1})
    await second.close()
    await first.close()


async def test_a_commit_that_comes_too_late_does_nothing(log, transport, clock):
    await transport.create_topic("pairs", partitions=2)
    first, second, last = await two_members(log, transport)
    clock.advance(bus_reading.HAND_OVER_SECONDS)
    await until(lambda: second.positions() == {last.partition: last.offset})
    await first.commit(last)
    [record] = await second.next_batch()
    assert (record.partition, record.offset) == (last.partition, last.offset)
    await second.close()
    await first.close()


# Opening


async def test_a_bus_on_a_transport_keeps_its_dead_letters_in_the_state(tmp_path, monkeypatch):
    async def run(fail):
        handled = asyncio.Event()
        url = f"carrier:{tmp_path / 'broker'}"
        async with penstock.open(url, state=tmp_path / "state") as bus:

            @bus.on(Parcel, group="sorting", retries=0)
            async def sort(parcel: Parcel) -> None:
                handled.set()
                if fail:
                    raise ValueError("no room")

            if fail:
                await bus.publish(Parcel("x", 1))
                await handled.wait()
                await bus.settle()
            return [letter.error for letter in bus.dead_letters.list()]

    class Carrier(EmbeddedTransport):
        """Stands for the transport of a broker."""

        @classmethod
        def from_url(cls, url, **options):
            return cls(url.partition(":")[2], **options)

    registry = TransportRegistry()
    registry.register("carrier", Carrier)
    monkeypatch.setattr("penstock.opening.shared_registry", lambda: registry)
    assert len(await run(fail=True)) == 1
    assert len(await run(fail=False)) == 1


async def test_settings_of_topics_that_a_broker_does_not_have_are_refused():
    with pytest.raises(errors.NotSupported, match="number of partitions only"):
        async with penstock.open(
            "nats://localhost", defaults=TopicConfig(segment_bytes_max=1 << 20)
        ):
            pass
