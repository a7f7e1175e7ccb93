"""Dead letters, published again to the topic that they come from: each once, however it ends.

The records and the place up to which letters were replayed are one transaction of the log. Headers go
along, so that a record that fails again says how often it was tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.errors import DeadlineExceeded, InvalidOption, SubscriberBusy, UnknownTopic
from penstock.log.columns import Columns
from penstock.log.names import check_name
from penstock.log.offsets import OffsetFile
from penstock.log.records import Record
from penstock.log.transaction_commit import GroupOffsets
from penstock.log.transactions import Transactions
from penstock.spark.open_log import OpenLog

ATTEMPTS = "penstock-attempts"
LETTERS_MAX = 1_000
"""Letters of a transaction."""
FETCH_BYTES = 1024 * 1024


def replay_letters(log: OpenLog, letters: str, topic: str, group: str, limit: int | None) -> int:
    """Publish the letters that were not replayed yet; how many. Blocking.

    SubscriberBusy when another replay is at work. *After a crash* a letter was replayed or was not,
    and the next call goes on there.
    """
    _check(log, letters, topic, limit)
    claim = log.store.lock(f"groups/{check_name('group', group)}/{letters}.lock", 0)
    try:
        claim.__enter__()
    except DeadlineExceeded:
        raise SubscriberBusy(
            f"{letters!r} is being replayed already", subscriber=group, topic=letters
        ) from None
    transactions = Transactions(log.store)
    try:
        return _replay(log, transactions, (letters, topic, group), limit)
    finally:
        transactions.close()
        claim.__exit__(None, None, None)


def letters_left(log: OpenLog, letters: str, group: str) -> tuple[int, int]:
    """How many letters there are, and how many of them were not replayed."""
    state = log.topic(letters)
    there = left = 0
    for number in range(0 if state is None else state.partitions_all):
        reader = log.reader(letters, number)
        end = reader.head().durable_offset
        there += end - reader.earliest()
        left += end - _start(log, letters, group, number)
    return there, left


def _check(log: OpenLog, letters: str, topic: str, limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise InvalidOption(f"limit is {limit}: use 1 or more", option="limit")
    for name in (letters, topic):
        if log.topic(name) is None:
            raise UnknownTopic(f"there is no topic {name!r}: nothing to replay", topic=name)


def _replay(
    log: OpenLog, transactions: Transactions, names: tuple[str, str, str], limit: int | None
) -> int:
    letters, topic, group = names
    # Opening it finishes what a replay that was killed had decided.
    lease = transactions.open(group)
    state = log.topic(letters)
    done = 0
    for number in range(0 if state is None else state.partitions_all):
        for records in _portions(log, letters, group, number):
            chosen = records if limit is None else records[: limit - done]
            if not chosen:
                return done
            staged = transactions.stage(group, {topic: again(chosen)})
            moved = GroupOffsets(group, {(letters, number): chosen[-1].offset + 1})
            transactions.commit(lease, staged=[staged], offsets=[moved])
            done += len(chosen)
    return done


def _portions(log: OpenLog, topic: str, group: str, number: int) -> Iterator[Sequence[Record]]:
    """The letters of a partition from where the last replay stopped to its present end."""
    reader = log.reader(topic, number)
    start, end = _start(log, topic, group, number), reader.head().durable_offset
    cursor = reader.cursor(start)
    while cursor.offset < end and (entries := cursor.fetch(FETCH_BYTES)):
        records = [
            record
            for entry in entries
            for record in entry.view().records(topic, number)
            if start <= record.offset < end
        ]
        for first in range(0, len(records), LETTERS_MAX):
            yield records[first : first + LETTERS_MAX]


def _start(log: OpenLog, topic: str, group: str, number: int) -> int:
    found = OffsetFile(log.store, group, topic, number).read()
    earliest = log.reader(topic, number).earliest()
    return earliest if found is None else max(found.offset, earliest)


def again(records: Sequence[Record]) -> Columns:
    """The letters as records to publish, each with how often that was done."""
    return Columns(
        values=[one.value for one in records],
        keys=[one.key for one in records],
        headers=[{**one.headers, ATTEMPTS: b"%d" % (_attempts(one) + 1)} for one in records],
    )


def _attempts(record: Record) -> int:
    text = record.headers.get(ATTEMPTS, b"0")
    return int(text) if text.isdigit() else 0
