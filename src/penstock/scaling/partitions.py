"""A topic whose lanes change while it runs: partitions, their number, and whether it is hot.

An event with a key goes to ``fnv1a(key) % partitions``, one without in turn. Events of a partition
are handled in order; a partition that is held up delays no other.

A change begins a new epoch: events that come from now on go to the new lanes, which wait until the
old ones are empty and their handlers are done. So nothing is lost, and the order of a key survives
the change, whatever producers do meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from penstock.bus.lane import Lane
from penstock.errors import InvalidOption
from penstock.messages import Envelope
from penstock.scaling.routing import Router

PARTITIONS_MAX = 4_096


@dataclass(slots=True, eq=False)
class Epoch:
    """The lanes between two changes. A lane is made when its partition gets its first event."""

    number: int
    router: Router
    make_lane: Callable[[], Lane]
    lanes: dict[int, Lane] = field(default_factory=dict)
    held_back: bool = True

    @property
    def finished(self) -> bool:
        """Whether all of its events are handled."""
        return not any(lane.pumps or lane.has_work for lane in self.lanes.values())

    def lane(self, partition: int) -> Lane:
        """The lane of a partition."""
        lane = self.lanes.get(partition)
        if lane is None:
            lane = self.lanes[partition] = self.make_lane()
            lane.held_back = self.held_back
        return lane

    def begin(self) -> None:
        """Those before are done: handle what has gathered."""
        self.held_back = False
        for lane in list(self.lanes.values()):
            lane.held_back = False
            lane.wake()


class Epochs:
    """The lanes of one message class. Implements :class:`penstock.bus.intake.Spread`.

    ``on_single`` is told when one lane is all that is left, which then needs no epochs; ``on_retired``
    whenever lanes have gone, and their room with them.
    """

    def __init__(
        self, first: Lane, on_single: Callable[[Lane], None], on_retired: Callable[[], None]
    ) -> None:
        self._on_single = on_single
        self._on_retired = on_retired
        self._epochs: deque[Epoch] = deque()
        self._changes = 0
        self.dropped = 0
        """Events that were dropped or refused at lanes that are gone."""
        self._begin(1, lambda: first)
        self._epochs[0].begin()
        self._epochs[0].lane(0)

    @property
    def partitions(self) -> int:
        """How many partitions new events are spread over."""
        return self._epochs[-1].router.partitions

    @property
    def unused(self) -> int:
        """How many of them have had no event yet."""
        return self.partitions - len(self._epochs[-1].lanes)

    @property
    def epoch(self) -> int:
        """How often the lanes have changed."""
        return self._epochs[-1].number

    def lane_of(self, envelope: Envelope) -> Lane:
        """The lane of an event, chosen when it is asked first."""
        if envelope.lane is None:
            epoch = self._epochs[-1]
            envelope.partition = epoch.router.partition_of(envelope.key)
            envelope.lane = epoch.lane(envelope.partition)
        lane: Lane = envelope.lane
        return lane

    def lanes(self) -> Iterator[Lane]:
        """The lanes of all epochs, the oldest first."""
        for epoch in self._epochs:
            yield from list(epoch.lanes.values())

    def depths(self) -> list[int]:
        """How many events wait, by partition; those of older epochs count where they are."""
        depths = [0] * max(epoch.router.partitions for epoch in self._epochs)
        for epoch in self._epochs:
            for partition, lane in epoch.lanes.items():
                depths[partition] += len(lane.queue) + lane.queue.held
        return depths

    def change(self, partitions: int, make_lane: Callable[[], Lane]) -> None:
        """Let new events go to other lanes, once those before are handled."""
        self._begin(partitions, make_lane)
        self.advance()

    def advance(self) -> None:
        """Let the next epoch run when the one before is finished."""
        while len(self._epochs) > 1 and self._epochs[0].finished:
            for lane in self._epochs.popleft().lanes.values():
                self.dropped += lane.queue.dropped + lane.queue.rejected
                lane.retire()
            self._on_retired()
            self._epochs[0].begin()
        if len(self._epochs) == 1 and self.partitions == 1:
            self._on_single(self._epochs[0].lane(0))

    def _begin(self, partitions: int, make_lane: Callable[[], Lane]) -> None:
        check_partitions(partitions)
        turn = self._epochs[-1].router.turn if self._epochs else 0

        def make() -> Lane:
            lane = make_lane()
            lane.on_empty = self.advance
            return lane

        self._epochs.append(Epoch(self._changes, Router(partitions, turn), make))
        self._changes += 1


def check_partitions(partitions: int) -> None:
    """Refuse a number of partitions that cannot be."""
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidOption(
            f"{partitions} partitions: use 1 to {PARTITIONS_MAX}", option="partitions"
        )
