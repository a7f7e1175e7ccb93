"""Which lanes the topics of a bus have: one, several, or one on a ring; and how many may exist."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from penstock.bus.intake import Intake
from penstock.bus.lane import Lane
from penstock.errors import LimitReached
from penstock.messages import marks_of
from penstock.scaling.hot import HotLane
from penstock.scaling.limits import BusLimits
from penstock.scaling.partitions import Epochs, check_partitions
from penstock.scaling.ring import RING_CAPACITY


class TopicLanes:
    """Makes and changes the lanes of one bus. Belongs to its event loop."""

    def __init__(
        self,
        intake: Intake,
        limits: BusLimits,
        *,
        partitions: Mapping[str, int],
        hot_topics: Iterable[str],
        ring_capacity: int = RING_CAPACITY,
    ) -> None:
        for count in partitions.values():
            check_partitions(count)
        self.hot: dict[type, HotLane] = {}
        """The classes whose messages take the short way at the moment."""
        self.on_change: Callable[[], object] = lambda: None
        """Told when other lanes, or queues of another size, have less room than there was."""
        self._intake = intake
        self._limits = limits
        self._partitions = dict(partitions)
        self._hot_topics = dict.fromkeys(hot_topics, True)
        """What was said of a topic, which counts more than the mark of its class."""
        self._ring_capacity = ring_capacity
        self._dropped = 0
        """Events that were dropped or refused at lanes that are gone."""
        self._topics = {marks_of(kind).topic for kind in self.kinds()}
        intake.make_lane = self._make_first_lane

    # Topics

    def __len__(self) -> int:
        return len(self._topics)

    def kinds(self) -> list[type]:
        """The message classes that have lanes."""
        return [*self._intake.lanes, *self._intake.spreads]

    def has(self, kind: type) -> bool:
        """Whether a class has lanes."""
        return kind in self._intake.lanes or kind in self._intake.spreads

    def partitions_of(self, kind: type) -> int:
        """How many partitions the topic of a class has."""
        spread = self.epochs_of(kind)
        return 1 if spread is None else spread.partitions

    def epochs_of(self, kind: type) -> Epochs | None:
        """The epochs of a class that has several lanes."""
        spread = self._intake.spreads.get(kind)
        return spread if isinstance(spread, Epochs) else None

    def lanes_of(self, kind: type) -> list[Lane]:
        """All lanes of a class, also those that only empty themselves."""
        spread = self._intake.spreads.get(kind)
        return list(spread.lanes()) if spread is not None else [self._intake.lanes[kind]]

    def dropped(self) -> int:
        """Events that found no room, or made room, at all lanes that there are and were."""
        epochs = filter(None, map(self.epochs_of, self.kinds()))
        gone = self._dropped + sum(spread.dropped for spread in epochs)
        queues = [lane.queue for lane in self._intake.all_lanes()]
        return gone + sum(queue.dropped + queue.rejected for queue in queues)

    def number_waiting(self, kind: type) -> None:
        """What waits in the ring of a class is older than what comes now, with its envelope."""
        lane = self.hot.get(kind)
        if lane is not None:
            lane.queue.number_waiting()

    def is_hot(self, kind: type) -> bool:
        """Whether the topic of a class is to be hot; where nothing was said, whether the class is marked so."""
        marks = marks_of(kind)
        return self._hot_topics.get(marks.topic, marks.hot_path)

    # Changes

    def set_partitions(self, kind: type, partitions: int) -> None:
        """Spread the events of a class from now on over so many partitions."""
        check_partitions(partitions)
        self._partitions[marks_of(kind).topic] = partitions
        if self.has(kind) and not self.is_hot(kind) and self.partitions_of(kind) != partitions:
            self._change(kind, partitions)

    def set_hot(self, kind: type, *, hot: bool) -> None:
        """Move a class to the hot path, or away from it."""
        if hot == self.is_hot(kind):
            return
        topic = marks_of(kind).topic
        self._hot_topics[topic] = hot
        if self.has(kind):
            count = 1 if hot else self._partitions.get(topic, 1)
            self._change(kind, count)

    def change_limits(self, limits: BusLimits) -> None:
        """Put other limits in force, for the queues that are there too."""
        capacity = limits.max_message_queue_size
        self._intake.options = replace(self._intake.options, capacity=capacity)
        self._limits = limits
        for lane in self._intake.all_lanes():
            lane.queue.resize(capacity)
            lane.make_room()
        self.on_change()

    def _change(self, kind: type, partitions: int) -> None:
        self.number_waiting(kind)
        if (hot := self.hot.pop(kind, None)) is not None:
            hot.ring.close_way()
        spread = self._intake.spreads.get(kind)
        if not isinstance(spread, Epochs):
            first = self._intake.lanes.pop(kind)
            spread = Epochs(first, lambda lane: self._collapse(kind, lane), self._tell_change)
            self._intake.spreads[kind] = spread
        spread.change(partitions, lambda: self._make_running_lane(kind))
        self.on_change()

    def _tell_change(self) -> None:
        self.on_change()

    def _make_running_lane(self, kind: type) -> Lane:
        lane = self._make_lane(kind)
        lane.running = self._intake.running
        return lane

    def _collapse(self, kind: type, lane: Lane) -> None:
        """A class has one lane and nothing before it: it takes the short ways again."""
        lane.on_empty = None
        spread = self.epochs_of(kind)
        self._dropped += 0 if spread is None else spread.dropped
        del self._intake.spreads[kind]
        self._intake.lanes[kind] = lane
        if isinstance(lane, HotLane):
            self.hot[kind] = lane

    # Lanes

    def _make_first_lane(self, kind: type) -> Lane:
        topic = marks_of(kind).topic
        if topic not in self._topics and len(self) >= self._limits.max_topics:
            raise LimitReached(
                f"there are {len(self)} topics: raise max_topics with reconfigure_limits()",
                limit="max_topics",
                value=self._limits.max_topics,
            )
        lane = self._make_lane(kind)
        self._topics.add(topic)
        if isinstance(lane, HotLane):
            self.hot[kind] = lane
        return lane

    def open(self, kind: type) -> None:
        """Give a class the partitions that its topic is configured to have."""
        count = self._partitions.get(marks_of(kind).topic, 1)
        if not self.has(kind):
            self._intake.lane(kind)
        if count != self.partitions_of(kind) and not self.is_hot(kind):
            self._change(kind, count)

    def _make_lane(self, kind: type) -> Lane:
        if not self.is_hot(kind):
            return self._intake.make_plain_lane(kind)
        options = self._intake.options
        return HotLane(
            kind,
            self._intake,
            self._ring_capacity,
            capacity=options.capacity,
            overflow=options.overflow,
            high_mark=options.high_mark,
            low_mark=options.low_mark,
            on_pressure=partial(self._intake.tell_pressure, marks_of(kind).topic),
            on_drop=self._intake.dispatch.drop,
        )
