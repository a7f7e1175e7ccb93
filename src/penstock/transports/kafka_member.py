"""The blocking side of a consumer: Kafka's client, called in one thread.

The client lets one thread in at a time, also for a commit. So whoever wants something of it puts a job
into a queue, and the thread that waits for records looks there every few milliseconds. Its calls about
partitions come in that thread too; while they wait for the event loop, the jobs go on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import groupby, repeat
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar, TypeVarTuple

from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from penstock.errors import InvalidOption, OffsetOutOfRange
from penstock.log.records import NO_HEADERS
from penstock.system import Clock
from penstock.transports.kafka_sent import HEAR_SECONDS, SentCommits, Settle, check_answer
from penstock.transports.kafka_settings import LOGGER, is_committed
from penstock.transports.records import StartPosition, StreamRecord

SLICE_SECONDS = 0.005
"""How long a job may wait for the client."""
PORTION_RECORDS = 250
"""Records between two looks for jobs and for answers to commits."""
HEAR_LOOKS = 16
ASSIGN_TRIES = 5
LOOK_SECONDS = 0.5
"""Between two looks where to start, when the tries were not enough."""
LOOK_TIMEOUT_SECONDS = 2.0
"""Of such a look: commits and other partitions wait for it."""
SEEK_SECONDS = 10.0
AGAIN_SECONDS = 0.05

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")
Fetched = list[tuple[int, list[StreamRecord]]]

PASSING = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._MAX_POLL_EXCEEDED,
    KafkaError._PARTITION_EOF,
    KafkaError._RESOLVE,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
}
"""What the client gets over by itself, or tells in another way too."""
GONE = {
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError.FENCED_MEMBER_EPOCH,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError._ASSIGNMENT_LOST,
    KafkaError._FENCED,
}
"""The group has gone on without this member."""
AGAIN = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.NOT_COORDINATOR,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.STALE_MEMBER_EPOCH,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._WAIT_COORD,
}
"""The group or the broker is busy: try again while the partition is this member's."""

LOOK_AGAIN = AGAIN | {
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
    KafkaError._RESOLVE,
    KafkaError._UNKNOWN_PARTITION,
}
"""A broker that starts, or a leader that is chosen: look later where to start."""


class Hooks(Protocol):
    """What the member is told, in the thread that asks for records."""

    def gained(self, starts: Mapping[int, int]) -> None:
        """It has these partitions from now on, from these offsets."""
        ...

    def release(self, partitions: frozenset[int]) -> None:
        """They go to another member when this returns."""
        ...

    def lost(self, partitions: frozenset[int]) -> None:
        """They are another member's already."""
        ...


class KafkaMember:
    """One member of a group, on one topic."""

    def __init__(
        self,
        make_client: Callable[[Callable[..., None]], Client],
        topic: str,
        start: StartPosition,
        hooks: Hooks,
        clock: Clock,
        *,
        cooperative: bool,
        seconds: float,
    ) -> None:
        self._sent = SentCommits()
        self._client = make_client(self._sent.answered)
        self._topic = topic
        self._start = start
        self._hooks = hooks
        self._clock = clock
        self._cooperative = cooperative
        self._seconds = seconds
        self._revoked: set[int] = set()
        """Given away since the first record of the call at hand came."""
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._is_releasing = False
        self._unplaced: set[int] = set()
        """Its partitions of which it does not know where to start, as the broker did not say."""
        self._look_at = 0.0
        self._failure: Exception | None = None
        """Why not, until it is told."""
        self.wanted = 0
        """How many wait for :meth:`fetch` to return."""
        self.error: KafkaError | None = None
        """What came instead of a record; whoever handles it sets it to None."""

    def join(self) -> None:
        """Become a member; the partitions come with a later call of :meth:`fetch`."""
        self._client.subscribe(
            [self._topic],
            on_assign=self._guarded(self._assigned),
            on_revoke=self._guarded(self._given_away),
            on_lost=self._guarded(self._taken_away),
        )

    def close(self) -> None:
        """Leave the group."""
        raising(self._client.close)

    def group_metadata(self) -> Any:
        """Who the member is, for a transaction."""
        return self._client.consumer_group_metadata()

    # Jobs

    def put(self, job: Callable[[], None]) -> None:
        """Let the thread of the client run a job, which does not raise. Any thread."""
        self._jobs.put(job)

    def run_jobs(self) -> None:
        """Run what was put."""
        while not self._jobs.empty():
            self.run_job(0.0)

    def run_job(self, seconds: float) -> None:
        """Run one job, waiting for it."""
        with suppress(Empty):
            self._jobs.get(timeout=seconds)()

    # Records

    def fetch(self, limit: int, seconds: float) -> Fetched:
        """What is there, at most so many records; waits only for the first one."""
        self._sent.has_heard = False
        first = self._first(seconds)
        if first is None:
            return []
        # What is given away from here on must not be delivered, though it was fetched before.
        self._revoked.clear()
        messages = [first]
        if self._may_go_on():
            messages += self._rest(min(limit, PORTION_RECORDS) - 1)
        fetched = self._by_partition(messages)
        while len(messages) >= PORTION_RECORDS and self._may_go_on():
            limit -= len(messages)
            self.run_jobs()
            messages = self._rest(min(limit, PORTION_RECORDS))
            fetched += self._by_partition(messages)
        return self._kept(fetched)

    def hear(self) -> Fetched:
        """Wait a while for the answers to commits. With each look there may be a record."""
        self._sent.has_heard = False
        self._revoked.clear()
        fetched: Fetched = []
        for _ in range(HEAR_LOOKS):
            self.run_jobs()
            fetched += self._by_partition(self._rest(1))
            if not self._sent or not self._may_go_on():
                break
            self._clock.sleep(HEAR_SECONDS)
        return self._kept(fetched)

    def _kept(self, fetched: Fetched) -> Fetched:
        return [(number, records) for number, records in fetched if number not in self._revoked]

    def _may_go_on(self) -> bool:
        """Not when partitions went: one that is back would be taken for gone.

        Nor when a commit was answered: whoever waits for it needs the interpreter, and would get it late.
        """
        return not (self.wanted or self._revoked or self._failure or self._sent.has_heard)

    def _by_partition(self, messages: list[Message]) -> Fetched:
        if any(map(Message.error, messages)):
            messages = self._without_errors(messages)
        return [
            (number, self._records(number, list(some)))
            for number, some in groupby(messages, Message.partition)
            if number is not None
        ]

    def _first(self, seconds: float) -> Message | None:
        until = self._clock.monotonic() + seconds
        while True:
            self.run_jobs()
            self._look_again()
            self._raise_failure()  # before a record is taken, which nobody would get
            # An answer ends no call of the client: the next commit would wait for the rest of that.
            first = raising(self._client.poll, 0.0 if self._sent else min(SLICE_SECONDS, seconds))
            if first is not None or self.wanted or self._clock.monotonic() >= until:
                return first
            if pause := self._sent.pause():
                self.run_job(pause)

    def _rest(self, limit: int) -> list[Message]:
        if limit <= 0:
            return []
        try:
            return raising(self._client.consume, limit, 0)
        except Exception as error:
            self._failure = error  # the first one is to be delivered
            return []

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _without_errors(self, messages: Iterable[Message]) -> list[Message]:
        good = []
        for message in messages:
            error = message.error()
            if error is None:
                good.append(message)
            elif error.code() not in PASSING:
                self.error = error
        return good

    def _records(self, number: int, messages: list[Message]) -> list[StreamRecord]:
        """Column by column: a loop of Python over the records would cost as much as the client."""
        times = [time for _, time in map(Message.timestamp, messages)]
        headers = list(map(Message.headers, messages))
        columns: list[Iterable[Any]] = [
            repeat(self._topic),
            repeat(number),
            map(Message.offset, messages),
            times,
            map(Message.key, messages),
            map(Message.value, messages),
        ]
        if any(headers):
            columns.append([_mapping(one) for one in headers])
        return list(map(StreamRecord, *columns))

    # Places

    def places(self, offsets: Mapping[int, int]) -> list[TopicPartition]:
        """As the client writes them."""
        return [TopicPartition(self._topic, number, at) for number, at in offsets.items()]

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Commit, and wait for the answer."""
        check_answer(None, self._client.commit(offsets=self.places(offsets), asynchronous=False))

    def send(self, offsets: Mapping[int, int], settle: Settle) -> None:
        """Commit. The client tells of the answer in a later :meth:`fetch`, ahead of the records."""
        if self._is_releasing:
            settle(self.commit, offsets)  # no fetch until that is over
            return
        commit = partial(self._client.commit, offsets=self.places(offsets), asynchronous=True)
        self._sent.send(commit, offsets, settle)

    def ends(self, number: int) -> tuple[int, int]:
        """The first offset that is there, and the one behind the last that can be read."""
        place = TopicPartition(self._topic, number)
        found = self._client.get_watermark_offsets(place, timeout=self._seconds, cached=False)
        if found is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return found

    def resolve(
        self, partitions: Iterable[int], to: StartPosition, *, clamp: bool
    ) -> dict[int, int]:
        """The offset that a position means, in each of these partitions."""
        if isinstance(to, datetime):
            return self._at_time(partitions, to)
        return {number: self._at(number, to, clamp=clamp) for number in partitions}

    def _at(self, number: int, to: int | str, *, clamp: bool) -> int:
        first, end = self.ends(number)
        if isinstance(to, str):
            if to not in ("earliest", "latest"):
                raise InvalidOption(f"{to!r} is no place: use earliest or latest", option="start")
            return first if to == "earliest" else end
        if clamp:
            return min(max(first, to), end)
        if not first <= to <= end:
            raise OffsetOutOfRange(
                f"offset {to} of {self._topic}/{number} is not there: use {first} to {end}",
                topic=self._topic,
                partition=number,
                offset=to,
                end=end,
            )
        return to

    def _at_time(self, partitions: Iterable[int], to: datetime) -> dict[int, int]:
        if to.tzinfo is None:
            raise InvalidOption("a time needs a time zone: datetime.now(UTC)", option="start")
        moment = int(to.timestamp() * 1000)
        asked = [TopicPartition(self._topic, number, moment) for number in partitions]
        found = self._client.offsets_for_times(asked, timeout=self._seconds)
        return {
            place.partition: place.offset if place.offset >= 0 else self.ends(place.partition)[1]
            for place in found
        }

    def seek(self, offsets: Mapping[int, int]) -> None:
        """Go on from these offsets."""
        until = self._clock.monotonic() + SEEK_SECONDS
        for place in self.places(offsets):
            while True:
                try:
                    self._client.seek(place)
                    break
                except KafkaException as error:
                    # It has the partition, and has not begun to fetch it.
                    is_early = error.args[0].code() == KafkaError._STATE
                    if not is_early or self._clock.monotonic() > until:
                        raise
                self._clock.sleep(AGAIN_SECONDS)

    def pause(self, partitions: Iterable[int]) -> None:
        """Fetch nothing of these."""
        self._client.pause([TopicPartition(self._topic, number) for number in partitions])

    def resume(self, partitions: Iterable[int]) -> None:
        """Fetch these again."""
        self._client.resume([TopicPartition(self._topic, number) for number in partitions])

    # What the client says about partitions

    def _guarded(self, tell: Callable[[list[int]], None]) -> Callable[..., None]:
        """For the client to call. What it raises is told later: raised here, it would cost what was fetched."""

        def called(_: Client, partitions: list[TopicPartition]) -> None:
            try:
                tell([one.partition for one in partitions])
            except Exception as error:
                self._failure = error

        return called

    def _assigned(self, numbers: list[int]) -> None:
        try:
            starts = self._tried(numbers)
        except Exception as error:
            LOGGER.warning("cannot find where to start in %r yet: %s", self._topic, error)
            self._put_off(numbers)
            if not _may_pass(error):
                raise
        else:
            self._assign(self.places(starts))
            self._hooks.gained(starts)

    def _assign(self, places: list[TopicPartition]) -> None:
        if self._cooperative:
            self._client.incremental_assign(places)
        else:
            self._client.assign(places)
        # The client remembers who was paused when it had them before.
        self._client.resume(places)

    def _put_off(self, numbers: list[int]) -> None:
        """Have the partitions, and read nothing of them: :meth:`_look_again` finds their places."""
        self._assign(self.places(dict.fromkeys(numbers, 0)))
        self.pause(numbers)
        self._unplaced |= set(numbers)
        self._look_at = self._clock.monotonic() + LOOK_SECONDS

    def _look_again(self) -> None:
        if not self._unplaced or self._clock.monotonic() < self._look_at:
            return
        try:
            starts = self._starts(sorted(self._unplaced), LOOK_TIMEOUT_SECONDS)
            # Not assigned anew: that would be taken for the answer when the group wants them back.
            self.seek(starts)
        except KafkaException as error:
            if not _may_pass(error):
                raise
        else:
            self._unplaced -= starts.keys()
            self.resume(starts)
            self._hooks.gained(starts)
        finally:
            self._look_at = self._clock.monotonic() + LOOK_SECONDS

    def _starts(self, partitions: list[int], seconds: float | None = None) -> dict[int, int]:
        """Where the group committed; in a new group at ``start``."""
        if not partitions:
            return {}
        asked = [TopicPartition(self._topic, number) for number in partitions]
        found = self._client.committed(asked, timeout=min(self._seconds, seconds or self._seconds))
        for one in found:
            if one.error is not None:
                raise KafkaException(one.error)
        starts = {one.partition: one.offset for one in found if is_committed(one)}
        fresh = self.resolve(
            [one for one in partitions if one not in starts], self._start, clamp=True
        )
        if fresh and self._start != "earliest":
            # A member that dies before its first commit must not make the group skip records.
            with suppress(KafkaException):
                self.commit(fresh)
        return starts | fresh

    def _tried(self, partitions: list[int]) -> dict[int, int]:
        for _ in range(ASSIGN_TRIES - 1):
            with suppress(KafkaException):
                return self._starts(partitions)
            self._clock.sleep(AGAIN_SECONDS)
        return self._starts(partitions)

    def _given_away(self, partitions: list[int]) -> None:
        numbers = frozenset(partitions)
        self._unplaced -= numbers
        self._sent.settle(self.commit)  # the answers would not be heard in here
        self._is_releasing = True
        try:
            self._hooks.release(numbers)
        finally:
            self._is_releasing = False
        self._revoked |= numbers
        if self._cooperative:
            self._client.incremental_unassign(
                [TopicPartition(self._topic, number) for number in partitions]
            )
        else:
            self._client.unassign()

    def _taken_away(self, partitions: list[int]) -> None:
        numbers = frozenset(partitions)
        self._unplaced -= numbers
        self._revoked |= numbers
        self._hooks.lost(numbers)


def raising(call: Callable[[*_Ts], _T], *arguments: *_Ts) -> _T:
    """Call the client, which may call back; what it raises is an exception.

    On Python 3.11 the client hands on what it raised itself, below a callback, as a bare KafkaError. That is no exception:
    only an ``except`` without a class stops it, and the thread would end.
    """
    try:
        return call(*arguments)
    except BaseException:
        raise
    except:  # noqa: E722
        bare = sys.exc_info()[1]
    raise KafkaException(bare)


def _may_pass(error: Exception) -> bool:
    return isinstance(error, KafkaException) and error.args[0].code() in LOOK_AGAIN


def _mapping(headers: Any) -> Mapping[str, bytes]:
    return {name: value or b"" for name, value in headers} if headers else NO_HEADERS
