"""The figures of streaming, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from penstock.pressure.streaming import StreamingBackpressureHandler
from penstock.streaming.outbox import Outbox, PublishCall
from penstock.streaming.topic_watch import TopicWatch
from penstock.streaming.topic_watches import TopicWatches
from penstock.streaming.transport_set import TransportSet
from penstock.system import SECOND_MS


def scaling_metrics(
    watches: TopicWatches,
    consumers_of: Callable[[TopicWatch], int],
    transports: TransportSet,
    handler: StreamingBackpressureHandler[PublishCall],
    outbox: Outbox,
) -> Mapping[str, Any]:
    """All of them. What has a topic in its name is as of the last look."""
    topics = {_place(watch, transports): _topic(watch) for watch in watches}
    return {
        "partitions": {name: topic["partitions"] for name, topic in topics.items()},
        "consumers": {_place(watch, transports): consumers_of(watch) for watch in watches},
        "throughput": {name: topic["throughput"] for name, topic in topics.items()},
        "lag_records": {name: topic["lag_records"] for name, topic in topics.items()},
        "lag_seconds": {name: topic["lag_seconds"] for name, topic in topics.items()},
        "checkpoints": {name: topic["checkpoints"] for name, topic in topics.items()},
        "publishes_waiting": len(handler),
        "publishes_in_flight": outbox.in_flight,
        "backpressure": handler.current_state.name,
        "active_transport": transports.find().name,
        "transports": {name: asdict(one) for name, one in transports.statistics().items()},
    }


def _place(watch: TopicWatch, transports: TransportSet) -> str:
    """The topic; with its transport when that is not the active one."""
    if watch.slot is transports.find():
        return watch.topic
    return f"{watch.slot.name}:{watch.topic}"


def _topic(watch: TopicWatch) -> dict[str, Any]:
    lags = watch.group_lags()
    return {
        "partitions": watch.partitions,
        "throughput": watch.rate,
        "lag_records": {one.group: one.records for one in lags},
        "lag_seconds": {one.group: one.milliseconds / SECOND_MS for one in lags},
        "checkpoints": {
            group: {f"partition-{one.partition}": one.committed for one in several}
            for group, several in watch.lags.items()
        },
    }
