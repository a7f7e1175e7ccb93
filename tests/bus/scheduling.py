"""What the tests of scheduled events share."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from penstock.bus.bus import MessageBus
from penstock.messages import Event
from penstock.system import System
from penstock.testing import VirtualClock


class Tick(Event):
    number: int = 0


class Special(Tick):
    note: str = ""
    parts: tuple[int, ...] = ()


class Other(Event):
    text: str = ""


@dataclass(frozen=True)
class Plain:
    text: str


class CountingClock(VirtualClock):
    """Knows how often somebody wanted to be woken."""

    wakes = 0

    def call_after(self, seconds, callback):
        def counted():
            self.wakes += 1
            callback()

        return super().call_after(seconds, counted)


class Seen(list):
    """A handler that keeps what it was given, and when."""

    def __init__(self, clock):
        self.clock = clock
        self.envelopes = []

    def __call__(self, event, envelope):
        self.append(event)
        self.envelopes.append(envelope)

    @property
    def ids(self):
        return [envelope.id for envelope in self.envelopes]

    @property
    def numbers(self):
        return [event.number for event in self]


def make_bus(clock, seen, **options):
    bus = MessageBus(system=System(clock=clock), **options)
    bus.subscribe(Tick, seen, subclasses=True)
    return bus


def now(clock):
    return datetime.fromtimestamp(clock.time_ms() / 1000, UTC)


def in_seconds(clock, seconds):
    return now(clock) + timedelta(seconds=seconds)


async def passes(clock, bus, seconds):
    clock.advance(seconds)
    await bus.settle()
