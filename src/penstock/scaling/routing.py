"""Which partition of a topic a message goes to: by its key, or in turn without one."""

from __future__ import annotations

from penstock.errors import InvalidOption
from penstock.hashing import key_hash


def route(key: object, partitions: int) -> int:
    """The partition of a key: ``fnv1a(key) % partitions``, as in the log.

    A key of any type; :func:`penstock.hashing.key_bytes` says how it becomes bytes.
    """
    return key_hash(key) % partitions


class Router:
    """Chooses the partition of each message of a topic. Belongs to one event loop."""

    __slots__ = ("_turn", "partitions")

    def __init__(self, partitions: int, turn: int = 0) -> None:
        if partitions < 1:
            raise InvalidOption(f"{partitions} partitions: use 1 or more", option="partitions")
        self.partitions = partitions
        self._turn = turn % partitions

    @property
    def turn(self) -> int:
        """The partition of the next message without a key."""
        return self._turn

    def partition_of(self, key: object | None = None) -> int:
        """The partition of a key; without one, the next in turn."""
        if key is not None:
            return key_hash(key) % self.partitions
        chosen = self._turn
        self._turn = (chosen + 1) % self.partitions
        return chosen
