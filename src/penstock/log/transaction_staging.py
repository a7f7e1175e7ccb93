"""Records of a transaction before its decision: drafted as entries, in memory or in a staged file.

A staged file holds the bodies of entries one after the other; what is needed to use them stands in
the small reference, :class:`StagedRecords`, which travels from the process that staged to the one
that commits. A file that no decision names is removed when it is old.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from penstock.decoding import decoder_of
from penstock.errors import InvalidOption
from penstock.log.arrow_columns import ArrowColumns
from penstock.log.batch import Router, split
from penstock.log.checks import check_columns, largest_record
from penstock.log.columns import Columns
from penstock.log.frame import Draft, draft
from penstock.log.names import check_name
from penstock.log.producer_file import ProducerFile
from penstock.log.refusals import record_too_large
from penstock.log.topic import TopicFile, TopicState
from penstock.log.transaction_decision import EntryNote, Share
from penstock.stores.base import PersistentBackingStore
from penstock.system import Buffer, System

STAGED_AGE_MS = 24 * 60 * 60 * 1000
"""A staged file that waits longer for its decision counts as left behind."""


class Target(NamedTuple):
    """Where an entry goes, and by which epoch of the topic it was sent there."""

    topic: str
    partition: int
    epoch: int


class Drafted(NamedTuple):
    """An entry of a transaction, and where it goes."""

    target: Target
    entry: Draft


class StagedRecords(msgspec.Struct, frozen=True, kw_only=True):
    """A reference to records that are durable and in no topic yet: small, and plain data.

    ``encode`` and ``decode`` carry it between processes. It counts for the producer that it names.
    """

    producer: str
    file: str
    shares: tuple[Share, ...]
    records: int
    size: int
    """Bytes of the file."""

    def encode(self) -> bytes:
        """As JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes | str) -> StagedRecords:
        """From JSON; InvalidOption when it is none."""
        try:
            return _to_staged(data)
        except msgspec.MsgspecError as cause:
            raise InvalidOption(f"no staged records: {cause}", option="staged") from cause


_to_staged = decoder_of(StagedRecords)


def drafted(state: TopicState, columns: Columns, router: Router | None = None) -> Iterator[Drafted]:
    """The entries that the records of one topic make, in order within each partition.

    The records are checked before.
    """
    config = state.config
    router = router or Router(state.partitions)
    for partition, _, part in router.split(columns):
        for piece in split(part, config.batch_records_max, config.batch_bytes_max):
            flags, body = piece.encode()
            entry = draft(flags, body, len(piece), codec=config.codec)
            yield Drafted(Target(state.name, partition, state.epoch), entry)


def _check_sizes(state: TopicState, columns: Columns) -> None:
    limit = state.config.record_bytes_max
    if columns.byte_size() > limit and (largest := _largest(columns)) > limit:
        raise record_too_large(state.name, largest, limit)


def _largest(columns: Columns) -> int:
    return columns.largest() if isinstance(columns, ArrowColumns) else largest_record(columns)


def note(entry: Draft, source: int, position: int) -> EntryNote:
    """What a decision says of an entry."""
    return EntryNote(
        source,
        position,
        entry.stored_length,
        entry.body_length,
        entry.codec,
        entry.flags,
        entry.record_count,
        entry.checksum,
    )


class ShareBuilder:
    """Gathers the notes of entries by partition, in the order in which they come."""

    def __init__(self) -> None:
        self._notes: dict[Target, list[EntryNote]] = {}

    def add(self, target: Target, notes: Sequence[EntryNote]) -> None:
        """Some more entries of a partition."""
        self._notes.setdefault(target, []).extend(notes)

    def shares(self, since: Mapping[Target, int] | None = None) -> tuple[Share, ...]:
        """All of them; ``since`` has the durable end of each partition."""
        return tuple(
            Share(*target, tuple(notes), (since or {}).get(target, 0))
            for target, notes in self._notes.items()
        )

    def targets(self) -> list[Target]:
        """Those that have an entry."""
        return list(self._notes)


class StagedWriter:
    """Writes a staged file, from any process. Blocking; one thread at a time.

    Nothing of it happens unless :meth:`finish` returned and a commit names the reference. When a
    call raises, :meth:`abandon` it, or drop it: then the file is removed when it is old.
    """

    def __init__(
        self, store: PersistentBackingStore, producer: str, *, system: System | None = None
    ) -> None:
        self._store = store
        self._system = system or System()
        self._producer = ProducerFile(store, check_name("producer", producer))
        self._states: dict[str, tuple[TopicState, Router]] = {}
        self._shares = ShareBuilder()
        self._position = 0
        self._records = 0
        self.file = staged_key(self._producer, self._system)

    def add(self, topic: str, columns: Columns) -> None:
        """Write some more records; UnknownTopic when there is no such topic."""
        state, router = self._topic(topic)
        if not isinstance(columns, ArrowColumns):
            check_columns(columns)
        _check_sizes(state, columns)
        self.add_drafted(list(drafted(state, columns, router)))

    def _topic(self, topic: str) -> tuple[TopicState, Router]:
        if topic not in self._states:
            state = TopicFile(self._store, topic).read()
            turn = self._system.random.randrange(state.partitions)
            self._states[topic] = state, Router(state.partitions, turn)
        return self._states[topic]

    def add_drafted(self, entries: Sequence[Drafted]) -> None:
        """Write entries that are drafted already."""
        buffers: list[Buffer] = []
        position = self._position
        for target, entry in entries:
            self._shares.add(target, [note(entry, 1, position)])
            buffers += entry.body
            position += entry.stored_length
            self._records += entry.record_count
        if buffers:
            self._store.write_at(self.file, self._position, buffers)
        self._position = position

    def abandon(self) -> None:
        """Remove the file; nothing of it will be committed."""
        self._store.delete(self.file)

    def finish(self) -> StagedRecords:
        """Make the file durable; the reference to it."""
        if self._position:
            self._store.sync(self.file)
        return StagedRecords(
            producer=self._producer.name,
            file=self.file,
            shares=self._shares.shares(),
            records=self._records,
            size=self._position,
        )


def staged_key(producer: ProducerFile, system: System) -> str:
    """The name of a new staged file; it tells when it was made."""
    number = system.random.getrandbits(64)
    return f"{producer.folder}/staged/{system.clock.time_ms():015d}-{number:016x}"


def staged_ms(key: str) -> int | None:
    """When a staged file was made; None when the name tells nothing."""
    text = key.rpartition("/")[2].partition("-")[0]
    return int(text) if text.isdecimal() and len(text) < 20 else None
