"""The topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from nicegui import ui

from penstock.dashboard import parts, texts
from penstock.dashboard.broker import BrokerSource
from penstock.dashboard.frame import frame, live
from penstock.dashboard.parts import Column, Table, careful
from penstock.observe import Snapshot, TopicSnapshot
from penstock.upkeep import is_journal

COLUMNS = (
    Column("topic", "Topic", link="path"),
    Column("source", "Source"),
    Column("partitions", "Partitions", number=True),
    Column("records", "Records", number=True, shown="records_text"),
    Column("bytes", "Size", number=True, shown="bytes_text"),
    Column("groups", "Groups", number=True),
    Column("lag", "Largest lag", number=True, shown="lag_text"),
    Column("state", "State", mood="mood"),
)
BROKER_SECONDS = 5.0


def build() -> None:
    """The page."""
    with frame("Topics", "/topics") as board, parts.card():
        with parts.row():
            wanted = parts.field("Find a topic").classes("ps-grow")
            journals = ui.switch("Show journals")
        table = Table("Topics", COLUMNS, _nothing)
        brokers: dict[str, Sequence[str]] = {}

        async def ask_brokers() -> None:
            told = await board.topics(BrokerSource)
            brokers.update(told.found)
            parts.tell_silent(told.silent)

        def draw() -> None:
            rows = rows_of(board.sampler.latest, brokers)
            text = wanted.value or ""
            table.set(
                [
                    one
                    for one in rows
                    if text in one["topic"] and (journals.value or not one["journal"])
                ]
            )

        wanted.on_value_change(draw)
        journals.on_value_change(draw)
        live(board, draw)
        ui.timer(BROKER_SECONDS, careful(ask_brokers))


def _nothing() -> ui.element:
    return parts.empty(
        "There are no topics here",
        "A topic is made when something is published to it, or by hand:",
        "penstock topic create orders",
        "topic",
    )


def address(source: str, topic: str) -> str:
    """The page of a topic."""
    return f"/topic?{urlencode({'source': source, 'topic': topic})}"


def rows_of(
    snapshot: Snapshot, brokers: Mapping[str, Sequence[str]] | None = None
) -> list[dict[str, Any]]:
    """The topics of logs, and those of brokers."""
    rows = [_row(one, snapshot) for one in snapshot.topics]
    for source, topics in (brokers or {}).items():
        rows += [_broker_row(source, topic, snapshot) for topic in topics]
    return rows


def _row(topic: TopicSnapshot, snapshot: Snapshot) -> dict[str, Any]:
    held = [max(0, one.durable_offset - one.earliest_offset) for one in topic.partitions]
    poisoned = any(one.poisoned for one in topic.partitions)
    full = any(one.full for one in topic.partitions)
    return {
        **_common(topic.source, topic.topic, snapshot),
        "partitions": len(topic.partitions),
        "records": sum(held),
        "records_text": texts.count(sum(held)),
        "bytes": sum(one.bytes for one in topic.partitions),
        "bytes_text": texts.size(sum(one.bytes for one in topic.partitions)),
        "state": "refuses records" if poisoned else "full" if full else "fine",
        "mood": "bad" if poisoned else "notice" if full else "good",
    }


def _broker_row(source: str, topic: str, snapshot: Snapshot) -> dict[str, Any]:
    groups = [one for one in snapshot.groups if (one.source, one.topic) == (source, topic)]
    return {
        **_common(source, topic, snapshot),
        "partitions": max((len(one.partitions) for one in groups), default=0) or "–",
        "records": 0,
        "records_text": "–",
        "bytes": 0,
        "bytes_text": "–",
        "state": "at the broker",
        "mood": "",
    }


def _common(source: str, topic: str, snapshot: Snapshot) -> dict[str, Any]:
    groups = [one for one in snapshot.groups if (one.source, one.topic) == (source, topic)]
    lag = max((one.lag_records for one in groups), default=0)
    return {
        "id": f"{source}/{topic}",
        "source": source,
        "topic": topic,
        "path": address(source, topic),
        "groups": len(groups),
        "lag": lag,
        "lag_text": texts.count(lag),
        "journal": is_journal(topic),
    }
