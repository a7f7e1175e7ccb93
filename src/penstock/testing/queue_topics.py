"""The queue suite: making, finding, changing and naming topics."""

from __future__ import annotations

import asyncio
import string
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import FsyncPolicy, Record, Retention, TopicConfig
from penstock.errors import (
    InvalidName,
    InvalidOption,
    RecordTooLarge,
    UnknownPartition,
    UnknownTopic,
    UsageError,
)
from penstock.testing.queue_fixtures import (
    EXAMPLES,
    MakeQueue,
    QueueFixtures,
    everything,
    numbered,
    records_of,
    values_of,
)

CONFIG = TopicConfig(partitions=3, fsync=FsyncPolicy.TIMED, retention=Retention(age_ms_max=5))
NAME_CHARACTERS = {*string.ascii_letters, *string.digits, *"._-"}
GOOD_NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}", fullmatch=True)
BAD_NAMES = ["", ".", "..", "../x", "a/b", "/a", "a b", "a\n", "a\0b", "-a", ".a", "ü", "a" * 201]
BAD_TEXT = st.text(max_size=20).filter(lambda name: not set(name) <= NAME_CHARACTERS)
BAD_CONFIGS: list[dict[str, Any]] = [
    {"partitions": 0},
    {"partitions": "2"},
    {"fsync": "sometimes"},
    {"fsync_messages": 0},
    {"codec": "brotli"},
    {"retention": None},
    {"retention": Retention(age_ms_max=0)},
    {"linger_ms": -1},
    {"buffer_bytes_max": 10},
]


class TopicConformance(QueueFixtures):
    """What topics are."""

    async def test_a_topic_is_made_once(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            first = await queue.create_topic("orders", CONFIG)
            assert (first.name, first.partitions, first.config) == ("orders", 3, CONFIG)
            assert await queue.create_topic("orders") == first
            assert await queue.create_topic("orders", TopicConfig(partitions=7)) == first
        async with make_queue() as queue:
            assert await queue.create_topic("orders", TopicConfig(partitions=7)) == first

    async def test_many_may_make_a_topic_at_the_same_time(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue, make_queue() as other:
            configs = [TopicConfig(partitions=1 + number % 4) for number in range(12)]
            states = await asyncio.gather(
                *(
                    (queue, other)[number % 2].create_topic("orders", config)
                    for number, config in enumerate(configs)
                )
            )
            assert states == [states[0]] * 12
            await asyncio.gather(*(queue.publish("orders", b"x") for _ in range(10)))
            assert len(await everything(other, "orders")) == 10

    async def test_one_who_makes_and_one_who_does_not_may_meet(self, make_queue: MakeQueue) -> None:
        """A publisher that may not make topics does not spoil the call that makes one."""
        async with make_queue(auto_create=False) as queue:
            published, made, read = await asyncio.gather(
                queue.publish("orders", b"x"),
                queue.create_topic("orders", CONFIG),
                everything(queue, "orders"),
                return_exceptions=True,
            )
            assert not isinstance(made, BaseException)
            assert made.config == CONFIG
            for outcome in (published, read):
                assert not isinstance(outcome, BaseException) or isinstance(outcome, UnknownTopic)

    async def test_topics_are_made_on_first_use_with_the_defaults(
        self, make_queue: MakeQueue
    ) -> None:
        async with make_queue(defaults=CONFIG) as queue:
            await queue.publish("orders", b"x")
            assert (await queue.create_topic("orders")).config == CONFIG
            assert await queue.topics() == ["orders"]

    async def test_topics_are_not_made_when_that_is_off(self, make_queue: MakeQueue) -> None:
        async with make_queue(auto_create=False) as queue:
            for call in (
                queue.publish("orders", b"x"),
                queue.publish_many("orders", [b"x"]),
                queue.wait_durable("orders", 0),
                queue.read_arrow("orders"),
                queue.recovery("orders"),
                queue.change_topic("orders", linger_ms=1),
                queue.unsubscribe("orders", "billing"),
                anext(queue.replay("orders")),
            ):
                with pytest.raises(UnknownTopic, match="create_topic"):
                    await call
            assert await queue.topics() == []
            await queue.create_topic("orders")
            assert (await queue.publish("orders", b"x")).offset == 0

    async def test_topics_are_listed(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue, make_queue() as other:
            assert await queue.topics() == []
            for name in ("orders", "a", "orders.eu", "_x-1"):
                await queue.create_topic(name)
            assert (
                await queue.topics() == await other.topics() == ["_x-1", "a", "orders", "orders.eu"]
            )

    async def test_topics_do_not_mix(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            names = ["a", "a-0", "a-0.offset", "a.lock", "topics", "a.b", "0"]
            for name in names:
                await queue.publish_many(name, [name.encode()] * 3)
            for name in names:
                async with queue.subscribe(name, "a") as subscription:
                    assert await values_of(subscription, 3) == [name.encode()] * 3
                    await subscription.commit()
            for name in names:
                assert [one.value for one in await everything(queue, name)] == [name.encode()] * 3

    @settings(EXAMPLES, max_examples=10)
    @given(name=GOOD_NAMES, subscriber=GOOD_NAMES)
    async def test_a_good_name_works(
        self, make_queue: MakeQueue, name: str, subscriber: str
    ) -> None:
        async with make_queue() as queue:
            if name.casefold() in {one.casefold() for one in await queue.topics()}:
                return
            await queue.publish(name, b"x")
            async with queue.subscribe(name, subscriber) as subscription:
                assert await values_of(subscription, 1) == [b"x"]
                await subscription.commit()
            assert name in await queue.topics()

    @settings(EXAMPLES, max_examples=15)
    @given(name=st.sampled_from(BAD_NAMES) | BAD_TEXT)
    async def test_a_bad_name_is_refused(self, make_queue: MakeQueue, name: str) -> None:
        async with make_queue() as queue:
            await queue.create_topic("good")
            with pytest.raises(InvalidName, match="letters, digits"):
                await queue.publish(name, b"x")
            with pytest.raises(InvalidName):
                await queue.create_topic(name)
            with pytest.raises(InvalidName):
                queue.publish_nowait(name, b"x")
            with pytest.raises(InvalidName):
                queue.subscribe(name, "billing")
            with pytest.raises(InvalidName):
                queue.subscribe("good", name)
            with pytest.raises(InvalidName):
                await queue.unsubscribe("good", name)
            with pytest.raises(InvalidName):
                await anext(queue.replay(name))
            assert await queue.topics() == ["good"]

    async def test_names_that_differ_by_case_alone_are_refused(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            await queue.create_topic("Orders")
            with pytest.raises(InvalidName, match="case"):
                await queue.publish("orders", b"x")

    async def test_an_unknown_partition_is_named(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            await queue.create_topic("orders", TopicConfig(partitions=2))
            for partition in (-1, 2, 100):
                with pytest.raises(UnknownPartition, match="0 to 1"):
                    queue.durable_offset("orders", partition)
                with pytest.raises(UnknownPartition):
                    await queue.wait_durable("orders", 0, partition)

    # Settings

    async def test_settings_are_changed_for_good(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            await queue.publish("orders", bytes(200))
            changed = await queue.change_topic("orders", record_bytes_max=100, linger_ms=1)
            assert (changed.config.record_bytes_max, changed.config.linger_ms) == (100, 1)
            with pytest.raises(RecordTooLarge):
                await queue.publish("orders", bytes(101))
        async with make_queue() as queue:
            assert (await queue.create_topic("orders")).config == changed.config
            with pytest.raises(RecordTooLarge):
                await queue.publish("orders", bytes(101))
            await queue.change_topic("orders", record_bytes_max=101)
            await queue.publish("orders", bytes(101))
            assert len(await everything(queue, "orders")) == 2

    async def test_the_policy_can_be_changed(self, make_queue: MakeQueue) -> None:
        async with make_queue(defaults=TopicConfig(fsync=FsyncPolicy.TIMED)) as queue:
            assert not (await queue.publish("orders", b"x")).durable
            await queue.change_topic("orders", fsync=FsyncPolicy.EVERY_MESSAGE)
            assert (await queue.publish("orders", b"x")).durable
            assert queue.durable_offset("orders") == 2

    @pytest.mark.parametrize("wrong", [*BAD_CONFIGS, {"colour": "red"}], ids=str)
    async def test_a_wrong_change_changes_nothing(
        self, make_queue: MakeQueue, wrong: dict[str, Any]
    ) -> None:
        async with make_queue() as queue:
            state = await queue.create_topic("orders")
            with pytest.raises(InvalidOption):
                await queue.change_topic("orders", **wrong)
        async with make_queue() as queue:
            assert await queue.create_topic("orders") == state
            assert (await queue.publish("orders", b"x")).offset == 0

    @pytest.mark.parametrize("wrong", BAD_CONFIGS, ids=str)
    async def test_a_wrong_setting_makes_no_topic(
        self, make_queue: MakeQueue, wrong: dict[str, Any]
    ) -> None:
        async with make_queue() as queue:
            with pytest.raises(InvalidOption):
                await queue.create_topic("orders", TopicConfig(**wrong))
            assert await queue.topics() == []
        with pytest.raises(InvalidOption):
            make_queue(defaults=TopicConfig(**wrong))

    async def test_the_partition_count_is_not_a_setting_to_change(
        self, make_queue: MakeQueue
    ) -> None:
        async with make_queue() as queue:
            await queue.create_topic("orders")
            with pytest.raises(InvalidOption, match="partitions"):
                await queue.change_topic("orders", partitions=2)

    # Reading only

    async def test_a_read_only_queue_reads(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue, make_queue(read_only=True) as reader:
            await queue.publish_many("orders", numbered(5))
            assert [one.value for one in await everything(reader, "orders")] == numbered(5)
            await queue.publish_many("orders", numbered(5, 5))
            assert [one.value for one in await everything(reader, "orders")] == numbered(10)
            assert (await reader.read_arrow("orders")).num_rows == 10
            await reader.wait_durable("orders", 9)
            assert reader.durable_offset("orders") == 10
            assert await reader.topics() == ["orders"]

    async def test_a_read_only_queue_changes_nothing(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            state = await queue.create_topic("orders")
        async with make_queue(read_only=True) as reader:
            assert await reader.create_topic("orders", CONFIG) == state
            before = {key: reader.store.read(key) for key in reader.store.list()}
            with pytest.raises(UsageError, match="read-only"):
                await reader.publish("orders", b"x")
            with pytest.raises(UsageError, match="read-only"):
                reader.publish_nowait("orders", b"x")
            with pytest.raises(UsageError, match="read-only"):
                await reader.publish_many("orders", [b"x"])
            with pytest.raises(UsageError, match="read-only"):
                await reader.change_topic("orders", linger_ms=1)
            with pytest.raises(UsageError, match="replay"):
                reader.subscribe("orders", "billing")
            with pytest.raises(UsageError):
                await reader.unsubscribe("orders", "billing")
            with pytest.raises(UnknownTopic):
                await reader.create_topic("new")
            await reader.flush()
            assert {key: reader.store.read(key) for key in reader.store.list()} == before

    async def test_the_partition_count_changes_and_the_order_per_key_stays(
        self, make_queue: MakeQueue
    ) -> None:
        async with make_queue() as queue:
            await queue.create_topic("orders", TopicConfig(partitions=2))
            async with queue.subscribe("orders", "billing") as subscription:
                for place, count in enumerate((4, 1, 3)):
                    values = numbered(30, 30 * place)
                    await queue.publish_many("orders", values, keys=[one[-1:] for one in values])
                    assert (await queue.repartition("orders", count)).partitions == count
                check_keys(await records_of(subscription, 90))
                await subscription.commit()
        async with make_queue() as queue:
            await queue.publish_many("orders", numbered(30, 90), keys=[b"0"] * 30)
            check_keys(await everything(queue, "orders"))
            async with queue.subscribe("orders", "billing") as subscription:
                assert await values_of(subscription, 30) == numbered(30, 90)


def check_keys(records: Sequence[Record]) -> None:
    """The numbers of each key rise."""
    last: dict[bytes | None, int] = {}
    for record in records:
        number = int(record.value or b"")
        assert last.get(record.key, -1) < number
        last[record.key] = number
