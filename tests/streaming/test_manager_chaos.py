"""Members that come, go, are cancelled and are slow: nothing is lost, and keys keep their order."""

import asyncio
import itertools
import random
from collections import Counter
from contextlib import suppress

import pytest

from penstock.streaming import StreamingScalingManager
from tests.streaming.manager_world import take

WAIT_SECONDS = 120
KEYS = 8


class Chaos:
    """A topic, publishers, and members of one group that do as the dice say."""

    def __init__(self, streams, seed, *, repartition):
        self.streams = streams
        self.chance = random.Random(seed)
        self.repartition = repartition
        self.published: Counter[bytes] = Counter()
        self.seen: list[tuple[bytes, int]] = []
        self.last_of: dict[bytes, int] = {}
        self.back: Counter[bytes] = Counter()
        self.done = asyncio.Event()

    async def publish(self, rounds):
        for _ in range(rounds):
            keys = [b"%d" % self.chance.randrange(KEYS) for _ in range(self.chance.randint(1, 30))]
            values = []
            for key in keys:
                values.append(b"%d" % self.published[key])
                self.published[key] += 1
            await self.streams.publish_many("orders", values, keys=keys)
            if self.repartition and self.chance.random() < 0.04:
                count = self.chance.randint(1, 6)
                await self.streams.transport().repartition("orders", count)
            await asyncio.sleep(0.002)

    async def member(self):
        """Read for a while, as one of the ways to read, and leave, or be cancelled."""
        for lives in itertools.count():
            if self.done.is_set():
                break
            # Longer and longer, so that a slow machine comes to an end too.
            life = self.chance.uniform(0.01, 0.3) * (1 + lives / 50)
            way = self.chance.choice([self.by_event, self.by_batch, self.by_hand])
            with suppress(TimeoutError):
                async with asyncio.timeout(life):
                    await way()

    async def by_event(self):
        options: dict = {"records_max": self.chance.choice([1, 7, 1000])}
        async with self.streams.subscribe("orders", "billing", **options) as events:
            async for event in events:
                if self.chance.random() < 0.2:
                    await asyncio.sleep(0.001)
                self.note(event.key, event.value)

    async def by_batch(self):
        async with self.streams.subscribe("orders", "billing") as events:
            async for batch in events.batches():
                if self.chance.random() < 0.2:
                    await asyncio.sleep(0.001)
                for record in batch:
                    self.note(record.key, record.value)

    async def by_hand(self):
        async with self.streams.subscribe("orders", "billing", auto_commit=None) as events:
            async for event in events:
                self.note(event.key, event.value)
                if self.chance.random() < 0.3:
                    await event.commit()

    def note(self, key, value):
        self.seen.append((key, int(value)))

    @property
    def is_complete(self):
        wanted = {(key, number) for key, count in self.published.items() for number in range(count)}
        return wanted <= set(self.seen)

    def assert_order(self):
        """A record is never seen for the first time before one of its key that was published first."""
        first: dict[bytes, int] = {}
        met: set[tuple[bytes, int]] = set()
        for key, number in self.seen:
            if (key, number) not in met:
                met.add((key, number))
                assert number == first.get(key, 0), f"{key!r}: {number} before {first.get(key, 0)}"
                first[key] = number + 1


async def chaos(seed, *, rounds, members, repartition=False):
    async with StreamingScalingManager(look_seconds=1_000) as streams:
        await streams.create_topic("orders", partitions=4)
        world = Chaos(streams, seed, repartition=repartition)
        running = [asyncio.ensure_future(world.member()) for _ in range(members)]
        await world.publish(rounds)
        async with asyncio.timeout(WAIT_SECONDS):
            while not world.is_complete:
                await asyncio.sleep(0.01)
        world.done.set()
        await asyncio.gather(*running)
        world.assert_order()
        # Who comes last finds what was not committed, and with that everything is.
        left = sum(one.records for one in await streams.transport().lag("orders", "billing"))
        async with streams.subscribe("orders", "billing") as events:
            for event in await take(events, left):
                event.ack()
        lag = await streams.transport().lag("orders", "billing")
        assert sum(one.records for one in lag) == 0


async def scaling_chaos(seed, *, rounds):
    """Consumers of a run are added and taken away at random while events come."""
    async with StreamingScalingManager(look_seconds=1_000) as streams:
        await streams.create_topic("orders", partitions=4)
        world = Chaos(streams, seed, repartition=True)

        async def handle(event):
            if world.chance.random() < 0.1:
                await asyncio.sleep(0.001)
            world.note(event.key, event.value)

        options: dict = {"in_flight_max": world.chance.choice([1, 5]), "auto_commit": 0.05}
        async with streams.run("orders", "billing", handle, **options) as run:
            publishing = asyncio.ensure_future(world.publish(rounds))
            while not publishing.done():
                await run.scale_to(world.chance.randint(1, 4))
                await asyncio.sleep(world.chance.uniform(0, 0.1))
            await publishing
            async with asyncio.timeout(WAIT_SECONDS):
                while not world.is_complete:
                    await asyncio.sleep(0.01)
        world.assert_order()
        again = Counter(world.seen)
        assert max(again.values()) == 1, "whoever goes commits what it has handled"
        lag = await streams.transport().lag("orders", "billing")
        assert sum(one.records for one in lag) == 0


@pytest.mark.parametrize("seed", range(3))
async def test_consumers_of_a_run_come_and_go_and_every_event_is_handled_once(seed):
    await scaling_chaos(seed, rounds=60)


@pytest.mark.parametrize("seed", range(3))
async def test_members_come_and_go_and_nothing_is_lost(seed):
    await chaos(seed, rounds=40, members=3)


@pytest.mark.parametrize("seed", range(2))
async def test_members_come_and_go_while_the_partitions_change(seed):
    await chaos(seed, rounds=40, members=3, repartition=True)


@pytest.mark.torture
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(100, 200))
async def test_members_come_and_go_for_a_long_time(seed):
    await chaos(seed, rounds=150, members=4, repartition=seed % 2 == 0)
    await scaling_chaos(seed, rounds=200)
