"""The file of a consumer group: read by anybody, changed only under the group's lock.

::

    magic "PGRP" | version u16 | 0 u16 | length u32 | CRC-32C u32 | GroupState as JSON

The checksum is over everything but itself. The file is replaced as a whole, atomically, so it is
never torn: a wrong checksum is damage. The lock is a key of its own, because a lock on a file that
is replaced keeps nobody away from the new one. So is the bell, eight bytes that are written in place
when partitions move, because a watch on a file that is replaced does not see the new one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import msgspec
from crc32c import crc32c

from penstock.decoding import decoder_of
from penstock.errors import DamagedFile, KeyNotFound, LimitReached, UnsupportedFormat
from penstock.log.group_ports import Change
from penstock.log.group_state import GroupState, emptied, fence
from penstock.log.names import check_name, group_bell_key, group_lock_key, group_state_key
from penstock.stores.base import PersistentBackingStore
from penstock.system import Clock

MAGIC = b"PGRP"
VERSION = 1
RINGS_MAX = 1 << 63
STATE_BYTES_MAX = 4 * 1024 * 1024
_FRONT = struct.Struct("<4sHHI")
_CHECKSUM = struct.Struct("<I")
_RINGS = struct.Struct("<Q")
_PAYLOAD_AT = _FRONT.size + _CHECKSUM.size
_UNDECODABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)
_to_state = decoder_of(GroupState)


class GroupFile:
    """The state of one group in a store. Blocking and thread-safe, as the store is."""

    def __init__(
        self,
        store: PersistentBackingStore,
        group: str,
        clock: Clock,
        lock_seconds: float,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self._store = store
        self._on_change = on_change
        self._group = check_name("group", group)
        self._clock = clock
        self._lock_seconds = lock_seconds
        self.key = group_state_key(group)
        self._last: tuple[bytes, GroupState] | None = None

    def read(self) -> GroupState:
        """The group as it is; an empty one when nobody ever joined. DamagedFile, if it is that."""
        try:
            data = self._store.read(self.key, 0, _PAYLOAD_AT + STATE_BYTES_MAX + 1)
        except KeyNotFound:
            if self._store.exists(group_bell_key(self._group)):
                # It rang for a state that was there, and the state is never removed.
                raise self._damage("it is missing") from None
            return GroupState(group=self._group)
        last = self._last
        if last is None or last[0] != data:
            last = self._last = (data, self._decode(data))
        return last[1]

    def exists(self) -> bool:
        """Whether anybody ever joined; the state may be lost since."""
        return self._store.exists(self.key) or self._store.exists(group_bell_key(self._group))

    def change(self, change: Change) -> GroupState:
        """The next state, durable on return. A crash leaves the one before or this one."""
        with self.locked():
            before = self.read()
            after = change(before, self._clock.time_ms())
            if after != before:
                self._write(after)
            if after.shape() != before.shape():
                self._ring()
            return after

    @contextmanager
    def fenced(
        self, member: str, generation: int, partitions: Iterable[tuple[str, int]]
    ) -> Iterator[None]:
        """Hold the group as it is, after making sure that these partitions are the member's.

        Whatever is done inside is done by their owner: nobody can take them over meanwhile. A
        process that is stopped inside holds up the group until it goes on or is killed.
        """
        with self.locked():
            fence(self.read(), member, generation, partitions)
            yield

    def reset(self) -> GroupState:
        """Begin anew without members, damaged or not, in a generation above all before it.

        Generations of damaged groups are not known. The time in milliseconds is above them.
        """
        with self.locked():
            try:
                before = self.read()
            except DamagedFile:
                before = GroupState(group=self._group)
            after = emptied(before, max(before.generation + 1, self._clock.time_ms()))
            self._write(after)
            self._ring()
            return after

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the group as it is: nobody joins, leaves or commits meanwhile."""
        with self._store.lock(group_lock_key(self._group), self._lock_seconds):
            yield

    def _ring(self) -> None:
        """Tell the members that there is something to see. Who misses it sees it a heartbeat later."""
        key = group_bell_key(self._group)
        self._store.write_at(key, 0, [_RINGS.pack(rings(self._store, self._group) + 1)])
        if self._on_change is not None:
            self._on_change()

    def _write(self, state: GroupState) -> None:
        payload = msgspec.json.encode(state)
        if len(payload) > STATE_BYTES_MAX:
            raise LimitReached(
                f"group {self._group!r} needs {len(payload)} bytes in {self.key}, at most "
                f"{STATE_BYTES_MAX} are allowed; nothing was changed. Use fewer members, topics "
                "or partitions, or several groups",
                limit="state_bytes",
                value=STATE_BYTES_MAX,
            )
        front = _FRONT.pack(MAGIC, VERSION, 0, len(payload))
        self._store.write(self.key, front + _checksum(front, payload) + payload)

    def _decode(self, data: bytes) -> GroupState:
        front, payload = data[: _FRONT.size], data[_PAYLOAD_AT:]
        if data[_FRONT.size : _PAYLOAD_AT] != _checksum(front, payload):
            raise self._damage("the checksum is wrong")
        magic, version, _, length = _FRONT.unpack(front)
        if magic != MAGIC or length != len(payload):
            raise self._damage("it is the file of something else")
        if version != VERSION:
            raise UnsupportedFormat(
                f"{self.key} has format version {version}, this release reads {VERSION}: "
                "upgrade it",
                file=self.key,
                version=version,
            )
        return self._decode_state(payload)

    def _decode_state(self, payload: bytes) -> GroupState:
        try:
            state = _to_state(payload)
        except _UNDECODABLE as cause:
            raise self._damage(str(cause)) from cause
        if state.group != self._group:
            raise self._damage(f"it describes group {state.group[:80]!r}")
        return state

    def _damage(self, reason: str) -> DamagedFile:
        return DamagedFile(
            f"{self.key} is damaged: {reason}. GroupCoordinator.reset() begins anew: all members "
            "have to join again, committed offsets stay",
            file=self.key,
            reason=reason,
        )


def _checksum(front: bytes, payload: bytes) -> bytes:
    return _CHECKSUM.pack(crc32c(payload, crc32c(front)))


def rings(store: PersistentBackingStore, group: str) -> int:
    """How often the bell of a group rang; a count that is lost begins anew."""
    try:
        data = store.read(group_bell_key(group), 0, _RINGS.size)
    except KeyNotFound:
        return 0
    return int(_RINGS.unpack(data)[0] % RINGS_MAX) if len(data) == _RINGS.size else 0
