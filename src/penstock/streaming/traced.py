"""Handling an event of a stream in a span of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from penstock.bus.tracing import Tracing
from penstock.streaming.stream_event import StreamEvent


async def traced(
    tracing: Tracing, event: StreamEvent, handle: Callable[[StreamEvent], Awaitable[None]]
) -> None:
    """Handle an event; the span is a child of the one in which it was published."""
    headers = {name: value.decode("utf-8", "replace") for name, value in event.headers.items()}
    known = {
        "messaging.destination.partition.id": str(event.partition),
        "messaging.consumer.group.name": event.group,
        "messaging.penstock.offset": event.offset,
    }
    with tracing.span("process", event.topic, headers, known) as span:
        try:
            await handle(event)
        except Exception as error:
            tracing.note(span, error)
            raise
