"""Structured logs with the standard logging: fields as ``extra``, and a formatter for JSON lines.

Nothing here configures logging; a program does. With structlog, ``structlog.stdlib.ExtraAdder``
takes the same fields.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from penstock.bus.drive import current_envelope
from penstock.bus.log_fields import fields_of

_ODD = (*range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
_ESCAPED = {code: f"\\u{code:04x}" for code in _ODD} | {
    code: f"\\u{code:04x}" for code in range(0xD800, 0xE000)
}
"""What JSON may hold and a terminal or a reader of lines takes for a command; halves of characters."""


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, the fields, an error, the trace.

    Fields that the program gives as ``extra`` are written too. What JSON cannot hold becomes text.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, tz=UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extras(record),
            **_trace(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False).translate(_ESCAPED)


class MessageFields(logging.Filter):
    """Gives every log line that a handler writes the fields of the message that it handles.

    ``logging_handler.addFilter(MessageFields())``. Lines that have such a field keep it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add what is known; every line passes."""
        envelope = current_envelope()
        if envelope is not None and envelope.message is not None:
            for name, value in fields_of(envelope).items():
                if not hasattr(record, name):
                    setattr(record, name, value)
        return True


_OWN = set(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in record.__dict__.items() if name not in _OWN}


def _trace() -> dict[str, str]:
    """The trace that the line is part of, when the program uses OpenTelemetry."""
    if "opentelemetry.trace" not in sys.modules:
        return {}
    span = sys.modules["opentelemetry.trace"].get_current_span().get_span_context()
    if not span.is_valid:
        return {}
    return {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
