"""Linux's file-change notices, through the C library: no package, no thread, no polling."""

from __future__ import annotations

import ctypes
import os

_IN_MODIFY = 0x00000002
_IN_CREATE = 0x00000100
_IN_MOVED_TO = 0x00000080
_NOTICE_BYTES_MAX = 65_536


class InotifyWatch:
    """A descriptor that turns readable when one of the added files is written."""

    def __init__(self, library: ctypes.CDLL, descriptor: int) -> None:
        self._library = library
        self._descriptor = descriptor

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

    def add(self, path: str) -> None:
        mask = _IN_MODIFY | _IN_CREATE | _IN_MOVED_TO
        if self._library.inotify_add_watch(self._descriptor, os.fsencode(path), mask) < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), path)

    def drain(self) -> None:
        try:
            while len(os.read(self._descriptor, _NOTICE_BYTES_MAX)) == _NOTICE_BYTES_MAX:
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        os.close(self._descriptor)
