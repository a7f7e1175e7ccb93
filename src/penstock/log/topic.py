"""What a topic is: partitions, durability, retention, subscribers; and the file that says so.

``topic.json`` is replaced as a whole, atomically, so it is never torn: a wrong checksum is
damage. The generation before stands in the same file with a checksum of its own, for ``repair()``.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import msgspec
from crc32c import crc32c
from msgspec.structs import replace

from penstock.decoding import decoder_of
from penstock.errors import (
    DamagedFile,
    InvalidOption,
    KeyNotFound,
    PenstockError,
    UnknownTopic,
    UnsupportedFormat,
)
from penstock.log.codec import Codec, compress
from penstock.log.deadlines import LOCK_TIMEOUT_SECONDS
from penstock.log.epoch import Epoch, are_sound, partitions_of_all
from penstock.log.frame import ENTRY_BYTES_MAX, RECORDS_MAX
from penstock.log.names import check_case, check_name, is_name, topic_key
from penstock.stores.base import PersistentBackingStore

FORMAT = 1
PARTITIONS_MAX = 4_096
_MEBIBYTE = 1024 * 1024
SEGMENT_BYTES_MAX = 4096 * _MEBIBYTE
TOPIC_BYTES_MAX = 16 * _MEBIBYTE
_UNDECODABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)


class FsyncPolicy(enum.Enum):
    """When the log syncs, and so what a crash can take. ``durable=True`` on a call asks for more."""

    EVERY_MESSAGE = "every_message"
    """``publish`` returns after the sync that covers the record; publishers share a sync.

    Process crash: nothing acknowledged is lost. Power cut: nothing acknowledged is lost.
    """

    EVERY_N_MESSAGES = "every_n_messages"
    """A sync every N records of a partition (default 100), and after 1 s at the latest.

    ``publish`` returns when the record is written; its acknowledgement says ``durable=False``
    unless that very write was synced. Process crash: nothing acknowledged is lost. Power cut: up
    to N - 1 records of each partition and each process that writes to it, or those of the last
    second and of the time that the sync itself takes, whichever is less.
    """

    TIMED = "timed"
    """A sync every second (configurable) while there is something to sync.

    ``publish`` returns when the record is written; its acknowledgement says ``durable=False``.
    Process crash: nothing acknowledged is lost. Power cut: the records of the last interval, and
    of the time that the sync itself takes. If the process dies before its sync, another one that
    has the topic open does it, after a round or two of its maintenance.
    """


class WhenFull(enum.Enum):
    """What happens at the size limit of a partition."""

    DELETE = "delete"
    """The oldest segments go, except those that a protected subscriber still needs."""
    REJECT = "reject"
    """``publish`` raises RetentionFull until subscribers have consumed enough."""


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long a topic keeps its records. The limits combine: whichever is reached first.

    Whole segments are removed, never the open one. A limit of None is no limit.
    """

    age_ms_max: int | None = 24 * 60 * 60 * 1000
    bytes_max: int | None = 1024 * _MEBIBYTE
    """Per partition; the open segment comes on top."""
    acknowledged: bool = False
    """Remove a segment as soon as every subscriber has consumed it, however young it is."""
    protect_subscribers: bool = True
    """Never remove what a subscriber has not consumed yet, whatever the other limits say."""
    when_full: WhenFull = WhenFull.DELETE


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a topic. Stored with it, the same for every process."""

    partitions: int = 1
    fsync: FsyncPolicy = FsyncPolicy.EVERY_MESSAGE
    fsync_messages: int = 100
    fsync_interval_ms: int = 1_000
    linger_ms: int = 0
    """How long a batch may wait for company; 0: a lone record is committed at once."""
    batch_records_max: int = 16_384
    batch_bytes_max: int = 2 * _MEBIBYTE
    record_bytes_max: int = 16 * _MEBIBYTE
    buffer_bytes_max: int = 64 * _MEBIBYTE
    """Bytes accepted and not yet committed; then ``publish`` waits, ``publish_nowait`` raises."""
    segment_bytes_max: int = 128 * _MEBIBYTE
    """When a segment is sealed; at most 4 GiB. Compaction, repair and the move to a tier hold a
    whole segment in memory, and retention removes no less than one: stay well below your memory."""
    codec: Codec = Codec.NONE
    """How batches are compressed. Those of more than 16 MiB or 131,072 records are kept as they are."""
    compact_keys: bool = False
    """Keep only the newest record of each key in sealed segments."""
    retention: Retention = Retention()

    def check(self) -> TopicConfig:
        """The config, or InvalidOption that names the field and its range.

        Names of choices are taken too: ``fsync="timed"`` is ``fsync=FsyncPolicy.TIMED``.
        """
        try:
            checked = msgspec.convert(msgspec.to_builtins(self), TopicConfig)
        except (msgspec.ValidationError, TypeError) as cause:
            choices = ", ".join([*(one.value for one in FsyncPolicy), "delete, reject, Codec.ZSTD"])
            message = f"the topic's settings are wrong: {cause}. Choices are {choices} and the like"
            raise InvalidOption(message) from cause
        checked._check_ranges()
        if checked.codec is not Codec.NONE:
            # Here, and not at the first record, is where a missing package is noticed.
            compress(checked.codec, b"")
        return checked

    def _check_ranges(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not low <= value <= high:
                raise InvalidOption(f"{name} is {value!r}; it must be {low} to {high}", option=name)
        for name in ("age_ms_max", "bytes_max"):
            value = getattr(self.retention, name)
            if value is not None and value < 1:
                raise InvalidOption(f"retention {name} is {value}; use None for no limit")
        if self.buffer_bytes_max < self.record_bytes_max:
            raise InvalidOption("buffer_bytes_max must not be below record_bytes_max")


_RANGES = (
    ("partitions", 1, PARTITIONS_MAX),
    ("fsync_messages", 1, 1 << 31),
    ("fsync_interval_ms", 1, 3_600_000),
    ("linger_ms", 0, 60_000),
    ("batch_records_max", 1, RECORDS_MAX),
    ("batch_bytes_max", 1, ENTRY_BYTES_MAX // 2),
    ("record_bytes_max", 1, ENTRY_BYTES_MAX // 2),
    ("buffer_bytes_max", 1, 1 << 40),
    ("segment_bytes_max", 256, SEGMENT_BYTES_MAX),
)


class TopicState(msgspec.Struct, frozen=True, kw_only=True):
    """All that ``topic.json`` holds."""

    name: str
    created_ms: int
    config: TopicConfig
    epochs: tuple[Epoch, ...]
    subscribers: dict[str, dict[int, int]] = {}
    """Subscriber name → partition → offset at which it started. Retention waits for these."""
    marks: tuple[str, ...] = ()

    @property
    def partitions(self) -> int:
        """How many partitions the topic has now."""
        return self.epochs[-1].partitions

    @property
    def partitions_all(self) -> int:
        """How many partitions there are; those count that get no more records. It never falls."""
        return partitions_of_all(self.epochs)

    @property
    def epoch(self) -> int:
        """How often the partition count was changed."""
        return self.epochs[-1].epoch


class _Generation(msgspec.Struct, kw_only=True):
    generation: int
    checksum: int
    topic: msgspec.Raw


class _Document(msgspec.Struct, kw_only=True):
    format: int
    generation: int
    checksum: int
    topic: msgspec.Raw
    previous: _Generation | None = None
    """The generation before, with its own checksum: damage to one never spoils the other."""


def _checksum(generation: int, topic: bytes, version: int = FORMAT) -> int:
    return crc32c(b"%d %d %s" % (version, generation, topic))


def _is_sound(one: _Generation | _Document, version: int = FORMAT) -> bool:
    return _checksum(one.generation, bytes(one.topic), version) == one.checksum


_to_document = decoder_of(_Document)
_to_state = decoder_of(TopicState)
_GENERATION = re.compile(rb'"generation":(\d{1,19}),"checksum":(\d{1,10}),"topic":')


class TopicFile:
    """Reads and changes ``topic.json``."""

    def __init__(self, store: PersistentBackingStore, topic: str) -> None:
        self._store = store
        self._topic = check_name("topic", topic)
        self.key = topic_key(topic)
        self._newest: tuple[bytes, TopicState] | None = None
        """What was read or written last: with a thousand subscribers, decoding takes longer than reading."""
        self._known: tuple[bytes, _Document, TopicState] | None = None
        """The whole file, as it was checked last: the same bytes need not be checked again."""

    def exists(self) -> bool:
        """Whether the topic is there."""
        return self._store.exists(self.key)

    def read(self) -> TopicState:
        """The topic; UnknownTopic when there is none, DamagedFile when it fails its checks."""
        return self._read()[1]

    def create(self, config: TopicConfig, now_ms: int) -> TopicState:
        """The topic as it is, made now with this config when it was not there.

        DamagedFile when there are records without a description: it was lost, or somebody died
        while the topic was being deleted.
        """
        self._check_case()
        with self._lock_alike():
            if self.exists():
                return self.read()
            self._check_case()
            self._check_new()
            epochs = (Epoch(0, config.partitions, now_ms),)
            state = TopicState(name=self._topic, created_ms=now_ms, config=config, epochs=epochs)
            self._write_new(state)
            return state

    def add_subscriber(self, name: str, starts: dict[int, int]) -> TopicState:
        """Register a subscriber, so that retention waits for it."""

        def add(state: TopicState) -> TopicState:
            if name in state.subscribers:
                return state
            check_case("subscriber", name, state.subscribers)
            return replace(state, subscribers={**state.subscribers, name: starts})

        return self.update(add)

    def remove_subscriber(self, name: str) -> TopicState:
        """Forget a subscriber: retention waits for it no longer."""

        def remove(state: TopicState) -> TopicState:
            subscribers = {key: at for key, at in state.subscribers.items() if key != name}
            return replace(state, subscribers=subscribers)

        return self.update(remove)

    def change_config(self, **changes: Any) -> TopicState:
        """Change settings other than the partition count, for all processes."""
        if "partitions" in changes:
            raise InvalidOption("partitions are changed by repartition()", option="partitions")
        for name in changes.keys() - set(TopicConfig.__struct_fields__):
            raise InvalidOption(f"there is no setting {name!r} of topics", option=name)
        return self.update(
            lambda state: replace(state, config=replace(state.config, **changes).check())
        )

    def update(self, change: Callable[[TopicState], TopicState]) -> TopicState:
        """Change the topic under its lock; nothing is written when it stays as it was."""
        with self._lock():
            document, state = self._read()
            changed = change(state)
            if changed != state:
                self._write(document.generation + 1, changed, document)
            return changed

    def generations(self) -> list[tuple[int, TopicState]]:
        """Every sound generation in the file, the newest first; for repair.

        It also finds one in a file that is no JSON any more.
        """
        data = self._store.read(self.key, 0, TOPIC_BYTES_MAX + 1)
        found: list[tuple[int, TopicState]] = []
        for match in _GENERATION.finditer(data):
            raw = _first_object(data[match.end() :])
            if _checksum(int(match[1]), raw) == int(match[2]):
                found.append((int(match[1]), self._decode_state(raw)))
        return sorted(found, key=lambda one: one[0], reverse=True)

    def restore(self, generation: int, state: TopicState) -> None:
        """Write the topic anew, for repair; the generation is one that nobody has seen."""
        with self._lock():
            self._write(generation, state)

    def is_as_written(self) -> bool:
        """Whether the file has not one byte that this release would not have written."""
        data = self._store.read(self.key, 0, TOPIC_BYTES_MAX + 1)
        document = self._decode_document(data)
        previous = document.previous
        whole = _is_sound(document) and (previous is None or _is_sound(previous))
        return whole and msgspec.json.encode(document) + b"\n" == data

    def _lock(self) -> Any:
        return self._store.lock(f"topics/{self._topic}/lock", LOCK_TIMEOUT_SECONDS)

    @contextmanager
    def _lock_alike(self) -> Iterator[None]:
        """Hold the locks of this name and of those that differ by case alone, in one order.

        Of two processes that make such topics at the same time, the later one sees the folder of
        the other, waits for it, and finds its topic.
        """
        with self._lock():
            pass  # The folder is there now, before the others are looked for.
        names = {self._topic, *self._alike()}
        with ExitStack() as stack:
            for name in sorted(names):
                stack.enter_context(TopicFile(self._store, name)._lock())
            yield

    def _check_case(self) -> None:
        there = (one for one in self._alike() if TopicFile(self._store, one).exists())
        check_case("topic", self._topic, there)

    def _alike(self) -> Sequence[str]:
        """Folders of other topics, or of what will be one: a log may have thousands of topics."""
        return self._store.folders_alike("topics", self._topic)

    def _write_new(self, state: TopicState) -> None:
        """Write the first description. What is there after a failure may not be durable: it goes."""
        try:
            self._write(1, state)
        except PenstockError:
            with suppress(PenstockError):
                self._store.delete(self.key)
            raise

    def _check_new(self) -> None:
        """The description is there before the first record is."""
        if any(key.endswith(".log") for key in self._store.list(f"topics/{self._topic}/")):
            raise DamagedFile(
                f"{self.key} is missing, though the topic has records. Put it back, let "
                "penstock.repair() make it anew, or delete the topic",
                file=self.key,
                reason="missing",
            )

    def _read(self) -> tuple[_Document, TopicState]:
        try:
            data = self._store.read(self.key, 0, TOPIC_BYTES_MAX + 1)
        except KeyNotFound:
            raise UnknownTopic(
                f"there is no topic {self._topic!r}: create it with create_topic()",
                topic=self._topic,
            ) from None
        known = self._known
        if known is not None and known[0] == data:
            return known[1:]
        document = self._decode_document(data)
        if not _is_sound(document):
            raise self._damage("the checksum is wrong")
        state = self._state_of(bytes(document.topic))
        if state.name != self._topic:
            raise self._damage(f"it describes topic {state.name[:80]!r}")
        if not are_sound(state.epochs, PARTITIONS_MAX):
            raise self._damage("the partitions are out of range")
        self._known = (data, document, state)
        return document, state

    def _decode_document(self, data: bytes) -> _Document:
        if len(data) > TOPIC_BYTES_MAX:
            raise self._damage(f"it is longer than {TOPIC_BYTES_MAX} bytes")
        try:
            document = _to_document(data)
        except _UNDECODABLE as cause:
            raise self._damage(str(cause)) from cause
        if document.format != FORMAT and _is_sound(document, document.format):
            raise UnsupportedFormat(
                f"{self.key} has format {document.format}, this release reads {FORMAT}: upgrade it",
                file=self.key,
                version=document.format,
            )
        if document.format != FORMAT:
            raise self._damage("the format is wrong")
        return document

    def _state_of(self, raw: bytes) -> TopicState:
        newest = self._newest
        if newest is None or newest[0] != raw:
            newest = self._newest = (raw, self._decode_state(raw))
        return newest[1]

    def _decode_state(self, raw: bytes) -> TopicState:
        try:
            return _to_state(raw)
        except _UNDECODABLE as cause:
            raise self._damage(str(cause)) from cause

    def _write(self, generation: int, state: TopicState, previous: _Document | None = None) -> None:
        raw = msgspec.json.encode(state)
        document = _Document(
            format=FORMAT,
            generation=generation,
            checksum=_checksum(generation, raw),
            topic=msgspec.Raw(raw),
            previous=None if previous is None else _without_previous(previous),
        )
        data = msgspec.json.encode(document) + b"\n"
        if len(data) > TOPIC_BYTES_MAX and previous and len(raw) < len(bytes(previous.topic)):
            # What makes it smaller always fits: without the generation before, if need be.
            document.previous = None
            data = msgspec.json.encode(document) + b"\n"
        if len(data) > TOPIC_BYTES_MAX:
            raise self._too_large(state, len(data))
        self._store.write(self.key, data)
        self._newest = (raw, state)
        self._known = (data, document, state)

    def _too_large(self, state: TopicState, size: int) -> InvalidOption:
        return InvalidOption(
            f"topic {self._topic!r} with {len(state.subscribers)} subscribers of "
            f"{state.partitions} partitions in {len(state.epochs)} epochs needs {size} bytes in "
            f"{self.key}, at most {TOPIC_BYTES_MAX} are allowed; nothing was changed. Unsubscribe "
            "names that are not used any more, or make a topic with fewer partitions",
            topic=self._topic,
            limit=TOPIC_BYTES_MAX,
        )

    def _damage(self, reason: str) -> DamagedFile:
        return DamagedFile(
            f"{self.key} is damaged: {reason}. penstock.repair() goes back to the generation "
            "before, or restore the file from a backup",
            file=self.key,
            reason=reason,
        )


def _without_previous(document: _Document) -> _Generation:
    return _Generation(
        generation=document.generation, checksum=document.checksum, topic=document.topic
    )


def _first_object(data: bytes) -> bytes:
    """The JSON value that the bytes start with, or nothing."""
    try:
        # Latin-1, so that places in the text are places in the bytes.
        return data[: json.JSONDecoder().raw_decode(data.decode("latin-1"))[1]]
    except json.JSONDecodeError:
        return b""


def list_topics(store: PersistentBackingStore) -> list[str]:
    """The names of all topics in a store. What is no name was put there by somebody else."""
    parts = [key.split("/") for key in store.list("topics/")]
    found = [part[1] for part in parts if len(part) == 3 and part[2] == "topic.json"]
    return sorted(filter(is_name, found))
