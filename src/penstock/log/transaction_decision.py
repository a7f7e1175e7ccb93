"""The decision: one synced write that makes a transaction happen, and all that it takes to finish it.

::

    front = magic "PTXN" | version u16 | flags u16 | generation u64 | number i64
            | description length u32 | records length u32 | CRC-32C of what follows u32
            | CRC-32C of the key and the front u32
    file  = front | description (Decision as JSON) | records

Flag 1: the transaction is wholly in its topics, and some of that may be removed by now.

Generation g goes to ``decision-<g mod 2>``, so a torn write never touches the decision before. Only
the newest can be unfinished: the next one is written after it was finished. A front or a rest that
fails its checksum was torn: that transaction never happened.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from penstock.decoding import decoder_of
from penstock.errors import (
    DamagedFile,
    KeyNotFound,
    LimitReached,
    PenstockError,
    StoreFailed,
    UnsupportedFormat,
)
from penstock.log.producer_file import DoneMark, ProducerFile, is_foreign
from penstock.stores.base import PersistentBackingStore
from penstock.system import Buffer

MAGIC = b"PTXN"
VERSION = 1
DECISION_BYTES_MAX = 64 * 1024 * 1024
_FRONT = struct.Struct("<4sHHQqIII")
_CHECKSUM = struct.Struct("<I")
FRONT_BYTES = _FRONT.size + _CHECKSUM.size
FINISHED = 1


class Front(NamedTuple):
    """What stands in front of a decision."""

    flags: int
    generation: int
    number: int
    description_bytes: int
    records_bytes: int
    checksum: int
    """Of description and records."""

    def pack(self, key: str) -> bytes:
        front = _FRONT.pack(MAGIC, VERSION, *self)
        return front + _CHECKSUM.pack(crc32c(front, crc32c(key.encode())))


class EntryNote(msgspec.Struct, frozen=True, array_like=True):
    """An entry that is drafted but for its offset, and where its body stands."""

    source: int
    """0: in the decision itself; n: in the n-th of its files."""
    position: int
    stored_length: int
    body_length: int
    codec: int
    flags: int
    record_count: int
    checksum: int


class Share(msgspec.Struct, frozen=True):
    """What a transaction has for one partition."""

    topic: str
    partition: int
    topic_epoch: int
    """By which epoch of the topic the records were sent to the partition."""
    entries: tuple[EntryNote, ...]
    since: int = 0
    """Entries of this transaction have no offset below: all there was before is durable."""


class OffsetMove(msgspec.Struct, frozen=True):
    """A group's offset that moves with the transaction."""

    group: str
    topic: str
    partition: int
    before: int
    """What was committed when the transaction was decided; -1: nothing."""
    after: int


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction that happened."""

    producer_id: int
    epoch: int
    generation: int
    number: int
    decided_ms: int
    shares: tuple[Share, ...] = ()
    moves: tuple[OffsetMove, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def mark(self) -> int:
        """What tells its entries from those of the producer's transactions just before; not 0."""
        return self.generation % 0xFFFF + 1


_to_decision = decoder_of(Decision)


class Standing(NamedTuple):
    """Where a producer stands."""

    done: DoneMark
    pending: Decision | None = None
    """Decided, and perhaps not wholly in its topics."""
    records: bytes = b""
    """Those that stand in the pending decision itself."""

    @property
    def generation(self) -> int:
        """Of the last decision."""
        return self.pending.generation if self.pending else self.done.generation

    @property
    def number(self) -> int:
        """Of the last transaction that happened; -1 before the first."""
        return self.pending.number if self.pending else self.done.number


class DecisionFiles:
    """The two decisions of a producer. All calls but :meth:`look` need the producer's lock."""

    def __init__(self, store: PersistentBackingStore, producer: ProducerFile) -> None:
        self._store = store
        self._producer = producer

    def key(self, generation: int) -> str:
        """Where the decision of a generation stands."""
        return f"{self._producer.folder}/decision-{generation % 2}"

    def look(self) -> Standing:
        """Where the producer stands, by what can be read now."""
        fronts = [self._front(slot) for slot in (0, 1)]
        done = max(self._producer.read_done(), *map(_finished, fronts))
        if done == DoneMark():
            self._check_swapped()
        newer = [
            one
            for slot, front in enumerate(fronts)
            if front and front.generation > done.generation and (one := self._read(slot, front))
        ]
        if not newer:
            return Standing(done)
        decision, records = max(newer, key=lambda one: one[0].generation)
        return Standing(done, decision, records)

    def _check_swapped(self) -> None:
        """Nothing is known to be done: because it is the first, or because files changed places?

        Then the decision that is left may be an old one, and would happen again.
        """
        slots = [key for key in map(self.key, (0, 1)) if is_foreign(self._store, key, MAGIC)]
        if slots and self._producer.is_done_foreign():
            key = self._producer.done_key
            raise DamagedFile(
                f"{key} and {slots[0]} hold what belongs into other files: put them back, or restore "
                "both from a backup. Until then nobody knows what is done",
                file=key,
                reason="swapped",
            )

    def write(self, decision: Decision, records: Sequence[Buffer] = ()) -> None:
        """Decide: durable when this returns. If it raises, ``happened`` says what came of it.

        ``happened`` is False when the decision was taken back, and None when not even that went
        well: then it shows when the producer is opened again.
        """
        key = self.key(decision.generation)
        description = msgspec.json.encode(decision)
        self._check_size(decision, len(description) + sum(map(len, records)))
        try:
            self._write(key, decision, description, records)
        except (PenstockError, OSError) as cause:
            raise self._not_written(key, decision, cause) from cause

    def finish(self, done: DoneMark) -> None:
        """Let the decision say that it is done, too: durable when this returns. Needs the lock.

        From now on the mark alone is not needed to know that nothing of it is to be done again.
        """
        key = self.key(done.generation)
        front = self._front(done.generation)
        if front is not None and front[:3] == (0, *done):
            self._store.write_at(key, 0, [front._replace(flags=FINISHED).pack(key)])
            self._store.sync(key)

    def secure(self, standing: Standing) -> None:
        """Make sure that a decision that was read is on the disk before anything follows from it.

        Whoever wrote it may have died before the sync, or the sync may have failed; written again
        it is dirty again, so this sync tells the truth.
        """
        if standing.pending is not None:
            key = self.key(standing.pending.generation)
            description = msgspec.json.encode(standing.pending)
            self._write(key, standing.pending, description, [standing.records])

    def _write(
        self, key: str, decision: Decision, description: bytes, records: Sequence[Buffer]
    ) -> None:
        checksum = crc32c(description)
        for one in records:
            checksum = crc32c(one, checksum)
        size = sum(map(len, records))
        front = Front(0, decision.generation, decision.number, len(description), size, checksum)
        self._store.write_at(key, 0, [front.pack(key) + description, *records])
        self._store.sync(key)

    def _check_size(self, decision: Decision, size: int) -> None:
        if size > DECISION_BYTES_MAX:
            raise LimitReached(
                f"transaction {decision.number} of {self._producer.name!r} has so many entries that "
                f"its decision takes {size} bytes, at most {DECISION_BYTES_MAX} are allowed. "
                "Nothing was written: make it several transactions, or of larger batches",
                limit="decision_bytes",
                value=DECISION_BYTES_MAX,
            )

    def _not_written(self, key: str, decision: Decision, cause: BaseException) -> StoreFailed:
        happened: bool | None = None
        with suppress(PenstockError, OSError):
            self._store.truncate(key, 0)
            self._store.sync(key)
            happened = False
        outcome = (
            "it did not happen"
            if happened is False
            else "whether it happened shows when the producer is opened again"
        )
        return StoreFailed(
            f"transaction {decision.number} of {self._producer.name!r} could not be written to "
            f"{key} ({cause}): {outcome}",
            producer=self._producer.name,
            number=decision.number,
            happened=happened,
        )

    def _read(self, slot: int, front: Front) -> tuple[Decision, bytes] | None:
        """The decision in a slot that has this front, when it is sound."""
        size = front.description_bytes + front.records_bytes
        try:
            rest = self._store.read(self.key(slot), FRONT_BYTES, size)
        except KeyNotFound:
            return None
        if len(rest) != size or crc32c(rest) != front.checksum:
            return None
        try:
            decision = _to_decision(rest[: front.description_bytes])
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return None
        return decision, rest[front.description_bytes :]

    def _front(self, slot: int) -> Front | None:
        """The front of the decision in a slot; None when it was torn or never written."""
        key = self.key(slot)
        try:
            return _parse_front(key, self._store.read(key, 0, FRONT_BYTES))
        except KeyNotFound:
            return None


def _finished(front: Front | None) -> DoneMark:
    """What a decision says of itself."""
    if front is None or front.flags != FINISHED:
        return DoneMark()
    return DoneMark(front.generation, front.number)


def _parse_front(key: str, data: bytes) -> Front | None:
    if len(data) != FRONT_BYTES:
        return None
    magic, version, *fields = _FRONT.unpack_from(data)
    front = Front(*fields)
    checksum = _CHECKSUM.pack(crc32c(data[: _FRONT.size], crc32c(key.encode())))
    if data[_FRONT.size :] != checksum or magic != MAGIC:
        return None
    if front.description_bytes + front.records_bytes > DECISION_BYTES_MAX:
        return None
    if version != VERSION:
        raise UnsupportedFormat(
            f"{key} has format version {version}, this release reads {VERSION}: upgrade it",
            file=key,
            version=version,
        )
    return front
