"""Records on their way whose publishers wait for each alone: told what became of them, and woken together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextvars import Context, copy_context
from functools import partial
from itertools import islice
from operator import attrgetter, length_hint
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.errors import PenstockError, UsageError
from penstock.log.receipts import Acknowledgement, Placement
from penstock.speedups import compiled

Row = tuple[bytes | None, bytes | None, Mapping[str, bytes] | None, int | None]
"""Value, key, headers, timestamp of a record."""

WAKES_MAX = 256
"""So many publishers go on in one callback of the loop; then it looks after others first."""

_ROW = attrgetter("row")


class PythonAwaitedRow:
    """What a row does each time, whatever becomes of it."""

    __slots__ = (
        "_asyncio_future_blocking", "_callback", "_context", "_done", "_failure", "_loop",
        "acknowledgement", "durable", "error", "row",
    )  # fmt: skip

    row: Any
    """The record, bytes or Row; None once its publisher goes on, as the row may be remembered until its deadline."""
    durable: bool
    acknowledgement: Acknowledgement | None
    """Where it is; the commit tells, on its thread."""
    error: BaseException | None
    """Why it is nowhere; the commit tells, on its thread."""
    _loop: asyncio.AbstractEventLoop
    _callback: Callable[[Any], object] | None
    _context: Context | None
    _done: bool
    _failure: BaseException | None
    """Why its publisher waits no longer, before the commit told."""

    def __init__(self) -> None:
        self.acknowledgement = self.error = self._failure = self._callback = self._context = None
        self._done = self._asyncio_future_blocking = False

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The loop that its publisher waits on."""
        return self._loop

    def done(self) -> bool:
        """Whether its publisher may go on."""
        return self._done

    def result(self) -> Acknowledgement:
        """Where it is; raises why it is nowhere."""
        if self._done and self._failure is None and self.acknowledgement is not None:
            return self.acknowledgement
        return self._result()

    def add_done_callback(
        self, callback: Callable[[Any], object], *, context: Context | None = None
    ) -> None:
        """Call it when the row is done."""
        if self._done or self._callback is not None or context is None:
            self._add_callback(callback, context)
        else:
            self._callback = callback
            self._context = context

    def __await__(self) -> Generator[Any, None, Acknowledgement]:
        if not self._done:
            self._asyncio_future_blocking = True
            yield self
        return self.result()

    if TYPE_CHECKING:  # what the row has

        def _result(self) -> NoReturn: ...

        def _add_callback(
            self, callback: Callable[[Any], object], context: Context | None
        ) -> None: ...


def python_resume(rows: Iterable[PythonAwaitedRow]) -> None:
    """Go on with those who wait for the rows, one after the other. What one of them raises ends it."""
    for row in rows:
        row._done, row.row = True, None
        callback, row._callback = row._callback, None
        context, row._context = row._context, None
        if callback is not None and context is not None:
            context.run(callback, row)


def python_acknowledge(
    rows: Sequence[PythonAwaitedRow | None], topic: str, placed: Placement
) -> None:
    """Tell the rows of a batch that went to one partition where they are."""
    partition, places, base_offset, timestamp, durable = placed
    for offset, place in enumerate(places, base_offset):
        row = rows[place]
        if row is not None:
            row.acknowledgement = Acknowledgement(topic, partition, offset, timestamp, durable)


if TYPE_CHECKING or compiled is None:
    AwaitedRow = PythonAwaitedRow
    resume = python_resume
    acknowledge = python_acknowledge
else:
    AwaitedRow = compiled.AwaitedRow
    resume = compiled.resume
    acknowledge = partial(compiled.acknowledge, Acknowledgement)


class PublishedRow(AwaitedRow):
    """One record on its way, and a future of its own. Lives on the queue's event loop.

    A task of asyncio waits for anything that has these methods. A plain future would be a callback of the loop
    for each record; with these, one goes on with many publishers. A row calls one of those who wait: its
    publisher.
    """

    __slots__ = ()

    @classmethod
    def of(cls, row: bytes | Row, durable: bool, loop: asyncio.AbstractEventLoop) -> PublishedRow:
        """A row as the inlets make it."""
        made = cls()
        made.row, made.durable, made._loop = row, durable, loop
        return made

    def cancelled(self) -> bool:
        """Whether its publisher left before it was done."""
        return isinstance(self._failure, asyncio.CancelledError)

    def exception(self) -> BaseException | None:
        """Why it is nowhere, or None."""
        if not self._done or self.cancelled():
            self._result()
        placed = self.acknowledgement is not None and self._failure is None
        return None if placed else self._why()

    def set_exception(self, error: BaseException) -> None:
        """Its publisher goes on with this error, unless the commit has told it what became of the record.

        One that leaves goes all the same.
        """
        if self._done:
            raise asyncio.InvalidStateError("the record is done")
        told = self.acknowledgement is not None or self.error is not None
        if not told or isinstance(error, asyncio.CancelledError):
            self._failure = error
        self.finish()

    def cancel(self, *told: object, **named: object) -> bool:
        """Its publisher leaves, for a reason that its task may name. The record stays on its way."""
        if self._done:
            return False
        reasons = [one for one in (*told, *named.values()) if one is not None]
        self.set_exception(asyncio.CancelledError(*reasons))
        return True

    def remove_done_callback(self, callback: Callable[[Any], object]) -> int:
        """Do not call it; how many there were."""
        if self._callback != callback:
            return 0
        self._callback = None
        return 1

    def finish(self) -> None:
        """It is done: whoever waits goes on in a callback of the loop of his own."""
        self._done = True
        callback, self._callback = self._callback, None
        context, self._context = self._context, None
        if callback is not None:
            self._loop.call_soon(callback, self, context=context)

    def _add_callback(self, callback: Callable[[Any], object], context: Context | None) -> None:
        if self._callback is not None:
            raise UsageError("somebody waits for the record already")
        self._callback = callback
        self._context = copy_context() if context is None else context
        if self._done:
            self.finish()

    def _result(self) -> NoReturn:
        if not self._done:
            raise asyncio.InvalidStateError("the record is on its way")
        raise self._why()

    def _why(self) -> BaseException:
        if isinstance(self._failure, asyncio.CancelledError):
            # Another one: what the row keeps until its deadline must not keep the calls of who left.
            return asyncio.CancelledError(*self._failure.args)
        return self._failure or self.error or AssertionError("neither placed nor failed")


def wake(loop: asyncio.AbstractEventLoop, rows: Sequence[PublishedRow]) -> None:
    """Go on with the publishers of rows that a commit has told what became of them; on the loop."""
    if loop.get_debug():
        # Each in a callback of its own, so that asyncio tells which of them is slow.
        for row in rows:
            row.row = None
            row.finish()
    else:
        _go_on(loop, iter(rows))


def _go_on(loop: asyncio.AbstractEventLoop, rows: Iterator[PublishedRow]) -> None:
    try:
        resume(islice(rows, WAKES_MAX))
    finally:
        # Also when one of them ended the program: the others have to end as well.
        if length_hint(rows):
            loop.call_soon(_go_on, loop, rows)


def plain_values(items: Sequence[object]) -> list[bytes] | None:
    """The values of the items when all are rows of a value alone, or None."""
    if set(map(type, items)) != {PublishedRow}:
        return None
    values = list(map(_ROW, items))
    return values if set(map(type, values)) == {bytes} else None


def fail(rows: Sequence[PublishedRow | None], places: Sequence[int], error: BaseException) -> None:
    """Tell the rows at these places why they are nowhere, unless they know already: each by an error of its own."""
    for place in places:
        row = rows[place]
        if row is not None and row.acknowledgement is None and row.error is None:
            row.error = _again(error)


def _again(error: BaseException) -> BaseException:
    if not isinstance(error, PenstockError):
        return error
    another = error.again().with_traceback(error.__traceback__)
    another.__cause__ = error.__cause__
    return another
