"""Durable topics: the bus over the log, through restarts and crashes."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import ResilientMessageBus, Retry, ScalableMessageBus, TopicConfig, WalMessageQueue
from penstock.bus.bus import MessageBus
from penstock.errors import LoadShed
from penstock.messages import Event, topic
from penstock.pressure.states import BackpressureState
from penstock.resilience.dead_letters import Reason
from tests.scaling.durable_events import Ordered, make, reached


@topic("fleeting")
class Fleeting(Event):
    number: int = 0


@pytest.mark.parametrize("inner", [MessageBus, ResilientMessageBus])
async def test_an_event_is_in_the_log_when_publish_returns_and_comes_from_there(tmp_path, inner):
    async with WalMessageQueue(tmp_path) as queue, make(queue, inner) as bus:
        seen: list[tuple[int, str | None]] = []
        bus.subscribe(Ordered, lambda event, envelope: seen.append((event.number, envelope.group)))
        for number in range(20):
            await bus.publish(Ordered("ada", number), headers={"trace": "t"})
        records = [record async for record in queue.replay("durable.orders")]
        assert len(records) == 20
        assert records[0].key == b"ada"
        assert records[0].headers["trace"] == b"t"
        await reached(lambda: len(seen) == 20)
        assert seen == [(number, "bus") for number in range(20)]


async def test_each_group_gets_everything_and_goes_on_where_it_was(tmp_path):
    async with WalMessageQueue(tmp_path) as queue:
        await queue.create_topic("durable.orders", TopicConfig(partitions=4))
        billing: list[int] = []
        shipping: list[int] = []
        async with make(queue) as bus:
            bus.subscribe(Ordered, lambda event: billing.append(event.number), group="billing")
            for number in range(50):
                await bus.publish(Ordered(f"c{number % 7}", number))
            await reached(lambda: len(billing) == 50)
        async with make(queue) as bus:
            bus.subscribe(Ordered, lambda event: billing.append(event.number), group="billing")
            bus.subscribe(Ordered, lambda event: shipping.append(event.number), group="shipping")
            for number in range(50, 60):
                await bus.publish(Ordered(f"c{number % 7}", number))
            await reached(lambda: len(shipping) == 60 and len(billing) >= 60)
        assert sorted(billing) == sorted(shipping) == list(range(60))


async def test_an_event_that_is_not_handled_at_a_stop_comes_again(tmp_path):
    async with WalMessageQueue(tmp_path) as queue:
        bus = make(queue)
        gate = asyncio.Event()
        begun: list[int] = []

        @bus.on(Ordered, group="billing")
        async def hang(event):
            begun.append(event.number)
            if event.number == 3:
                await gate.wait()

        await bus.start()
        for number in range(6):
            await bus.publish(Ordered("ada", number))
        await reached(lambda: begun == [0, 1, 2, 3])
        report = await bus.stop(drain=False)
        assert {envelope.message.number for envelope in report.undrained} >= {3}
        assert len(bus.dead_letters) == 0
        again: list[int] = []
        async with make(queue) as bus:
            bus.subscribe(Ordered, lambda event: again.append(event.number), group="billing")
            await reached(lambda: len(again) == 3)
        assert again == [3, 4, 5]


async def test_a_record_that_is_no_message_is_a_dead_letter_and_holds_up_nobody(tmp_path):
    async with WalMessageQueue(tmp_path) as queue, make(queue) as bus:
        seen: list[int] = []
        bus.subscribe(Ordered, lambda event: seen.append(event.number), group="billing")
        await bus.publish(Ordered("ada", 1))
        await queue.publish("durable.orders", b'{"customer": 7}')
        await bus.publish(Ordered("ada", 2))
        await reached(lambda: seen == [1, 2])
        [letter] = bus.dead_letters.list()
        assert (letter.reason, letter.raw) == (Reason.NOT_DECODED, b'{"customer": 7}')
        assert (letter.partition, letter.offset) == (0, 1)


async def test_the_figures_tell_what_a_group_has_read_and_what_did_not_decode(tmp_path):
    async with (
        WalMessageQueue(tmp_path) as queue,
        make(queue, MessageBus) as bus,
    ):
        bus.subscribe(Ordered, lambda event: None, group="billing")
        assert bus.get_scaling_metrics()["durable"]["durable.orders/billing"]["invalid"] == 0
        await bus.publish(Ordered("ada", 1))
        await queue.publish("durable.orders", b'{"customer": 7}')
        await queue.publish("durable.orders", b"")
        await bus.settle()
        assert bus.get_scaling_metrics()["durable"] == {
            "durable.orders/billing": {"lag": 0, "in_work": 0, "delivered": 1, "invalid": 2}
        }


async def test_what_fails_for_good_is_a_dead_letter_with_its_place_in_the_log(tmp_path):
    async with WalMessageQueue(tmp_path) as queue, make(queue) as bus:
        bus.on_error(lambda *_: None)

        @bus.on(Ordered, group="billing", retry=Retry(attempts=1))
        async def bill(event):
            raise RuntimeError("never")

        await bus.publish(Ordered("ada", 1))
        await reached(lambda: len(bus.dead_letters) == 1)
        assert bus.dead_letters.list()[0].offset == 0


async def test_an_open_circuit_pauses_instead_of_failing(tmp_path):
    async with WalMessageQueue(tmp_path) as queue, make(queue) as bus:
        bus.on_error(lambda *_: None)
        calls: list[int] = []

        @bus.on(Ordered, group="billing", retry=Retry(attempts=1))
        async def bill(event):
            calls.append(event.number)
            raise RuntimeError("down")

        for number in range(20):
            await bus.publish(Ordered("ada", number))
        await reached(lambda: len(calls) == 5)
        await asyncio.sleep(0)
        assert len(bus.dead_letters) == 5
        await bus.stop(drain=False)


async def test_other_topics_stay_in_memory(tmp_path):
    async with WalMessageQueue(tmp_path) as queue, make(queue) as bus:
        seen: list[int] = []
        bus.subscribe(Fleeting, lambda event: seen.append(event.number))
        await bus.publish(Fleeting(1))
        await bus.settle()
        assert seen == [1]
        assert "fleeting" not in await queue.topics()


PROGRAM = """
import asyncio, os, sys
from penstock import Event, ResilientMessageBus, ScalableMessageBus, WalMessageQueue, topic

@topic("durable.orders", key="customer")
class Ordered(Event):
    customer: str
    number: int = 0

async def main(path, first):
    async with WalMessageQueue(path) as queue:
        bus = ScalableMessageBus(ResilientMessageBus(), log=queue)
        @bus.on(Ordered, group="billing")
        async def bill(event):
            os.write(1, f"handled {event.number}\\n".encode())
        await bus.start()
        number = first
        while True:
            await bus.publish(Ordered(f"c{number % 5}", number))
            os.write(1, f"published {number}\\n".encode())
            number += 1

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


async def test_consumers_resume_after_a_kill_and_lose_nothing(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    published: set[int] = set()
    handled: list[int] = []
    for round_ in range(8):
        first = max(published, default=-1) + 1_000
        with subprocess.Popen(
            [sys.executable, str(program), str(tmp_path / "log"), str(first)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        ) as child:
            assert child.stdout is not None
            lines = [child.stdout.readline() for _ in range(20 + 7 * round_)]
            child.send_signal(signal.SIGKILL)
            lines += child.stdout.read().splitlines(keepends=True)
        for line in lines:
            if line.endswith(b"\n"):
                word, number = line.split()
                (published.add if word == b"published" else handled.append)(int(number))
    async with WalMessageQueue(tmp_path / "log") as queue:
        bus = ScalableMessageBus(ResilientMessageBus(), log=queue)
        bus.subscribe(Ordered, lambda event: handled.append(event.number), group="billing")
        async with bus:
            await reached(lambda: published <= set(handled))
    per_customer: dict[int, list[int]] = {}
    for one in dict.fromkeys(handled):
        per_customer.setdefault(one % 5, []).append(one)
    assert all(numbers == sorted(numbers) for numbers in per_customer.values())


@pytest.mark.acceptance(13)
async def test_the_lag_of_a_group_presses_on_the_publishers(tmp_path):
    async with WalMessageQueue(tmp_path) as queue, make(queue, lag_max=100) as bus:
        gate = asyncio.Event()

        @bus.on(Ordered, group="billing")
        async def slow(event):
            await gate.wait()

        for number in range(60):
            await bus.publish(Ordered("ada", number))
        assert bus.current_backpressure_state == BackpressureState.NORMAL
        await queue.publish_many("durable.orders", [b'{"customer":"eve"}'] * 40)
        await reached(lambda: bus.current_backpressure_state == BackpressureState.SHEDDING)
        with pytest.raises(LoadShed):
            await bus.publish(Ordered("ada", 100))
        assert "lag" in bus.backpressure.statistics().explain()
        gate.set()
        await reached(lambda: bus.current_backpressure_state is BackpressureState.NORMAL)
        await bus.publish(Ordered("ada", 100))
