"""Brings the records of a durable topic to the handlers of one group.

Nothing is committed that no handler of the group was asked about: when the last one leaves, reading
ends, and who comes next finds what was left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from functools import partial
from typing import Any, TypeVar

from penstock.bus.bus import MessageBus
from penstock.bus.delivery import Outcome, delivery_of
from penstock.bus.intake import wait_for_outcome
from penstock.errors import Closed, InvalidMessage, SubscriberBusy
from penstock.messages import DEFAULT_SESSION, Envelope, dotted_name, marks_of
from penstock.resilience.bus import ResilientMessageBus
from penstock.scaling.log_records import (
    CAUSATION,
    CORRELATION,
    GROUP,
    ID,
    LETTER,
    OWN_HEADERS,
    SESSION,
    TYPE,
    LogRecord,
    LogSubscription,
    priority_of,
)
from penstock.scaling.partition_work import Here, PartitionWork, Work

logger = logging.getLogger("penstock.scaling")
_T = TypeVar("_T")

PARTITION_MAX = 1_000
"""Events of one partition that are read and not done with; the next wait in the log."""
GROUP_MAX = 10_000
"""The same over all partitions of a group."""
READ_MAX = 200
"""Records that are read together."""
AGAIN_SECONDS, AGAIN_SECONDS_MAX = 0.1, 30.0
"""How long to wait before trying again what the log refused: doubling from the first to the last."""
NOBODY = ""
"""Stands for the group of events that are going to be read again."""


class GroupConsumer:
    """Reads one topic for one group, as long as the group has members (``is_wanted``).

    A partition that is held up keeps no other from its handlers: it is read no further than
    ``PARTITION_MAX`` events ahead.
    """

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
        self._fields: dict[str, Any] = {"topic": self.topic, "group": group}
        """Of log lines."""
        self._subscribe = subscribe
        self._is_wanted = is_wanted
        self._partitions: dict[int, PartitionWork] = {}
        self._paused: set[int] = set()
        """Partitions that are not read at the moment, as enough of them is in work."""
        self._subscription: LogSubscription | None = None
        self._reading = False
        self._left = False
        self._stopping = False
        self._fetching: asyncio.Task[None] | None = None
        self._committing: asyncio.Task[None] | None = None
        self._resuming: set[asyncio.Task[None]] = set()
        self._moved = asyncio.Event()
        self._expected: dict[str, asyncio.Future[Outcome]] = {}
        self._here: dict[str, Here] = {}
        """Events that are handled by who publishes them, by id."""
        self.delivered = 0
        """Events that were brought to the handlers."""
        self.invalid = 0
        """Records that are no message of a known class."""

    @property
    def in_work(self) -> int:
        """Events that are read, and not done with."""
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
            if not self._stopping:
                self._fetching = spawn(self._fetch(self._subscription))

    def stop_reading(self) -> None:
        """Read and hand over no more, from this moment on; handlers go on."""
        self._stopping = True
        for task in self._tasks():
            task.cancel()

    async def pause(self) -> None:
        """As :meth:`stop_reading`; returns when that is so."""
        self.stop_reading()
        await asyncio.gather(*self._tasks(), return_exceptions=True)

    def _tasks(self) -> list[asyncio.Task[None]]:
        feeding = [one.feeding for one in self._partitions.values()]
        return [task for task in (self._fetching, *feeding, *self._resuming) if task is not None]

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
        works = [work for one in self._partitions.values() for work in one.open.values()]
        mine = [work.envelope for work in works] + [here.envelope for here in self._here.values()]
        for envelope in mine:
            if envelope is not None:
                envelope.group = NOBODY
        await self.pause()
        await self.close()

    async def wait_for_progress(self) -> None:
        """Return when something was read, or handled."""
        self._moved.clear()
        await self._moved.wait()

    # Waiting for one event

    def expect(self, event_id: str) -> asyncio.Future[Outcome]:
        """What will become of an event in this group."""
        future = asyncio.get_running_loop().create_future()
        self._expected[event_id] = future
        future.add_done_callback(lambda _: self._expected.pop(event_id, None))
        return future

    def keep_here(self, envelope: Envelope) -> Here:
        """An event is going to be handled by who publishes it: do not deliver its record."""
        mine = self._bus._intake.enclose_again(
            envelope.message, envelope.session, envelope.priority
        )
        mine.given_id = envelope.id
        mine.correlation_id, mine.causation_id = envelope.correlation_id, envelope.causation_id
        mine.headers, mine.group = envelope.headers, self.group
        here = self._here[envelope.id] = Here(mine)
        return here

    async def handle_here(self, here: Here, partition: int, offset: int) -> Outcome:
        """Handle an event in the calling task, though its record was not read yet.

        So a handler can wait for an event of its own topic. Cancelled, the event is handled by its
        lane, as any other whose handler was interrupted.
        """
        envelope, intake = here.envelope, self._bus._intake
        envelope.log_partition, envelope.offset = partition, offset
        here.begun = True
        delivery_of(envelope).on_outcome = partial(self._handled_here, here)
        self.delivered += 1
        intake.dispatch.accept()
        rest = intake.lane_of(envelope).begin_in_place(envelope)
        if rest is not None:
            await rest
        return await wait_for_outcome(envelope, delivery_of(envelope))

    def let_go(self, here: Here) -> None:
        """Nobody handles the event here after all: if its record comes, or came, it is delivered."""
        if here.begun:
            return
        del self._here[here.envelope.id]
        if here.work is not None:
            self._give(here.work)

    def _handled_here(self, here: Here, outcome: Outcome) -> None:
        here.outcome = outcome
        if here.work is not None:
            self._end_here(here, here.work)

    def _end_here(self, here: Here, work: Work) -> None:
        assert here.outcome is not None
        del self._here[here.envelope.id]
        self._end_if_asked(work, here.outcome)

    # Reading

    async def _fetch(self, subscription: LogSubscription) -> None:
        await self._patiently(subscription.open)
        self._reading = True
        self._moved.set()
        while True:
            await self._wait_for_window(subscription)
            batch = await self._patiently(partial(subscription.next_batch, records_max=READ_MAX))
            for record in batch:
                self._take(record)
            self._moved.set()

    async def _wait_for_window(self, subscription: LogSubscription) -> None:
        """Read on where there is something to do, and leave partitions alone that are held up."""
        while True:
            full = {number for number, one in self._partitions.items() if _is_full(one)}
            room = self.in_work <= GROUP_MAX - READ_MAX
            if room and len(full) < max(1, len(subscription.positions())):
                break
            await self.wait_for_progress()
        if full - self._paused:
            self._paused |= full
            await self._patiently(partial(subscription.pause, full))

    async def _patiently(self, act: Callable[[], Awaitable[_T]]) -> _T:
        """Do it, again and again if need be: a group does not stop because a disk failed once."""
        seconds = AGAIN_SECONDS
        while True:
            try:
                return await act()
            except Closed:
                logger.warning(
                    "group %s reads no more: the log is closed", self.group, extra=self._fields
                )
                raise
            except SubscriberBusy as error:
                logger.warning("group %s waits: %s", self.group, error, extra=self._fields)
            except Exception:
                logger.exception(
                    "group %s cannot go on with %s", self.group, self.topic, extra=self._fields
                )
            await self._bus._timers.sleep(seconds)
            seconds = min(2 * seconds, AGAIN_SECONDS_MAX)

    def _take(self, record: LogRecord) -> None:
        partition = self._partitions.get(record.partition)
        if partition is None:
            partition = self._partitions[record.partition] = PartitionWork()
        work = partition.begin(record)
        here = self._here.get(record.headers.get(ID, b"").decode("utf-8", "replace"))
        if here is None:
            self._give(work)
        elif here.outcome is None:
            here.work = work
        else:
            self._end_here(here, work)

    # Handing over

    def _give(self, work: Work) -> None:
        partition = self._partitions[work.record.partition]
        if not partition.waiting and self._gave_at_once(work):
            return
        partition.waiting.append(work)
        if partition.feeding is None and not self._stopping:
            partition.feeding = spawn(self._feed(partition))

    def _gave_at_once(self, work: Work) -> bool:
        """Whether the event found room. What goes wrong is left to who tries again."""
        try:
            envelope = self._open(work)
            room = envelope is None or self._bus._intake.lane_of(envelope).queue.room > 0
        except Exception:
            return False
        if envelope is not None and room:
            self._deliver(work, envelope)
        return room

    async def _feed(self, partition: PartitionWork) -> None:
        """Hand over what was read of one partition, in order; a full lane holds up no other."""
        try:
            while partition.waiting:
                await self._patiently(partial(self._hand_over, partition.waiting[0]))
                partition.waiting.popleft()
        except Closed:
            pass  # the bus stops: it comes again
        finally:
            partition.feeding = None

    async def _hand_over(self, work: Work) -> None:
        envelope = self._open(work)
        if envelope is not None:
            await self._bus._intake.wait_for_room(envelope)
            self._deliver(work, envelope)

    def _deliver(self, work: Work, envelope: Envelope) -> None:
        delivery_of(envelope).on_outcome = lambda outcome: self._settled(work, outcome)
        work.envelope = envelope
        self.delivered += 1
        self._bus._intake.deliver(envelope)

    def _open(self, work: Work) -> Envelope | None:
        """The event of a record; None when it is none, or another group's, which is dealt with."""
        only = work.record.headers.get(GROUP)
        if only is not None and only != self.group.encode():
            self._end(work)
            return None
        try:
            return self._envelope(work.record)
        except InvalidMessage as error:
            self._refuse(work, error)
            return None

    def _envelope(self, record: LogRecord) -> Envelope:
        headers = {name: value.decode("utf-8", "replace") for name, value in record.headers.items()}
        message = self._decode(headers.get(TYPE), record.value or b"")
        session = headers.get(SESSION, DEFAULT_SESSION)
        envelope = self._bus._intake.enclose_again(message, session, priority_of(headers))
        envelope.given_id = headers.get(ID)
        envelope.correlation_id = headers.get(CORRELATION)
        envelope.causation_id = headers.get(CAUSATION)
        envelope.headers = {name: text for name, text in headers.items() if name not in OWN_HEADERS}
        envelope.group = self.group
        envelope.log_partition, envelope.offset = record.partition, record.offset
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
        record = work.record
        place = {"partition": record.partition, "offset": record.offset}
        logger.error(
            "record %s of %s does not decode: %s",
            record.offset,
            self.topic,
            error,
            extra=self._fields | place,
        )
        if isinstance(self._bus, ResilientMessageBus):
            self._bus._burial.bury_record(self.topic, record, error)
        self.invalid += 1
        self._end(work)

    # Handled

    def _settled(self, work: Work, outcome: Outcome) -> None:
        self._moved.set()
        assert work.envelope is not None
        waiter = self._expected.get(work.envelope.id)
        if waiter is not None and not waiter.done():
            waiter.set_result(outcome)
        self._end_if_asked(work, outcome)

    def _end_if_asked(self, work: Work, outcome: Outcome) -> None:
        """The record is done with, unless there was nobody in the group to ask."""
        if outcome.handled or outcome.failures or (not self._left and self._is_wanted()):
            self._take_letter_away(work.record)
            self._end(work)

    def _take_letter_away(self, record: LogRecord) -> None:
        """A dead letter that was published again is handled now, or has become a new one."""
        letter = record.headers.get(LETTER)
        if letter is not None and isinstance(self._bus, ResilientMessageBus):
            self._bus.dead_letters.end_replay_soon(letter.decode("utf-8", "replace"))

    def _end(self, work: Work) -> None:
        number = work.record.partition
        self._partitions[number].end(work)
        self._moved.set()
        if number in self._paused and len(self._partitions[number].open) <= PARTITION_MAX // 2:
            self._resume(number)
        self._commit_soon()

    def _resume(self, number: int) -> None:
        self._paused.discard(number)
        if self._subscription is not None and not self._stopping:
            resume = self._patiently(partial(self._subscription.resume, [number]))
            task = spawn(resume)
            self._resuming.add(task)
            task.add_done_callback(self._resuming.discard)

    # Committing

    def _commit_soon(self) -> None:
        if self._committing is None and self._subscription is not None:
            self._committing = spawn(self._commit(self._subscription))

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
            logger.exception(
                "cannot commit for group %s on %s", self.group, self.topic, extra=self._fields
            )
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
            partition = self._partitions[record.partition]
            partition.handled = partition.handled or record


def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task that knows nothing of the handler that happens to run: it outlives it."""
    return asyncio.get_running_loop().create_task(work, context=Context())


def _is_full(partition: PartitionWork) -> bool:
    """Whether the next records might be more than may be in work."""
    return len(partition.open) > PARTITION_MAX - READ_MAX
