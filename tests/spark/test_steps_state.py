"""Late data, duplicates, watermarks and state that expires: the steps on real Spark.

Every file of a folder is one micro-batch. A row is late when it is behind the watermark with which the
micro-batch before ran, so a file between two of interest moves the watermark on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from penstock.errors import InvalidOption
from penstock.spark.steps import deduplicate, join, sessions, stateful, window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
RUN_SECONDS = 120


class Streams:
    """Streams of rows with an id and a minute, micro-batch by micro-batch."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._files = 0

    def add(self, stream: str, *rows: tuple[str, int]) -> None:
        """One micro-batch more."""
        self._files += 1
        place = self._folder / stream / f"{self._files}.json"
        place.parent.mkdir(exist_ok=True)
        lines = [
            json.dumps({"id": one, "at": (NOON + timedelta(minutes=minute)).isoformat()})
            for one, minute in rows
        ]
        place.write_text("\n".join(lines))
        os.utime(place, (self._files, self._files))  # the order in which Spark takes them

    def frame(self, stream: str) -> DataFrame:
        reader = self._spark.readStream.schema("id string, at timestamp")
        rows: DataFrame = reader.option("maxFilesPerTrigger", 1).json(str(self._folder / stream))
        return rows

    def run(self, frame: DataFrame, mode: str = "append") -> Ran:
        query = (
            frame.writeStream.format("memory")
            .queryName("result")
            .outputMode(mode)
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(RUN_SECONDS), "it is still at work"
        return Ran(self._spark.table("result").collect(), query.recentProgress)


class Ran:
    """What came out, and what Spark reported."""

    def __init__(self, rows: list[Any], reports: list[Any]) -> None:
        self.rows = rows
        self._states = [report.stateOperators for report in reports]

    @property
    def late(self) -> int:
        return sum(one.numRowsDroppedByWatermark for many in self._states for one in many)

    @property
    def kept(self) -> list[int]:
        """Rows of state after each micro-batch."""
        return [sum(one.numRowsTotal for one in many) for many in self._states]

    def spans(self) -> dict[tuple[int, int], int]:
        """Counts by the first and the last minute of windows."""
        return {
            (minute(one.window.start), minute(one.window.end)): one["count"] for one in self.rows
        }


def minute(time: datetime) -> int:
    return int((time.astimezone(UTC) - NOON).total_seconds() // 60)


@pytest.fixture
def streams(spark: Any, tmp_path: Path) -> Streams:
    """One partition of state is enough, and is quicker."""
    own = spark.newSession()
    own.conf.set("spark.sql.shuffle.partitions", "1")
    return Streams(own, tmp_path)


def test_a_late_row_counts_while_its_window_is_open_and_is_dropped_and_counted_afterwards(
    streams: Streams,
) -> None:
    streams.add("orders", ("a", 1), ("b", 12))
    streams.add("orders", ("late", 3), ("c", 15))  # the watermark is at 2: the window is open
    streams.add("orders", ("d", 35))  # at 5: still open; then at 25
    streams.add("orders", ("e", 36))
    streams.add("orders", ("too late", 4), ("f", 62))
    ran = streams.run(
        window(streams.frame("orders"), time="at", size="10 minutes", late="10 minutes").count()
    )
    assert ran.spans() == {(0, 10): 2, (10, 20): 2, (30, 40): 2}, "the last window is open"
    assert ran.late == 1
    assert ran.kept[-1] == 1, "closed windows are forgotten"


def test_sliding_windows_count_a_row_in_each_of_them(streams: Streams) -> None:
    streams.add("orders", ("a", 7))
    streams.add("orders", ("b", 60))
    groups = window(
        streams.frame("orders"),
        "id",
        time="at",
        size="10 minutes",
        slide="5 minutes",
        late="1 minute",
    )
    assert streams.run(groups.count()).spans() == {(0, 10): 1, (5, 15): 1}


def test_a_duplicate_is_dropped_until_its_first_one_is_forgotten(streams: Streams) -> None:
    streams.add("orders", ("a", 0), ("a", 0), ("b", 1))
    streams.add("orders", ("a", 5), ("c", 30))  # within ten minutes of the first one
    streams.add("orders", ("d", 31))
    streams.add("orders", ("a", 32), ("late", 2))  # the first one is forgotten, and one is too late
    frame = streams.frame("orders")
    ran = streams.run(deduplicate(frame, "id", time="at", within="10 minutes"))
    found = sorted((row.id, minute(row.at)) for row in ran.rows)
    assert found == [("a", 0), ("a", 32), ("b", 1), ("c", 30), ("d", 31)]
    assert ran.late == 1
    assert ran.kept[0] == 2
    assert ran.kept[-1] == 3, "of the first ones, nothing is left"


def test_a_late_row_joins_two_sessions_and_a_gap_parts_them(streams: Streams) -> None:
    streams.add("clicks", ("u", 0), ("u", 16), ("v", 3))
    streams.add("clicks", ("u", 8), ("u", 40))  # eight minutes from both: they become one
    streams.add("clicks", ("u", 70))
    streams.add("clicks", ("u", 71))
    streams.add("clicks", ("v", 4), ("u", 100))  # too late
    frame = streams.frame("clicks")
    with pytest.raises(InvalidOption, match="name a column"):
        sessions(frame, time="at", gap="10 minutes", late="20 minutes")
    ran = streams.run(sessions(frame, "id", time="at", gap="10 minutes", late="20 minutes").count())
    found = {
        (row.id, minute(row.window.start), minute(row.window.end)): row["count"] for row in ran.rows
    }
    assert found == {("u", 0, 26): 3, ("v", 3, 13): 1, ("u", 40, 50): 1}
    assert ran.late == 1


@pytest.mark.parametrize("how", ["inner", "left_outer"])
def test_rows_wait_for_each_other_and_are_forgotten(streams: Streams, how: str) -> None:
    streams.add("orders", ("a", 0), ("b", 1), ("alone", 2))
    streams.add("orders", ("c", 60))
    streams.add("orders", ("d", 61))
    streams.add("orders", ("e", 120))
    streams.add("payments", ("a", 5), ("b", 40))  # b pays too late: no pair
    streams.add("payments", ("c", 61))
    streams.add("payments", ("d", 65))
    streams.add("payments", ("alone", 3), ("e", 121))  # it is forgotten by now
    payments = streams.frame("payments").withColumnRenamed("at", "paid_at")
    ran = streams.run(
        join(
            streams.frame("orders"), payments, "id",
            times=("at", "paid_at"), within="10 minutes", how=how,
        )
    )  # fmt: skip
    pairs = {(row.id, row.paid_at and minute(row.paid_at)) for row in ran.rows}
    both = {("a", 5), ("c", 61), ("d", 65), ("e", 121)}
    # What had no partner comes out when none can come any more, and not earlier.
    assert pairs == (both if how == "inner" else both | {("b", None), ("alone", None)})
    assert ran.late == 1, "alone's payment"
    assert ran.kept[-1] < max(ran.kept), "rows that cannot have a partner any more are forgotten"


class Absences(StatefulProcessor):
    """How often an id was seen; half an hour without it and it is gone, and forgotten."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._seen = handle.getValueState("seen", "count long, timer long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803 - Spark's names
        times = [row.at for row in rows]
        count, timer = self._seen.get() or (0, None)
        if timer is not None:
            self._handle.deleteTimer(timer)
        timer = int(max(times).timestamp() * 1_000) + 30 * 60_000
        self._handle.registerTimer(timer)
        self._seen.update((count + len(times), timer))
        yield Row(id=key[0], what="seen", count=count + len(times))

    def handleExpiredTimer(  # noqa: N802 - Spark's name
        self,
        key: Any,
        timerValues: Any,  # noqa: N803 - Spark's names
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[Row]:
        count, _ = self._seen.get() or (0, None)
        self._seen.clear()
        yield Row(id=key[0], what="gone", count=count)

    def close(self) -> None:
        pass


def test_state_is_kept_between_micro_batches_until_a_timer_of_event_time_ends_it(
    streams: Streams,
) -> None:
    streams.add("clicks", ("u", 0), ("v", 1))
    streams.add("clicks", ("u", 20))  # its timer moves on to 50
    streams.add("clicks", ("w", 45))  # the watermark comes to 40: v is gone, u is not
    streams.add("clicks", ("w", 46))
    streams.add("clicks", ("v", 47), ("late", 2))
    frame = streams.frame("clicks")
    columns = "id string, what string, count long"
    with pytest.raises(InvalidOption, match="time and late go together"):
        stateful(frame, "id", processor=Absences(), columns=columns, time="at")
    ran = streams.run(
        stateful(
            frame, "id", processor=Absences(), columns=columns, time="at", late="5 minutes"
        )
    )  # fmt: skip
    assert sorted(map(tuple, ran.rows)) == [
        ("u", "seen", 1), ("u", "seen", 2), ("v", "gone", 1), ("v", "seen", 1), ("v", "seen", 1),
        ("w", "seen", 1), ("w", "seen", 2),
    ]  # fmt: skip
    assert ran.late == 1
