"""Linux's file-change notices, through the C library: no package, no thread, no polling."""

from __future__ import annotations

import ctypes
import os
import struct

_IN_MODIFY = 0x00000002
_IN_Q_OVERFLOW = 0x00004000
_NOTICE = struct.Struct("iIII")
"""Number of the watch, what happened, a cookie, the length of the name that follows."""
_NOTICE_BYTES_MAX = 65_536


class InotifyWatch:
    """A descriptor that turns readable when one of the added files is written."""

    def __init__(self, library: ctypes.CDLL, descriptor: int) -> None:
        self._library = library
        self._descriptor = descriptor
        self._names: dict[int, str] = {}

    @classmethod
    def start(cls) -> InotifyWatch | None:
        """A new watch, or None where the kernel has no inotify or no more instances."""
        library = ctypes.CDLL(None, use_errno=True)
        if not hasattr(library, "inotify_init1"):
            return None
        descriptor = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        return cls(library, descriptor) if descriptor >= 0 else None

    def fileno(self) -> int:
        return self._descriptor

    def add(self, path: str, name: str) -> None:
        number = self._library.inotify_add_watch(self._descriptor, os.fsencode(path), _IN_MODIFY)
        if number < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), path)
        self._names[number] = name

    def drain(self) -> set[str] | None:
        try:
            # What does not fit keeps the descriptor readable.
            notices = os.read(self._descriptor, _NOTICE_BYTES_MAX)
        except BlockingIOError:
            return set()
        changed = set()
        position = 0
        while position < len(notices):
            number, what, _, length = _NOTICE.unpack_from(notices, position)
            position += _NOTICE.size + length
            if what & _IN_Q_OVERFLOW:
                return None
            if what & _IN_MODIFY:
                changed.add(self._names[number])
        return changed

    def close(self) -> None:
        os.close(self._descriptor)
