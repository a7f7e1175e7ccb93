"""What the pressure did to messages, by topic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from penstock.pressure.decisions import PublishDecision, shed

TOPICS_MAX = 10_000
"""Topics that are counted one by one; more are counted together."""
OTHER_TOPICS = "*"


@dataclass(frozen=True, slots=True)
class TopicPressure:
    """What the pressure did to the messages of a topic."""

    warned: int = 0
    """Messages that carry the header ``X-Backpressure: warning``."""
    delayed: int = 0
    """Messages whose publisher was told to wait."""
    delayed_seconds: float = 0.0
    """How long they were told to wait, all in all."""
    shed: int = 0
    """Messages that were refused with LoadShed."""
    dropped: int = 0
    """Messages that nobody gets: those that were shed, and those that a full queue lost."""


NAMES = tuple(field.name for field in fields(TopicPressure))


@dataclass(slots=True)
class _Counters:
    warned: int = 0
    delayed: int = 0
    delayed_seconds: float = 0.0
    shed: int = 0
    dropped: int = 0


class PressureLedger:
    """Counts what is done. A message to which nothing is done costs nothing here."""

    def __init__(self) -> None:
        self._topics: dict[str, _Counters] = {}

    def count(self, topic: str, decision: PublishDecision) -> PublishDecision:
        """Note what is done; raises LoadShed when the message is refused."""
        if decision is PublishDecision.PROCEED:
            return decision
        counters = self._of(topic)
        if decision.rejected:
            counters.shed += 1
            counters.dropped += 1
            raise shed(decision, f"a message of {topic or 'no topic'}", topic=topic)
        counters.warned += decision.header is not None
        counters.delayed += decision.delayed
        counters.delayed_seconds += decision.delay or 0.0
        return decision

    def note_dropped(self, topic: str, count: int) -> None:
        """Messages of this topic were lost by a queue that is full."""
        self._of(topic).dropped += count

    def topics(self) -> dict[str, TopicPressure]:
        """The figures of each topic to whose messages something was done."""
        return {topic: _sum([counters]) for topic, counters in self._topics.items()}

    def total(self) -> TopicPressure:
        """All topics together."""
        return _sum(self._topics.values())

    def _of(self, topic: str) -> _Counters:
        counters = self._topics.get(topic)
        if counters is None:
            name = topic if len(self._topics) < TOPICS_MAX else OTHER_TOPICS
            counters = self._topics.setdefault(name, _Counters())
        return counters


def _sum(counters: Iterable[_Counters]) -> TopicPressure:
    found = list(counters)
    return TopicPressure(*(sum(getattr(one, name) for one in found) for name in NAMES))
