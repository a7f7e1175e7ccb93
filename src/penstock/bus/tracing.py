"""Traces through the bus with OpenTelemetry, after its conventions for messaging.

A message that is published carries the trace context in its headers; the span in which it is
handled is a child of the one in which it was published. Nothing here may disturb the bus: what an
exporter or a propagator raises is logged and goes no further.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from penstock.errors import MissingExtra
from penstock.messages import Command, Envelope, marks_of

logger = logging.getLogger("penstock.bus")

SYSTEM = "penstock"


class Tracing:
    """Makes spans for one bus: ``bus.observe(Tracing())``. Needs ``penstock[otel]``.

    ``tracer_provider`` is the application's own by default. Without a provider that records, a
    message costs two calls that do nothing.
    """

    def __init__(self, tracer_provider: Any = None) -> None:
        try:
            from opentelemetry import propagate, trace
        except ImportError as error:
            raise MissingExtra(
                "traces need OpenTelemetry: pip install 'penstock[otel]'", extra="otel"
            ) from error
        self._propagate = propagate
        self._trace = trace
        self._tracer = trace.get_tracer("penstock", tracer_provider=tracer_provider)

    def stamp(self, message: Any) -> Mapping[str, str]:
        """The headers that carry the trace of a message that is published now."""
        headers: dict[str, str] = {}
        topic = marks_of(message.__class__).topic
        try:
            kind = self._trace.SpanKind.PRODUCER
            attributes = _attributes(topic, "send")
            with self._tracer.start_as_current_span(
                f"send {topic}", kind=kind, attributes=attributes
            ):
                self._propagate.inject(headers)
        except Exception:
            logger.exception("a message of %s is published without a trace", topic)
        return headers

    async def middleware(self, envelope: Envelope, call_next: Any) -> Any:
        """Handle a message in a span of its own."""
        with self._span(envelope) as span:
            try:
                return await call_next(envelope)
            except Exception as error:
                _quietly(self._note, span, error)
                raise

    @contextmanager
    def _span(self, envelope: Envelope) -> Iterator[Any]:
        """The span of a message that is handled; none when one cannot be made."""
        made = _quietly(self._start, envelope)
        try:
            yield made[0] if made is not None else None
        finally:
            if made is not None:
                _quietly(self._end, *made)

    def _start(self, envelope: Envelope) -> tuple[Any, Any]:
        from opentelemetry import context

        verb = "execute" if isinstance(envelope.message, Command) else "process"
        span = self._tracer.start_span(
            f"{verb} {envelope.topic}",
            context=self._propagate.extract(envelope.headers),
            kind=self._trace.SpanKind.CONSUMER,
            attributes={
                **_attributes(envelope.topic, verb),
                "messaging.message.id": envelope.id,
                "messaging.message.conversation_id": envelope.correlation,
            },
        )
        return span, context.attach(self._trace.set_span_in_context(span))

    def _end(self, span: Any, token: Any) -> None:
        from opentelemetry import context

        context.detach(token)
        span.end()

    def _note(self, span: Any, error: Exception) -> None:
        if span is not None:
            span.record_exception(error)
            span.set_status(self._trace.StatusCode.ERROR, str(error))
            span.set_attribute("error.type", type(error).__qualname__)


def _attributes(topic: str, operation: str) -> dict[str, str]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.destination.name": topic,
    }


def _quietly(call: Any, *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except Exception:
        logger.exception("a span could not be made or ended")
        return None
