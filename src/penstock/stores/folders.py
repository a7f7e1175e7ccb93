"""The folders of a directory store: made so that a crash keeps them, never left by a link."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress

from penstock.errors import StoreFailed
from penstock.stores.base import is_key_part
from penstock.system import Files

FOLDERS_KNOWN_MAX = 65_536
LINKS_OF_EMPTY = 2
"""The names of a folder without folders: its own, and the dot in it. Each folder in it adds one."""


class _Known:
    """The folders in a folder as this process saw them, to be found without regard to case."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names: set[str] = set()
        self._by_folded: dict[str, set[str]] = {}
        for name in names:
            self.add(name)

    def __len__(self) -> int:
        return len(self._names)

    def add(self, name: str) -> None:
        """Take in one more. Other threads may look: what is counted can be found."""
        self._by_folded.setdefault(name.casefold(), set()).add(name)
        self._names.add(name)

    def are_all(self, links: int) -> bool:
        """Whether a folder with so many names has no other folders in it.

        They may be others of the same number if one was removed, which Penstock does only when it
        could not sync the name. A folder that seems empty may be one of a file system that does not count.
        """
        return len(self) > 0 and links == LINKS_OF_EMPTY + len(self)

    def alike(self, name: str) -> list[str]:
        """Those that differ from a name by case alone, sorted. What cannot be a key is somebody else's."""
        found = tuple(self._by_folded.get(name.casefold(), ()))  # another thread may add to it
        return sorted(one for one in found if one != name and is_key_part(one))


class Folders:
    """What lies below the root of a store. Paths are whole; folders are named as keys are."""

    def __init__(self, files: Files, root: str) -> None:
        self._files = files
        self._root = root
        self._durable: set[str] = set()
        self._own: set[str] = set()
        self._known: dict[str, _Known] = {}
        """By path: of the folders that were asked for names alike."""

    def check(self, folder: str) -> None:
        """Refuse folders that are links: what is in a directory must not lead out of it.

        A folder that was looked at is not looked at again.
        """
        if not folder or folder in self._own:
            return
        self.check(folder.rpartition("/")[0])
        path = f"{self._root}/{folder}"
        if self._files.is_link(path):
            raise StoreFailed(
                f"{path} is a symbolic link, which may lead anywhere: put the folder itself there, "
                "or mount it",
                key=folder,
                operation="open",
                errno=errno.ELOOP,
            )
        if len(self._own) >= FOLDERS_KNOWN_MAX:
            self._own.clear()
        self._own.add(folder)

    def make(self, path: str) -> None:
        """Make the directory and its missing parents, each name synced: a crash keeps them."""
        if self._files.exists(path):
            return
        parent = os.path.dirname(path)
        self.make(parent)
        with suppress(FileExistsError):
            self._files.make_directory(path)
            self._note_made(parent, os.path.basename(path))
        try:
            self._files.sync_directory(parent)
        except OSError:
            self._known.pop(parent, None)
            # After a failed sync only a name that is made again is sure to be saved by the next.
            with suppress(OSError):
                self._files.remove_directory(path)
            raise

    def _note_made(self, parent: str, name: str) -> None:
        known = self._known.get(parent)
        if known is not None:
            known.add(name)

    def sync_names(self, folder: str) -> None:
        """Sync the names in a folder, and once those of all folders above it, the root's included.

        Whoever made a folder may have died before its name was synced.
        """
        self._files.sync_directory(folder)
        while folder not in self._durable and folder.startswith(self._root):
            parent = os.path.dirname(folder)
            # The folder that the root is in may belong to somebody else.
            with suppress(PermissionError):
                self._files.sync_directory(parent)
            self._durable.add(folder)
            folder = parent

    def names_in(self, folder: str) -> list[str]:
        """The folders in a folder, also those with nothing in them."""
        try:
            names = self._files.list_directory(f"{self._root}/{folder}")
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [name for name, is_directory in names if is_directory and is_key_part(name)]

    def names_alike(self, folder: str, name: str) -> list[str]:
        """The folders in a folder whose names differ from this one by case alone.

        They are listed again only when another process made some: a list of ten thousand takes
        longer than the making of a topic.
        """
        path = f"{self._root}/{folder}"
        try:
            known = self._known.get(path)
            if known is None or not known.are_all(self._files.links(path)):
                known = self._look(path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return known.alike(name)

    def _look(self, path: str) -> _Known:
        names = self._files.list_directory(path)
        known = _Known(name for name, is_directory in names if is_directory)
        if len(known) <= FOLDERS_KNOWN_MAX:
            self._known[path] = known
        return known

    def keys_below(self, folder: str) -> Iterator[str]:
        """All keys in the folder and below it, in no order. What cannot be a key is somebody else's."""
        try:
            names = self._files.list_directory(f"{self._root}/{folder}" if folder else self._root)
        except (FileNotFoundError, NotADirectoryError):
            return
        for name, is_directory in names:
            key = f"{folder}/{name}" if folder else name
            if not is_key_part(name):
                continue
            if is_directory:
                yield from self.keys_below(key)
            else:
                yield key
