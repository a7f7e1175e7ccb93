"""Subscribing through the manager: groups, cancellation, acknowledging, committing, resuming."""

import asyncio
from collections import Counter
from contextlib import suppress

import pytest

from penstock.errors import (
    Closed,
    DamagedFile,
    Fenced,
    InvalidMessage,
    InvalidName,
    InvalidOption,
    NotSupported,
    UnknownTopic,
)
from penstock.stores import open_store
from penstock.streaming import CheckpointStore, OffsetRange, Position, StreamingScalingManager
from tests.streaming.manager_world import take, turns, until, values, virtual

MANY = [b"%d" % number for number in range(20)]


async def committed(streams, topic="orders", group="billing"):
    lags = await streams.transport().lag(topic, group)
    return [one.committed for one in lags]


@pytest.fixture
async def streams():
    async with StreamingScalingManager() as streams:
        await streams.publish_many("orders", MANY)
        yield streams


@pytest.mark.acceptance(73)
async def test_each_group_gets_all_and_members_of_a_group_share(tmp_path):
    async with StreamingScalingManager(f"log:{tmp_path}") as streams:
        await streams.create_topic("orders", partitions=4)
        got: dict[str, list] = {"first": [], "second": [], "other": []}

        async def read(name, group):
            async with streams.subscribe("orders", group) as events:
                async for event in events:
                    got[name].append(event.value)

        readers = [
            asyncio.ensure_future(read("first", "billing")),
            asyncio.ensure_future(read("second", "billing")),
            asyncio.ensure_future(read("other", "shipping")),
        ]
        members = streams._streams
        await until(
            lambda: (
                len(members) == 3
                and all(one._opened and one.assignment().partitions for one in members)
                and sum(len(one.assignment().partitions) for one in members) == 8
            )
        )
        await streams.publish_many("orders", MANY)
        await until(lambda: len(got["other"]) == 20)
        await until(lambda: len(got["first"]) + len(got["second"]) == 20)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    assert sorted(got["other"]) == sorted(MANY)
    assert sorted(got["first"] + got["second"]) == sorted(MANY)
    assert got["first"]
    assert got["second"]


@pytest.mark.acceptance(74)
async def test_cancelling_a_loop_loses_nothing(streams):
    async with streams.subscribe("orders", "billing") as events:
        seen = []

        async def read(stop_at):
            async for event in events:
                seen.append(event.value)
                if event.value == stop_at:
                    await asyncio.Event().wait()  # the handler is at work when it is cancelled

        for stop_at, count in ((b"3", 4), (b"3", 5), (b"11", 14)):
            reader = asyncio.ensure_future(read(stop_at))
            await until(lambda count=count: len(seen) == count)
            reader.cancel()
            with suppress(asyncio.CancelledError):
                await reader
        assert seen == [*MANY[:4], MANY[3], *MANY[3:12]]
        seen.clear()
        waiting = asyncio.ensure_future(read(None))
        await until(lambda: len(seen) == 9)
        await turns()
        waiting.cancel()  # it waits for an event that is not there yet
        with suppress(asyncio.CancelledError):
            await waiting
        await streams.publish("orders", b"last")
        assert values(await take(events, 1)) == [b"last"]


@pytest.mark.acceptance(74)
async def test_what_was_not_handled_comes_again_after_a_restart(streams):
    async with streams.subscribe("orders", "billing") as events:
        async for event in events:
            if event.value == b"5":
                break  # not done with it
    async with streams.subscribe("orders", "billing") as events:
        assert values(await take(events, 2)) == [b"5", b"6"]


@pytest.mark.acceptance(75)
@pytest.mark.parametrize("group", ["", " ", "a/b", "é", "x" * 201, None, 7])
async def test_a_wrong_group_is_refused_at_once(streams, group):
    with pytest.raises(InvalidName):
        streams.subscribe("orders", group)


@pytest.mark.acceptance(75)
async def test_groups_may_be_called_as_one_likes(streams):
    for group in ("billing", "Billing-2.eu_west", "7", "x" * 200):
        async with streams.subscribe("orders", group) as events:
            [event] = await take(events, 1)
            assert event.group == group


async def test_what_the_transport_cannot_do_is_refused_at_once(streams):
    with pytest.raises(NotSupported):
        streams.subscribe("orders", "billing", requires=["idempotence"])
    with pytest.raises(InvalidOption):
        streams.subscribe("orders", "billing", no_such_option=1)
    with pytest.raises(UnknownTopic):
        await anext(streams.subscribe("nothing", "billing"))


@pytest.mark.acceptance(77)
async def test_offsets_are_dense_and_on_the_event():
    async with StreamingScalingManager() as streams:
        await streams.create_topic("orders", partitions=3)
        for _ in range(3):
            await streams.publish_many("orders", MANY, keys=MANY)
        async with streams.subscribe("orders", "billing") as events:
            by_partition: dict[int, list[int]] = {}
            for event in await take(events, 60):
                by_partition.setdefault(event.partition, []).append(event.offset)
    assert len(by_partition) == 3
    for offsets in by_partition.values():
        assert offsets == list(range(len(offsets)))


@pytest.mark.acceptance(87)
async def test_what_is_handled_is_committed_every_five_seconds_and_no_more_than_that():
    streams, clock = virtual()
    async with streams:
        await streams.publish_many("orders", MANY)
        async with streams.subscribe("orders", "billing") as events:
            await take(events, 8)  # the eighth is still at work
            clock.advance(4.9)
            await turns()
            assert await committed(streams) == [0]
            clock.advance(0.2)
            await until(lambda: events.committed == {0: 7})
            assert await committed(streams) == [7]
            (event,) = await take(events, 1)
            event.ack()
            assert await committed(streams) == [7]
        assert await committed(streams) == [9], "a last commit when it is closed"


@pytest.mark.acceptance(87)
async def test_the_interval_is_configurable():
    streams, clock = virtual()
    async with streams:
        await streams.publish_many("orders", MANY)
        async with streams.subscribe("orders", "billing", auto_commit=0.5) as events:
            await take(events, 3)
            clock.advance(0.6)
            await until(lambda: events.committed == {0: 2})
            assert await committed(streams) == [2]


@pytest.mark.acceptance(88)
async def test_a_manual_commit_is_durable_before_it_returns(tmp_path):
    async with StreamingScalingManager(f"log:{tmp_path}") as streams:
        await streams.publish_many("orders", MANY)
        async with streams.subscribe("orders", "billing", auto_commit=None) as events:
            got = await take(events, 10)
            await got[4].commit()
            async with StreamingScalingManager(f"log:{tmp_path}") as another:
                assert await committed(another) == [5]
            await events.commit()
            assert await committed(streams) == [5], "what was passed and not acknowledged is not"
            got[5].ack()
            await events.commit()
            assert await committed(streams) == [6]
            await take(events, 5)
        assert await committed(streams) == [6], "closing commits nothing"


@pytest.mark.acceptance(86)
async def test_a_group_resumes_behind_what_it_committed(tmp_path):
    got: list = []
    for _ in range(4):
        async with StreamingScalingManager(f"log:{tmp_path}") as streams:
            if not got:
                await streams.publish_many("orders", MANY)
            async with streams.subscribe("orders", "billing") as events:
                for event in await take(events, 5):
                    event.ack()
                    got.append(event.value)
    assert got == MANY


async def test_batches_follow_the_same_rules():
    async with StreamingScalingManager() as streams:
        await streams.publish_many("orders", MANY)
        got = []
        async with streams.subscribe("orders", "billing", records_max=6) as events:
            async for batch in events.batches():
                got.append(len(batch))
                if len(got) == 2:
                    break  # the second is not done with
        assert await committed(streams) == [6]
        async with streams.subscribe("orders", "billing", records_max=6) as events:
            async for batch in events.batches():
                await events.commit(batch)
                assert await committed(streams) == [batch.next_offset]
                if batch.next_offset == 20:
                    break
        assert streams.statistics()["default"].delivered == 12 + 14


async def test_a_loop_over_batches_that_is_cancelled_begins_with_the_same_batch():
    async with StreamingScalingManager() as streams:
        await streams.publish_many("orders", MANY)
        async with streams.subscribe("orders", "billing", records_max=6) as events:
            starts = []
            for _ in range(2):
                async for batch in events.batches():
                    starts.append(batch.records[0].offset)
                    if len(starts) % 2 == 0:
                        break
            assert starts == [0, 6, 6, 12]


@pytest.mark.acceptance(85)
async def test_events_acknowledged_in_any_order_are_remembered_by_group_and_partition(tmp_path):
    """The transport has the offset; what is handled beyond it is in a checkpoint."""
    async with StreamingScalingManager(f"log:{tmp_path}") as streams:
        await streams.publish_many("orders", MANY)
        async with streams.subscribe("orders", "billing", auto_ack=False) as events:
            got = await take(events, 12)
            for number in (0, 1, 4, 5, 9):
                got[number].ack()
        assert await committed(streams) == [2]
    store = open_store(str(tmp_path))
    try:
        assert [one for one in store.list("checkpoints/") if "billing/partition-0" in one]
        async with CheckpointStore(store) as checkpoints:
            [found] = await checkpoints.checkpoints("billing", "orders")
        assert found.position == Position(2, (OffsetRange(4, 6), OffsetRange(9, 12 - 2)))
    finally:
        store.close()
    async with StreamingScalingManager(f"log:{tmp_path}") as streams:
        async with streams.subscribe("orders", "billing") as events:
            rest = values(await take(events, 15))
        assert rest == [one for number, one in enumerate(MANY) if number not in {0, 1, 4, 5, 9}]


async def test_a_checkpoint_counts_only_at_the_offset_that_the_group_has_committed(tmp_path):
    async with StreamingScalingManager(f"log:{tmp_path}") as streams:
        await streams.publish_many("orders", MANY)
        async with streams.subscribe("orders", "billing", auto_ack=False) as events:
            got = await take(events, 6)
            for number in (0, 3, 4):
                got[number].ack()
        async with streams.transport().subscribe("orders", "billing") as consumer:
            await consumer.seek(0, partition=0)  # by somebody who knows nothing of checkpoints
        async with streams.subscribe("orders", "billing") as events:
            assert values(await take(events, 6)) == MANY[:6]


async def test_seeking_back_delivers_everything_again():
    async with StreamingScalingManager() as streams:
        await streams.publish_many("orders", MANY)
        async with streams.subscribe("orders", "billing", auto_ack=False) as events:
            got = await take(events, 6)
            for number in (0, 3, 4):
                got[number].ack()
            await events.commit()
            await events.seek(1, partition=0)
            assert values(await take(events, 5)) == MANY[1:6]
            await events.seek("earliest")
            assert values(await take(events, 20)) == MANY
            await events.pause(0)
            await events.resume(0)


async def test_a_damaged_checkpoint_is_told_and_never_used(tmp_path):
    async with StreamingScalingManager(f"log:{tmp_path}") as streams:
        await streams.publish_many("orders", MANY)
        async with streams.subscribe("orders", "billing", auto_ack=False) as events:
            got = await take(events, 6)
            got[4].ack()
    [path] = [one for one in tmp_path.rglob("*partition-0*") if "checkpoint-locks" not in str(one)]
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    async with StreamingScalingManager(f"log:{tmp_path}") as streams:
        async with streams.subscribe("orders", "billing") as events:
            for _ in range(2):
                with pytest.raises(DamagedFile):
                    await anext(events)
            await events.seek(0, partition=0)
            assert values(await take(events, 3)) == MANY[:3]


async def test_a_partition_that_goes_to_another_member_is_finished_first(tmp_path):
    """Every event is handled once, by the old member or by the new one."""
    async with StreamingScalingManager(f"log:{tmp_path}") as streams:
        await streams.create_topic("orders", partitions=4)
        await streams.publish_many("orders", MANY, keys=MANY)
        seen: Counter[bytes] = Counter()
        first = streams.subscribe("orders", "billing", records_max=3)
        seen.update(values(await take(first, 5)))  # the fifth is at work, others are at hand
        second = streams.subscribe("orders", "billing")
        await second.open()

        async def read(stream):
            async for event in stream:
                seen[event.value] += 1

        # Direct calls: the fifth event of the first member is handled now.
        seen.update(values(await take(first, 1)))
        readers = [asyncio.ensure_future(read(second))]
        first_reader = asyncio.ensure_future(_drain(first, seen))
        await until(lambda: seen.total() >= 20)
        await until(lambda: len(second.assignment().partitions) == 2)
        for reader in (*readers, first_reader):
            reader.cancel()
        await asyncio.gather(*readers, first_reader, return_exceptions=True)
    assert seen == Counter(MANY)


async def _drain(stream, seen):
    while True:
        seen[(await anext(stream)).value] += 1


async def test_an_event_of_a_partition_that_is_gone_cannot_be_committed(tmp_path):
    async with StreamingScalingManager(f"log:{tmp_path}") as streams:
        await streams.create_topic("orders", partitions=2)
        await streams.publish_many("orders", MANY)
        first = streams.subscribe("orders", "billing", auto_commit=None, release_seconds=0.05)
        got = await take(first, 20)
        async with streams.subscribe("orders", "billing") as second:
            await until(lambda: len(second.assignment().partitions) == 1)
            [gone] = second.assignment().partitions
            event = next(one for one in got if one.partition == gone)
            for _ in range(2):
                with pytest.raises(Fenced):
                    await event.commit()
            event.ack()


async def test_what_is_no_message_says_so(streams):
    async with streams.subscribe("orders", "billing") as events:
        [event] = await take(events, 1)
        with pytest.raises(InvalidMessage):
            _ = event.message


async def test_a_closed_stream_is_closed(streams):
    events = streams.subscribe("orders", "billing")
    await take(events, 2)
    await events.close()
    await events.close()
    for attempt in (events.commit, events.open, lambda: take(events, 100)):
        with pytest.raises(Closed):
            await attempt()


async def test_closing_the_manager_commits_and_closes_its_streams():
    async with StreamingScalingManager() as streams:
        transport = streams.transport()
        await streams.publish_many("orders", MANY)
        events = streams.subscribe("orders", "billing")
        await take(events, 4)
        close = transport.close
        stands = []

        async def look_and_close(timeout=30.0):
            stands.extend(await committed(streams))
            await close(timeout)

        transport.close = look_and_close  # type: ignore[method-assign]
    assert stands == [3]
