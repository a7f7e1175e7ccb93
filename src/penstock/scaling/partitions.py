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
from dataclasses import dataclass

from penstock.bus.lane import Lane
from penstock.errors import InvalidOption
from penstock.messages import Envelope
from penstock.scaling.routing import Router

PARTITIONS_MAX = 4_096


@dataclass(slots=True, eq=False)
class Epoch:
    """The lanes between two changes."""

    number: int
    router: Router
    lanes: list[Lane]

    @property
    def finished(self) -> bool:
        """Whether all of its events are handled."""
        return not any(lane.pumps or lane.has_work for lane in self.lanes)


class Epochs:
    """The lanes of one message class. Implements :class:`penstock.bus.intake.Spread`."""

    def __init__(self, lanes: list[Lane], on_single: Callable[[Lane], None]) -> None:
        self._on_single = on_single
        self._epochs: deque[Epoch] = deque()
        self._changes = 0
        self._begin(lanes)

    @property
    def partitions(self) -> int:
        """How many partitions new events are spread over."""
        return self._epochs[-1].router.partitions

    @property
    def epoch(self) -> int:
        """How often the lanes have changed."""
        return self._epochs[-1].number

    def lane_of(self, envelope: Envelope) -> Lane:
        """The lane of an event, chosen when it is asked first."""
        if envelope.lane is None:
            epoch = self._epochs[-1]
            envelope.partition = epoch.router.partition_of(envelope.key)
            envelope.lane = epoch.lanes[envelope.partition]
        lane: Lane = envelope.lane
        return lane

    def lanes(self) -> Iterator[Lane]:
        """The lanes of all epochs, the oldest first."""
        for epoch in self._epochs:
            yield from epoch.lanes

    def depths(self) -> list[int]:
        """How many events wait, by partition; those of older epochs count where they are."""
        depths = [0] * max(len(epoch.lanes) for epoch in self._epochs)
        for epoch in self._epochs:
            for partition, lane in enumerate(epoch.lanes):
                depths[partition] += len(lane.queue) + lane.queue.held
        return depths

    def change(self, lanes: list[Lane]) -> None:
        """Let new events go to these lanes, once those before are handled."""
        self._begin(lanes)
        self.advance()

    def advance(self) -> None:
        """Let the next epoch run when the one before is finished."""
        while len(self._epochs) > 1 and self._epochs[0].finished:
            for lane in self._epochs.popleft().lanes:
                lane.retire()
            for lane in self._epochs[0].lanes:
                lane.held_back = False
                lane.wake()
        if len(self._epochs) == 1 and len(self._epochs[0].lanes) == 1:
            self._on_single(self._epochs[0].lanes[0])

    def _begin(self, lanes: list[Lane]) -> None:
        check_partitions(len(lanes))
        turn = self._epochs[-1].router.turn if self._epochs else 0
        for lane in lanes:
            lane.held_back = bool(self._epochs)
            lane.on_empty = self.advance
        self._epochs.append(Epoch(self._changes, Router(len(lanes), turn), lanes))
        self._changes += 1


def check_partitions(partitions: int) -> None:
    """Refuse a number of partitions that cannot be."""
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidOption(
            f"{partitions} partitions: use 1 to {PARTITIONS_MAX}", option="partitions"
        )
