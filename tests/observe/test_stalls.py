"""Progress, not liveness: who has something to do and does nothing is stalled, and why."""

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest

from penstock import (
    BreakerOptions,
    Event,
    MessageBus,
    QueueOptions,
    ResilientMessageBus,
    Retry,
    ScalableMessageBus,
    System,
    WalMessageQueue,
    hot_path,
    topic,
)
from penstock.observe import Cause, GroupActivity, GroupKind, Observer
from penstock.testing import VirtualClock

STALL = 30.0


@topic("work", key="number")
class Work(Event):
    number: int = 0


@hot_path
@topic("hot")
class Hot(Event):
    number: int = 0


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def system(clock):
    return System(clock=clock)


@pytest.fixture
def observer(system):
    return Observer(stall_seconds=STALL, system=system)


def group_of(snapshot, topic="work"):
    [group] = [one for one in snapshot.groups if one.topic == topic]
    return group


@asynccontextmanager
async def running(bus):
    """A bus that does not wait for its handlers at the end: time does not pass by itself here."""
    await bus.start()
    try:
        yield bus
    finally:
        await bus.stop(drain=False)


async def turn(times=5):
    for _ in range(times):
        await asyncio.sleep(0)


async def wait_in_vain(gate):
    await gate.wait()


@pytest.mark.parametrize("make", [MessageBus, ResilientMessageBus])
@pytest.mark.parametrize("handlers", [1, 2])
async def test_a_handler_that_does_not_return_is_a_stall_with_its_stack(
    make, handlers, observer, system, clock
):
    gate = asyncio.Event()
    async with running(make(name="shop", system=system)) as bus:
        observer.watch(bus)

        async def charge(event):
            await wait_in_vain(gate)

        for _ in range(handlers):
            bus.subscribe(Work, charge)
        await bus.publish(Work(1))
        await turn()
        assert group_of(observer.snapshot()).state is GroupActivity.RUNNING
        clock.advance(STALL - 1)
        assert group_of(observer.snapshot()).state is GroupActivity.RUNNING
        clock.advance(1)
        snapshot = observer.snapshot()
        assert group_of(snapshot).state is GroupActivity.STALLED
        [stall] = snapshot.stalls
        assert (stall.group, stall.topic, stall.cause) == ("shop", "work", Cause.HANDLER)
        assert stall.seconds == STALL
        assert stall.since_ms == clock.time_ms() - STALL * 1_000
        assert "charge: await wait_in_vain(gate)" in stall.stack[0]
        assert "wait_in_vain: await gate.wait()" in stall.stack[1]
        assert "stands still on work for 30 s: a handler runs for 30.0 s" in stall.explain()
        gate.set()
        await bus.settle()
        snapshot = observer.snapshot()
        assert group_of(snapshot).state is GroupActivity.IDLE
        assert not snapshot.stalls


async def test_a_handler_that_is_called_in_place_is_seen_too(observer, system, clock):
    gate = asyncio.Event()
    async with running(MessageBus(system=system)) as bus:
        observer.watch(bus)

        @bus.on(Work)
        async def charge(event):
            await gate.wait()

        asking = asyncio.create_task(bus.publish_and_wait(Work(1), timeout=1_000))
        await turn()
        observer.snapshot()
        clock.advance(STALL)
        [stall] = observer.snapshot().stalls
        assert stall.cause is Cause.HANDLER
        assert "charge" in stall.stack[0]
        gate.set()
        await asking


async def test_the_hot_path_is_watched_too(observer, system, clock):
    gate = asyncio.Event()
    async with running(ScalableMessageBus(MessageBus(system=system))) as bus:
        observer.watch(bus)

        @bus.on(Hot)
        async def charge(event):
            await gate.wait()

        await bus.publish(Hot(1))
        await turn()
        observer.snapshot()
        clock.advance(STALL)
        [stall] = observer.snapshot().stalls
        assert (stall.topic, stall.cause) == ("hot", Cause.HANDLER)
        gate.set()


async def test_slow_is_not_stalled(observer, system, clock):
    gates = [asyncio.Event() for _ in range(5)]
    async with running(MessageBus(system=system)) as bus:
        observer.watch(bus)

        @bus.on(Work)
        async def charge(event):
            await gates[event.number].wait()

        for number in range(5):
            await bus.publish(Work(number))
        for gate in gates:
            await turn()
            assert not observer.snapshot().stalls
            clock.advance(STALL - 1)
            assert not observer.snapshot().stalls
            gate.set()
        await bus.settle()


async def test_an_open_circuit_is_the_cause(observer, system, clock):
    breaker = BreakerOptions(failures=1, recovery=1_000)
    async with running(
        ResilientMessageBus(system=system, retry=Retry(attempts=1), breaker=breaker)
    ) as bus:
        observer.watch(bus)
        bus.on_error(lambda *_: None)

        @bus.on(Work, pause=True)
        async def charge(event):
            raise OSError("the bank is away")

        await bus.publish(Work(1))
        await bus.settle()
        await bus.publish(Work(2))
        await turn()
        observer.snapshot()
        clock.advance(2)
        assert group_of(observer.snapshot()).state is GroupActivity.PAUSED
        clock.advance(STALL)
        [stall] = observer.snapshot().stalls
        assert stall.cause is Cause.CIRCUIT_OPEN
        assert "charge is OPEN: it is tried again in 968.0 s" in stall.detail
        assert observer.health().alive, "a restart would not close the circuit"


async def test_a_retry_that_is_far_away_is_the_cause(observer, system, clock):
    retry = Retry(attempts=2, delay=1_000, delay_max=1_000, jitter=False, deadline=None)
    async with running(ResilientMessageBus(system=system, retry=retry, breaker=None)) as bus:
        observer.watch(bus)
        bus.on_error(lambda *_: None)

        @bus.on(Work)
        async def charge(event):
            raise OSError("the bank is away")

        await bus.publish(Work(1))
        await turn()
        observer.snapshot()
        clock.advance(STALL)
        [stall] = observer.snapshot().stalls
        assert stall.cause is Cause.RETRYING


async def test_a_handler_that_waits_for_room_is_paused_by_pressure(observer, system, clock):
    gate = asyncio.Event()
    small = MessageBus(name="small", system=system, queue=QueueOptions(capacity=1))
    async with running(MessageBus(system=system)) as bus, running(small) as other:
        observer.watch(bus)
        observer.watch(other)

        @bus.on(Work)
        async def forward(event):
            for number in range(3):
                await other.publish(Other(number), timeout=1_000)

        @other.on(Other)
        async def slow(event):
            await gate.wait()

        await bus.publish(Work(1))
        await turn(20)
        observer.snapshot()
        clock.advance(STALL)
        causes = {one.topic: one.cause for one in observer.snapshot().stalls}
        assert causes == {"work": Cause.PRESSURE, "other": Cause.HANDLER}
        gate.set()
        await bus.settle()


@topic("other")
class Other(Event):
    number: int = 0


async def test_a_bus_that_nobody_started_says_so(observer, system, clock):
    bus = MessageBus(system=system)
    observer.watch(bus)
    bus.subscribe(Work, lambda _: None)
    await bus.publish(Work(1))
    observer.snapshot()
    clock.advance(STALL)
    [stall] = observer.snapshot().stalls
    assert "start it" in stall.detail


async def test_a_durable_group_tells_the_offset_and_the_stack(tmp_path, observer, system, clock):
    gate = asyncio.Event()
    async with WalMessageQueue(tmp_path) as queue:
        inner = ResilientMessageBus(name="shop", system=system, log=queue)
        async with running(ScalableMessageBus(inner, log=queue)) as bus:
            observer.watch(bus)

            @bus.on(Work, group="billing")
            async def charge(event):
                if event.number == 3:
                    await gate.wait()

            for number in range(6):
                await bus.publish(Work(number))
            while (await observer.look()).groups[0].partitions[0].committed != 3:
                await asyncio.sleep(0.01)
            clock.advance(STALL)
            snapshot = await observer.look()
            [stall] = snapshot.stalls
            assert (stall.group, stall.partition, stall.offset) == ("billing", 0, 3)
            assert stall.cause is Cause.HANDLER
            assert "runs for 30.0 s at offset 3" in stall.detail
            assert "charge" in stall.stack[0]
            [group] = [one for one in snapshot.groups if one.topic == "work"]
            assert (group.kind, group.lag_records) == (GroupKind.LOG, 3)
            health = observer.health()
            assert not health.alive
            assert "at offset 3" in health.reasons[0]
            gate.set()
            await bus.settle()
            while (await observer.look()).groups[0].lag_records:
                await asyncio.sleep(0.01)
            assert observer.health().alive


async def test_a_log_of_another_process_is_judged_by_its_files(tmp_path, system, clock):
    async with WalMessageQueue(tmp_path, system=system) as queue:
        await queue.create_topic("orders")
        async with queue.subscribe("orders", "billing") as records:
            await records.commit()
            clock.advance(1_000)
            await queue.publish("orders", b"1")
        async with WalMessageQueue(tmp_path, system=system, read_only=True) as files:

            async def look():
                fresh = Observer(stall_seconds=STALL, system=system)
                fresh.watch(files)
                return await fresh.look()

            clock.advance(STALL - 1)
            assert not (await look()).stalls, "the record has come just before"
            clock.advance(1)
            [stall] = (await look()).stalls
            assert (stall.group, stall.partition, stall.offset) == ("billing", 0, 0)
            assert stall.cause is Cause.NO_PROGRESS
            assert not stall.local
            observer = Observer(system=system)
            observer.watch(files)
            await observer.look()
            assert observer.health().alive, "another process would have to be restarted"


async def test_a_blocked_event_loop_is_told_to_other_threads(system):
    observer = Observer()
    answers = []

    async with running(MessageBus()) as bus:
        observer.watch(bus)
        await observer.start()
        await observer.look()

        def ask():
            answers.append(observer.snapshot())

        def hold_up():
            thread = threading.Thread(target=ask)
            thread.start()
            thread.join()  # the loop waits for who waits for the loop

        hold_up()
        await asyncio.to_thread(ask)
        await observer.close()
    blocked, free = answers
    [stall] = blocked.stalls
    assert stall.cause is Cause.LOOP_BLOCKED
    assert any("hold_up" in line for line in stall.stack)
    assert not free.stalls


async def test_work_that_comes_after_a_long_rest_begins_anew(observer, system, clock):
    gate = asyncio.Event()
    async with running(MessageBus(system=system)) as bus:
        observer.watch(bus)
        bus.subscribe(Work, lambda _: gate.wait())
        observer.snapshot()
        clock.advance(1_000)
        observer.snapshot()
        bus.publish_nowait(Work(1))
        clock.advance(STALL - 1)
        assert not observer.snapshot().stalls, "it was idle, and that is no stall"


async def test_a_log_that_was_idle_is_not_stalled_by_an_old_record(tmp_path, system, clock):
    """Records may carry times of long ago; what counts is when the group had something to do."""
    async with WalMessageQueue(tmp_path, system=system) as queue:
        await queue.create_topic("orders")
        async with queue.subscribe("orders", "billing") as records:
            await records.commit()
        observer = Observer(stall_seconds=STALL, system=system)
        observer.watch(queue)
        await observer.look()
        clock.advance(1_000)
        await observer.look()
        await queue.publish("orders", b"1", timestamp=1)
        clock.advance(STALL - 1)
        assert not (await observer.look()).stalls
        clock.advance(1)
        assert len((await observer.look()).stalls) == 1


async def test_one_handler_that_hangs_is_seen_while_others_go_on(observer, system, clock):
    gate = asyncio.Event()
    async with running(MessageBus(system=system)) as bus:
        observer.watch(bus)

        @bus.on(Work, concurrency=2)
        async def charge(event):
            if event.number == 0:
                await gate.wait()

        await bus.publish(Work(0))
        await turn()
        observer.snapshot()
        for number in range(1, 4):
            clock.advance(STALL / 3)
            await bus.publish(Work(number))
            await turn()
            observer.snapshot()
        [stall] = observer.snapshot().stalls
        assert (stall.cause, stall.seconds) == (Cause.HANDLER, STALL)
