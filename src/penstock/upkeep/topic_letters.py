"""Dead letters in a topic, such as ``orders.dead-letters``, on a log or on a broker.

A group remembers how far they are done with, so they are taken away from the oldest on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from penstock.log.records import Record
from penstock.resilience import DeadLetter, Reason
from penstock.transports import Transport
from penstock.upkeep.bus_letters import SUFFIX, is_journal
from penstock.upkeep.groups import move_group
from penstock.upkeep.steps import LetterStep

LETTERS_GROUP = "penstock-dlq"
REASON, TOPIC, ATTEMPTS = "penstock-reason", "penstock-topic", "penstock-attempts"


def letter_topics(topics: Sequence[str]) -> list[str]:
    """The topics that hold dead letters."""
    return [name for name in topics if name.endswith(SUFFIX) and not is_journal(name)]


def letter_id(record: Record) -> str:
    """What a record is known by, as a letter."""
    return f"{record.topic}/{record.partition}/{record.offset}"


def letter_of(record: Record) -> DeadLetter:
    """A record as a letter; a reason that is not known here is told as the error."""
    headers = record.headers
    reason = _text(headers, REASON)
    known = reason in Reason.__members__
    return DeadLetter(
        id=letter_id(record),
        topic=_text(headers, TOPIC) or record.topic.removesuffix(SUFFIX),
        message_type="",
        reason=Reason(reason) if known else Reason.FAILED,
        raw=record.value,
        headers={name: value.decode("utf-8", "replace") for name, value in headers.items()},
        key=record.key,
        error=_text(headers, "penstock-error") or ("" if known else reason),
        attempts=_number(headers, ATTEMPTS) or 0,
        replays=_number(headers, ATTEMPTS) or 0,
        first_failed_ms=record.timestamp,
        last_failed_ms=record.timestamp,
        partition=_number(headers, "penstock-partition"),
        offset=_number(headers, "penstock-offset"),
    )


def _text(headers: Mapping[str, bytes], name: str) -> str:
    return headers.get(name, b"").decode("utf-8", "replace")


def _number(headers: Mapping[str, bytes], name: str) -> int | None:
    text = _text(headers, name)
    return int(text) if text.isdecimal() and len(text) < 20 else None


def oldest(records: Sequence[Record], ids: Collection[str]) -> list[Record]:
    """Of these ids, the records that have no others before them in their partition."""
    found, passed = [], set()
    for record in records:
        if letter_id(record) in ids and record.partition not in passed:
            found.append(record)
        else:
            passed.add(record.partition)
    return found


def replay_steps(records: Sequence[Record], gone: Sequence[Record]) -> list[LetterStep]:
    """What becomes of records that are replayed, when some of them are taken away."""
    leaves = {letter_id(one) for one in gone}
    stays = "stays in the list: older ones are before it"
    letters = [letter_of(one) for one in records]
    return [
        LetterStep(one.id, one.topic, note="" if one.id in leaves else stays) for one in letters
    ]


async def replay_records(transport: Transport, records: Sequence[Record]) -> None:
    """Send them to where they came from."""
    for record in records:
        letter = letter_of(record)
        headers = {**record.headers, ATTEMPTS: b"%d" % (letter.replays + 1)}
        await transport.produce(letter.topic, [record.value], keys=[record.key], headers=[headers])


async def take_away(transport: Transport, records: Sequence[Record]) -> None:
    """Remember that these are done with; they are the oldest of one topic."""
    ends: dict[int, int] = {}
    for one in records:
        ends[one.partition] = max(ends.get(one.partition, 0), one.offset + 1)
    if ends:
        await move_group(transport, records[0].topic, LETTERS_GROUP, ends)
