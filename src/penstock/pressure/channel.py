"""A bounded channel with five ways to overflow, for streams that need no levels of pressure."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from penstock.bus.timers import Timers
from penstock.errors import InvalidOption
from penstock.pressure.buffer import NO_LIMIT, TAKE_TIMEOUT_SECONDS, Buffer, Item
from penstock.pressure.drops import DropLog, Dropped
from penstock.system import System

CHANNEL_MAX = 1_000
SEND_TIMEOUT_SECONDS = 30.0
SAMPLE_RATIO = 0.5
HIGH_WATERMARK = 0.8
LOW_WATERMARK = 0.3
RATE_MIN = 100.0
RATE_MAX = 100_000.0
SLACK_SECONDS = 0.001
"""A wait that is shorter is not worth a turn of the loop; the rate is kept on average."""

TINY = 1e-9
"""Ten times 0.1 is a little less than 1 in floating point."""


class OverflowMode(enum.Enum):
    """What happens to an item when a channel fills up."""

    BLOCK = "block"
    """``send`` waits for room."""
    DROP_NEWEST = "drop newest"
    """The item is discarded when the channel is full."""
    DROP_OLDEST = "drop oldest"
    """The oldest item makes room when the channel is full."""
    SAMPLE = "sample"
    """From the high watermark on only a part of the items is taken; none when it is full."""
    DYNAMIC_THROTTLE = "dynamic throttle"
    """``send`` is slowed the more the fuller the channel is. When it is full, it waits for room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """How fast a channel takes items, by how full it is."""

    low: float = LOW_WATERMARK
    """Up to this share of the capacity the rate is ``rate_max``."""
    high: float = HIGH_WATERMARK
    """From this share on the rate is ``rate_min``."""
    rate_min: float = RATE_MIN
    """Items a second."""
    rate_max: float = RATE_MAX

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= 1:
            raise InvalidOption(
                f"watermarks must be 0 <= low < high <= 1, not {self.low} and {self.high}",
                option="watermarks",
            )
        if not 0 < self.rate_min <= self.rate_max < math.inf:
            raise InvalidOption(
                f"rates must be 0 < min <= max, not {self.rate_min} and {self.rate_max}",
                option="rates",
            )

    def rate(self, utilisation: float) -> float:
        """Items a second; between the watermarks it falls by the same factor for each percent."""
        way = min(max((utilisation - self.low) / (self.high - self.low), 0.0), 1.0)
        return self.rate_max * math.pow(self.rate_min / self.rate_max, way)

    def delay(self, utilisation: float) -> float:
        """Seconds between two items."""
        return 1.0 / self.rate(utilisation)


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """A channel: ``sent = taken + depth + dropped``."""

    mode: OverflowMode
    depth: int
    capacity: int
    sent: int
    """Items that came, whatever became of them."""
    taken: int
    dropped: int
    """Items that were discarded, by whatever mode."""
    blocked: int
    """Items whose sender waited for room."""
    throttled_seconds: float
    """How long senders were slowed, all in all."""


class Channel(Generic[Item]):
    """A bounded queue of one event loop. Items are kept in memory and are lost in a crash."""

    def __init__(
        self,
        capacity: int = CHANNEL_MAX,
        *,
        mode: OverflowMode = OverflowMode.BLOCK,
        sample_ratio: float = SAMPLE_RATIO,
        throttle: Throttle | None = None,
        name: str = "channel",
        system: System | None = None,
    ) -> None:
        if not 0 < sample_ratio <= 1:
            raise InvalidOption(
                f"a ratio of {sample_ratio} is outside 0 < ratio <= 1", option="sample_ratio"
            )
        self.throttle = throttle or Throttle()
        self.sample_ratio = sample_ratio
        self._clock = (system or System()).clock
        self._timers = Timers(self._clock)
        self._buffer = Buffer[Item](name, capacity, self._timers, self._limit)
        self._drops = DropLog(name, self._clock)
        self._mode = mode
        self._sent = self._taken = self._blocked = 0
        self._throttled = 0.0
        self._sampled = 0
        self._slot = 0.0
        """When the next item may come."""

    def __len__(self) -> int:
        return len(self._buffer)

    @property
    def mode(self) -> OverflowMode:
        """What happens when it fills up. Senders that wait when it is set feel it at once."""
        return self._mode

    @mode.setter
    def mode(self, mode: OverflowMode) -> None:
        self._mode = mode
        self._buffer.make_room()

    def on_drop(self, callback: Callable[[Dropped], None]) -> None:
        """Call back with every item that is discarded."""
        self._drops.on_drop(callback)

    # Sending

    async def send(self, item: Item, *, timeout: float = SEND_TIMEOUT_SECONDS) -> bool:
        """Put an item in; False when this item was discarded.

        A wait that is longer than ``timeout`` ends with DeadlineExceeded. Cancelled, or after an
        error, the item is not in, and does not count as sent.
        """
        self._buffer.check_open()
        pause = self._pause() if self._mode is OverflowMode.DYNAMIC_THROTTLE else 0.0
        if pause or self._buffer.is_crowded(has_turn=False):
            async with self._timers.deadline(timeout, f"send to {self._buffer.name}"):
                await self._wait(pause)
        self._sent += 1
        return self._put(item)

    async def _wait(self, pause: float) -> None:
        if pause:
            await self._timers.sleep(pause)
            self._throttled += pause
            self._buffer.check_open()
        if self._buffer.is_crowded(has_turn=False):
            await self._wait_for_room()

    async def _wait_for_room(self) -> None:
        self._blocked += 1
        ticket = self._buffer.producers.ticket()
        has_turn = False
        while self._buffer.is_crowded(has_turn=has_turn):
            await self._buffer.producers.wait(ticket)
            self._buffer.check_open()
            has_turn = True

    def _limit(self) -> int:
        waits = self._mode in (OverflowMode.BLOCK, OverflowMode.DYNAMIC_THROTTLE)
        return self._buffer.capacity if waits else NO_LIMIT

    def _pause(self) -> float:
        """Take the next free slot; the fuller the channel, the farther apart they are."""
        now = self._clock.monotonic()
        slot = max(now, self._slot)
        self._slot = slot + self.throttle.delay(self._utilisation)
        return slot - now if slot - now >= SLACK_SECONDS else 0.0

    def _put(self, item: Item) -> bool:
        if not self._admits():
            self._drops.note(item)
            self._buffer.make_room()
            return False
        if len(self._buffer) >= self._buffer.capacity:
            self._drops.note(self._buffer.drop_oldest())
        self._buffer.put(item)
        return True

    def _admits(self) -> bool:
        if self._mode is OverflowMode.DROP_NEWEST:
            return len(self._buffer) < self._buffer.capacity
        return self._mode is not OverflowMode.SAMPLE or self._samples()

    def _samples(self) -> bool:
        """Whether this item is one of those that are taken: of two every second, say."""
        if self._utilisation < self.throttle.high:
            self._sampled = 0
            return True
        if len(self._buffer) >= self._buffer.capacity:
            return False
        self._sampled += 1
        kept_before, kept = (
            (self._sampled - 1) * self.sample_ratio,
            self._sampled * self.sample_ratio,
        )
        return math.floor(kept + TINY) > math.floor(kept_before + TINY)

    @property
    def _utilisation(self) -> float:
        return len(self._buffer) / self._buffer.capacity

    # Taking

    async def take(self, limit: int = 1, timeout: float = TAKE_TIMEOUT_SECONDS) -> list[Item]:
        """Take up to so many items, oldest first, and wait for the first of them.

        DeadlineExceeded when none came in time. Cancelled while it waits, nothing was taken.
        """
        taken = await self._buffer.take(limit, timeout)
        self._taken += len(taken)
        return taken

    def take_nowait(self, limit: int = 1) -> list[Item]:
        """Take up to so many items, oldest first; an empty list when there are none."""
        taken = self._buffer.take_nowait(limit)
        self._taken += len(taken)
        return taken

    def close(self) -> None:
        """Refuse new items and end all waits with Closed; what is inside can still be taken."""
        self._buffer.close()

    def statistics(self) -> ChannelStatistics:
        """The figures of this moment."""
        return ChannelStatistics(
            mode=self._mode,
            depth=len(self._buffer),
            capacity=self._buffer.capacity,
            sent=self._sent,
            taken=self._taken,
            dropped=self._drops.dropped,
            blocked=self._blocked,
            throttled_seconds=self._throttled,
        )
