"""Dead letters in a topic, such as ``orders.dead-letters``, on a log or on a broker.

A group remembers how far they are done with, so they are taken away from the oldest on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from penstock import Record, errors
from penstock.dashboard.letters import SHOWN_MAX, Shelf, Step
from penstock.dashboard.matching import Wanted
from penstock.dashboard.sources import Source, assigned
from penstock.resilience import DeadLetter, Reason
from penstock.transports import EmbeddedTransport, Transport

SUFFIX = ".dead-letters"
GROUP = "penstock-dlq"
REASON, TOPIC, ATTEMPTS = "penstock-reason", "penstock-topic", "penstock-attempts"


class TopicShelf(Shelf):
    """The dead letters in one topic. Records never change, so these are not edited."""

    editable = False

    def __init__(self, source: Source, topic: str, at_home: Callable[..., Any]) -> None:
        self.name = topic
        self.where = f"topic {topic}, in {source.name}"
        self._source = source
        self._at_home = at_home

    async def letters(self) -> Sequence[DeadLetter]:
        return [_letter(self.name, one) for one in await self._records()]

    async def _records(self) -> list[Record]:
        """The oldest that are not done with; so many of each partition as can be shown."""
        bounds = {one.partition: one for one in await self._source.bounds(self.name)}
        found: list[Record] = []
        for done in await self._source.lag(self.name, GROUP):
            place = bounds[done.partition]
            first = max(done.committed, place.first)
            stop = min(place.end, first + SHOWN_MAX)
            found += await self._source.read(self.name, done.partition, first, stop, Wanted())
        return sorted(found, key=lambda one: one.timestamp)

    async def _run(self, transport: Transport, work: Any) -> Any:
        """On the loop that the transport belongs to."""
        own = isinstance(transport, EmbeddedTransport)
        return await (work if own else self._at_home(work))

    async def replay(self, ids: Collection[str], *, dry_run: bool, force: bool) -> list[Step]:
        chosen = [one for one in await self._records() if _id(self.name, one) in ids]
        if not dry_run:
            async with self._source.writing() as transport:
                await self._run(transport, self._publish(transport, chosen))
        gone = await self._oldest(ids)
        if not dry_run:
            await self._take_away(gone)
        stays = "stays in the list: older ones are before it"
        kept = {_id(self.name, one) for one in gone}
        letters = [_letter(self.name, one) for one in chosen]
        return [Step(one.id, one.topic, note="" if one.id in kept else stays) for one in letters]

    async def _publish(self, transport: Transport, records: Sequence[Record]) -> None:
        for record in records:
            letter = _letter(self.name, record)
            headers = {**record.headers, ATTEMPTS: b"%d" % (letter.replays + 1)}
            await transport.produce(
                letter.topic, [record.value], keys=[record.key], headers=[headers]
            )

    async def purge(self, ids: Collection[str]) -> int:
        gone = await self._oldest(ids)
        if len(gone) < len(set(ids)):
            raise errors.NotSupported(
                f"{self.name} is a topic: its letters are purged from the oldest on. Choose the "
                "older ones too, or replay them"
            )
        await self._take_away(gone)
        return len(gone)

    async def edit(self, letter: DeadLetter, text: str) -> None:
        raise errors.NotSupported(f"{self.name} is a topic, whose records never change")

    async def _oldest(self, ids: Collection[str]) -> list[Record]:
        """Of these, the ones that have no others before them in their partition."""
        found, passed = [], set()
        for record in await self._records():
            if _id(self.name, record) in ids and record.partition not in passed:
                found.append(record)
            else:
                passed.add(record.partition)
        return found

    async def _take_away(self, records: Sequence[Record]) -> None:
        ends: dict[int, int] = {}
        for one in records:
            ends[one.partition] = max(ends.get(one.partition, 0), one.offset + 1)
        if ends:
            async with self._source.writing() as transport:
                await self._run(transport, self._move(transport, ends))

    async def _move(self, transport: Transport, ends: Mapping[int, int]) -> None:
        async with transport.subscribe(self.name, GROUP) as consumer:
            await assigned(consumer, await transport.partitions(self.name))
            for number, end in ends.items():
                await consumer.seek(end, partition=number)


def _id(topic: str, record: Record) -> str:
    return f"{topic}/{record.partition}/{record.offset}"


def _letter(topic: str, record: Record) -> DeadLetter:
    headers = record.headers
    reason = _text(headers, REASON)
    known = reason in Reason.__members__
    return DeadLetter(
        id=_id(topic, record),
        topic=_text(headers, TOPIC) or topic.removesuffix(SUFFIX),
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
    return int(text) if text.isdecimal() else None
