"""Events as records of a log, and what is needed of the log.

The value of a record is the encoded message, its key the bytes of the message's key. What else the
envelope knows stands in headers that begin with ``penstock-``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Protocol

from penstock.hashing import key_bytes
from penstock.messages import DEFAULT_SESSION, NORMAL, Envelope, Priority, dotted_name

TYPE, ID, SESSION = "penstock-type", "penstock-id", "penstock-session"
CORRELATION, CAUSATION = "penstock-correlation", "penstock-causation"
PRIORITY = "penstock-priority"
GROUP = "penstock-group"
"""For this group alone: a dead letter of it, that was published again from outside of the bus."""
LETTER = "penstock-letter"
"""The id of that dead letter; whoever handles the record takes the letter away."""
OWN_HEADERS = {TYPE, ID, SESSION, CORRELATION, CAUSATION, PRIORITY, GROUP, LETTER}


class LogRecord(Protocol):
    """What is needed of a record of the log."""

    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Mapping[str, bytes]: ...


class LogSubscription(Protocol):
    """What is needed of a durable subscriber of the log."""

    async def open(self) -> None:
        """Claim the name; SubscriberBusy when it has a live owner."""
        ...

    async def next_batch(self, timeout: float | None = None, records_max: int = 1) -> Any:
        """The next records of one partition; waits for them."""
        ...

    async def pause(self, partitions: Collection[int]) -> None:
        """Deliver nothing of these partitions for a while."""
        ...

    async def resume(self, partitions: Collection[int]) -> None:
        """Deliver records of these partitions again."""
        ...

    async def commit(self, record: Any = None) -> None:
        """Mark as consumed up to this record, durably."""
        ...

    async def close(self) -> None:
        """Give the name back."""
        ...

    def positions(self) -> Mapping[int, int]:
        """The next offset of each partition."""
        ...

    def lag(self) -> int:
        """Records that were not read yet."""
        ...


class TopicLog(Protocol):
    """A durable, partitioned log, such as ``WalMessageQueue``."""

    async def create_topic(self, name: str) -> Any:
        """Make the topic when it is not there, and open it."""
        ...

    async def publish(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        durable: bool = False,
        timeout: float = 30.0,
    ) -> Any:
        """Publish a record; returns when it is as safe as its topic asks for."""
        ...

    def publish_nowait(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
    ) -> Any:
        """Hand a record over without waiting."""
        ...

    def transaction(self, name: str) -> Any:
        """Records of several topics, all or none; ``async with`` commits it."""
        ...

    async def flush(self) -> None:
        """Wait until everything that was accepted is durable."""
        ...

    def subscribe(self, topic: str, name: str) -> LogSubscription:
        """A durable subscriber, which resumes where it committed."""
        ...


class Row(NamedTuple):
    """An event, ready for the log."""

    value: bytes
    key: bytes | None
    headers: dict[str, bytes]


def row_of(envelope: Envelope, value: bytes) -> Row:
    """The record of an event whose message is encoded."""
    key = envelope.key
    return Row(value, None if key is None else key_bytes(key), headers_of(envelope))


def headers_of(envelope: Envelope) -> dict[str, bytes]:
    """What the envelope knows, as headers."""
    own = {
        TYPE: dotted_name(type(envelope.message)),
        ID: envelope.id,
        SESSION: envelope.session if envelope.session != DEFAULT_SESSION else None,
        CORRELATION: envelope.correlation_id,
        CAUSATION: envelope.causation_id,
        PRIORITY: str(int(envelope.priority)) if envelope.priority != NORMAL else None,
    }
    known = {name: text for name, text in own.items() if text is not None}
    return {name: text.encode() for name, text in {**envelope.headers, **known}.items()}


def priority_of(headers: Mapping[str, str]) -> int:
    """The priority that the headers tell; NORMAL when they tell none that exists."""
    level = headers.get(PRIORITY, "")
    known = {str(int(one)) for one in Priority}
    return Priority(int(level)) if level in known else Priority.NORMAL
