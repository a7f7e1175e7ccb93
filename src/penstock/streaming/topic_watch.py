"""What is known of a topic from the last look: partitions, rate, lag of its groups."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.errors import UnknownTopic
from penstock.log.lag import PartitionLag
from penstock.scaling.rate import RateMeasure
from penstock.streaming.lag_pressure import GroupLag
from penstock.streaming.transport_set import TransportSlot
from penstock.system import System


class TopicWatch:
    """Looks at one topic of one transport now and then, and remembers what it saw.

    The rate is that at which the topic grows, whoever publishes, once a group reads it; before
    that it is what was published here.
    """

    def __init__(self, slot: TransportSlot, topic: str, system: System) -> None:
        self.slot = slot
        self.topic = topic
        self.groups: set[str] = set()
        """Groups that are known here; others are found by asking the transport."""
        self.published = 0
        self.partitions = 0
        """0 until the topic was seen."""
        self.lags: Mapping[str, tuple[PartitionLag, ...]] = {}
        self._system = system
        self._here = RateMeasure(system=system)
        self._grown: RateMeasure | None = None

    @property
    def rate(self) -> float:
        """Records per second that are published."""
        return (self._grown or self._here).per_second()

    async def look(self) -> None:
        """Ask the transport. A topic that is not there has nothing to tell."""
        transport, topic = self.slot.transport, self.topic
        try:
            self.partitions = await transport.partitions(topic)
        except UnknownTopic:
            return
        groups = set(self.groups)
        if transport.capabilities.list_groups:
            groups.update(await transport.groups(topic))
        if transport.capabilities.lag:
            self.lags = {
                group: tuple(await transport.lag(topic, group)) for group in sorted(groups)
            }
        self._measure()

    def group_lags(self) -> list[GroupLag]:
        """How far each group is behind."""
        return [GroupLag.of(group, lags) for group, lags in self.lags.items()]

    def lag_of(self, group: str) -> GroupLag:
        """How far a group is behind; not at all when nobody has looked."""
        return GroupLag.of(group, self.lags.get(group, ()))

    def _measure(self) -> None:
        self._here.observe(self.published)
        for lags in self.lags.values():
            end = sum(one.end for one in lags)
            if self._grown is None:
                self._grown = RateMeasure(end, system=self._system)
            self._grown.observe(end)
            return
