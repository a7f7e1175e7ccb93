"""The files of a producer: who it is, and how far it has come.

::

    producers/<name>/state       two slots: producer id u64, epoch u32, made at i64 (milliseconds)
    producers/<name>/lock        empty; locked while the producer opens, commits or is rolled forward
    producers/<name>/done        the last transaction that is wholly in its topics
    producers/<name>/decision-0, decision-1      the last two decisions, in turn
    producers/<name>/staged/     records that wait for a decision

    done = magic "PDON" | version u16 | 0 u16 | generation u64 | number i64 | CRC-32C u32

The state changes durably. The mark does not need to: one that is lost makes the next look check the
topics again, and find everything there. Before anything is removed from the topics the mark is made
durable, and the decision says the same. The checksum is over the key too: the mark of another
producer counts for nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from crc32c import crc32c

from penstock.errors import DamagedFile, Fenced, KeyNotFound, LimitReached
from penstock.log.deadlines import LOCK_TIMEOUT_SECONDS
from penstock.log.names import check_case, check_name
from penstock.log.slots import SlottedFile
from penstock.stores.base import PersistentBackingStore
from penstock.system import System

PRODUCERS_MAX = 10_000
NUMBER_NONE = -1
"""Before the first transaction."""
NUMBER_MAX = (1 << 63) - 1
VERSION = 1
_FIELDS = struct.Struct("<QIq")
_DONE_MAGIC = b"PDON"
_MARK = struct.Struct("<4sHHQq")
_CHECKSUM = struct.Struct("<I")


class ProducerLease(NamedTuple):
    """A producer as it was opened; an opening after it has a higher epoch and fences this one."""

    name: str
    producer_id: int
    epoch: int


class DoneMark(NamedTuple):
    """The last transaction that is known to be wholly in its topics."""

    generation: int = 0
    number: int = NUMBER_NONE


def is_foreign(store: PersistentBackingStore, key: str, magic: bytes) -> bool:
    """Whether a file was written as another one: a torn write leaves its own beginning, or zeros."""
    try:
        found = store.read(key, 0, len(magic))
    except KeyNotFound:
        return False
    return not magic.startswith(found.rstrip(b"\0"))


class ProducerFile:
    """Who a producer is, its lock, and its mark. Blocking and thread-safe, as the store is."""

    def __init__(self, store: PersistentBackingStore, name: str) -> None:
        self._store = store
        self.name = check_name("producer", name)
        self.folder = f"producers/{name}"
        self.key = f"{self.folder}/state"
        self.done_key = f"{self.folder}/done"
        self._slots = SlottedFile(store, self.key, b"PROD")

    @contextmanager
    def locked(self, timeout: float = LOCK_TIMEOUT_SECONDS) -> Iterator[None]:
        """Hold the producer; DeadlineExceeded when somebody else does so for that long."""
        with self._store.lock(f"{self.folder}/lock", timeout):
            yield

    def open(self, system: System) -> ProducerLease:
        """Raise the epoch, durably, making the producer when it is new. Needs the lock.

        InvalidName for a new one whose name differs from that of another only by case.
        """
        self._check_case()
        try:
            slot = self._slots.read()
        except KeyNotFound:
            self._check_room()
            producer_id = system.random.getrandbits(63) | 1  # not 0
            lease = ProducerLease(self.name, producer_id, 1)
            payload = _FIELDS.pack(lease.producer_id, 1, system.clock.time_ms())
            self._store.write(self.key, self._slots.first(payload))
            return lease
        producer_id, epoch, made_ms = self._parse(slot.payload)
        self._slots.write(slot.generation + 1, _FIELDS.pack(producer_id, epoch + 1, made_ms))
        self._store.sync(self.key)
        return ProducerLease(self.name, producer_id, epoch + 1)

    def read(self) -> ProducerLease:
        """The newest lease; KeyNotFound when there is none, DamagedFile when it is unreadable."""
        producer_id, epoch, _ = self._parse(self._slots.read().payload)
        return ProducerLease(self.name, producer_id, epoch)

    def damaged_slots(self) -> int:
        """How many slots of the state are damaged; DamagedFile when none is left."""
        slot = self._slots.read()
        self._parse(slot.payload)
        return slot.damaged

    def check(self, lease: ProducerLease) -> None:
        """Raise Fenced unless this is the newest lease. Needs the lock."""
        try:
            current = self.read()
        except KeyNotFound:
            current = ProducerLease(self.name, 0, 0)
        if current == lease:
            return
        raise Fenced(
            f"producer {self.name!r} was opened again, here or elsewhere: epoch {lease.epoch} is "
            f"over, it is {current.epoch}. Nothing was written. Stop, or open it to take over",
            producer=self.name,
            epoch=lease.epoch,
            current=current.epoch,
            reason="epoch",
        )

    def read_done(self) -> DoneMark:
        """The mark; the one before the first transaction when there is none or it is torn."""
        try:
            data = self._store.read(self.done_key, 0, _MARK.size + _CHECKSUM.size)
        except KeyNotFound:
            return DoneMark()
        front = data[: _MARK.size]
        if data[_MARK.size :] != self._checksum(front):
            return DoneMark()
        magic, version, _, generation, number = _MARK.unpack(front)
        return (
            DoneMark(generation, number)
            if (magic, version) == (_DONE_MAGIC, VERSION)
            else DoneMark()
        )

    def is_done_foreign(self) -> bool:
        """Whether something else stands in the place of the mark."""
        return is_foreign(self._store, self.done_key, _DONE_MAGIC)

    def write_done(self, mark: DoneMark) -> None:
        """Set the mark; it survives a crash of the process, and a power cut after a sync."""
        front = _MARK.pack(_DONE_MAGIC, VERSION, 0, mark.generation, mark.number)
        self._store.write_at(self.done_key, 0, [front + self._checksum(front)])

    def sync_done(self) -> None:
        """Make the mark durable."""
        self._store.sync(self.done_key)

    def delete(self) -> None:
        """Forget the producer. Needs the lock, which stays behind as an empty file."""
        kept = f"{self.folder}/lock"
        # The state last: whoever looks at half of it still sees a producer.
        for key in sorted(self._store.list(f"{self.folder}/"), key=lambda key: key == self.key):
            if key != kept:
                self._store.delete(key)

    def _checksum(self, front: bytes) -> bytes:
        return _CHECKSUM.pack(crc32c(front, crc32c(self.done_key.encode())))

    def _check_case(self) -> None:
        """Not for one that is there: a log may have two from before this was refused."""
        names = self._store.folders("producers")
        folded = self.name.casefold()
        alike = [one for one in names if one != self.name and one.casefold() == folded]
        if not alike or (self.name in names and self._store.exists(self.key)):
            return
        there = (one for one in alike if self._store.exists(f"producers/{one}/state"))
        check_case("producer", self.name, there)

    def _check_room(self) -> None:
        if len(producer_names(self._store)) >= PRODUCERS_MAX:
            raise LimitReached(
                f"the log has {PRODUCERS_MAX} producers: forget those that are not used any more, "
                "or use their names again",
                limit="producers",
                value=PRODUCERS_MAX,
            )

    def _parse(self, payload: bytes) -> tuple[int, int, int]:
        if len(payload) != _FIELDS.size:
            raise DamagedFile(
                f"{self.key} is damaged: no slot passes its checks. Restore it from a backup, or "
                "use another producer name; transactions of this one may be repeated then",
                file=self.key,
                reason="no slot passes its checks",
            )
        producer_id, epoch, made_ms = _FIELDS.unpack(payload)
        return producer_id, epoch, made_ms


def producer_names(store: PersistentBackingStore) -> list[str]:
    """The names of all producers in a store."""
    parts = [key.split("/") for key in store.list("producers/")]
    return sorted(part[1] for part in parts if len(part) == 3 and part[2] == "state")
