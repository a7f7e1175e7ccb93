"""The transport suite: topics, lag, names, options, capabilities."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from penstock import System
from penstock.errors import InvalidName, InvalidOption, NotSupported, UnknownTopic
from penstock.testing.transport_fixtures import (
    WAIT_SECONDS,
    MakeTransport,
    TransportFixtures,
    need,
    numbered,
    take,
)
from penstock.transports import Capabilities

MINUTE_MS = 60_000


class TransportAdminConformance(TransportFixtures):
    """What a transport says of itself and of its topics."""

    async def test_topics_are_made_once_and_listed(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        async with make_transport() as transport:
            need(transport, "create_topics")
            assert topic not in await transport.topics()
            await transport.create_topic(topic, partitions=3)
            await transport.create_topic(topic, partitions=5)
        async with make_transport() as transport:
            assert topic in await transport.topics()
            assert await transport.partitions(topic) == 3

    async def test_a_topic_that_is_not_there_is_an_error(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        async with make_transport() as transport:
            with pytest.raises(UnknownTopic, match=topic):
                await transport.partitions(topic)
            with pytest.raises(UnknownTopic, match=topic):
                await transport.subscribe(topic, "billing").open()
            if transport.capabilities.lag:
                with pytest.raises(UnknownTopic, match=topic):
                    await transport.lag(topic, "billing")
            assert topic not in await transport.topics()

    @pytest.mark.acceptance(75)
    @pytest.mark.parametrize("group", ["", " ", "a/b", None, "x" * 300])
    async def test_a_group_id_is_checked_when_subscribing(
        self, make_transport: MakeTransport, topic: str, group: Any
    ) -> None:
        async with make_transport() as transport:
            await transport.create_topic(topic, partitions=1)
            with pytest.raises(InvalidName, match="group"):
                transport.subscribe(topic, group)
            if transport.capabilities.lag:
                with pytest.raises(InvalidName, match="group"):
                    await transport.lag(topic, group)

    @pytest.mark.acceptance(75)
    async def test_a_group_id_is_the_callers_choice(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        async with make_transport() as transport:
            await transport.create_topic(topic, partitions=1)
            await transport.produce(topic, numbered(2))
            for group in ("billing", "Billing-2.eu", "_x"):
                async with transport.subscribe(topic, group) as consumer:
                    assert (consumer.topic, consumer.group) == (topic, group)
                    assert len(await take(consumer, 2)) == 2

    async def test_options_that_are_not_known_name_the_right_ones(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        with pytest.raises(InvalidOption, match="no_such_option") as refused:
            make_transport(no_such_option=1)
        assert isinstance(refused.value.known, tuple)
        for name in refused.value.known:
            assert name in str(refused.value)
        async with make_transport() as transport:
            with pytest.raises(InvalidOption, match="no_such_option"):
                await transport.create_topic(topic, no_such_option=1)
            with pytest.raises(InvalidOption, match="no_such_option"):
                transport.subscribe(topic, "billing", no_such_option=1)
            with pytest.raises(InvalidOption):
                await transport.create_topic(topic, partitions=0)

    async def test_capabilities_are_declared_and_do_not_change(
        self, make_transport: MakeTransport
    ) -> None:
        async with make_transport() as transport:
            assert isinstance(transport.capabilities, Capabilities)
            with pytest.raises(FrozenInstanceError):
                transport.capabilities.groups = True  # type: ignore[misc]
            assert transport.name

    async def test_what_it_cannot_do_is_refused_when_subscribing(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        async with make_transport() as transport:
            await transport.create_topic(topic, partitions=1)
            has = set(transport.capabilities.names())
            for name in {one.name for one in fields(Capabilities)} - has:
                with pytest.raises(NotSupported, match=name) as refused:
                    transport.subscribe(topic, "billing", requires=[name])
                assert refused.value.missing == (name,)
            await transport.subscribe(topic, "billing", requires=has).close()
            with pytest.raises(InvalidOption, match="wings"):
                transport.subscribe(topic, "billing", requires=["wings"])

    async def test_lag_is_what_a_group_has_not_committed(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        async with make_transport() as transport:
            need(transport, "lag")
            await transport.create_topic(topic, partitions=2)
            await transport.produce(topic, numbered(20))
            async with transport.subscribe(topic, "billing") as consumer:
                await take(consumer, 20)
                await consumer.commit({0: 4, 1: 10})
                live = await transport.lag(topic, "billing")
        async with make_transport() as transport:
            lag = await transport.lag(topic, "billing")
            assert [(one.partition, one.committed, one.end) for one in lag] == [
                (0, 4, 10),
                (1, 10, 10),
            ]
            assert [one.records for one in lag] == [one.records for one in live] == [6, 0]
            assert [one.records for one in await transport.lag(topic, "new")] == [10, 10]

    async def test_lag_in_time_is_the_age_of_what_waits(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        now = System().clock.time_ms()
        times = [now - 9 * MINUTE_MS, now - 5 * MINUTE_MS, now - MINUTE_MS]
        async with make_transport() as transport:
            need(transport, "lag", "lag_time", "timestamps")
            await transport.create_topic(topic, partitions=1)
            await transport.produce(topic, numbered(3), timestamps=times)
            async with transport.subscribe(topic, "billing") as consumer:
                for done, minutes in enumerate((9, 5, 1)):
                    (lag,) = await transport.lag(topic, "billing")
                    assert lag.records == 3 - done
                    assert minutes * MINUTE_MS <= lag.milliseconds < (minutes + 3) * MINUTE_MS
                    await consumer.commit({0: done + 1})
                (lag,) = await transport.lag(topic, "billing")
                assert (lag.records, lag.milliseconds) == (0, 0)

    async def test_a_group_can_be_forgotten(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        async with make_transport() as transport:
            need(transport, "replay")
            await transport.create_topic(topic, partitions=1)
            await transport.produce(topic, numbered(3))
            async with transport.subscribe(topic, "billing") as consumer:
                await take(consumer, 3)
                await consumer.commit()
            await transport.forget(topic, "billing")
            async with transport.subscribe(topic, "billing") as consumer:
                assert consumer.positions() == {0: 0}

    async def test_the_groups_of_a_topic_are_known_to_everybody(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        async with make_transport() as transport:
            need(transport, "list_groups")
            await transport.create_topic(topic)
            await transport.produce(topic, numbered(1))
            assert list(await transport.groups(topic)) == []
            for group in ("shipping", "billing"):
                async with transport.subscribe(topic, group) as consumer:
                    await consumer.commit(await consumer.next_batch(WAIT_SECONDS))
            assert sorted(await transport.groups(topic)) == ["billing", "shipping"]

    async def test_order_per_key_survives_a_change_of_the_partition_count(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        async with make_transport() as transport:
            need(transport, "repartition", "keyed_routing")
            await transport.create_topic(topic, partitions=2)
            async with transport.subscribe(topic, "live") as live:
                for place, count in enumerate((5, 1, 3)):
                    values = numbered(40, 40 * place)
                    await transport.produce(topic, values, keys=[value[-1:] for value in values])
                    await transport.repartition(topic, count)
                    assert await transport.partitions(topic) == count
                followed = await take(live, 120)
            async with transport.subscribe(topic, "late") as late:
                behind = await take(late, 120)
            for records in (followed, behind):
                assert sorted(int(one.value or b"") for one in records) == list(range(120))
                last: dict[bytes | None, int] = {}
                for one in records:
                    number = int(one.value or b"")
                    assert last.get(one.key, -1) < number
                    last[one.key] = number
