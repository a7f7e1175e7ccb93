"""A load generator on virtual time: producers, consumers of a known speed, and what is in between."""

from collections import deque

from penstock.scaling.assignment import assign_sticky
from penstock.scaling.rate import RateMeasure
from penstock.streaming import (
    Autoscaler,
    Measurement,
    ScalabilityConfig,
    ScalingAction,
)
from penstock.system import System
from penstock.testing import VirtualClock


class Load:
    """Second by second: records come at a rate, consumers handle them, the scaler is asked."""

    def __init__(self, *, speed, **config):
        self.clock = VirtualClock()
        self.system = System(clock=self.clock)
        self.config = ScalabilityConfig(**config)
        self.scaler = Autoscaler(self.config, system=self.system)
        self.measure = RateMeasure(window_seconds=30, system=self.system)
        self.speed = speed
        """Records per second that one consumer handles."""
        self.partitions = self.consumers = 1
        self.assignment = assign_sticky(1, ["member-0"])
        self.moved = 0
        self.published = self.handled = 0
        self.backlog: deque = deque()
        self.times: list[float] = []

    def run(self, rate, seconds):
        """Publish at a rate for so many seconds."""
        for _ in range(seconds):
            self.clock.advance(1)
            self.published += rate
            self.backlog.append([self.clock.time_ms(), rate])
            self._handle(self.consumers * self.speed)
            self.measure.observe(self.published)
            self._ask()
            assert self.published == self.handled + sum(count for _, count in self.backlog)

    def lag_ms(self):
        return self.clock.time_ms() - self.backlog[0][0] if self.backlog else 0

    def _handle(self, most):
        while most and self.backlog:
            step = min(most, self.backlog[0][1])
            self.backlog[0][1] -= step
            most -= step
            self.handled += step
            if not self.backlog[0][1]:
                self.backlog.popleft()

    def _ask(self):
        measured = Measurement(
            topic="t",
            rate=self.measure.per_second(),
            lag_ms=self.lag_ms(),
            partitions=self.partitions,
            consumers=self.consumers,
        )
        for decision in self.scaler.decide(measured):
            self.times.append(self.clock.monotonic())
            if decision.action in (ScalingAction.ADD_PARTITIONS, ScalingAction.REMOVE_PARTITIONS):
                assert decision.before == self.partitions
                self.partitions = decision.after
            else:
                assert decision.before == self.consumers
                self.consumers = decision.after
        self._rebalance()

    def _rebalance(self):
        """Give the partitions to the members anew, and count those that went elsewhere."""
        members = [f"member-{number}" for number in range(self.consumers)]
        before = {one: name for name, several in self.assignment.items() for one in several}
        self.assignment = assign_sticky(self.partitions, members, self.assignment)
        after = {one: name for name, several in self.assignment.items() for one in several}
        self.moved += sum(before.get(one, name) != name for one, name in after.items())
