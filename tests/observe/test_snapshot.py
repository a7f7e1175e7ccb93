"""One snapshot of all that is watched."""

import asyncio
import json

import pytest

import penstock
from penstock import Event, MessageBus, WalMessageQueue, topic
from penstock.errors import InvalidOption
from penstock.observe import GroupActivity, Observer


@topic("seen", key="number")
class Seen(Event):
    number: int = 0


def readers(snapshot):
    return next((one for one in snapshot.groups if one.group == "readers"), None)


async def test_a_durable_bus_brings_its_log_and_its_groups(tmp_path):
    async with penstock.open(f"log:{tmp_path}") as bus:
        observer = Observer()
        observer.watch(bus)
        bus.subscribe(Seen, lambda _: None, group="readers")
        for number in range(10):
            await bus.publish(Seen(number))
        await bus.settle()
        while not (group := readers(snapshot := await observer.look())) or group.lag_records:
            await asyncio.sleep(0.005)  # what is handled is committed a moment later
    assert (group.topic, group.state, group.lag_records) == ("seen", GroupActivity.IDLE, 0)
    assert group.local
    [partition] = group.partitions
    assert (partition.committed, partition.end) == (10, 10)
    [seen] = [one for one in snapshot.topics if one.topic == "seen"]
    assert seen.partitions[0].durable_offset == 10
    assert seen.partitions[0].bytes > 0
    assert 0 < seen.sync_durations.count <= 10
    assert seen.sync_durations.total_seconds > 0


async def test_a_log_is_seen_from_its_files_alone(tmp_path):
    async with WalMessageQueue(tmp_path) as queue:
        await queue.create_topic("orders")
        async with queue.subscribe("orders", "billing") as records:
            for number in range(3):
                await queue.publish("orders", str(number).encode())
            await records.commit(await anext(records))
        async with WalMessageQueue(tmp_path, read_only=True) as files:
            observer = Observer()
            observer.watch(files, name="orders-log")
            snapshot = await observer.look()
    [group] = snapshot.groups
    assert (group.source, group.group, group.lag_records) == ("orders-log", "billing", 2)
    assert not group.local


async def test_the_parts_can_be_had_by_their_names(tmp_path):
    async with penstock.open(f"log:{tmp_path}", name="shop") as bus:
        observer = Observer()
        observer.watch(bus)
        await observer.look()
        parts = observer.parts()
    assert parts["shop"] is bus
    assert isinstance(parts["log"], WalMessageQueue)


async def test_a_damaged_offset_hides_no_other_group(tmp_path):
    async with WalMessageQueue(tmp_path) as queue:
        await queue.create_topic("orders")
        for name in ("billing", "shipping"):
            async with queue.subscribe("orders", name):
                pass
        await queue.publish("orders", b"1")
        file = tmp_path / "groups" / "billing" / "orders-0.offset"
        file.write_bytes(b"x" * file.stat().st_size)
        observer = Observer()
        observer.watch(queue)
        snapshot = await observer.look()
        health = observer.health()
    assert [one.group for one in snapshot.groups] == ["shipping"]
    assert not health.ready
    assert "group 'billing' cannot be looked at" in health.reasons[0]


async def test_a_snapshot_is_json(tmp_path):
    async with penstock.open(f"log:{tmp_path}") as bus:
        observer = Observer()
        observer.watch(bus)
        bus.subscribe(Seen, lambda _: None)
        await bus.publish(Seen(1))
        await bus.settle()
        while (snapshot := await observer.look()).groups[0].lag_records:
            await asyncio.sleep(0.005)
    plain = json.loads(snapshot.to_json())
    assert plain == snapshot.to_dict()
    assert plain["buses"][0]["figures"]["events_processed"] == 1
    assert plain["buses"][0]["pressure"]["pressure"]["level"] == "NORMAL"
    assert plain["groups"][0]["state"] == "idle"


async def test_parts_have_names_of_their_own():
    observer = Observer()
    first, second = MessageBus(name="orders"), MessageBus(name="orders")
    observer.watch(first)
    observer.watch(second)
    observer.watch(first)
    assert [one.name for one in observer.snapshot().buses] == ["orders", "orders-2"]
    observer.unwatch(first)
    assert [one.name for one in observer.snapshot().buses] == ["orders-2"]


async def test_what_nobody_can_look_at_is_refused():
    with pytest.raises(InvalidOption, match="watch a bus"):
        Observer().watch(object())


@pytest.mark.parametrize("option", ["look_seconds", "stall_seconds"])
def test_times_are_checked(option):
    with pytest.raises(InvalidOption, match=option):
        Observer(**{option: 0})  # type: ignore[arg-type]
