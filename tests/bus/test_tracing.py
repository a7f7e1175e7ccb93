"""Traces: a span for what is published, a child of it for what is handled."""

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock.bus.bus import MessageBus
from penstock.bus.tracing import Tracing
from penstock.messages import Command, Event, topic
from penstock.resilience.bus import ResilientMessageBus


@topic("traced")
class Traced(Event):
    number: int = 0


@topic("followed")
class Followed(Event):
    number: int = 0


class Ask(Command[int]):
    number: int = 0


class Broken(SpanExporter):
    def export(self, spans):
        raise RuntimeError("the collector is gone")

    def shutdown(self):
        pass


def traced(exporter):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracing(provider)


@pytest.mark.acceptance(144)
@pytest.mark.parametrize("make", [MessageBus, ResilientMessageBus])
async def test_handling_is_a_child_of_publishing_also_through_handlers(make):
    exporter = InMemorySpanExporter()
    async with make() as bus:
        bus.observe(traced(exporter))

        @bus.on(Traced)
        async def first(event):
            await bus.publish(Followed(event.number))

        bus.subscribe(Followed, lambda event: None)
        await bus.publish(Traced(1))
        await bus.settle()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"send traced", "process traced", "send followed", "process followed"}
    parents = {name: span.parent.span_id if span.parent else None for name, span in spans.items()}
    assert parents["send traced"] is None
    assert parents["process traced"] == spans["send traced"].context.span_id
    assert parents["send followed"] == spans["process traced"].context.span_id
    assert parents["process followed"] == spans["send followed"].context.span_id
    assert len({span.context.trace_id for span in spans.values()}) == 1
    attributes = spans["process traced"].attributes or {}
    assert attributes["messaging.destination.name"] == "traced"


async def test_a_command_has_a_span_and_a_failure_is_in_it():
    exporter = InMemorySpanExporter()
    async with MessageBus() as bus:
        bus.observe(traced(exporter))

        @bus.handles(Ask)
        async def answer(command):
            raise ValueError("no answer")

        await bus.execute(Ask(1))
    [span] = [span for span in exporter.get_finished_spans() if span.name.startswith("execute")]
    assert not span.status.is_ok
    assert span.events[0].name == "exception"


@pytest.mark.acceptance(144)
async def test_an_exporter_that_fails_disturbs_nobody(caplog):
    async with MessageBus() as bus:
        bus.observe(traced(Broken()))
        seen: list[Traced] = []
        bus.subscribe(Traced, seen.append)
        await bus.publish(Traced(1))
        await bus.settle()
        assert seen == [Traced(1)]
        assert bus.statistics().events_failed == 0
