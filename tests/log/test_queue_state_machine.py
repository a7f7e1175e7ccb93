"""Any sequence of calls on a queue, with kills and power cuts, equals a model of lists.

The model keeps for each partition what was published, how much of it was acknowledged as durable,
and where the subscribers committed. After a power cut the disk may have more than that, never less
and never something else.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from random import Random

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

from penstock import FsyncPolicy, TopicConfig, WalMessageQueue
from penstock.errors import OffsetOutOfRange, PenstockError, UnknownTopic
from penstock.hashing import fnv1a
from penstock.testing.clock import VirtualClock
from penstock.testing.queue_fixtures import everything, records_of
from penstock.testing.worker import simulated_system

TOPICS = st.sampled_from(["a", "b"])
NAMES = st.sampled_from(["billing", "shipping"])
KEYS = st.none() | st.sampled_from([b"k1", b"k2", b"k3"])
POLICIES = st.sampled_from(list(FsyncPolicy))
WAIT_SECONDS = 120


@dataclass
class Partition:
    """What must be there."""

    values: list[bytes] = field(default_factory=list)
    durable: int = 0
    """How many of them must survive a power cut."""


@dataclass
class Subscriber:
    """Where a subscriber stands."""

    committed: dict[int, int]
    position: dict[int, int]


@dataclass
class Topic:
    """The model of a topic."""

    config: TopicConfig
    partitions: list[Partition]
    subscribers: dict[str, Subscriber] = field(default_factory=dict)


class QueueMachine(RuleBasedStateMachine):
    """Drives a queue on a simulated machine and its model side by side."""

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = VirtualClock()
        self.system = simulated_system(clock=self.clock)
        self.model = {}
        self.live = {}
        self.number = 0
        self.open_queue()

    def run(self, coroutine):
        """One call, on the one event loop of this run; what its end left on the loop runs too."""

        async def bounded():
            async with asyncio.timeout(WAIT_SECONDS):
                result = await coroutine
            for _ in range(5):
                await asyncio.sleep(0)
            return result

        return self.loop.run_until_complete(bounded())

    def open_queue(self):
        self.queue = WalMessageQueue("/data/log", system=self.system)
        self.run(self.queue.open())

    def teardown(self):
        try:
            self.check_all()
            self.run(self.queue.close())
            assert self.system.files.open_descriptors() == {}
        finally:
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    # Topics

    @initialize(policy=POLICIES, partitions=st.integers(1, 3))
    def first(self, policy, partitions):
        self.create("a", policy, partitions, 400)

    @rule(
        topic=TOPICS,
        policy=POLICIES,
        partitions=st.integers(1, 3),
        segment=st.sampled_from([256, 400, 100_000]),
    )
    def create(self, topic, policy, partitions, segment):
        config = TopicConfig(
            fsync=policy, fsync_messages=5, partitions=partitions, segment_bytes_max=segment
        )
        state = self.run(self.queue.create_topic(topic, config))
        model = self.model.setdefault(
            topic, Topic(config, [Partition() for _ in range(partitions)])
        )
        assert state.config == model.config
        assert self.run(self.queue.topics()) == sorted(self.model)

    @rule(topic=TOPICS, policy=POLICIES)
    def change(self, topic, policy):
        if topic in self.model:
            state = self.run(self.queue.change_topic(topic, fsync=policy))
            self.model[topic].config = state.config

    # Publishing

    def values(self, count):
        self.number += count
        return [b"%d" % number for number in range(self.number - count, self.number)]

    def published(self, topic, partition, offset, value, durable):
        model = self.model[topic].partitions[partition]
        assert offset == len(model.values), (topic, partition, offset)
        model.values.append(value)
        if durable:
            model.durable = len(model.values)

    def note_durable(self, topic):
        """Take over what the queue says is durable: it must not say more than is written."""
        for number, partition in enumerate(self.model[topic].partitions):
            durable = self.queue.durable_offset(topic, number)
            assert partition.durable <= durable <= len(partition.values)
            partition.durable = durable

    @rule(topic=TOPICS, key=KEYS, durable=st.booleans())
    def publish(self, topic, key, durable):
        if topic not in self.model:
            return
        (value,) = self.values(1)
        done = self.run(self.queue.publish(topic, value, key=key, durable=durable))
        assert done.durable or not durable
        if key is not None:
            assert done.partition == fnv1a(key) % len(self.model[topic].partitions)
        self.published(topic, done.partition, done.offset, value, done.durable)
        self.note_durable(topic)

    @rule(topic=TOPICS, keys=st.lists(KEYS, max_size=12), durable=st.booleans())
    def publish_many(self, topic, keys, durable):
        if topic not in self.model:
            return
        values = self.values(len(keys))
        done = self.run(self.queue.publish_many(topic, values, keys=keys, durable=durable))
        assert done.count == len(keys)
        self.find_published(topic, values, keys, done.ranges, done.durable)

    @rule(topic=TOPICS, keys=st.lists(KEYS, min_size=1, max_size=6))
    def publish_nowait(self, topic, keys):
        if topic not in self.model:
            return
        self.run(self.queue.create_topic(topic))
        for value, key in zip(self.values(len(keys)), keys, strict=True):
            done = self.run(self.queue.publish_nowait(topic, value, key).wait())
            self.find_published(topic, [value], [key], done.ranges, done.durable)

    def find_published(self, topic, values, keys, ranges, durable):
        """Where each value went: keyed ones by hash, the others in turn, all in order."""
        self.note_written(topic, ranges)
        assert sum(end - first for first, end in ranges.values()) == len(values)
        count = len(self.model[topic].partitions)
        if count == 1:
            placed = {0: values}
        else:
            # Not readable before it is durable.
            self.run(self.queue.flush())
            placed = self.read_back(topic, ranges)
        assert sorted(chain.from_iterable(placed.values())) == sorted(values)
        for number, found in placed.items():
            assert found == sorted(found, key=int)
            for value in found:
                key = keys[values.index(value)]
                assert key is None or fnv1a(key) % count == number
                offset = len(self.model[topic].partitions[number].values)
                self.published(topic, number, offset, value, durable)
        for name in self.queue.statistics().topics:
            self.note_durable(name)

    def note_written(self, topic, ranges):
        for number, (first, _) in ranges.items():
            assert first == len(self.model[topic].partitions[number].values)

    def read_back(self, topic, ranges):
        async def read(number, first, end):
            return [
                record.value
                async for record in self.queue.replay(topic, partition=number, start=first, end=end)
            ]

        return {number: self.run(read(number, *place)) for number, place in ranges.items()}

    @rule()
    def flush(self):
        self.run(self.queue.flush())
        for name, topic in self.model.items():
            if name in self.queue.statistics().topics:
                self.note_durable(name)
                assert all(one.durable == len(one.values) for one in topic.partitions)

    @rule(seconds=st.sampled_from([0.3, 1.0, 5.0]))
    def pass_time(self, seconds):
        self.clock.advance(seconds)

        async def settle():
            return None

        self.run(settle())
        for name in self.queue.statistics().topics:
            self.note_durable(name)
            if seconds >= 1:
                for partition in self.model[name].partitions:
                    assert partition.durable == len(partition.values)

    # Subscribing

    @rule(topic=TOPICS, name=NAMES, start=st.sampled_from(["earliest", "latest"]))
    def subscribe(self, topic, name, start):
        if topic not in self.model or (topic, name) in self.live:
            return
        subscription = self.queue.subscribe(topic, name, start=start)
        self.run(subscription.open())
        self.live[topic, name] = subscription
        model = self.model[topic]
        known = model.subscribers.get(name)
        if known is None:
            self.note_durable(topic)
            starts = {
                number: 0 if start == "earliest" else partition.durable
                for number, partition in enumerate(model.partitions)
            }
            known = model.subscribers[name] = Subscriber(dict(starts), dict(starts))
        known.position = dict(known.committed)
        assert subscription.positions() == known.position

    def subscriber(self, data):
        topic, name = data.draw(st.sampled_from(sorted(self.live)))
        return topic, self.live[topic, name], self.model[topic].subscribers[name]

    @precondition(lambda self: self.live)
    @rule(data=st.data(), count=st.integers(1, 8), batches=st.booleans())
    def read(self, data, count, batches):
        topic, subscription, model = self.subscriber(data)
        self.note_durable(topic)
        lag = sum(
            max(0, partition.durable - model.position[number])
            for number, partition in enumerate(self.model[topic].partitions)
        )
        assert subscription.lag() == lag
        count = min(count, lag)
        if not count:
            return
        records = self.run(
            self.read_batch(subscription, count) if batches else records_of(subscription, count)
        )
        for record in records:
            assert record.offset == model.position[record.partition]
            values = self.model[topic].partitions[record.partition].values
            assert record.value == values[record.offset]
            model.position[record.partition] += 1
        assert subscription.positions() == model.position

    async def read_batch(self, subscription, count):
        async for batch in subscription.batches(count):
            return batch.records
        return []

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def commit(self, data):
        _, subscription, model = self.subscriber(data)
        self.run(subscription.commit())
        model.committed = {
            number: max(offset, model.position[number])
            for number, offset in model.committed.items()
        }

    @precondition(lambda self: self.live)
    @rule(data=st.data(), to=st.sampled_from(["earliest", "latest", 0, 2, 5]))
    def seek(self, data, to):
        topic, subscription, model = self.subscriber(data)
        self.note_durable(topic)
        number = data.draw(st.integers(0, len(self.model[topic].partitions) - 1))
        durable = self.model[topic].partitions[number].durable
        if isinstance(to, int) and to > durable:
            with pytest.raises(OffsetOutOfRange):
                self.run(subscription.seek(to, partition=number))
            return
        self.run(subscription.seek(to, partition=number))
        offset = {"earliest": 0, "latest": durable}.get(to, to)
        model.position[number] = model.committed[number] = offset
        assert subscription.positions() == model.position

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def close_subscription(self, data):
        topic, name = data.draw(st.sampled_from(sorted(self.live)))
        self.run(self.live.pop((topic, name)).close())

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def unsubscribe(self, data):
        topic, name = data.draw(st.sampled_from(sorted(self.live)))
        self.run(self.live.pop((topic, name)).close())
        self.run(self.queue.unsubscribe(topic, name))
        del self.model[topic].subscribers[name]

    # The end, in three ways

    @rule()
    def reopen(self):
        self.live.clear()
        self.run(self.queue.close())
        for topic in self.model.values():
            for partition in topic.partitions:
                partition.durable = len(partition.values)
        assert self.system.files.open_descriptors() == {}
        self.system = simulated_system(disk=self.system.files, clock=self.clock)
        self.open_queue()

    @rule()
    def kill(self):
        """The process dies: all that was acknowledged is there, durable or not."""
        self.restart_on(self.system.files.kill())
        self.check_all()

    @rule(seed=st.integers(0, 1_000), number=st.integers(0, 12))
    def cut_the_power(self, seed, number):
        """What was durable is there, in order; what was not may be there, in order, or not."""
        states = list(self.system.files.crash_states(number + 1, Random(seed)))
        self.restart_on(states[-1])
        for name, topic in self.model.items():
            found = self.run(self.records_by_partition(name))
            for number, partition in enumerate(topic.partitions):
                values = found.get(number, [])
                assert len(values) >= partition.durable
                assert values == partition.values[: len(values)]
                partition.values = values
                partition.durable = len(values)

    def restart_on(self, disk):
        """Begin again on what is left. The old queue is a process that is gone."""
        old, old_files = self.queue, self.system.files
        self.live.clear()
        self.system = simulated_system(disk=disk, clock=self.clock)
        self.open_queue()
        old_files.heal()
        with suppress(PenstockError):
            # It talks to a disk that nobody looks at any more.
            self.run(old.close())

    async def records_by_partition(self, topic):
        found: dict[int, list[bytes | None]] = {}
        for record in await everything(self.queue, topic):
            found.setdefault(record.partition, []).append(record.value)
        return found

    def check_all(self):
        """All is there, read from the disk and as Arrow."""
        for name, topic in self.model.items():
            self.run(self.queue.create_topic(name))
            self.run(self.queue.flush())
            found = self.run(self.records_by_partition(name))
            for number, partition in enumerate(topic.partitions):
                assert found.get(number, []) == partition.values
                partition.durable = len(partition.values)
                table = self.run(self.queue.read_arrow(name, partition=number))
                assert table.column("value").to_pylist() == partition.values
        with pytest.raises(UnknownTopic):
            self.run(self.queue.subscribe("unknown", "billing").open())


def run_machine(examples, steps):
    run_state_machine_as_test(
        QueueMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.acceptance(17, 45, 46)
def test_any_sequence_of_calls_and_crashes_equals_the_model():
    run_machine(100, 40)


@pytest.mark.torture
@pytest.mark.acceptance(17, 45, 46)
def test_many_sequences_of_calls_and_crashes_equal_the_model():
    run_machine(2_000, 60)
