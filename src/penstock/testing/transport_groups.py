"""The transport suite: several members of one group."""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import SubscriberBusy
from penstock.testing.transport_fixtures import (
    WAIT_SECONDS,
    MakeTransport,
    TransportFixtures,
    need,
    numbered,
    take,
)
from penstock.transports import Consumer, MemberAssignment, StreamRecord


async def _shares(members: list[Consumer], partitions: int) -> None:
    """Wait until the members have all partitions between them, none of them twice."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            for member in members:
                # Some clients take part in a rebalance only while they are asked for records.
                (_,) = await asyncio.gather(member.next_batch(0.01), return_exceptions=True)
            parts = [member.assignment().partitions for member in members]
            whole = sorted(number for part in parts for number in part)
            if whole == list(range(partitions)) and all(parts):
                return


class GroupConformance(TransportFixtures):
    """How members of a group share a topic, where the transport can do it."""

    async def test_a_second_member_of_a_group_is_refused_where_groups_are_not_shared(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        async with make_transport() as transport:
            if transport.capabilities.groups:
                pytest.skip(f"{transport.name} has the capability 'groups'")
            await transport.create_topic(topic, partitions=2)
            await transport.produce(topic, numbered(4))
            async with transport.subscribe(topic, "billing") as first:
                assert first.assignment().partitions == {0, 1}
                second = transport.subscribe(topic, "billing")
                with pytest.raises(SubscriberBusy, match="billing"):
                    await second.open()
                await take(first, 4)
                await first.commit()
            await second.open()
            assert second.positions() == {0: 2, 1: 2}
            await second.close()

    async def test_members_of_a_group_share_its_partitions(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        async with make_transport() as transport:
            need(transport, "groups")
            await transport.create_topic(topic, partitions=4)
            async with (
                transport.subscribe(topic, "billing") as first,
                transport.subscribe(topic, "billing") as second,
            ):
                await _shares([first, second], 4)
                await transport.produce(topic, numbered(40))
                got = await _everything([first, second], 40)
        assert {one.value for one in got} == set(numbered(40))

    async def test_the_partitions_of_a_member_that_leaves_go_to_the_others(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        async with make_transport() as transport:
            need(transport, "groups", "rebalance")
            await transport.create_topic(topic, partitions=4)
            async with transport.subscribe(topic, "billing") as first:
                async with transport.subscribe(topic, "billing") as second:
                    await _shares([first, second], 4)
                    before: MemberAssignment = first.assignment()
                await _shares([first], 4)
                assert first.assignment().generation > before.generation
                await transport.produce(topic, numbered(40))
                got = await take(first, 40)
        assert {one.value for one in got} == set(numbered(40))


async def _everything(members: list[Consumer], count: int) -> list[StreamRecord]:
    """So many records, from whichever member gets them."""
    got: list[StreamRecord] = []

    async def read(member: Consumer) -> None:
        async for batch in member:
            got.extend(batch)
            if len(got) >= count:
                done.set()

    done = asyncio.Event()
    readers = [asyncio.ensure_future(read(member)) for member in members]
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            await done.wait()
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    return got
