"""What a consumer of Kafka has: its partitions, and the records of them that nobody has taken yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from penstock.errors import Fenced, OffsetOutOfRange, UnknownPartition, UsageError
from penstock.transports.kafka_member import Fetched
from penstock.transports.records import StreamBatch, StreamRecord

REFILL_PARTS = 4
"""The buffer is filled again when so great a part of it is free."""


@dataclass(slots=True, eq=False)
class Owned:
    """A partition that the group has given to this member."""

    committed: int
    """What is known to be committed, or where it started."""
    next: int
    """Offset of the next record that will be delivered."""
    since: int = 0
    """Offset from which on it was delivered here; 0 unless it was had before."""
    is_going: bool = False
    """It will be another member's: nothing more is delivered."""
    waiting: deque[list[StreamRecord]] = field(default_factory=deque)
    place: int = 0
    """How many of the first list are delivered."""

    def take(self, most: int) -> list[StreamRecord]:
        """The next records, at least one; what came in several calls of the client is put together."""
        taken = self._take(most)
        while self.waiting and len(taken) < most:
            taken += self._take(most - len(taken))
        self.next = taken[-1].offset + 1
        return taken

    def _take(self, most: int) -> list[StreamRecord]:
        records, place = self.waiting[0], self.place
        if len(records) - place <= most:
            self.waiting.popleft()
            self.place = 0
            return records[place:] if place else records
        self.place = place + most
        return records[place : self.place]

    def drop(self) -> int:
        """Forget what waits; how many records that were."""
        count = sum(map(len, self.waiting)) - self.place
        self.waiting.clear()
        self.place = 0
        return count


class Holdings(dict[int, Owned]):
    """Partition → what is known of it. Lives on the event loop."""

    def __init__(self, topic: str, group: str, drained: Callable[[], None]) -> None:
        super().__init__()
        self._topic = topic
        self._group = group
        self.count = 0
        """How many partitions the topic has."""
        self.generation = 0
        """How many changes there were."""
        self._drained = drained
        self._ready: dict[int, None] = {}
        """Partitions with records that wait, in the order of their turn."""
        self.paused: set[int] = set()
        self.buffered = 0
        """Records that wait."""
        self.is_filling = False
        """More are being fetched."""

    def reading(self) -> frozenset[int]:
        """Partitions that are not about to go."""
        return frozenset(number for number, one in self.items() if not one.is_going)

    def should_fill(self, most: int) -> bool:
        """Whether to fetch more: from when a good part is free, or nothing is ready, until it is full.

        A bit at a time would be fetched when a commit wants the client.
        """
        room = most - self.buffered
        is_time = self.is_filling or room >= most // REFILL_PARTS or self.ready() is None
        self.is_filling = room > 0 and is_time
        return self.is_filling

    def accept(self, fetched: Fetched) -> None:
        """Keep records; those of partitions that are gone or about to go are dropped."""
        for number, records in fetched:
            owned = self.get(number)
            if owned is not None and not owned.is_going:
                owned.waiting.append(records)
                self._ready.setdefault(number)
                self.buffered += len(records)

    def ready(self) -> int | None:
        """A partition whose turn it is."""
        for number in self._ready:
            if number not in self.paused:
                return number
        return None

    def take(self, most: int) -> StreamBatch | None:
        """The next records of one partition."""
        number = self.ready()
        if number is None:
            return None
        owned = self[number]
        records = owned.take(max(1, most))
        del self._ready[number]
        if owned.waiting:
            self._ready[number] = None
        self.buffered -= len(records)
        self._drained()
        return StreamBatch(self._topic, number, records, owned.next)

    def empty(self, number: int, owned: Owned) -> None:
        """Forget the records of a partition that wait."""
        self.buffered -= owned.drop()
        self._ready.pop(number, None)
        self._drained()

    def release(self, partitions: Iterable[int]) -> None:
        """They are another member's."""
        for number in partitions:
            owned = self.pop(number, None)
            if owned is not None:
                self.empty(number, owned)

    def outstanding(self, partitions: Iterable[int]) -> bool:
        """Whether something of them was delivered and is not committed."""
        return any(
            number in self and self[number].next > self[number].committed for number in partitions
        )

    def check_numbers(self, partitions: Iterable[int]) -> None:
        """UnknownPartition unless the topic has them."""
        for number in partitions:
            if not 0 <= number < self.count:
                raise UnknownPartition(
                    f"topic {self._topic!r} has partitions 0 to {self.count - 1}, not {number}",
                    topic=self._topic,
                    partition=number,
                )

    def check_own(self, partitions: Iterable[int]) -> None:
        """Fenced unless they are this member's."""
        self.check_numbers(partitions)
        for number in partitions:
            if number not in self:
                raise self.fenced(number, "is another member's, or nobody's")

    def check_batch(self, batch: StreamBatch) -> None:
        """Fenced when another member had the partition since the batch was delivered."""
        if batch.topic != self._topic:
            raise UsageError(
                f"the batch is of {batch.topic!r}, the consumer of {self._topic!r}",
                topic=self._topic,
            )
        owned = self.get(batch.partition)
        if owned is not None and batch.records and batch.records[0].offset < owned.since:
            raise self.fenced(batch.partition, "was another member's since that was delivered")

    def beyond(self, partition: int, offset: int, end: int) -> OffsetOutOfRange:
        """The error of a commit of an offset that is not there."""
        return OffsetOutOfRange(
            f"offset {offset} of {self._topic}/{partition} cannot be committed: use 0 to {end}",
            topic=self._topic,
            partition=partition,
            offset=offset,
            end=end,
        )

    def held(self, partitions: Iterable[int]) -> dict[int, Owned]:
        """As what it has these partitions now, for :meth:`check_held`."""
        return {number: self[number] for number in partitions}

    def check_held(self, held: Mapping[int, Owned]) -> None:
        """Fenced for partitions that went to another member since, also when they are back."""
        for number, owned in held.items():
            if self.get(number) is not owned:
                raise self.fenced(number, "is another member's, or was in between")

    def fenced(self, partition: int, why: str) -> Fenced:
        """The error of a commit of what is not this member's."""
        return Fenced(
            f"partition {partition} of {self._topic!r} {why}: its records come again to whoever "
            f"has it in group {self._group!r}",
            group=self._group,
            generation=self.generation,
            current=self.generation,
            reason="partition",
            topic=self._topic,
            partition=partition,
        )
