"""Open files of a directory store, the most used ones kept open."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from contextlib import suppress
from weakref import WeakSet

from penstock.system import Files


class Handle:
    """An open file. It closes itself when nobody holds it, so eviction never cuts off a reader."""

    __slots__ = ("__weakref__", "_files", "_refusal", "descriptor", "name_synced")

    def __init__(self, files: Files, descriptor: int, refusal: int | None = None) -> None:
        self._files = files
        self._refusal = refusal
        self.descriptor = descriptor
        # Whoever made the file may have died before it synced the name: each handle syncs it once.
        self.name_synced = False

    def check_writable(self) -> None:
        """Raise what the system said when the file was opened for writing, if it refused."""
        if self._refusal is not None:
            raise OSError(self._refusal, os.strerror(self._refusal))

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                self._files.close(descriptor)

    def __del__(self) -> None:
        self.close()


class Handles:
    """The open files by key, at most so many. Thread-safe.

    The one that was not used for longest goes first. Those whose names this process has synced go
    after all others: opened again they would cost a sync of the directory. (That sync is needed. A
    file that another process removed and made again meanwhile has the same name, and often the same
    inode number, and its maker may have died before it synced the name.)
    """

    def __init__(self, handles_max: int) -> None:
        self._handles_max = handles_max
        self._handles: OrderedDict[str, Handle] = OrderedDict()
        self._synced: OrderedDict[str, Handle] = OrderedDict()
        """Those that were passed over, as their names are synced: so none is looked at twice."""
        self._open: WeakSet[Handle] = WeakSet()
        """All that somebody holds, also those that made room for others."""
        self._mutex = threading.Lock()

    def get(self, key: str) -> Handle | None:
        """The open file, which counts as used now."""
        with self._mutex:  # an ordered dict must not change while another thread goes through it
            handle = self._handles.get(key)
            if handle is None:
                return self._use_synced(key)
            self._handles.move_to_end(key)
            return handle

    def keep(self, key: str, handle: Handle) -> Handle:
        """Keep the file open; returns the one that is kept already, if any."""
        with self._mutex:
            kept = self._use_synced(key) or self._handles.setdefault(key, handle)
            self._open.add(kept)
            self._handles.move_to_end(key)
            while len(self._handles) + len(self._synced) > self._handles_max:
                self._drop_one()
        return kept

    def _use_synced(self, key: str) -> Handle | None:
        """One that was passed over takes its turn among the others again."""
        handle = self._synced.pop(key, None)
        if handle is not None:
            self._handles[key] = handle
        return handle

    def _drop_one(self) -> None:
        """Let one go; the last one, which is wanted now, only if there is no other."""
        while len(self._handles) > 1:
            key, handle = self._handles.popitem(last=False)
            if not handle.name_synced:
                return
            self._synced[key] = handle
        (self._synced or self._handles).popitem(last=False)

    def forget(self, key: str) -> None:
        """Let the file go; it is closed when nobody uses it."""
        with self._mutex:
            self._handles.pop(key, None)
            self._synced.pop(key, None)

    def clear(self) -> None:
        """Let all files go."""
        with self._mutex:
            self._handles.clear()
            self._synced.clear()

    def abandon(self) -> None:
        """In a forked child: close them all, as an open one would keep what the parent has locked.

        A thread that is gone may have held the mutex.
        """
        self._mutex = threading.Lock()
        for handle in list(self._open):
            handle.close()
        self._handles.clear()
        self._synced.clear()
