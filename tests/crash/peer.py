"""What a peer has to do on the rigs, and the numbers that it is asked to keep."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path

NUMBER = struct.Struct("<q")
KEY = struct.Struct(">q")
"""For peers that sort by the bytes of a key."""
VALUE_BYTES = 100


def value_of(number: int) -> bytes:
    """What is kept of a number; any change of it is seen."""
    return NUMBER.pack(number) * (VALUE_BYTES // NUMBER.size)


class Peer(ABC):
    """Keeps values by their numbers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def keep(self, number: int, value: bytes) -> None:
        """Return when the peer says that it is kept."""

    @abstractmethod
    def kept(self) -> Iterable[tuple[int, bytes]]:
        """Everything, in the order of the numbers."""

    def close(self) -> None:
        """End in good order."""
