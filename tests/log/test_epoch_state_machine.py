"""Any sequence of publishing, repartitioning, reading and restarting keeps the order of each key."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock import FsyncPolicy, Record, Subscription, TopicConfig, WalMessageQueue
from penstock.errors import DeadlineExceeded
from penstock.log.verify import verify
from penstock.stores.memory import MemoryStore

TOPIC = "orders"
COUNTS = st.integers(1, 5)
QUEUES = st.integers(0, 1)
NAMES = st.sampled_from(["billing", "shipping"])
KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
WAIT_SECONDS = 120


@dataclass
class Reader:
    """A subscriber, and what it was given."""

    subscription: Subscription
    seen: list[int] = field(default_factory=list)
    last: dict[bytes, int] = field(default_factory=dict)
    committed: tuple[list[int], dict[bytes, int]] = field(default_factory=lambda: ([], {}))

    def take(self, records: list[Record]) -> None:
        for record in records:
            assert record.key is not None
            value = int(record.value or b"")
            assert self.last.get(record.key, -1) < value, f"{value} after {self.last}"
            self.last[record.key] = value
            self.seen.append(value)

    def commit(self) -> None:
        self.committed = (list(self.seen), dict(self.last))

    def roll_back(self) -> None:
        self.seen, self.last = list(self.committed[0]), dict(self.committed[1])


class Epochs(RuleBasedStateMachine):
    """Two queues on one store, as two processes would have them."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.store = MemoryStore()
        self.queues: list[WalMessageQueue] = []
        self.readers: dict[str, Reader] = {}
        self.published = 0

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def in_time() -> Any:
            async with asyncio.timeout(WAIT_SECONDS):
                return await work

        return self.runner.run(in_time())

    async def open_queue(self) -> WalMessageQueue:
        queue = WalMessageQueue(self.store, maintenance_interval=None)
        await queue.open()
        return queue

    @initialize(partitions=COUNTS, policy=st.sampled_from(list(FsyncPolicy)))
    def start(self, partitions: int, policy: FsyncPolicy) -> None:
        async def start() -> None:
            self.queues = [await self.open_queue(), await self.open_queue()]
            config = TopicConfig(partitions=partitions, fsync=policy, segment_bytes_max=512)
            for queue in self.queues:
                await queue.create_topic(TOPIC, config)

        self.run(start())

    @rule(queue=QUEUES, keys=st.lists(KEYS, min_size=1, max_size=12))
    def publish_many(self, queue: int, keys: list[bytes]) -> None:
        values = [b"%d" % number for number in range(self.published, self.published + len(keys))]
        self.published += len(keys)
        done = self.run(self.queues[queue].publish_many(TOPIC, values, keys=keys, durable=True))
        assert done.count == len(keys)

    @rule(queue=QUEUES, keys=st.lists(KEYS, min_size=1, max_size=6))
    def publish_side_by_side(self, queue: int, keys: list[bytes]) -> None:
        async def publish() -> None:
            first = self.published
            self.published += len(keys)
            publishing = [
                self.queues[queue].publish(TOPIC, b"%d" % number, key=key, durable=True)
                for number, key in enumerate(keys, first)
            ]
            placed = await asyncio.gather(*publishing)
            assert len({(one.partition, one.offset) for one in placed}) == len(keys)

        self.run(publish())

    @rule(queue=QUEUES, partitions=COUNTS)
    def repartition(self, queue: int, partitions: int) -> None:
        state = self.run(self.queues[queue].repartition(TOPIC, partitions))
        assert state.partitions == partitions

    @rule(queue=QUEUES, partitions=COUNTS, keys=st.lists(KEYS, min_size=1, max_size=12))
    def repartition_while_records_come(
        self, queue: int, partitions: int, keys: list[bytes]
    ) -> None:
        async def both() -> None:
            first = self.published
            self.published += len(keys)
            values = [b"%d" % number for number in range(first, self.published)]
            await asyncio.gather(
                self.queues[1 - queue].publish_many(TOPIC, values, keys=keys, durable=True),
                self.queues[queue].repartition(TOPIC, partitions),
            )

        self.run(both())

    @rule(name=NAMES, queue=QUEUES)
    def subscribe(self, name: str, queue: int) -> None:
        """For the first time, or again after it was closed: what is committed is not repeated."""

        async def subscribe() -> None:
            reader = self.readers.get(name)
            if reader is not None:
                await reader.subscription.close()
            subscription = self.queues[queue].subscribe(TOPIC, name)
            await subscription.open()
            if reader is None:
                self.readers[name] = Reader(subscription)
            else:
                reader.subscription = subscription
                reader.roll_back()

        self.run(subscribe())

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), records_max=st.integers(1, 8))
    def read(self, data: st.DataObject, records_max: int) -> None:
        reader = self.readers[data.draw(st.sampled_from(sorted(self.readers)))]
        if len(reader.seen) < self.published:
            reader.take(self.run(reader.subscription.next_batch(5, records_max)).records)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        reader = self.readers[data.draw(st.sampled_from(sorted(self.readers)))]
        self.run(reader.subscription.commit())
        reader.commit()

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def seek_to_the_start(self, data: st.DataObject) -> None:
        reader = self.readers[data.draw(st.sampled_from(sorted(self.readers)))]
        self.run(reader.subscription.seek("earliest"))
        reader.seen, reader.last = [], {}
        reader.commit()

    @rule(place=QUEUES)
    def restart(self, place: int) -> None:
        async def restart() -> None:
            await self.queues[place].close()
            self.queues[place] = await self.open_queue()

        self.run(restart())
        for name in list(self.readers):
            self.subscribe(name, 1 - place)

    @rule(queue=QUEUES)
    def replay(self, queue: int) -> None:
        async def replay() -> list[Record]:
            return [record async for record in self.queues[queue].replay(TOPIC)]

        if self.published:
            whole = Reader(self.queues[queue].subscribe(TOPIC, "nobody"))
            whole.take(self.run(replay()))
            assert sorted(whole.seen) == list(range(self.published))

    def teardown(self) -> None:
        try:
            if self.queues:
                for name in self.readers:
                    self.run(self.drain(self.readers[name]))
                self.run(self.close())
                problems = [one for one in verify(self.store).problems if not one.harmless]
                assert problems == []
        finally:
            self.runner.close()

    async def drain(self, reader: Reader) -> None:
        while len(reader.seen) < self.published:
            reader.take((await reader.subscription.next_batch(5)).records)
        assert sorted(reader.seen) == list(range(self.published))
        with pytest.raises(DeadlineExceeded):
            await reader.subscription.next_batch(0.001)

    async def close(self) -> None:
        for queue in self.queues:
            await queue.close()


def run_machine(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        Epochs,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_any_sequence_keeps_the_order_of_each_key():
    run_machine(30, 20)


@pytest.mark.torture
@pytest.mark.timeout(3_600)
def test_many_long_sequences_keep_the_order_of_each_key():
    run_machine(2_000, 60)
