"""Log lines carry what they are about."""

import asyncio
import io
import json
import logging

import pytest
from opentelemetry.sdk.trace import TracerProvider

import penstock
from penstock import Event, MessageBus, ResilientMessageBus, Retry, System, topic
from penstock.observe import JsonFormatter, MessageFields, Observer
from penstock.testing import VirtualClock


@topic("orders", key="number")
class Placed(Event):
    number: int = 0


@pytest.fixture
def lines():
    """The log as a program would write it: JSON, a line each."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(MessageFields())
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.removeHandler(handler)
    root.setLevel(level)


async def test_a_failure_tells_its_place_in_the_log_and_the_attempt(tmp_path, lines):
    async with penstock.open(f"log:{tmp_path}") as bus:

        @bus.on(Placed, group="billing", retry=Retry(attempts=2, delay=0.001), name="charge")
        async def charge(event):
            raise ValueError("no money")

        await bus.publish(Placed(1))
        await bus.settle()
    failed = [line for line in lines() if line["message"].startswith("charge failed")]
    assert [line["attempt"] for line in failed] == [1, 2]
    line = failed[0]
    assert (line["topic"], line["partition"], line["offset"]) == ("orders", 0, 0)
    assert (line["group"], line["handler"], line["level"]) == ("billing", "charge", "error")
    assert "ValueError: no money" in line["error"]
    assert line["message_id"]


async def test_what_a_handler_logs_carries_the_fields_of_its_message(lines):
    async with MessageBus() as bus:

        @bus.on(Placed)
        async def charge(event):
            logging.getLogger("shop").info("charged", extra={"amount": 5, "topic": "my own"})
            logging.getLogger("shop").info("done")

        await bus.publish(Placed(1))
        await bus.settle()
    charged, done = [line for line in lines() if line["logger"] == "shop"]
    assert (charged["amount"], charged["topic"]) == (5, "my own")
    assert done["topic"] == "orders"


def test_a_line_knows_its_trace(lines):
    with TracerProvider().get_tracer("test").start_as_current_span("work") as span:
        logging.getLogger("shop").info("traced")
    [line] = [line for line in lines() if line["logger"] == "shop"]
    assert line["trace_id"] == f"{span.get_span_context().trace_id:032x}"


async def test_a_stall_is_logged_once_and_so_is_its_end(lines):
    clock, gate = VirtualClock(), asyncio.Event()
    system = System(clock=clock)
    observer = Observer(system=system)
    bus = ResilientMessageBus(name="shop", system=system)
    await bus.start()
    observer.watch(bus)

    @bus.on(Placed)
    async def charge(event):
        await gate.wait()

    await bus.publish(Placed(1))
    for seconds in (0, 30, 30):
        await asyncio.sleep(0)
        clock.advance(seconds)
        observer.snapshot()
    gate.set()
    await bus.settle()
    observer.snapshot()
    await bus.stop()
    told = [line for line in lines() if line["logger"] == "penstock.observe"]
    assert [line["level"] for line in told] == ["warning", "info"]
    assert (told[0]["group"], told[0]["topic"]) == ("shop", "orders")
    assert told[0]["cause"] == "handler running"
    assert set(told[0]) >= {"topic", "partition", "offset", "group", "cause"}
