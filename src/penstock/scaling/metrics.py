"""The figures of a scalable bus."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.bus.intake import Intake
from penstock.bus.lane import Lane
from penstock.messages import marks_of
from penstock.pressure.message_bus import MessageBusBackpressure
from penstock.pressure.readings import Reading
from penstock.scaling.hot import HotLane
from penstock.scaling.partitions import Epochs
from penstock.system import Clock

if TYPE_CHECKING:
    from penstock.bus.bus import MessageBus
    from penstock.scaling.subscriber_groups import SubscriberGroups
    from penstock.scaling.topics import TopicLanes

RATE_WINDOW_SECONDS = 10.0
LOOKS_MAX = 1_000


class RateMeter:
    """Messages per second, between the looks at a count."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looks: deque[tuple[float, int]] = deque([(clock.monotonic(), 0)], maxlen=LOOKS_MAX)

    def look(self, count: int) -> float:
        """The rate since the oldest look within the window, or since the last one before it."""
        now = self._clock.monotonic()
        while len(self._looks) > 1 and self._looks[1][0] <= now - RATE_WINDOW_SECONDS:
            self._looks.popleft()
        then, before = self._looks[0]
        self._looks.append((now, count))
        return (count - before) / (now - then) if now > then else 0.0


def lane_depths(intake: Intake) -> list[Reading]:
    """The depth of every partition, rings and what is behind them included."""
    unused = [
        Reading(_topic(kind), 0, spread.unused * intake.options.capacity)
        for kind, spread in intake.spreads.items()
        if isinstance(spread, Epochs) and spread.unused
    ]
    return [_reading(lane) for lane in intake.all_lanes()] + unused


def _reading(lane: Lane) -> Reading:
    topic, queue = marks_of(lane.kind).topic, lane.queue
    capacity = queue.capacity + (lane.queue.ring.capacity if isinstance(lane, HotLane) else 0)
    return Reading(topic, len(queue) + queue.held, capacity)


def scaling_metrics(
    bus: MessageBus,
    lanes: TopicLanes,
    groups: SubscriberGroups,
    backpressure: MessageBusBackpressure,
    rate: float,
) -> Mapping[str, Any]:
    """All of them, as plain values."""
    pressure = backpressure.statistics()
    return {
        "topics": len(lanes),
        "messages_per_second": rate,
        "partitions": {_topic(kind): lanes.partitions_of(kind) for kind in lanes.kinds()},
        "queue_depths": {_topic(kind): _depths(lanes, kind) for kind in lanes.kinds()},
        "subscribers": {_topic(kind): _subscribers(bus, kind) for kind in lanes.kinds()},
        "groups": {
            f"{_topic(group.kind)}/{group.name}": {
                member: list(partitions)
                for member, partitions in group.assignment(lanes.partitions_of(group.kind)).items()
            }
            for group in groups.groups()
        },
        "rings": {_topic(kind): _ring(lane) for kind, lane in lanes.hot.items()},
        "dropped": pressure.total.shed + sum(_dropped(lanes, kind) for kind in lanes.kinds()),
        "backpressure": pressure.level.name,
        "explanation": pressure.explain(),
    }


def _topic(kind: type) -> str:
    return marks_of(kind).topic


def _depths(lanes: TopicLanes, kind: type) -> list[int]:
    spread = lanes.epochs_of(kind)
    if spread is not None:
        return spread.depths()
    [lane] = lanes.lanes_of(kind)
    return [len(lane.queue) + lane.queue.held]


def _subscribers(bus: MessageBus, kind: type) -> int:
    return len(bus._registry.plan(kind, "BUS").handlers)


def _dropped(lanes: TopicLanes, kind: type) -> int:
    return sum(lane.queue.dropped + lane.queue.rejected for lane in lanes.lanes_of(kind))


def _ring(lane: HotLane) -> dict[str, Any]:
    figures = lane.queue.ring.statistics()
    return {
        "capacity": figures.capacity,
        "published": figures.published,
        "depth": figures.depth,
        "fallbacks": lane.queue.fallbacks,
        "consumers": {one.name: one.position for one in figures.consumers},
    }
