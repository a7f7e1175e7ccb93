"""What was published on a bus, for assertions; and settling a bus on virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.bus.bus import MessageBus
    from penstock.messages import Envelope
    from penstock.testing.clock import VirtualClock

Message = TypeVar("Message")

RECORDED_MAX = 100_000


class Recording:
    """The events that were published on a bus since :func:`record` was called, oldest first.

    Also those that a filter refused or nobody handled. It keeps the newest 100,000.
    """

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []

    def __call__(self, envelope: Envelope) -> bool:
        """Note an event; as a filter it lets every event in."""
        self.envelopes.append(envelope)
        if len(self.envelopes) > 2 * RECORDED_MAX:
            del self.envelopes[:RECORDED_MAX]
        return True

    def of(self, kind: type[Message]) -> list[Message]:
        """The messages of a class and of those derived from it."""
        found = (envelope.message for envelope in self.envelopes)
        return [message for message in found if isinstance(message, kind)]


_recordings: WeakKeyDictionary[MessageBus, Recording] = WeakKeyDictionary()


def record(bus: MessageBus) -> Recording:
    """Begin to note what is published on a bus; the plugin's fixtures do it. Idempotent."""
    recording = _recordings.get(bus)
    if recording is None:
        recording = _recordings[bus] = Recording()
        bus.add_filter(recording)
    return recording


def assert_published(
    bus: MessageBus,
    kind: type[Message],
    count: int | None = None,
    where: Callable[[Message], bool] | None = None,
) -> list[Message]:
    """Check that events of a class were published, and return them, oldest first.

    At least one without ``count``, exactly that many with it; ``where`` says which ones count.
    """
    __tracebackhide__ = True
    recording = _recordings.get(bus)
    if recording is None:
        raise UsageError("nothing is recorded on this bus: call penstock.testing.record(bus) first")
    all_of_kind = recording.of(kind)
    found = [message for message in all_of_kind if where is None or where(message)]
    if (count is None and not found) or (count is not None and len(found) != count):
        raise AssertionError(_difference(kind, count, found, recording))
    return found


def _difference(kind: type, count: int | None, found: list[Message], recording: Recording) -> str:
    wanted = "at least one" if count is None else str(count)
    seen = [repr(envelope.message) for envelope in recording.envelopes[-20:]]
    listed = "".join(f"\n  {message}" for message in seen) or " nothing"
    return f"published {len(found)} × {kind.__name__}, not {wanted}. The last that were:{listed}"


async def settle(bus: MessageBus, clock: VirtualClock, *, patience: float = 0.0) -> None:
    """Wait until a bus has settled, letting virtual time pass for retries, timeouts and the like.

    ``patience`` is for handlers that use threads: see :meth:`VirtualClock.run_until`.
    """
    await clock.run_until(bus.settle(timeout=FOREVER_SECONDS), patience=patience)


FOREVER_SECONDS = 1e9
"""On virtual time a settling bus is not late; a test that hangs has a deadline of its own."""
