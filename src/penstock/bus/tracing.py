"""Traces with OpenTelemetry, after its conventions for messaging.

A message that is published carries the trace context in its headers, through queues, logs and
brokers. The span in which it is handled is a child of the one in which it was published, and linked
to it. Nothing here may disturb the bus: what an exporter or a propagator raises is logged and goes
no further.
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
OPERATION_TYPES = {"send": "send", "process": "process", "execute": "process"}


class Tracing:
    """Makes spans for a bus, ``bus.observe(Tracing())``, or for streams, ``streams.observe(…)``.

    Needs ``penstock[otel]``. ``tracer_provider`` is the application's own by default. Without a
    provider that records, a message costs two calls that do nothing. ``system`` is what spans call
    the messaging system.
    """

    def __init__(self, tracer_provider: Any = None, *, system: str = SYSTEM) -> None:
        try:
            from opentelemetry import propagate, trace
        except ImportError as error:
            raise MissingExtra(
                "traces need OpenTelemetry: pip install 'penstock[otel]'", extra="otel"
            ) from error
        self._propagate = propagate
        self._trace = trace
        self._system = system
        self._tracer = trace.get_tracer("penstock", tracer_provider=tracer_provider)

    # Publishing

    def stamp(self, message: Any) -> Mapping[str, str]:
        """The headers that carry the trace of a message that is published now."""
        return self.stamp_topic(marks_of(message.__class__).topic)

    def stamp_topic(self, topic: str, count: int = 1) -> Mapping[str, str]:
        """The same for so many records of a topic, which are sent together."""
        headers: dict[str, str] = {}
        attributes: dict[str, Any] = self._attributes(topic, "send")
        if count > 1:
            attributes["messaging.batch.message_count"] = count
        try:
            kind = self._trace.SpanKind.PRODUCER
            with self._tracer.start_as_current_span(
                f"send {topic}", kind=kind, attributes=attributes
            ):
                self._propagate.inject(headers)
        except Exception:
            logger.exception(
                "a message of %s is published without a trace", topic, extra={"topic": topic}
            )
        return headers

    # Handling

    async def middleware(self, envelope: Envelope, call_next: Any) -> Any:
        """Handle a message of a bus in a span of its own."""
        verb = "execute" if isinstance(envelope.message, Command) else "process"
        known = {
            "messaging.message.id": envelope.id,
            "messaging.message.conversation_id": envelope.correlation,
            "messaging.destination.partition.id": _text(envelope.log_partition),
            "messaging.consumer.group.name": envelope.group,
            "messaging.penstock.offset": envelope.offset,
        }
        with self.span(verb, envelope.topic, envelope.headers, known) as span:
            try:
                return await call_next(envelope)
            except Exception as error:
                self.note(span, error)
                raise

    @contextmanager
    def span(
        self, verb: str, topic: str, headers: Mapping[str, str], known: Mapping[str, Any]
    ) -> Iterator[Any]:
        """The span of a message that is handled; none when one cannot be made."""
        made = _quietly(self._start, verb, topic, headers, known)
        try:
            yield made[0] if made is not None else None
        finally:
            if made is not None:
                _quietly(self._end, *made)

    def note(self, span: Any, error: Exception) -> None:
        """The handling failed."""
        if span is not None:
            _quietly(self._fail, span, error)

    def _start(
        self, verb: str, topic: str, headers: Mapping[str, str], known: Mapping[str, Any]
    ) -> tuple[Any, Any]:
        from opentelemetry import context

        parent = self._propagate.extract(headers)
        sender = self._trace.get_current_span(parent).get_span_context()
        attributes = self._attributes(topic, verb)
        attributes |= {name: value for name, value in known.items() if value is not None}
        span = self._tracer.start_span(
            f"{verb} {topic}",
            context=parent,
            kind=self._trace.SpanKind.CONSUMER,
            attributes=attributes,
            links=[self._trace.Link(sender)] if sender.is_valid else [],
        )
        return span, context.attach(self._trace.set_span_in_context(span))

    def _end(self, span: Any, token: Any) -> None:
        from opentelemetry import context

        context.detach(token)
        span.end()

    def _fail(self, span: Any, error: Exception) -> None:
        span.record_exception(error)
        span.set_status(self._trace.StatusCode.ERROR, str(error))
        span.set_attribute("error.type", type(error).__qualname__)

    def _attributes(self, topic: str, operation: str) -> dict[str, Any]:
        return {
            "messaging.system": self._system,
            "messaging.operation.name": operation,
            "messaging.operation.type": OPERATION_TYPES[operation],
            "messaging.destination.name": topic,
        }


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


def _quietly(call: Any, *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except Exception:
        logger.exception("a span could not be made or ended")
        return None
