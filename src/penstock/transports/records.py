"""What travels: records and batches of them, the same on every transport as in the log.

A record of the log is handed on as it is: no copy, no second class to learn.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from penstock.log.receipts import BatchAcknowledgement
from penstock.log.records import Record
from penstock.log.subscription import RecordBatch

StreamRecord = Record
"""topic, partition, offset, timestamp in milliseconds, key, value, headers."""
StreamBatch = RecordBatch
"""Consecutive records of one partition, and the offset behind them."""
Produced = BatchAcknowledgement
"""Where produced records went: for each partition the first offset and the one after the last."""
StartPosition = int | datetime | Literal["earliest", "latest"]
"""An offset, a time with a time zone, or an end of the partition."""


def milliseconds(time: str) -> int:
    """A time as servers write it."""
    return round(datetime.fromisoformat(time).timestamp() * 1_000)
