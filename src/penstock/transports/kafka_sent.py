"""Commits that are on their way while the thread of a member goes on with records."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from confluent_kafka import KafkaError, KafkaException, TopicPartition

HEAR_SECONDS = 0.000_3
"""Between two looks for answers, when there is one to come. The client cannot wait for so short a time."""
NEXT_SECONDS = 0.001
"""For the next commit, after the answer to the last; records that come meanwhile wait."""

Settle = Callable[..., None]
"""Takes a function and its arguments; somebody waits for what it returns or raises."""


class SentCommits:
    """Commits without an answer. Lives in the thread of the client, which calls :meth:`answered`."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Mapping[int, int], Settle]] = deque()
        self.has_heard = False
        """One was answered; whoever wants to know of the next sets it to False."""

    def __len__(self) -> int:
        return len(self._waiting)

    def pause(self) -> float:
        """How long to wait for the next commit, when no records came; 0 when none is to be expected."""
        if self._waiting:
            return HEAR_SECONDS
        heard, self.has_heard = self.has_heard, False
        return NEXT_SECONDS if heard else 0.0

    def send(
        self, commit: Callable[[], object], offsets: Mapping[int, int], settle: Settle
    ) -> None:
        """Let the client send it."""
        try:
            commit()
        except Exception as error:
            settle(_raise, error)
        else:
            self._waiting.append((offsets, settle))

    def answered(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        """For the client to call: the broker has taken a commit, or refused it."""
        offsets = {place.partition: place.offset for place in places}
        for number, (sent, settle) in enumerate(self._waiting):
            if sent == offsets or not offsets:
                self.has_heard = True
                del self._waiting[number]
                settle(check_answer, error, places)
                return

    def settle(self, commit: Callable[[Mapping[int, int]], None]) -> None:
        """Commit again, and wait, what has no answer yet: the broker takes both in their order."""
        for number, (offsets, settle) in enumerate(self._waiting):
            settle(commit, offsets)
            self._waiting[number] = (offsets, _ignore)


def check_answer(error: KafkaError | None, places: Iterable[TopicPartition] | None) -> None:
    """Raise what the broker said of a commit, as a whole or of a partition."""
    for one in (error, *(place.error for place in places or ())):
        if one is not None:
            raise KafkaException(one)


def _raise(error: Exception) -> None:
    raise error


def _ignore(*_: object) -> None:
    """Its answer is known."""
