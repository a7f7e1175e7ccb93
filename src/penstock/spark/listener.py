"""The progress of queries, written down as that of their groups.

The source itself commits the offsets of its group between two micro-batches. What it cannot see is
the end of the last one before a query is stopped; the listener can.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pyspark.sql.streaming.listener import StreamingQueryListener

from penstock.spark.kafka_options import is_kafka
from penstock.spark.kafka_topics import path_of
from penstock.spark.ledger import Ledger, Progress
from penstock.spark.offsets import Offsets, parse_offsets, use_of
from penstock.spark.open_log import open_log
from penstock.spark.reader import LogReader, Reader, reader_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger("penstock.spark")


class Followed:
    """A query that is followed, and what is counted over all of its micro-batches."""

    def __init__(self, reader: Reader, ledger: Ledger | None) -> None:
        self.reader = reader
        self.ledger = ledger
        self.rows = 0
        self.rows_too_late = 0
        self._counted = -1

    def commit(self, use: int, offsets: Offsets) -> None:
        """Move the group; that of the second use of a topic is another one."""
        reader = self.reader.of_use(use) if isinstance(self.reader, LogReader) else self.reader
        reader.commit(offsets)

    def count(self, report: Any) -> None:
        """Add what a report tells, unless it was told before."""
        if report.batchId > self._counted:
            self._counted = report.batchId
            self.rows += report.numInputRows
            self.rows_too_late += sum(
                one.numRowsDroppedByWatermark for one in report.stateOperators
            )


class GroupListener(StreamingQueryListener):
    """Commits what the queries that it follows have read, as soon as Spark reports it."""

    def __init__(self) -> None:
        self._groups: dict[str, Followed] = {}

    def follow(self, query: StreamingQuery, *, path: str, group: str) -> Followed:
        """Commit for this query from now on, and what it has reported already."""
        ledger = None if is_kafka(path) else Ledger(open_log(path_of(path)).store, group)
        return self.follow_as(query, reader_of(path, group), ledger)

    def follow_as(self, query: StreamingQuery, reader: Reader, ledger: Ledger | None) -> Followed:
        """The same for a reader that is there; it is closed when the query ends."""
        followed = Followed(reader, ledger)
        for early in query.recentProgress:
            followed.count(early)
        self._groups[str(query.runId)] = followed
        progress: Any = query.lastProgress
        if progress is not None:
            self._commit(progress)
        if not query.isActive:
            # Its end may have been told already.
            self._end(str(query.runId))
        return followed

    def is_following(self, query: StreamingQuery) -> bool:
        """Whether something may still come: Spark tells of a query some time after it has ended."""
        return str(query.runId) in self._groups

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Nothing: :meth:`follow` says what is wanted."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Commit what the micro-batch has read."""
        self._commit(event.progress)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Nothing new."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """The group stays where it is; its progress came before."""
        self._end(str(event.runId))

    def _end(self, run: str) -> None:
        followed = self._groups.pop(run, None)
        if followed is not None:
            followed.reader.close()

    def _commit(self, progress: Any) -> None:
        followed = self._groups.get(str(progress.runId))
        if followed is not None:
            followed.count(progress)
            for use, offsets in offsets_of(source.endOffset for source in progress.sources):
                followed.commit(use, offsets)
            if followed.ledger is not None:
                followed.ledger.note(progress_of(progress))


def progress_of(report: Any) -> Progress:
    """What the ledger keeps of a report."""
    watermark = (report.eventTime or {}).get("watermark")
    return Progress(
        query_id=str(report.id),
        batch_id=report.batchId,
        ends=tuple(source.endOffset or "-" for source in report.sources),
        watermark_ms=_milliseconds(watermark) if watermark else 0,
        stateful=bool(report.stateOperators),
    )


def watermark_lag_of(report: Any) -> float:
    """How far the watermark was behind the clock when the micro-batch began, in seconds.

    0 without a watermark, and while it is where it starts, in 1970.
    """
    watermark = (report.eventTime or {}).get("watermark")
    reached = _milliseconds(watermark) if watermark else 0
    return max(0, _milliseconds(report.timestamp) - reached) / 1_000 if reached else 0.0


def _milliseconds(time: str) -> int:
    return max(0, int(datetime.fromisoformat(time).timestamp() * 1_000))


def offsets_of(texts: Iterable[str | None]) -> Iterable[tuple[int, Offsets]]:
    """The offsets among what the sources of a query report, each with its use of the topics.

    Other sources have other forms.
    """
    for text in texts:
        try:
            found = json.loads(text or "")
            yield use_of(found), parse_offsets(found)
        except ValueError:
            continue


_LISTENERS: WeakKeyDictionary[SparkSession, GroupListener] = WeakKeyDictionary()


def follow(query: StreamingQuery, *, path: str, group: str) -> Followed:
    """Let the offsets of a group follow a query, beyond the moment when it is stopped.

    ``path`` is the directory of the log, or the URL of Kafka. The option ``groupId`` alone, which Kafka
    does not have, commits everything but the last micro-batch before a stop.
    """
    return _listener().follow(query, path=path, group=group)


def follow_as(query: StreamingQuery, reader: Reader, ledger: Ledger) -> Followed:
    """The same for a reader that is there; what the query reports goes to the ledger as well."""
    return _listener().follow_as(query, reader, ledger)


def _listener() -> GroupListener:
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    assert session is not None, "a query has a session"
    listener = _LISTENERS.get(session)
    if listener is None:
        listener = _LISTENERS[session] = GroupListener()
        session.streams.addListener(listener)
    return listener


def is_followed(query: StreamingQuery) -> bool:
    """Whether the offsets of a query's group may still move."""
    return any(one.is_following(query) for one in list(_LISTENERS.values()))
