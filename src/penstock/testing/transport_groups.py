"""The transport suite: several members of one group."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from penstock.errors import DeadlineExceeded, Fenced, SubscriberBusy
from penstock.testing.transport_fixtures import (
    WAIT_SECONDS,
    MakeTransport,
    TransportFixtures,
    need,
    numbered,
    take,
)
from penstock.transports import Consumer, MemberAssignment, StreamBatch, Transport


async def _shares(members: list[Consumer], partitions: int) -> list[StreamBatch]:
    """Wait until the members have all partitions between them, none of them twice; what came meanwhile."""
    came: list[StreamBatch] = []
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            for member in members:
                # Some clients take part in a rebalance only while they are asked for records.
                (got,) = await asyncio.gather(member.next_batch(0.01), return_exceptions=True)
                came += [got] if isinstance(got, StreamBatch) else []
            parts = [member.assignment().partitions for member in members]
            whole = sorted(number for part in parts for number in part)
            if whole == list(range(partitions)) and all(parts):
                return came


class Ledger:
    """What was delivered and what was acknowledged, by whichever member."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.got: Counter[bytes | None] = Counter()
        self.done: Counter[bytes | None] = Counter()
        self.complete = asyncio.Event()

    async def read(self, member: Consumer, records_max: int = 7) -> None:
        """Commit batch by batch, until it is cancelled."""
        async for batch in member.batches(records_max):
            self.got.update(record.value for record in batch)
            if await _commits(member, batch):
                self.done.update(record.value for record in batch)
            if self.done.total() >= self.total:
                self.complete.set()

    @asynccontextmanager
    async def reader(self, member: Consumer) -> AsyncIterator[None]:
        """A task that reads; it ends between two batches, or while it waits for one."""
        async with member:
            reading = asyncio.create_task(self.read(member))
            try:
                yield
            finally:
                reading.cancel()
                (outcome,) = await asyncio.gather(reading, return_exceptions=True)
        if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
            raise outcome

    async def wait(self) -> None:
        """Return when as much is acknowledged as there is."""
        async with asyncio.timeout(WAIT_SECONDS):
            await self.complete.wait()


async def _commits(member: Consumer, batch: StreamBatch) -> bool:
    """Commit, whether or not the task is cancelled meanwhile; whether it was accepted."""
    committing = asyncio.ensure_future(member.commit(batch))
    cancelled = False
    while not committing.done():
        try:
            await asyncio.wait([committing])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        asyncio.current_task().cancel()  # type: ignore[union-attr]
    try:
        committing.result()
    except Fenced:
        return False
    return True


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
            if transport.capabilities.replay:
                assert second.positions() == {0: 2, 1: 2}
            with pytest.raises(DeadlineExceeded):
                await second.next_batch(0.01)
            await second.close()

    @pytest.mark.acceptance(73)
    async def test_members_share_and_groups_get_everything_each(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        async with make_transport() as transport:
            need(transport, "groups")
            await transport.create_topic(topic, partitions=4)
            billing, shipping = Ledger(40), Ledger(40)
            members = [transport.subscribe(topic, "billing") for _ in range(2)]
            async with (
                members[0],
                members[1],
                shipping.reader(transport.subscribe(topic, "shipping")),
            ):
                await _shares(members, 4)
                readers = [asyncio.ensure_future(billing.read(member)) for member in members]
                await transport.produce(topic, numbered(40))
                await asyncio.gather(billing.wait(), shipping.wait())
                for reader in readers:
                    reader.cancel()
                await asyncio.gather(*readers, return_exceptions=True)
        assert billing.done == shipping.done == Counter(numbered(40))

    @pytest.mark.acceptance(76)
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

    async def test_a_partition_goes_on_behind_the_commit_of_who_had_it(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        async with make_transport() as transport:
            need(transport, "groups", "rebalance")
            await transport.create_topic(topic, partitions=2)
            await transport.produce(topic, numbered(20))
            async with transport.subscribe(topic, "billing") as first:
                await take(first, 20)
                await first.commit({0: 4, 1: 6})
            async with (
                transport.subscribe(topic, "billing") as second,
                transport.subscribe(topic, "billing") as third,
            ):
                came = await _shares([second, third], 2)
                starts = second.positions() | third.positions()
                # Some of it may have come while they settled, in batches of any size.
                for batch in came:
                    first_offset = batch.records[0].offset
                    starts[batch.partition] = min(starts[batch.partition], first_offset)
                assert starts == {0: 4, 1: 6}

    async def test_members_beyond_the_partitions_wait_for_one(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        async with make_transport() as transport:
            need(transport, "groups", "rebalance")
            await transport.create_topic(topic, partitions=1)
            async with (
                transport.subscribe(topic, "billing") as first,
                transport.subscribe(topic, "billing") as second,
            ):
                await _one_has(first, second)
                first_has = bool(first.assignment().partitions)
                busy, idle = (first, second) if first_has else (second, first)
                assert idle.positions() == {}
                with pytest.raises(DeadlineExceeded):
                    await idle.next_batch(timeout=0.01)
                waiting = asyncio.ensure_future(take(idle, 3))
                await busy.close()
                await transport.produce(topic, numbered(3))
                assert [one.value for one in await waiting] == numbered(3)

    @pytest.mark.acceptance(76)
    async def test_who_has_to_give_a_partition_away_is_told_before(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        revoked: list[int] = []

        async def on_revoke(partitions: frozenset[int]) -> None:
            revoked.extend(partitions)
            await first.commit(dict.fromkeys(partitions, 3))

        async with make_transport() as transport:
            need(transport, "groups", "rebalance")
            await transport.create_topic(topic, partitions=2)
            await transport.produce(topic, numbered(20))
            first = transport.subscribe(topic, "billing", on_revoke=on_revoke)
            async with first:
                await take(first, 20)
                async with transport.subscribe(topic, "billing") as second:
                    record = (await take(second, 1))[0]
                    assert record.partition in revoked
                    assert record.offset == 3

    @pytest.mark.acceptance(76, 77)
    async def test_all_is_acknowledged_once_while_members_come_and_go(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        ledger = Ledger(2_000)
        async with make_transport() as transport:
            need(transport, "groups", "rebalance")
            await transport.create_topic(topic, partitions=5)
            async with ledger.reader(transport.subscribe(topic, "billing")):
                producing = asyncio.create_task(_trickle(transport, topic, ledger.total))
                portions = itertools.cycle([170, 3, 290, 61, 11])
                while not producing.done():
                    async with ledger.reader(transport.subscribe(topic, "billing")):
                        await ledger_moves(ledger, next(portions))
                        async with ledger.reader(transport.subscribe(topic, "billing")):
                            await ledger_moves(ledger, next(portions))
                await ledger.wait()
            assert not any(one.records for one in await transport.lag(topic, "billing"))
        assert ledger.got.keys() == set(numbered(ledger.total))
        assert ledger.done == Counter(numbered(ledger.total))


async def ledger_moves(ledger: Ledger, count: int) -> None:
    """Wait until so many more records are acknowledged, or all are."""
    enough = min(ledger.total, ledger.done.total() + count)
    async with asyncio.timeout(WAIT_SECONDS):
        while ledger.done.total() < enough:  # noqa: ASYNC110 - several wait for other counts
            await asyncio.sleep(0.001)


async def _trickle(transport: Transport, topic: str, total: int) -> None:
    for start in range(0, total, 20):
        await transport.produce(topic, numbered(20, start))
        await asyncio.sleep(0.002)


async def _one_has(*members: Consumer) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while sum(len(member.assignment().partitions) for member in members) != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
