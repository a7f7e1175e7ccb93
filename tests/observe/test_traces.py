"""Traces through the log, through the hot path and through streams."""

import asyncio

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import penstock
from penstock import Event, ScalableMessageBus, StreamingScalingManager, hot_path, topic
from penstock.bus import MessageBus, Tracing


@topic("orders", key="number")
class Placed(Event):
    number: int = 0


@hot_path
@topic("ticks")
class Tick(Event):
    number: int = 0


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exporter):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracing(provider)


def sent_and_processed(exporter, name):
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {f"send {name}", f"process {name}"}
    return spans[f"send {name}"], spans[f"process {name}"]


@pytest.mark.acceptance(144)
async def test_the_trace_goes_through_the_log_once(tmp_path, exporter, tracing):
    async with penstock.open(f"log:{tmp_path}") as bus:
        bus.observe(tracing)
        bus.subscribe(Placed, lambda _: None, group="billing")
        await bus.publish(Placed(1))
        await bus.settle()
    sent, processed = sent_and_processed(exporter, "orders")
    assert len(exporter.get_finished_spans()) == 2
    assert processed.parent.span_id == sent.context.span_id
    assert [link.context.span_id for link in processed.links] == [sent.context.span_id]
    attributes = dict(processed.attributes)
    assert attributes.pop("messaging.message.id")
    assert attributes.pop("messaging.message.conversation_id")
    assert attributes == {
        "messaging.system": "penstock",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "messaging.consumer.group.name": "billing",
        "messaging.penstock.offset": 0,
    }


async def test_the_hot_path_makes_no_spans_of_its_own(exporter, tracing):
    async with ScalableMessageBus(MessageBus()) as bus:
        bus.observe(tracing)
        bus.subscribe(Tick, lambda _: None)
        for number in range(3):
            await bus.publish(Tick(number))
        await bus.settle()
    names = sorted(span.name for span in exporter.get_finished_spans())
    assert names == ["process ticks"] * 3 + ["send ticks"] * 3


@pytest.mark.acceptance(144)
async def test_the_trace_goes_through_streams(exporter, tracing):
    seen = asyncio.Event()
    async with StreamingScalingManager("memory:") as streams:
        streams.observe(tracing)

        async def handle(event):
            seen.set()
            raise ValueError("no")

        await streams.create_topic("orders")
        async with streams.run("orders", "billing", handle, attempts=1):
            await streams.publish("orders", b"1", key="a")
            async with asyncio.timeout(120):
                await seen.wait()
                while len(exporter.get_finished_spans()) < 2:
                    await asyncio.sleep(0)
    sent, processed = sent_and_processed(exporter, "orders")
    assert processed.parent.span_id == sent.context.span_id
    assert processed.attributes["messaging.consumer.group.name"] == "billing"
    assert processed.attributes["error.type"] == "ValueError"
    assert not processed.status.is_ok
