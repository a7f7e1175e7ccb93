"""What a subscriber gets: one record, with whom it is for and how it is acknowledged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from penstock.log.records import NO_HEADERS, Record


class EventSource(Protocol):
    """Where an event came from, and who hears that it is handled."""

    def ack(self, event: StreamEvent) -> None:
        """The event is handled."""
        ...

    async def commit(self, event: StreamEvent) -> None:
        """The event, and all before it in its partition, is handled; durable when it returns."""
        ...

    def decode(self, event: StreamEvent) -> Any:
        """The message that the value is."""
        ...


class StreamEvent(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """One record of a topic, as a member of a group sees it. Immutable."""

    topic: str
    partition: int
    offset: int
    """Dense per partition; never changed."""
    timestamp: int
    """Milliseconds since 1970, UTC: what the publisher gave, else when it was appended."""
    key: bytes | None
    value: bytes | None
    """None is a tombstone."""
    headers: Mapping[str, bytes] = NO_HEADERS
    group: str
    source: EventSource

    def ack(self) -> None:
        """The event is handled: the next commit may pass it. Takes no time, and writes nothing."""
        self.source.ack(self)

    async def commit(self) -> None:
        """This event, and all before it in its partition, is handled; durable when it returns.

        Raises Fenced when another member has the partition by now.
        """
        await self.source.commit(self)

    @property
    def message(self) -> Any:
        """The value as the message that was published; InvalidMessage when it is none.

        Its class has to be known: subscribe with the class, or ``streams.codec.register(kind)``.
        """
        return self.source.decode(self)


def event_of(record: Record, group: str, source: EventSource) -> StreamEvent:
    """The record, as a member of the group sees it."""
    return StreamEvent(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        timestamp=record.timestamp,
        key=record.key,
        value=record.value,
        headers=record.headers,
        group=group,
        source=source,
    )
