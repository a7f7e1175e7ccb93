"""The scalable bus: partitions, groups and the hot path, on the real path."""

import asyncio
import random
from collections import Counter, defaultdict

import pytest

from penstock.bus.bus import MessageBus
from penstock.bus.intake import QueueOptions
from penstock.resilience.bus import ResilientMessageBus
from penstock.resilience.retry import Retry
from tests.scaling.scalable_world import INNER, Ordered, Plain, Tick, in_order, quiet, turns

# ------------------------------------------------------------------------------------ partitions


@pytest.mark.acceptance(12, 20, 22, 25, 35)
async def test_partitions_work_side_by_side_and_share_the_keys_evenly(system):
    async with quiet(MessageBus(system=system), partitions={"orders": 4}) as bus:
        gate = asyncio.Event()
        running = 0

        @bus.on(Ordered)
        async def handle(event):
            nonlocal running
            running += 1
            await gate.wait()

        for number in range(4_000):
            await bus.publish(Ordered(customer=f"c{number}", number=number))
        await turns()
        assert running == 4
        depths = bus.get_scaling_metrics()["queue_depths"]["orders"]
        assert len(depths) == 4
        assert all(abs(depth - 1_000) <= 200 for depth in depths)
        gate.set()
        await bus.settle()
        assert bus.get_scaling_metrics()["queue_depths"]["orders"] == [0, 0, 0, 0]


@pytest.mark.acceptance(25)
async def test_a_partition_that_is_held_up_delays_no_other(system):
    async with quiet(MessageBus(system=system), partitions={"orders": 4}) as bus:
        gate = asyncio.Event()
        handled: Counter[str] = Counter()

        @bus.on(Ordered)
        async def handle(event):
            if event.customer == "slow":
                await gate.wait()
            handled[event.customer] += 1

        for number in range(100):
            await bus.publish(Ordered(customer="slow", number=number))
            await bus.publish(Ordered(customer=f"c{number}", number=number))
        await turns(50)
        assert handled["slow"] == 0
        assert sum(handled.values()) > 50
        gate.set()
        await bus.settle()
        assert sum(handled.values()) == 200


@pytest.mark.acceptance(24)
async def test_events_without_a_key_take_turns(system):
    async with quiet(MessageBus(system=system), partitions={"plain": 4}) as bus:
        seen: Counter[int] = Counter()
        bus.subscribe(Plain, lambda event, envelope: seen.update([envelope.partition]))
        for number in range(1_000):
            await bus.publish(Plain(number=number))
        await bus.settle()
        assert seen == dict.fromkeys(range(4), 250)


@pytest.mark.acceptance(20)
async def test_the_number_of_partitions_changes_while_it_runs(system):
    async with quiet(MessageBus(system=system), partitions={"orders": 2}) as bus:
        gate = asyncio.Event()
        handled: dict[str, list[int]] = defaultdict(list)

        @bus.on(Ordered)
        async def handle(event):
            await gate.wait()
            handled[event.customer].append(event.number)

        for number in range(100):
            await bus.publish(Ordered(customer=f"c{number % 10}", number=number))
        bus.set_partitions(Ordered, 5)
        for number in range(100, 200):
            await bus.publish(Ordered(customer=f"c{number % 10}", number=number))
        assert bus.get_scaling_metrics()["partitions"]["orders"] == 5
        gate.set()
        await bus.settle()
        assert sum(map(len, handled.values())) == 200
        assert all(map(in_order, handled.values()))


@pytest.mark.acceptance(6, 10)
@pytest.mark.parametrize("inner", INNER)
async def test_a_storm_of_changes_at_full_speed_loses_and_reorders_nothing(system, inner):
    chance = random.Random(5)
    async with quiet(inner(system=system, queue=QueueOptions(capacity=500))) as bus:
        handled: dict[str, list[int]] = defaultdict(list)

        @bus.on(Ordered)
        async def handle(event):
            if chance.random() < 0.1:
                await asyncio.sleep(0)
            handled[event.customer].append(event.number)

        async def produce(customer):
            for number in range(1_000):
                await bus.publish(Ordered(customer=customer, number=number))
                if number % 50 == 0:
                    await asyncio.sleep(0)

        async def change():
            for step in range(100):
                bus.set_partitions(Ordered, chance.randint(1, 8))
                bus.set_hot(Ordered, hot=step % 7 == 3)
                size = chance.choice([50, 500, 5_000])
                bus.reconfigure_limits(bus.current_limits.with_(max_message_queue_size=size))
                await turns(chance.randint(1, 9))

        async with asyncio.TaskGroup() as tasks:
            for customer in "abcdefgh":
                tasks.create_task(produce(customer))
            tasks.create_task(change())
        await bus.settle()
        assert {customer: len(numbers) for customer, numbers in handled.items()} == dict.fromkeys(
            "abcdefgh", 1_000
        )
        assert all(map(in_order, handled.values()))
        figures = bus.statistics()
        assert figures.events_published == figures.events_processed == 8_000
        assert len(bus._dispatch.uncounted) <= 1


@pytest.mark.acceptance(105)
async def test_a_partition_costs_nothing_before_its_first_event(system):
    async with quiet(MessageBus(system=system), partitions={"orders": 4_096}) as bus:
        bus.subscribe(Ordered, lambda event: None)
        lanes = bus.lanes.lanes_of(Ordered)
        assert len(lanes) <= 1
        for number in range(100):
            await bus.publish(Ordered(customer=f"c{number % 10}"))
        await bus.settle()
        assert len(bus.lanes.lanes_of(Ordered)) <= 10
        assert len(bus.get_scaling_metrics()["queue_depths"]["orders"]) == 4_096


# ---------------------------------------------------------------------------------------- groups


@pytest.mark.acceptance(26, 21, 36)
async def test_the_members_of_a_group_share_and_two_groups_each_get_everything(system):
    async with quiet(MessageBus(system=system), partitions={"orders": 4}) as bus:
        seen: dict[str, list[int]] = defaultdict(list)

        def member(name):
            return lambda event: seen[name].append(event.number)

        first = bus.subscribe(Ordered, member("a1"), group="a", name="a1")
        bus.subscribe(Ordered, member("a2"), group="a", name="a2")
        bus.subscribe(Ordered, member("b1"), group="b", name="b1")
        for number in range(200):
            await bus.publish(Ordered(customer=f"c{number}", number=number))
        await bus.settle()
        assert sorted(seen["a1"] + seen["a2"]) == list(range(200))
        assert seen["a1"]
        assert seen["a2"]
        assert sorted(seen["b1"]) == list(range(200))
        metrics = bus.get_scaling_metrics()
        assert sorted(map(len, metrics["groups"]["orders/a"].values())) == [2, 2]
        assert metrics["subscribers"]["orders"] == 3
        first.close()
        metrics = bus.get_scaling_metrics()
        assert [len(parts) for parts in metrics["groups"]["orders/a"].values()] == [4]
        assert metrics["subscribers"]["orders"] == 2
        seen.clear()
        for number in range(200):
            await bus.publish(Ordered(customer=f"c{number}", number=number))
        await bus.settle()
        assert sorted(seen["a2"]) == list(range(200))


@pytest.mark.acceptance(21)
async def test_a_topic_has_the_partitions_that_its_largest_group_can_use(system):
    async with quiet(MessageBus(system=system)) as bus:
        members = []
        counts = []
        for _ in range(5):
            members.append(bus.subscribe(Ordered, lambda event: None, group="g"))
            counts.append(bus.get_scaling_metrics()["partitions"]["orders"])
        assert counts == [1, 2, 4, 4, 8]
        for handler in members[1:]:
            handler.close()
        assert bus.get_scaling_metrics()["partitions"]["orders"] == 1


# -------------------------------------------------------------------------------------- hot path


@pytest.mark.acceptance(27)
async def test_a_mark_or_the_configuration_chooses_the_ring(system):
    async with quiet(MessageBus(system=system), hot_topics=["plain"]) as bus:
        bus.subscribe(Tick, lambda event: None)
        bus.subscribe(Plain, lambda event: None)
        bus.subscribe(Ordered, lambda event: None)
        await bus.publish(Tick("x"))
        await bus.publish(Plain())
        await bus.publish(Ordered("c"))
        await bus.settle()
        rings = bus.get_scaling_metrics()["rings"]
        assert set(rings) == {"ticks", "plain"}
        assert rings["ticks"]["capacity"] == 65_536


@pytest.mark.acceptance(32, 37)
@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_what_finds_the_ring_full_goes_behind_it_and_keeps_its_place(
    system, inner, asynchronous
):
    inner_bus = inner(system=system, queue=QueueOptions(capacity=5_000))
    async with quiet(inner_bus, ring_capacity=1_000) as bus:
        seen: list[object] = []

        async def slow(event):
            seen.append(event.number)
            if event.number % 100 == 0:
                await asyncio.sleep(0)

        bus.subscribe(Tick, slow if asynchronous else lambda event: seen.append(event.number))
        for number in range(3_072):  # three times the ring of 1,024
            bus.publish_nowait(Tick("x", number))
        ring = bus.get_scaling_metrics()["rings"]["ticks"]
        assert (ring["published"], ring["depth"], ring["fallbacks"]) == (1_024, 1_024, 2_048)
        figures = bus.statistics()
        assert figures.events_published == figures.events_unsettled == 3_072
        await bus.settle()
        assert seen == list(range(3_072))
        ring = bus.get_scaling_metrics()["rings"]["ticks"]
        assert ring["published"] - ring["consumers"]["bus"] == ring["depth"] == 0
        assert bus.statistics().events_processed == 3_072


async def test_a_failing_hot_handler_is_retried_and_ends_in_the_dead_letters(system, clock):
    inner = ResilientMessageBus(system=system, retry=Retry(attempts=2, jitter=False), breaker=None)
    async with quiet(inner) as bus:
        bus.on_error(lambda *_: None)
        seen: list[object] = []

        @bus.on(Tick)
        async def handle(event):
            if event.number % 10 == 3:
                raise RuntimeError("bad tick")
            seen.append(event.number)

        for number in range(100):
            await bus.publish(Tick("x", number))
        await turns(50)
        assert len(seen) == 90
        clock.advance(1.0)
        await bus.settle()
        assert sorted(letter.message.number for letter in bus.dead_letters.list()) == list(
            range(3, 100, 10)
        )
        figures = bus.statistics()
        assert (figures.events_processed, figures.events_failed) == (90, 10)
        assert figures.events_published == 100


async def test_a_hot_handler_may_publish_what_it_handles(system):
    async with quiet(MessageBus(system=system), ring_capacity=16) as bus:
        seen: list[object] = []

        @bus.on(Tick)
        async def handle(event):
            seen.append(event.number)
            if event.number < 1_000:
                await bus.publish(Tick("x", event.number + 1))

        await bus.publish(Tick("x", 0))
        await bus.settle()
        assert seen == list(range(1_001))


async def test_a_handler_that_comes_or_goes_is_seen_at_once_on_the_hot_path(system):
    async with quiet(MessageBus(system=system)) as bus:
        first: list[int] = []
        second: list[int] = []

        def handle(event):
            first.append(event.number)
            if event.number == 10:
                bus.subscribe(Tick, lambda event: second.append(event.number))

        bus.subscribe(Tick, handle)
        for number in range(50):
            bus.publish_nowait(Tick("x", number))
        await bus.settle()
        assert first == list(range(50))
        assert second == list(range(11, 50))


# -------------------------------------------------------------------------------------- pressure


@pytest.mark.acceptance(32)
async def test_nothing_overtakes_what_waits_behind_the_ring(system):
    async with quiet(MessageBus(system=system), ring_capacity=16) as bus:
        gate = asyncio.Event()
        seen: list[int] = []

        @bus.on(Tick)
        async def handle(event):
            if event.number == 5:
                await gate.wait()
            seen.append(event.number)

        for number in range(40):  # 16 fit into the ring, the others wait behind it
            await bus.publish(Tick("x", number))
        await turns()  # the ring is empty now, and has room again
        for number in range(40, 60):
            await bus.publish(Tick("x", number))
        gate.set()
        await bus.settle()
        assert seen == list(range(60))
