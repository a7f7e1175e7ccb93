"""Small promises of the log that are easily broken unnoticed: wake-ups, order of steps, things that are cleaned up."""

import asyncio
import errno
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import TopicConfig, WalMessageQueue
from penstock.errors import Closed, DeadlineExceeded, Fenced, Forked, InvalidOption
from penstock.log import transaction_roll
from penstock.log.batch import Batch
from penstock.log.columns import Columns
from penstock.log.deadlines import Deadlines
from penstock.log.group_session import GroupSession
from penstock.log.group_subscription import GroupSubscription
from penstock.log.offsets import OffsetFile
from penstock.log.partition import OtherEpoch
from penstock.log.places import resolve
from penstock.log.published import PublishedRow, wake
from penstock.log.receipts import Acknowledgement, Receipt
from penstock.log.sharing import Parcel, Portion
from penstock.log.topic import TopicFile
from penstock.log.transaction_decision import Share
from penstock.log.transactions import Transactions
from penstock.log.writer import TopicWriter
from penstock.stores.memory import MemoryStore
from penstock.testing.clock import VirtualClock
from penstock.testing.queue_fixtures import numbered, settle, values_of
from penstock.testing.worker import simulated_system
from tests.log.small_log import SmallLog, on_disk

TWO = TopicConfig(partitions=2)


def make(system: Any, **options: Any) -> WalMessageQueue:
    return WalMessageQueue("/data/log", system=system, maintenance_interval=None, **options)


def part(**fields: Any) -> Any:
    """As much of an object as a method of it needs."""
    return SimpleNamespace(**fields)


# Subscriptions


async def test_resuming_wakes_who_waits():
    async with make(simulated_system()) as queue:
        await queue.publish_many("orders", numbered(3))
        async with queue.subscribe("orders", "billing") as subscription:
            await subscription.pause([0])
            waiting = asyncio.create_task(subscription.next_batch(timeout=30))
            await settle()
            assert not waiting.done()
            await subscription.resume([0])
            assert [one.value for one in await waiting] == numbered(3)


@pytest.mark.parametrize("call", ["pause", "resume", "rewind", "seek", "commit"])
async def test_any_call_opens_a_subscription(call):
    async with make(simulated_system()) as queue:
        await queue.publish_many("orders", numbered(3))
        subscription = queue.subscribe("orders", "billing")
        arguments: dict[str, Any] = {"seek": "latest", "commit": {0: 2}}
        await getattr(subscription, call)(arguments.get(call, [0]))
        wanted = {"seek": 3}.get(call, 0)
        assert subscription.positions() == {0: wanted}
        await subscription.close()


@pytest.mark.parametrize("call", ["pause", "resume", "rewind", "seek", "commit"])
async def test_any_call_knows_of_partitions_that_came_meanwhile(call):
    async with make(simulated_system()) as queue:
        await queue.publish("orders", b"x")
        async with queue.subscribe("orders", "billing") as subscription:
            await queue.repartition("orders", 3)
            arguments: dict[str, Any] = {"seek": "latest", "commit": {2: 0}}
            await getattr(subscription, call)(arguments.get(call, [2]))
            assert subscription.positions().keys() == {0, 1, 2}


async def test_forgetting_closes_and_is_refused_afterwards():
    async with make(simulated_system()) as queue:
        await queue.publish("orders", b"x")
        subscription = queue.subscribe("orders", "billing")
        await subscription.forget()
        with pytest.raises(Closed):
            await subscription.open()
        with pytest.raises(Closed):
            await subscription.forget()


async def test_forgetting_after_closing_leaves_the_name_to_others():
    async with make(simulated_system()) as queue:
        await queue.publish("orders", b"x")
        async with queue.subscribe("orders", "billing") as subscription:
            pass
        with pytest.raises(Closed):
            await subscription.forget()
        assert TopicFile(queue.store, "orders").read().subscribers == {"billing": {0: 0}}


async def test_forgetting_waits_for_an_open_that_has_begun(half_open):
    """Otherwise the name would be registered after it was forgotten."""
    queue, subscription, opening, go_on = half_open
    forgetting = asyncio.create_task(subscription.forget())
    done, _ = await asyncio.wait({forgetting}, timeout=0.1)
    go_on.set()
    assert not done
    await forgetting
    with suppress(Closed):
        await opening
    assert not TopicFile(queue.store, "orders").read().subscribers
    async with queue.subscribe("orders", "billing"):
        pass


async def test_a_lone_subscriber_reads_all_epochs_in_their_order():
    async with make(simulated_system(), defaults=TWO) as queue:
        await queue.publish_many("orders", numbered(10))
        async with queue.subscribe("orders", "billing") as subscription:
            await queue.repartition("orders", 3)
            await queue.publish_many("orders", [b"later"] * 9)
            found = await values_of(subscription, 19)
            assert set(found[:10]) == set(numbered(10))
            assert found[10:] == [b"later"] * 9


# Groups


def test_a_lease_is_renewed_by_one_timer():
    """One that was renewed early is not renewed at the old time as well."""
    clock = VirtualClock()
    beats: list[float] = []
    world = part(
        _timer=None,
        member=part(heartbeat_seconds=3.0),
        _coordinator=part(system=part(clock=clock)),
        _due=lambda: beats.append(clock.monotonic()),
    )
    GroupSession._arm(world)
    clock.advance(2.0)
    GroupSession._arm(world)
    clock.advance(30.0)
    assert beats == [5.0]


async def test_an_offset_that_a_group_goes_to_is_of_one_partition():
    looked: list[int] = []

    def resolved(places: list[Any], to: int) -> list[int]:
        looked.extend(place.number for place in places)
        return [to for _ in places]

    world = part(
        _places_of=lambda numbers: [part(number=one) for one in numbers],
        _call=lambda job, *arguments: job(*arguments),
        _shared=part(resolve=resolved),
    )
    with pytest.raises(InvalidOption, match="of one partition"):
        await GroupSubscription.resolve(world, [0, 1], 5)
    assert await GroupSubscription.resolve(world, [1], 5) == {1: 5}
    assert (await GroupSubscription.resolve(world, [2, 1], "latest")).keys() == {1, 2}
    assert looked == [1, 2, 1]


def test_what_a_member_was_not_given_is_read_elsewhere():
    world = part(_places=["a", "b", "c"], _given=frozenset({1}))
    assert GroupSubscription._elsewhere(world) == {0, 2}


# Places


def test_a_time_means_the_first_record_from_then_on():
    log = SmallLog()
    times = []
    for number in range(3):
        log.clock.advance(10.0)
        times.append(log.clock.time_ms())
        log.append((None, b"%d" % number))
    at = [datetime.fromtimestamp(one / 1000, UTC) for one in times]
    assert [resolve(log.reader(), one) for one in at] == [0, 1, 2]
    late = datetime.fromtimestamp(times[1] / 1000 + 0.001, UTC)
    assert resolve(log.reader(), late) == 2
    assert [resolve(log.reader(), one) for one in ("earliest", "latest", 0, 7)] == [0, 3, 0, 7]
    with pytest.raises(InvalidOption, match="not a position"):
        resolve(log.reader(), -1)
    with pytest.raises(InvalidOption, match="time zone"):
        resolve(log.reader(), at[0].replace(tzinfo=None))


# Offsets


def test_a_deleted_offset_is_gone_from_both_stores():
    locks, bytes_ = MemoryStore(), MemoryStore()
    file = OffsetFile(locks, "billing", "orders", 0, bytes_)
    locks.write(file.key, b"")
    file.commit(5, 1)
    file.delete()
    assert not locks.exists(file.key)
    assert not bytes_.exists(file.key)
    assert file.read() is None


# Publishing


async def test_a_partition_that_failed_is_not_read_from_memory():
    system = simulated_system(immediate=True)
    async with make(system, defaults=TopicConfig(linger_ms=0)) as queue:
        await queue.publish("orders", b"0")
        cache = queue._opened["orders"].caches[0]
        assert cache.read("orders", 0, 0, 1)
        columns = Columns([b"1"])
        batch = Batch(columns, Receipt("orders", None), size=1, awaited=True)
        writer = queue._opened["orders"].writer
        writer._fail(0, [Parcel(columns, [Portion(batch, [0])])], OSError(errno.EIO, "the disk"))
        assert cache.read("orders", 0, 0, 1) is None


async def test_records_of_a_deadline_share_a_timer_and_do_not_pile_up():
    loop = asyncio.get_running_loop()
    timers: list[float] = []
    turns: list[Callable[[], None]] = []

    def call_later(seconds: float, *_: object) -> Any:
        timers.append(seconds)
        return part(cancel=lambda: None)

    fake: Any = part(
        create_future=loop.create_future,
        time=loop.time,
        call_soon=turns.append,
        call_later=call_later,
    )
    made = Deadlines(fake)
    for _ in range(100):
        made.future(30.0).set_result(None)
        made.future(30.0).set_result(None)
        turns.pop()()
    waiting = made.future(30.0)
    made.future(5.0).set_result(None)
    turns.pop()()
    assert timers == [30.0, 5.0]
    assert made._queues[30.0][0][0] > loop.time()
    with pytest.raises(InvalidOption):
        made.future(-1.0)
    assert len(made._queues[30.0]) == 1
    made.close()
    assert isinstance(waiting.exception(), DeadlineExceeded)


async def test_a_receipt_wakes_each_waiter_once():
    loop = asyncio.get_running_loop()
    receipt = Receipt("orders", loop)
    left, stays = asyncio.create_task(receipt.wait()), asyncio.create_task(receipt.wait())
    await settle()
    left.cancel()
    await settle()
    receipt.done = True
    receipt.resolve()
    assert (await stays).count == 0
    receipt.resolve()


async def test_a_publisher_hears_of_its_place_or_of_its_error_and_not_when_it_left():
    loop = asyncio.get_running_loop()
    placed, failed, left = rows = [PublishedRow.of(b"x", False, loop) for _ in range(3)]
    placed.acknowledgement = Acknowledgement("orders", 0, 7, 1, True)
    failed.error = OSError("the disk")
    left.cancel()
    wake(loop, rows)
    wake(loop, rows)
    assert left.cancelled()
    assert placed.result().offset == 7
    assert isinstance(failed.exception(), OSError)


# Transactions


async def test_staged_records_of_two_processes_join(tmp_path):
    async with WalMessageQueue(tmp_path / "log") as queue:
        await queue.create_topic("invoices")
        elsewhere = [Transactions(queue.store) for _ in range(2)]
        staged = [
            one.stage("billing", {"invoices": Columns([value] * 3)})
            for one, value in zip(elsewhere, (b"first", b"second"), strict=True)
        ]
        async with queue.transaction("billing") as tx:
            for one in staged:
                tx.add_staged(one)
        found = [one.value async for one in queue.replay("invoices")]
        assert found == [b"first"] * 3 + [b"second"] * 3
        for other in elsewhere:
            other.close()


def test_entries_for_an_epoch_that_is_over_are_sent_on_after_one_look(monkeypatch):
    asked: list[str] = []

    def settled(store: object, topic: str) -> Any:
        asked.append(topic)
        return part(epoch=2)

    def append(*_: object, **__: object) -> Any:
        raise OtherEpoch("another one")

    monkeypatch.setattr(transaction_roll, "settle", settled)
    world = part(
        _places=part(store=None),
        _logs=part(using=lambda *_, **__: nullcontext(part(append=append))),
        _standing=lambda *_: set(),
    )
    note: Any = part(stored_length=1)
    monkeypatch.setattr(transaction_roll, "_portions", lambda *_: [["draft"]])
    decision: Any = None
    bodies: Any = None
    share = Share("orders", 0, 1, (note,))
    (displaced,) = transaction_roll.Roller._append(world, decision, share, bodies, first=True)
    assert displaced.share.entries == (note,)
    assert asked == ["orders"]


async def test_a_producer_is_fenced_before_its_last_sequence_is_looked_up(tmp_path):
    """Otherwise what it commits in between would stand twice."""
    async with (
        WalMessageQueue(tmp_path / "log") as queue,
        WalMessageQueue(tmp_path / "log") as other,
    ):
        await queue.create_topic("rows")
        before, after = queue.producer("outbox"), other.producer("outbox")
        await before.publish("rows", b"0", sequence=0)
        look = after.last_number

        async def looked_up() -> int:
            found = await look()
            with suppress(Fenced):
                await before.publish("rows", b"1", sequence=1)
            return found

        after.last_number = looked_up  # type: ignore[method-assign]
        await asyncio.gather(*(after.publish("rows", b"%d" % n, sequence=n) for n in (1, 2)))
        await after.close()
        await before.close()
        found = [one.value or b"" async for one in queue.replay("rows")]
        assert sorted(found) == numbered(3)


# fork


async def test_a_forked_child_is_refused_though_a_lock_was_held():
    """The thread that held it is not there in the child."""
    system = simulated_system(immediate=True)
    offsets, tier = on_disk(system.files, "/data/offsets"), on_disk(system.files, "/data/tier")
    async with make(system, offsets=offsets, tier=tier) as queue:
        await queue.publish("orders", b"x")
        writer = queue._opened["orders"].writer
        held = writer._refusing
        held.acquire()
        try:
            queue.abandon_after_fork()
        finally:
            held.release()
        with pytest.raises(Forked):
            writer.add_nowait(b"y")
        with pytest.raises(Forked):
            queue.publish_nowait("orders", b"y")
        for store in (queue.store, offsets, tier):
            with pytest.raises((Forked, Closed)):
                store.read("a")


def test_a_new_lock_of_a_forked_writer_is_free():
    writer: Any = TopicWriter.__new__(TopicWriter)
    writer._refusing = threading.Lock()
    writer._refusing.acquire()
    writer.config, writer._committing_bytes = TopicConfig(), 0
    refusal = Forked("open a new one")
    writer.abandon_after_fork(refusal)
    assert (writer.refusal, writer._room) == (refusal, -1)
