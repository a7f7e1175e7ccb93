"""What the log has to do in every order of tasks, jobs of threads and timers, with tasks cancelled anywhere."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

from penstock.bus.bus import MessageBus
from penstock.errors import Fenced, SubscriberBusy
from penstock.log.queue import WalMessageQueue
from penstock.log.subscription import RecordBatch
from penstock.messages import Event
from penstock.streaming import CheckpointedBatch, DatabaseCheckpoints, exactly_once
from penstock.streaming.manager import StreamingScalingManager
from penstock.testing import SeededSchedule
from penstock.transports.embedded import EmbeddedTransport
from penstock.transports.records import StreamBatch
from tests.schedules.bus_scenarios import ended
from tests.schedules.places import Place

TOPIC = "numbers"
EACH = 3
LEASE_SECONDS = 2.0
DEADLINE_SECONDS = 60.0
ROOMS: list[dict[str, int]] = [{}, {"buffer_bytes_max": 200, "record_bytes_max": 100}]
"""Much, or room for one or two records."""


def numbers(batch: RecordBatch | StreamBatch) -> list[int]:
    return [int(one.value or b"") for one in batch.records]


async def publishing(schedule: SeededSchedule) -> None:
    """Publishers and a subscriber, any of which may be cancelled; a buffer that fills up."""
    acknowledged: set[int] = set()
    place = Place(schedule)

    async def publish(queue: WalMessageQueue, actor: int) -> None:
        for number in range(actor * EACH, actor * EACH + EACH):
            await queue.publish(TOPIC, b"%d" % number, key=b"%d" % actor)
            acknowledged.add(number)
            await schedule.pause()

    async def read(queue: WalMessageQueue, into: list[int]) -> None:
        async with queue.subscribe(TOPIC, "reader") as subscription:
            while not acknowledged <= set(into):
                batch = await subscription.next_batch(DEADLINE_SECONDS)
                into.extend(numbers(batch))
                await subscription.commit(batch)

    async with place.queue(place.process(), **schedule.random.choice(ROOMS)) as queue:
        await queue.create_topic(TOPIC)
        sending = [schedule.spawn(publish(queue, actor), victim=True) for actor in range(2)]
        reading = schedule.spawn(read(queue, []), victim=True)
        await ended(sending)
        reading.cancel()
        await ended([reading])
        stored = [int(one.value or b"") async for one in queue.replay(TOPIC)]
    async with place.queue() as again:
        left = [int(one.value or b"") async for one in again.replay(TOPIC)]
    assert len(left) == len(set(left)), "stored twice"
    assert acknowledged <= set(stored) <= set(left) <= set(range(2 * EACH))
    for actor in range(2):
        mine = [number for number in left if number // EACH == actor]
        assert mine == sorted(mine), "out of order"
    # What nobody waits for any more may still be on its way while the log is read.
    assert [one for one in left if one in set(stored)] == stored, "it is all there, opened again"
    assert schedule.cancelled or left == stored


async def subscribing(schedule: SeededSchedule) -> None:
    """A reader that is cancelled, and comes again: behind what it committed nothing is missing."""
    done: list[int] = []
    delivered: set[int] = set()

    async def read(queue: WalMessageQueue) -> None:
        async with queue.subscribe(TOPIC, "reader") as subscription:
            while sum(subscription.positions().values()) < 2 * EACH:
                batch = await subscription.next_batch(DEADLINE_SECONDS)
                delivered.update(numbers(batch))
                await schedule.pause()
                await subscription.commit(batch)
                done.extend(numbers(batch))

    async with Place(schedule).queue() as queue:
        await queue.publish_many(TOPIC, [b"%d" % number for number in range(EACH)])
        reading = schedule.spawn(read(queue), victim=True)
        await queue.publish_many(TOPIC, [b"%d" % number for number in range(EACH, 2 * EACH)])
        await ended([reading])
        await again(lambda: read(queue))
    assert len(done) == len(set(done)), "delivered again after it was committed"
    assert delivered == set(range(2 * EACH)), "not delivered, and taken for committed"
    assert schedule.cancelled or sorted(done) == list(range(2 * EACH))


async def again(read: Callable[[], Awaitable[None]]) -> None:
    """What was cancelled gives the name back soon."""
    async with asyncio.timeout(1):
        while True:
            try:
                return await read()
            except SubscriberBusy:
                await asyncio.sleep(0.01)


class Members:
    """Members of a group in processes of their own, on one disk."""

    def __init__(self, schedule: SeededSchedule) -> None:
        self.schedule = schedule
        self.place = Place(schedule)
        self.total = 2 * EACH
        self.done: list[int] = []
        self.delivered: set[int] = set()

    def process(self) -> EmbeddedTransport:
        return self.place.transport()

    async def member(self) -> None:
        """Consume until everything is done, by whomever."""
        async with self.process() as transport:
            consumer = transport.subscribe(TOPIC, "group", lease_seconds=LEASE_SECONDS)
            async with consumer:
                while len(self.done) < self.total:
                    await self._consume(consumer)

    async def _consume(self, consumer: Any) -> None:
        try:
            batch = await consumer.next_batch(0.5, 2)
        except TimeoutError:
            return
        self.delivered.update(numbers(batch))
        await self.schedule.pause()
        try:
            await consumer.commit(batch)
        except Fenced:
            return
        self.done.extend(numbers(batch))


async def groups(schedule: SeededSchedule) -> None:
    """Members come, go and are cancelled: every record is committed once, by one of them."""
    members = Members(schedule)
    async with members.process() as transport:
        await transport.produce(TOPIC, [b"%d" % number for number in range(members.total)])
        crowd = [schedule.spawn(members.member(), victim=True) for _ in range(2)]
        await asyncio.wait(crowd, return_when=asyncio.FIRST_COMPLETED)
        if len(members.done) < members.total:
            crowd.append(schedule.spawn(last(members, transport)))
        await ended(crowd)
        lag = [one.records for one in await transport.lag(TOPIC, "group")]
    assert lag == [0, 0]
    assert len(members.done) == len(set(members.done)), "committed twice"
    assert members.delivered == set(range(2 * EACH))


async def last(members: Members, transport: EmbeddedTransport) -> None:
    """Consume what others leave behind; a commit that was interrupted may count."""
    async with transport.subscribe(TOPIC, "group", lease_seconds=LEASE_SECONDS) as consumer:
        while any(one.records for one in await transport.lag(TOPIC, "group")):
            await members._consume(consumer)
    members.total = len(members.done)


async def booking(schedule: SeededSchedule) -> None:
    """Members that book in a database while their group changes: each record once, none left out."""
    members = Members(schedule)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute(
            "CREATE TABLE echo (value INTEGER)"
        )  # no key: what is booked twice shows
        await DatabaseCheckpoints("group").create(connection)
        async with members.process() as transport:
            await transport.produce(TOPIC, [b"%d" % number for number in range(members.total)])
            crowd = [schedule.spawn(book(members, connection), victim=True) for _ in range(2)]
            async with asyncio.timeout(DEADLINE_SECONDS):
                await asyncio.wait(crowd, return_when=asyncio.FIRST_COMPLETED)
                await book(members, connection)
                await ended(crowd)
        booked = sorted(value for (value,) in connection.execute("SELECT value FROM echo"))
    assert booked == list(range(members.total))


async def book(members: Members, connection: sqlite3.Connection) -> None:
    """A member in a process of its own, until everything is booked, by whomever."""
    async with members.process() as transport:
        options: dict[str, Any] = {"lease_seconds": LEASE_SECONDS}
        async with transport.subscribe(TOPIC, "group", **options) as consumer:
            loop = booking_loop(members, consumer, connection)
            while len(connection.execute("SELECT value FROM echo").fetchall()) < members.total:
                try:
                    async with asyncio.timeout(1):
                        save(await anext(loop), connection)
                except TimeoutError:
                    await members.schedule.pause()
                except Fenced:
                    loop = booking_loop(members, consumer, connection)


def booking_loop(members: Members, consumer: Any, connection: sqlite3.Connection) -> Any:
    machine = members.place.process()
    checkpoints = DatabaseCheckpoints("group")
    return exactly_once(consumer, checkpoints, connection, records_max=2, system=machine)


def save(batch: CheckpointedBatch, connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        for record in batch:
            connection.execute("INSERT INTO echo VALUES (?)", [int(record.value or b"")])
        batch.save_blocking(connection)


async def manager(schedule: SeededSchedule) -> None:
    """The manager of streams: what is published is handled, while publishers are cancelled."""
    accepted: set[int] = set()
    handled: list[int] = []
    transport = Place(schedule).transport(schedule.system)
    async with StreamingScalingManager(transport, system=schedule.system) as streams:
        await streams.create_topic(TOPIC)

        async def publish(actor: int) -> None:
            for number in range(actor * EACH, actor * EACH + EACH):
                await streams.publish(TOPIC, b"%d" % number)
                accepted.add(number)
                await schedule.pause()

        async def consume() -> None:
            async with streams.subscribe(TOPIC, "group") as stream:
                async for event in stream:
                    handled.append(int(event.value or b""))  # noqa: PERF401 - it never ends

        consuming = schedule.spawn(consume())
        await ended([schedule.spawn(publish(actor), victim=True) for actor in range(2)])
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not accepted <= set(handled):
                await asyncio.sleep(0.05)
        consuming.cancel()
        await ended([consuming])
    assert len(handled) == len(set(handled))
    assert set(handled) <= set(range(2 * EACH))


async def transactions(schedule: SeededSchedule) -> None:
    """Transactions that are cancelled anywhere: each is there as a whole, or not at all."""
    done: set[int] = set()
    place = Place(schedule)

    async def transact(queue: WalMessageQueue, actor: int) -> None:
        producer = queue.producer(f"teller-{actor}")
        for number in range(actor * EACH, actor * EACH + EACH):
            async with producer.transaction() as transaction:
                for key in (b"a", b"b", b"c"):
                    await transaction.publish(TOPIC, b"%d" % number, key=key)
                    await schedule.pause()
            done.add(number)

    async with place.queue() as queue:
        await queue.create_topic(TOPIC)
        await ended([schedule.spawn(transact(queue, actor), victim=True) for actor in range(2)])
    async with place.queue() as again:
        counts = Counter([int(one.value or b"") async for one in again.replay(TOPIC)])
    assert set(counts.values()) <= {3}, "a part of a transaction, or one twice"
    assert done <= counts.keys()
    assert schedule.cancelled or counts.keys() == set(range(2 * EACH))


class Kept(Event):
    number: int


async def durable_events(schedule: SeededSchedule) -> None:
    """A bus that keeps its events: what was published durably is handled, by it or by the next one."""
    accepted: set[int] = set()
    handled: Counter[int] = Counter()
    place = Place(schedule)

    async def note(event: Kept) -> None:
        await schedule.pause()
        handled[event.number] += 1

    async def publish(bus: MessageBus, actor: int) -> None:
        for number in range(actor * EACH, actor * EACH + EACH):
            await bus.publish(Kept(number), durable=True)
            accepted.add(number)
            await schedule.pause()

    for _ in range(2):
        system = place.process()
        async with place.queue(system) as queue:
            bus = MessageBus(log=queue, event_log=True, system=system)
            bus.subscribe(Kept, note)
            async with bus:
                sending = [schedule.spawn(publish(bus, one), victim=True) for one in range(2)]
                await schedule.pause()
                if schedule.random.random() < 0.5:
                    await ended(sending)
                await bus.stop(drain=schedule.random.random() < 0.5)
                await asyncio.gather(*sending, return_exceptions=True)
    system = place.process()
    async with place.queue(system) as queue:
        bus = MessageBus(log=queue, event_log=True, system=system)
        bus.subscribe(Kept, note)
        async with bus:
            await bus.settle()
    assert accepted <= handled.keys(), "published durably, and never handled"
    assert handled.keys() <= set(range(2 * EACH))


SCENARIOS = [
    publishing,
    subscribing,
    groups,
    booking,
    manager,
    transactions,
    durable_events,
]
