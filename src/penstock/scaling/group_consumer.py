"""Brings the records of a durable topic to the handlers of one group.

Nothing is committed that no handler of the group was asked about: when the last one leaves, reading
ends, and who comes next finds what was left.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

from penstock.bus.bus import MessageBus
from penstock.bus.delivery import Outcome, delivery_of
from penstock.errors import Closed, InvalidMessage, SubscriberBusy
from penstock.messages import DEFAULT_SESSION, Envelope, Priority, dotted_name, marks_of
from penstock.resilience.bus import ResilientMessageBus

logger = logging.getLogger("penstock.scaling")
_T = TypeVar("_T")

IN_WORK_MAX = 1_000
"""Events of one group that are queued or in work; the next wait in the log."""
AGAIN_SECONDS, AGAIN_SECONDS_MAX = 0.1, 30.0
"""How long to wait before trying again what the log refused: doubling from the first to the last."""
NOBODY = ""
"""Stands for the group of events that are going to be read again."""
TYPE, ID, SESSION = "penstock-type", "penstock-id", "penstock-session"
CORRELATION, CAUSATION = "penstock-correlation", "penstock-causation"
PRIORITY = "penstock-priority"
OWN_HEADERS = {TYPE, ID, SESSION, CORRELATION, CAUSATION, PRIORITY}


class LogRecord(Protocol):
    """What is needed of a record of the log."""

    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Mapping[str, bytes]: ...


class LogSubscription(Protocol):
    """What is needed of a durable subscriber of the log."""

    async def open(self) -> None:
        """Claim the name; SubscriberBusy when it has a live owner."""
        ...

    async def next_batch(self, timeout: float | None = None, records_max: int = 1) -> Any:
        """The next records of one partition; waits for them."""
        ...

    async def commit(self, record: Any = None) -> None:
        """Mark as consumed up to this record, durably."""
        ...

    async def close(self) -> None:
        """Give the name back."""
        ...

    def lag(self) -> int:
        """Records that were not read yet."""
        ...


class Work:
    """A record that was read, and the event that was made of it."""

    __slots__ = ("done", "envelope", "record")

    def __init__(self, record: LogRecord) -> None:
        self.record = record
        self.envelope: Envelope | None = None
        self.done = False


class Unhandled:
    """The records of one partition that are not handled yet, and how far all before are."""

    def __init__(self) -> None:
        self.open: OrderedDict[int, Work] = OrderedDict()
        self.handled: LogRecord | None = None
        """The last record before which nothing is open, if it is not committed."""

    def begin(self, record: LogRecord) -> Work:
        """A record is going to be handled."""
        work = self.open[record.offset] = Work(record)
        return work

    def end(self, work: Work) -> None:
        """A record is handled."""
        work.done = True
        while self.open:
            offset, first = next(iter(self.open.items()))
            if not first.done:
                return
            self.handled = first.record
            del self.open[offset]


class GroupConsumer:
    """Reads one topic for one group, as long as the group has members (``is_wanted``)."""

    def __init__(
        self,
        bus: MessageBus,
        kind: type,
        group: str,
        subscribe: Callable[[], Awaitable[LogSubscription]],
        is_wanted: Callable[[], bool],
    ) -> None:
        self._bus = bus
        self._kind = kind
        self.topic = marks_of(kind).topic
        self.group = group
        self._subscribe = subscribe
        self._is_wanted = is_wanted
        self._partitions: dict[int, Unhandled] = {}
        self._subscription: LogSubscription | None = None
        self._reading = False
        self._left = False
        self._fetching: asyncio.Task[None] | None = None
        self._committing: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        self._expected: dict[str, asyncio.Future[Outcome]] = {}
        self.invalid = 0
        """Records that are no message of a known class."""

    @property
    def in_work(self) -> int:
        """Events that are queued or in work."""
        return sum(len(one.open) for one in self._partitions.values())

    @property
    def lag(self) -> int:
        """Events of the topic that the group is not done with."""
        unread = 0 if self._subscription is None else self._subscription.lag()
        return unread + self.in_work

    @property
    def has_caught_up(self) -> bool:
        """Whether the group is done with all that is in the log."""
        return self._reading and not self.lag

    # Life

    async def start(self) -> None:
        """Begin to read, where the group has committed."""
        if self._fetching is None:
            self._subscription = await self._subscribe()
            self._fetching = asyncio.get_running_loop().create_task(self._fetch(self._subscription))

    async def pause(self) -> None:
        """Read no more; what was read is handled."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)

    async def close(self) -> None:
        """Commit what is handled, and give the name back."""
        self._fetching = None
        self._moved.set()
        if self._committing is not None:
            await asyncio.gather(self._committing, return_exceptions=True)
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            try:
                await self._commit(subscription)
            finally:
                await subscription.close()

    async def leave(self) -> None:
        """Nobody is left in the group: what is not handled is read again when somebody comes."""
        self._left = True
        for work in [work for one in self._partitions.values() for work in one.open.values()]:
            if work.envelope is not None:
                work.envelope.group = NOBODY
        await self.pause()
        await self.close()

    async def wait_for_progress(self) -> None:
        """Return when something was read, or handled."""
        self._moved.clear()
        await self._moved.wait()

    def expect(self, event_id: str) -> asyncio.Future[Outcome]:
        """What will become of an event in this group."""
        future = asyncio.get_running_loop().create_future()
        self._expected[event_id] = future
        future.add_done_callback(lambda _: self._expected.pop(event_id, None))
        return future

    # Reading

    async def _fetch(self, subscription: LogSubscription) -> None:
        await self._patiently(subscription.open)
        self._reading = True
        self._moved.set()
        while True:
            while (room := IN_WORK_MAX - self.in_work) < 1:
                await self.wait_for_progress()
            batch = await self._patiently(partial(subscription.next_batch, records_max=room))
            for work in [self._begin(record) for record in batch]:
                await self._patiently(partial(self._hand_over, work))
            self._moved.set()

    async def _patiently(self, act: Callable[[], Awaitable[_T]]) -> _T:
        """Do it, again and again if need be: a group does not stop because a disk failed once."""
        seconds = AGAIN_SECONDS
        while True:
            try:
                return await act()
            except Closed:
                logger.warning("group %s reads no more: the log is closed", self.group)
                raise
            except SubscriberBusy as error:
                logger.warning("group %s waits: %s", self.group, error)
            except Exception:
                logger.exception("group %s cannot go on with %s", self.group, self.topic)
            await self._bus._timers.sleep(seconds)
            seconds = min(2 * seconds, AGAIN_SECONDS_MAX)

    def _begin(self, record: LogRecord) -> Work:
        return self._partitions.setdefault(record.partition, Unhandled()).begin(record)

    async def _hand_over(self, work: Work) -> None:
        try:
            envelope = self._envelope(work.record)
        except InvalidMessage as error:
            self._refuse(work, error)
            return
        delivery_of(envelope).on_outcome = lambda outcome: self._settled(work, outcome)
        await self._bus._intake.wait_for_room(envelope)
        work.envelope = envelope
        self._bus._intake.deliver(envelope)

    def _envelope(self, record: LogRecord) -> Envelope:
        headers = {name: value.decode("utf-8", "replace") for name, value in record.headers.items()}
        message = self._decode(headers.get(TYPE), record.value or b"")
        session = headers.get(SESSION, DEFAULT_SESSION)
        envelope = self._bus._intake.enclose(message, session, _priority(headers))
        envelope.given_id = headers.get(ID)
        envelope.correlation_id = headers.get(CORRELATION)
        envelope.causation_id = headers.get(CAUSATION)
        envelope.headers = {name: text for name, text in headers.items() if name not in OWN_HEADERS}
        envelope.group, envelope.offset = self.group, record.offset
        return envelope

    def _decode(self, name: str | None, data: bytes) -> Any:
        """The message; a class that is not known here, as it was moved, counts as ours."""
        codec = self._bus._codec
        try:
            kind = codec.type_of(name or "")
        except InvalidMessage:
            kind = self._kind
        return codec.decode(dotted_name(kind), data)

    def _refuse(self, work: Work, error: InvalidMessage) -> None:
        self.invalid += 1
        record = work.record
        logger.error("record %s of %s does not decode: %s", record.offset, self.topic, error)
        if isinstance(self._bus, ResilientMessageBus):
            self._bus._burial.bury_record(self.topic, record, error)
        self._end(work)

    # Handled

    def _settled(self, work: Work, outcome: Outcome) -> None:
        self._moved.set()
        assert work.envelope is not None
        waiter = self._expected.get(work.envelope.id)
        if waiter is not None and not waiter.done():
            waiter.set_result(outcome)
        if outcome.handled or outcome.failures or (not self._left and self._is_wanted()):
            self._end(work)

    def _end(self, work: Work) -> None:
        self._partitions[work.record.partition].end(work)
        self._moved.set()
        self._commit_soon()

    def _commit_soon(self) -> None:
        if self._committing is None and self._subscription is not None:
            commit = self._commit(self._subscription)
            self._committing = asyncio.get_running_loop().create_task(commit)

    async def _commit(self, subscription: LogSubscription) -> None:
        """Commit what is handled, until nothing is left to commit."""
        handled: list[LogRecord] = []
        try:
            while handled := self._take_handled():
                for record in handled:
                    await subscription.commit(record)
        except BaseException as error:
            self._give_back(handled)
            if not isinstance(error, Exception):
                raise
            logger.exception("cannot commit for group %s on %s", self.group, self.topic)
            if self._subscription is not None:
                self._bus._timers.call_after(AGAIN_SECONDS_MAX, self._commit_soon)
        finally:
            self._committing = None

    def _take_handled(self) -> list[LogRecord]:
        handled = [one.handled for one in self._partitions.values() if one.handled is not None]
        for one in self._partitions.values():
            one.handled = None
        return handled

    def _give_back(self, handled: list[LogRecord]) -> None:
        """A commit failed: these are committed with the next, unless later ones are."""
        for record in handled:
            unhandled = self._partitions[record.partition]
            unhandled.handled = unhandled.handled or record


def _priority(headers: Mapping[str, str]) -> int:
    level = headers.get(PRIORITY, "")
    known = {str(int(one)) for one in Priority}
    return Priority(int(level)) if level in known else Priority.NORMAL
