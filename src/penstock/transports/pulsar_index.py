"""Offsets of a Pulsar partition: the index that the broker gives every message.

A message has an id, of a ledger, an entry in it and a place in that entry; an entry holds the messages
of one batch. The broker numbers all messages of a topic without a gap when it is told to
(``AppendIndexMetadataInterceptor``), and keeps the number of its last message with each entry. That is the
offset. The client does not tell it, but the brokers' HTTP does. So one entry is asked for where reading
begins or something is missing; from there on, messages are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.errors import BrokerFailed, NotSupported, UnknownTopic
from penstock.transports.pulsar_http import PulsarHttp, decoded
from penstock.transports.pulsar_settings import NAME, PulsarSettings
from penstock.transports.records import milliseconds

INTERCEPTORS = ("AppendBrokerTimestampMetadataInterceptor", "AppendIndexMetadataInterceptor")
PACKAGE = "org.apache.pulsar.common.intercept."
SETTING = f"brokerEntryMetadataInterceptors={','.join(PACKAGE + one for one in INTERCEPTORS)}"
_META = "x-pulsar-broker-entry-metadata-"


class Position(NamedTuple):
    """Where an entry is. Later ones compare as greater."""

    ledger: int
    entry: int


class EntryFacts(NamedTuple):
    """What the broker knows of one entry."""

    position: Position
    first: int
    """The offset of its first message."""
    end: int
    """The offset behind its last one."""
    stored_ms: int
    """The broker's time when it was stored."""
    published_ms: int
    event_ms: int
    """The time that the producer gave, when it is not a batch; 0: none."""
    batched: bool
    producer: str
    sequence: int
    """What the producer numbered its first message with."""
    body: bytes


class Start(NamedTuple):
    """Where a reader begins."""

    position: Position | None
    """None: at the first entry that there is."""
    inclusive: bool
    offset: int | None
    """Of the first message that it gets, unless something is removed meanwhile; None: ask."""


@dataclass(frozen=True, slots=True)
class Ledgers:
    """The entries of a partition that are kept: ledger and how many entries, in order."""

    parts: Sequence[tuple[int, int]]
    cursors: dict[str, Any] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(entries for _, entries in self.parts)

    def at(self, number: int) -> Position:
        """The entry with that number among all that are kept."""
        for ledger, entries in self.parts:
            if number < entries:
                return Position(ledger, number)
            number -= entries
        raise IndexError(number)


class PulsarIndex:
    """The offsets of one partition, which is a topic for the broker."""

    def __init__(self, settings: PulsarSettings, http: PulsarHttp, topic: str) -> None:
        self._path = settings.path(topic)
        self._http = http
        self._topic = topic
        self._last: EntryFacts | None = None
        """The entry that was asked for last."""

    async def peek(self, position: Position, *, body: bool = False) -> EntryFacts:
        """What the broker knows of an entry."""
        if not body and self._last is not None and self._last.position == position:
            return self._last
        answer = await self._http.call(
            "GET" if body else "HEAD",
            f"{self._path}/ledger/{position.ledger}/entry/{position.entry}",
        )
        headers = answer.headers
        if f"{_META}index" not in headers or f"{_META}timestamp" not in headers:
            raise not_numbered()
        end = int(headers[f"{_META}index"]) + 1
        self._last = EntryFacts(
            position,
            end - int(headers.get("x-pulsar-num-batch-message", "1")),
            end,
            milliseconds(headers[f"{_META}timestamp"]),
            milliseconds(headers["x-pulsar-publish-time"]),
            _event_ms(headers),
            "x-pulsar-num-batch-message" in headers,
            headers.get("x-pulsar-producer-name", ""),
            int(headers.get("x-pulsar-sequence-id", "-1")),
            answer.body,
        )
        return self._last

    async def ledgers(self) -> Ledgers:
        """What is kept at this moment."""
        answer = await self._http.call("GET", f"{self._path}/internalStats", may=(404,))
        if answer.status == 404:
            raise UnknownTopic(f"there is no topic {self._topic!r}", topic=self._topic)
        told = decoded(answer)
        last = _position(told["lastConfirmedEntry"])
        parts = [
            # The broker counts the entries of the last ledger when it is closed.
            (
                one["ledgerId"],
                last.entry + 1 if one["ledgerId"] == last.ledger else one["entries"],
            )
            for one in told["ledgers"]
            if one["ledgerId"] <= last.ledger
        ]
        return Ledgers([one for one in parts if one[1] > 0], told.get("cursors", {}))

    async def last(self) -> Position | None:
        """The last entry; None: nothing is kept."""
        ledgers = await self.ledgers()
        return ledgers.at(ledgers.count - 1) if ledgers.count else None

    async def bounds(self) -> tuple[int, int]:
        """The first offset that is kept, and the end."""
        ledgers = await self.ledgers()
        if not ledgers.count:
            end = await self._end_of_nothing()
            return end, end
        first = await self.peek(ledgers.at(0))
        return first.first, (await self.peek(ledgers.at(ledgers.count - 1))).end

    async def _end_of_nothing(self) -> int:
        """The broker keeps the number of the last message when all of them are removed."""
        answer = await self._http.call("GET", f"{self._path}/internal-info", may=(401, 403, 404))
        info = decoded(answer) if answer.status == 200 else {}
        return int((info.get("properties") or {}).get("index", "-1")) + 1

    async def locate(self, offset: int) -> Start:
        """Where to begin for an offset: at or before it, or behind the last entry."""
        ledgers = await self.ledgers()
        if not ledgers.count:
            return Start(None, True, await self._end_of_nothing())
        last = await self.peek(ledgers.at(ledgers.count - 1))
        if offset >= last.end:
            return Start(last.position, False, last.end)
        found = last
        low, high = 0, ledgers.count - 1
        while low < high:
            middle = (low + high) // 2
            facts = await self.peek(ledgers.at(middle))
            if facts.end > offset:
                found, high = facts, middle
            else:
                low = middle + 1
        return Start(found.position, True, found.first)

    async def offset_at(self, time_ms: int) -> int:
        """The first offset of an entry of that time or later; the end when there is none."""
        answer = await self._http.call("GET", f"{self._path}/messageid/{max(0, time_ms)}")
        found = decoded(answer)
        position = Position(found["ledgerId"], found["entryId"])
        last = await self.last()
        if last is None or position > last or position.entry < 0:
            return (await self.bounds())[1]
        return (await self.peek(position)).first


def not_numbered() -> NotSupported:
    """The broker does not number messages."""
    return NotSupported(
        "these Pulsar brokers do not number messages, so there are no offsets: set in broker.conf "
        f"{SETTING}",
        transport=NAME,
    )


def _position(text: str) -> Position:
    ledger, _, entry = text.partition(":")
    try:
        return Position(int(ledger), int(entry))
    except ValueError:
        raise BrokerFailed(f"{text!r} is no position", transport=NAME) from None


def mark_of(cursor: dict[str, Any]) -> Position:
    """The last entry that a cursor has let go."""
    return _position(cursor["markDeletePosition"])


def _event_ms(headers: Mapping[str, str]) -> int:
    event = headers.get("x-pulsar-event-time")
    return 0 if event is None else milliseconds(event)
