"""A file that is gone altogether: told where it matters, and made anew where nothing is lost with it."""

import pytest

from penstock import TopicConfig, WalMessageQueue
from penstock.errors import DamagedFile
from penstock.log.deletion import delete_topic
from penstock.log.group_coordinator import GroupCoordinator
from penstock.log.names import group_state_key
from penstock.log.producer_file import DoneMark, ProducerFile
from penstock.log.repair import repair
from penstock.log.transaction_decision import DecisionFiles
from penstock.log.verify import verify
from penstock.stores.memory import MemoryStore
from penstock.streaming.checkpoints import CheckpointStore
from penstock.testing.queue_fixtures import everything
from penstock.testing.worker import simulated_system

COMPACTED = TopicConfig(compact_keys=True, segment_bytes_max=256)


def open_queue(store: MemoryStore) -> WalMessageQueue:
    return WalMessageQueue(store, system=simulated_system(), maintenance_interval=None)


async def test_a_topic_whose_description_is_lost_is_not_made_anew_in_silence():
    """With one partition in place of two, half of the records would be gone without a word."""
    store = MemoryStore()
    async with open_queue(store) as queue:
        await queue.create_topic("orders", TopicConfig(partitions=2))
        for number in range(4):
            await queue.publish("orders", b"%d" % number, key=b"%d" % number)
    store.delete("topics/orders/topic.json")
    async with open_queue(store) as queue:
        for call in (queue.create_topic("orders"), queue.publish("orders", b"x")):
            with pytest.raises(DamagedFile, match="missing") as caught:
                await call
            assert caught.value.file == "topics/orders/topic.json"
    repair(store, "orders", config=TopicConfig(partitions=2))
    async with open_queue(store) as queue:
        assert len(await everything(queue, "orders")) == 4


async def test_a_topic_that_was_half_deleted_does_not_come_back_with_old_records():
    store = MemoryStore()
    async with open_queue(store) as queue:
        await queue.publish("orders", b"old")
    store.delete("topics/orders/topic.json")
    delete_topic(store, "orders")
    async with open_queue(store) as queue:
        await queue.publish("orders", b"new")
        assert [record.value for record in await everything(queue, "orders")] == [b"new"]


async def test_a_group_whose_state_is_lost_is_told_and_can_be_reset():
    store = MemoryStore()
    coordinator = GroupCoordinator(store, "billing", system=simulated_system())
    member = await coordinator.join({"orders": 2})
    generation = member.generation
    store.delete(group_state_key("billing"))
    for call in (coordinator.describe(), member.heartbeat(), coordinator.join({"orders": 2})):
        with pytest.raises(DamagedFile, match="missing"):
            await call
    await coordinator.reset()
    assert (await coordinator.describe()).generation > generation
    assert (await coordinator.join({"orders": 2})).assignment


async def test_a_checkpoint_that_is_lost_is_told_until_it_is_reset():
    store = MemoryStore()
    async with CheckpointStore(store) as checkpoints:
        await checkpoints.commit("billing", "orders", 0, 3)
    store.delete("checkpoints/orders/billing/partition-0")
    async with CheckpointStore(store) as checkpoints:
        for call in (
            checkpoints.read("billing", "orders", 0),
            checkpoints.commit("billing", "orders", 0, 4),
            checkpoints.checkpoints("billing", "orders"),
        ):
            with pytest.raises(DamagedFile, match="missing"):
                await call
        await checkpoints.reset("billing", "orders", 0, 2)
        found = await checkpoints.read("billing", "orders", 0, fresh=True)
        assert found is not None
        assert found.offset == 2
        await checkpoints.delete("billing", "orders", 0)
        assert await checkpoints.read("billing", "orders", 0, fresh=True) is None
        assert await checkpoints.checkpoints("billing", "orders") == []


@pytest.mark.parametrize("lost", ["done", "decision-1"])
async def test_a_transaction_is_not_done_again_when_its_mark_is_lost(lost):
    """Its record is compacted away, since a newer one has the key: it must not come back behind that."""
    store = MemoryStore()
    async with open_queue(store) as queue:
        await queue.create_topic("orders", COMPACTED)
        async with queue.transaction("invoicing") as transaction:
            await transaction.publish("orders", b"old" * 100, key=b"k")
        for number in range(4):
            await queue.publish("orders", b"new %d" % number * 50, key=b"k")
        await queue.maintain()
        before = await everything(queue, "orders")
        assert b"old" * 100 not in [record.value for record in before]
    store.delete(f"producers/invoicing/{lost}")
    assert verify(store).sound
    async with open_queue(store) as queue:
        producer = queue.producer("invoicing")
        await producer.open()
        assert await producer.last_number() == 0
        assert await everything(queue, "orders") == before
        async with producer.transaction() as transaction:
            await transaction.publish("orders", b"next", key=b"k")
        assert await producer.last_number() == 1


def test_the_marks_of_another_producer_count_for_nothing():
    store = MemoryStore()
    one, other = ProducerFile(store, "one"), ProducerFile(store, "other")
    one.write_done(DoneMark(5, 9))
    store.write(other.done_key, store.read(one.done_key))
    assert (one.read_done(), other.read_done()) == (DoneMark(5, 9), DoneMark())
    assert DecisionFiles(store, other).look().done == DoneMark()
