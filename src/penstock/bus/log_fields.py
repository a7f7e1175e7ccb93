"""What log lines about a message carry beside their text: ``extra`` fields of the standard logging."""

from __future__ import annotations

from typing import Any

from penstock.messages import Envelope


def fields_of(envelope: Envelope, **more: Any) -> dict[str, Any]:
    """Topic, partition, offset, group, id; and what else is known. What is None is left out."""
    known = {
        "topic": envelope.topic,
        "partition": envelope.partition if envelope.offset is None else envelope.log_partition,
        "offset": envelope.offset,
        "group": envelope.group,
        "message_id": envelope.id,
        **more,
    }
    return {name: value for name, value in known.items() if value is not None}
