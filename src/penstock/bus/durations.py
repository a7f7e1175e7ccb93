"""How long handlers take, for next to nothing: the clock is read once for many messages.

Events that are handled quickly, one after the other, are timed together, and each counts with the
mean of its neighbours. As soon as some take long they are timed one by one, until many in a row were
quick. So a slow event is not lost among quick ones. Messages that do not follow each other, as
commands, are timed one by one; of quick ones one in 64 is, and counts for the others too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.bus.cells import MeterCells
from penstock.bus.histogram import Durations, Histogram
from penstock.messages import marks_of
from penstock.system import Clock

SLOW_SECONDS = 20e-6
"""From here on an event is worth a look at the clock of its own."""
QUICK_EVENTS = 64
"""So many quick ones in a row are timed together from then on."""
TOGETHER_MAX = 100
SKIPPED_MAX = 63
"""So many quick ones that come one by one are not timed between two that are."""
STANDS_OUT = 8
"""One of a batch was slow when the batch took so many times what is usual."""
TOPICS_MAX = 10_000
OTHER_TOPICS = "(others)"


class Meter(MeterCells):
    """The durations of one topic. Used by one event loop.

    ``skipped`` are the messages that came one by one and were not timed since one was, ``skip`` is how
    many that may be: none while they are slow.
    """

    __slots__ = ("_stood_out", "_usual", "histogram", "quick")

    def __init__(self) -> None:
        super().__init__()
        self.histogram = Histogram()
        self.quick = 0
        """Events since the last slow one."""
        self._usual = 0.0
        self._stood_out = False

    def add(self, seconds: float, count: int) -> None:
        """So many events took so long together."""
        mean = seconds / count
        self.quick = self.quick + count if mean < SLOW_SECONDS else 0
        if count > 1 and mean > STANDS_OUT * self._usual > 0 and not self._stood_out:
            # One of them, most likely; if it happens again, it is what is usual now.
            self._stood_out = True
            self.histogram.add(self._usual, count - 1)
            self.histogram.add(seconds - self._usual * (count - 1))
        else:
            self._stood_out = False
            self._usual = mean
            self.histogram.add(mean, count)

    def add_one(self, seconds: float) -> None:
        """A message that came by itself took so long, and counts for those that were not timed."""
        count = 1 + self.skipped
        self.skipped = 0
        self.quick = self.quick + count if seconds < SLOW_SECONDS else 0
        self.skip = SKIPPED_MAX if self.quick >= QUICK_EVENTS else 0
        self._usual = seconds
        self.histogram.add(seconds, count)

    def forget_skipped(self) -> None:
        """One that was not timed has not been handled."""
        self.skipped = max(0, self.skipped - 1)

    def durations(self) -> Durations:
        """What was measured so far; those that were not timed count as is usual."""
        if self.skipped:
            self.histogram.add(self._usual, self.skipped)
            self.skipped = 0
        return self.histogram.durations()


class Meters:
    """The durations of all topics of a bus; beyond 10,000 topics the others count together."""

    def __init__(self, clock: Clock) -> None:
        self.now = clock.monotonic
        self._kinds: dict[type, Meter] = {}
        self._topics: dict[str, Meter] = {}

    def of(self, kind: type) -> Meter:
        """That of the topic of a message class."""
        found = self._kinds.get(kind)
        if found is None:
            topic = marks_of(kind).topic
            if topic not in self._topics and len(self._topics) >= TOPICS_MAX:
                topic = OTHER_TOPICS
            found = self._kinds[kind] = self._topics.setdefault(topic, Meter())
        return found

    def stopwatch(self, kind: type) -> Stopwatch | None:
        """What times a message that comes by itself; None when this one is not timed."""
        meter = self._kinds.get(kind) or self.of(kind)
        if meter.skipped < meter.skip:
            meter.skipped += 1
            return None
        return Stopwatch(meter, self.now)

    def durations(self) -> Mapping[str, Durations]:
        """What was measured so far, by topic; topics without any are left out."""
        return {
            topic: meter.durations()
            for topic, meter in self._topics.items()
            if meter.histogram.count
        }


class Stopwatch:
    """Times one message."""

    __slots__ = ("_began", "_meter", "_now")

    def __init__(self, meter: Meter, now: Callable[[], float]) -> None:
        self._meter = meter
        self._now = now
        self._began = now()

    def stop(self) -> None:
        """The message is done with."""
        self._meter.add_one(self._now() - self._began)


class Pace:
    """Tells a pump after how many events it has to look at the clock again."""

    __slots__ = ("_at", "_counted", "_meter", "_now")

    def __init__(self, meters: Meters, kind: type, handled: int = 0) -> None:
        self._meter = meters.of(kind)
        self._now = meters.now
        self._counted = handled
        self._at = self._now()

    def next(self, handled: int, most: int) -> int:
        """The number of the event after which :meth:`note` is to be called."""
        together = TOGETHER_MAX if self._meter.quick >= QUICK_EVENTS else 1
        return min(handled + together, most)

    def note(self, handled: int) -> None:
        """So many events are handled, of this pump."""
        count = handled - self._counted
        if count > 0:
            now = self._now()
            self._meter.add(now - self._at, count)
            self._at, self._counted = now, handled

    def go_on(self) -> None:
        """Others have used the loop: that time does not count."""
        self._at = self._now()
