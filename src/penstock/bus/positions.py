"""Which events of the log are handled: everything below one position, and no gaps."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.messages import Envelope


@dataclass(slots=True)
class _Span:
    """Where events are that were noted one after the other."""

    ticket: int
    position: int
    written: bool
    """False: these were not written, and stand at the position where they would have been."""

    def position_of(self, ticket: int) -> int:
        return self.position + (ticket - self.ticket if self.written else 0)


class HandledPositions:
    """Finds the position below which every event of the log is settled.

    An event gets a ticket when it is noted, in the order in which events are written. Its position
    is known when it is written. The memory grows with the events that are not settled, and with
    nothing else.
    """

    def __init__(self) -> None:
        self._next = 0
        self._written = 0
        """Tickets below it are written, or have failed."""
        self._end = 0
        """The position after the last event that is known to be written."""
        self._unread: int | None = None
        """The ticket from which on the log still has to be read again."""
        self._open: dict[int, int] = {}
        """Sequence of an envelope → its ticket."""
        self._spans: list[_Span] = []

    @property
    def end(self) -> int:
        """The position after the last event that is known to be written."""
        return self._end

    @property
    def open(self) -> int:
        """How many events are not settled."""
        return len(self._open)

    def begin(self, handled: int, end: int) -> None:
        """The log was opened: it ends there, and what is handled lies below that position."""
        self._end = end
        self._spans = [_Span(handled - end, handled, written=True)]
        self._unread = handled - end if handled < end else None

    # Events of an earlier life, read from the log

    def reopen(self, envelope: Envelope, position: int) -> None:
        """An event that was not settled then is to be handled now."""
        self._open[envelope.sequence] = self._ticket_of(position)

    def read(self, position: int | None) -> None:
        """Everything below the position was read again; None when there is nothing more."""
        self._unread = None if position is None else self._ticket_of(position)

    def _ticket_of(self, position: int) -> int:
        first = self._spans[0]
        return first.ticket + position - first.position

    # Events of this life

    def note(self, envelope: Envelope) -> None:
        """An event is going to be written, after all those that were noted before."""
        self._open[envelope.sequence] = self._next
        self._next += 1

    def write(self, count: int, position: int) -> None:
        """The next events were written there."""
        last = self._spans[-1]
        if not last.written or last.position_of(self._written) != position:
            self._spans.append(_Span(self._written, position, written=True))
        self._written += count
        self._end = position + count

    def fail(self, count: int) -> None:
        """The next events were not written, or nobody knows."""
        if self._spans[-1].written:
            self._spans.append(_Span(self._written, self._end, written=False))
        self._written += count

    def settle(self, envelope: Envelope) -> bool:
        """An event needs nothing more; whether it was noted."""
        return self._open.pop(envelope.sequence, None) is not None

    def keeps(self, envelope: Envelope) -> bool:
        """Whether an event is in the log and not settled."""
        ticket = self._open.get(envelope.sequence)
        if ticket is None or ticket >= self._written:
            return False
        return self._span_of(ticket).written

    def handled(self) -> int:
        """The position below which everything is settled."""
        low = min(self._open.values(), default=self._next)
        if self._unread is not None:
            low = min(low, self._unread)
        if low >= self._written:
            return self._end
        if self._unread is None:
            self._forget_below(low)
        return min(self._span_of(low).position_of(low), self._end)

    def _span_of(self, ticket: int) -> _Span:
        return next(one for one in reversed(self._spans) if one.ticket <= ticket)

    def _forget_below(self, ticket: int) -> None:
        while len(self._spans) > 1 and self._spans[1].ticket <= ticket:
            del self._spans[0]
