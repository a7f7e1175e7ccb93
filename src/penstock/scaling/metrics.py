"""The figures of a scalable bus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from penstock.bus.intake import Intake
from penstock.messages import marks_of
from penstock.pressure.message_bus import MessageBusBackpressure, read_lanes
from penstock.pressure.readings import Reading
from penstock.scaling.hot import HotLane
from penstock.scaling.partitions import Epochs

if TYPE_CHECKING:
    from penstock.bus.bus import MessageBus
    from penstock.bus.handlers import Handler
    from penstock.scaling.group_consumer import GroupConsumer
    from penstock.scaling.subscriber_groups import SubscriberGroups
    from penstock.scaling.topics import TopicLanes


def lane_depths(intake: Intake) -> list[Reading]:
    """The depth of every partition, rings and what is behind them included."""
    unused = [
        Reading(marks_of(kind).topic, 0, spread.unused * intake.options.capacity)
        for kind, spread in intake.spreads.items()
        if isinstance(spread, Epochs) and spread.unused
    ]
    return read_lanes(intake) + unused


def scaling_metrics(
    bus: MessageBus,
    lanes: TopicLanes,
    groups: SubscriberGroups,
    backpressure: MessageBusBackpressure,
    rate: float,
    readers: Iterable[GroupConsumer],
) -> Mapping[str, Any]:
    """All of them, as plain values."""
    pressure = backpressure.statistics()
    return {
        "topics": len(set(map(_topic, lanes.kinds()))),
        "messages_per_second": rate,
        "partitions": {_topic(kind): lanes.partitions_of(kind) for kind in lanes.kinds()},
        "queue_depths": _depths(lanes),
        "subscribers": _subscribers(bus, lanes.kinds()),
        "groups": {
            f"{_topic(group.kind)}/{group.name}": {
                member: list(partitions)
                for member, partitions in group.assignment(lanes.partitions_of(group.kind)).items()
            }
            for group in groups.groups()
        },
        "durable": {f"{one.topic}/{one.group}": _reader(one) for one in readers},
        "rings": {_topic(kind): _ring(lane) for kind, lane in lanes.hot.items()},
        "dropped": pressure.total.shed + lanes.dropped(),
        "backpressure": pressure.level.name,
        "explanation": pressure.explain(),
    }


def _topic(kind: type) -> str:
    return marks_of(kind).topic


def _depths(lanes: TopicLanes) -> dict[str, list[int]]:
    """What waits in each partition of each topic, over the classes that share it."""
    depths: dict[str, list[int]] = {}
    for kind in lanes.kinds():
        both = zip_longest(depths.get(_topic(kind), ()), _depths_of(lanes, kind), fillvalue=0)
        depths[_topic(kind)] = list(map(sum, both))
    return depths


def _depths_of(lanes: TopicLanes, kind: type) -> list[int]:
    spread = lanes.epochs_of(kind)
    if spread is not None:
        return spread.depths()
    [lane] = lanes.lanes_of(kind)
    return [len(lane.queue) + lane.queue.held]


def _subscribers(bus: MessageBus, kinds: list[type]) -> dict[str, int]:
    handlers: dict[str, set[Handler]] = {}
    for kind in kinds:
        handlers.setdefault(_topic(kind), set()).update(bus._registry.all_of(kind))
    return {topic: len(found) for topic, found in handlers.items()}


def _reader(reader: GroupConsumer) -> dict[str, int]:
    return {
        "lag": reader.lag,
        "in_work": reader.in_work,
        "delivered": reader.delivered,
        "invalid": reader.invalid,
    }


def _ring(lane: HotLane) -> dict[str, Any]:
    figures = lane.queue.ring.statistics()
    return {
        "capacity": figures.capacity,
        "published": figures.published,
        "depth": figures.depth,
        "fallbacks": lane.queue.fallbacks,
        "consumers": {one.name: one.position for one in figures.consumers},
    }
