"""One file of the simulated disk: what is on the platter, what is in the page cache."""

from __future__ import annotations

import copy
import enum

SECTOR_BYTES = 512


class State(enum.Enum):
    """How a pending operation stands towards the platter."""

    DIRTY = "dirty"
    """In the page cache; the next sync saves it."""
    STRANDED = "stranded"
    """A sync failed on it. The page counts as clean, so no later sync saves it."""
    SAVED = "saved"
    """On the platter, but an older stranded operation below it is still open."""


class Operation:
    """A write, or (``data`` is None) a truncate to ``position`` bytes."""

    __slots__ = ("data", "path", "position", "state", "tick")

    def __init__(self, tick: int, path: str, position: int, data: bytes | None) -> None:
        self.tick = tick
        self.path = path
        self.position = position
        self.data = data
        self.state = State.DIRTY

    def apply(self, content: bytearray) -> None:
        if self.data is None:
            resize(content, self.position)
        else:
            put(content, self.position, self.data)

    def describe(self) -> str:
        if self.data is None:
            return f"truncate {self.path} to {self.position}"
        return f"write {len(self.data)} bytes at {self.position} of {self.path}"


def put(content: bytearray, position: int, data: bytes) -> None:
    """Write into the content; a gap before ``position`` is filled with zeros."""
    gap = position - len(content)
    if gap > 0:
        content.extend(bytes(gap))
    content[position : position + len(data)] = data


def resize(content: bytearray, size: int) -> None:
    """Cut the content, or extend it with zeros."""
    missing = size - len(content)
    if missing > 0:
        content.extend(bytes(missing))
    else:
        del content[size:]


class CachedFile:
    """The content that readers see, the content a power cut surely leaves, and what is between.

    Both contents stay shared ``bytes`` until they are changed.
    """

    __slots__ = ("links", "live", "pending", "saved")

    def __init__(self, content: bytes = b"") -> None:
        self.saved: bytes | bytearray = content
        self.live: bytes | bytearray = content
        self.pending: list[Operation] = []
        self.links = 1

    def change(self, operation: Operation) -> None:
        """Do it in the page cache; the platter has it after :meth:`sync`."""
        self.live = live = _own(self.live)
        operation.apply(live)
        self.pending.append(operation)

    def sync(self) -> None:
        """Save the dirty operations, and only those."""
        for operation in self.pending:
            if operation.state is State.DIRTY:
                operation.state = State.SAVED
        self._fold()

    def strand(self) -> None:
        """A sync failed: the dirty pages are marked clean and stay unsaved."""
        for operation in self.pending:
            if operation.state is State.DIRTY:
                operation.state = State.STRANDED

    def evict(self) -> None:
        """Memory pressure: clean pages are read again, so stranded bytes vanish."""
        self.pending = [each for each in self.pending if each.state is not State.STRANDED]
        self._fold()
        live = bytearray(self.saved)
        for operation in self.pending:
            operation.apply(live)
        self.live = live

    def reset(self, content: bytes) -> None:
        """Make this the content, in the cache and on the platter."""
        self.saved = self.live = content
        self.pending = []

    def freeze(self) -> bytes:
        """The saved content as shared bytes."""
        self.saved = saved = bytes(self.saved)
        return saved

    def clone(self) -> CachedFile:
        """A copy that shares only immutable bytes."""
        twin = CachedFile(self.freeze())
        twin.live = bytes(self.live)
        twin.pending = [copy.copy(operation) for operation in self.pending]
        twin.links = self.links
        return twin

    def _fold(self) -> None:
        count = 0
        while count < len(self.pending) and self.pending[count].state is State.SAVED:
            count += 1
        if count:
            self.saved = saved = _own(self.saved)
            for operation in self.pending[:count]:
                operation.apply(saved)
            del self.pending[:count]


def _own(content: bytes | bytearray) -> bytearray:
    return content if isinstance(content, bytearray) else bytearray(content)
