"""The names of the simulated disk: directories, and the changes to them that are not yet synced.

Files and directories are numbers here (inodes). A change is a create, rename, unlink, mkdir or
rmdir. It becomes durable when every directory it touches was synced. Changes that share a name
(so all changes of one file) keep their order; all others may reach the platter in any order,
or not at all.
"""

from __future__ import annotations

import copy
import errno
import os
from collections.abc import Iterable, Mapping

ROOT = 0

Edit = tuple[int, str, int | None]
"""(directory, name, file or None): set or remove one name."""
Folders = dict[int, dict[str, int]]


class NameChange:
    """One pending change; its edits happen together or not at all."""

    __slots__ = ("edits", "label", "needs", "nodes", "stranded", "tick", "unsynced")

    def __init__(
        self, tick: int, label: str, edits: tuple[Edit, ...], nodes: frozenset[int]
    ) -> None:
        self.tick = tick
        self.label = label
        self.edits = edits
        self.nodes = nodes
        self.needs: frozenset[int] = frozenset()
        self.unsynced = frozenset(folder for folder, _, _ in edits)
        self.stranded = False

    def follows(self, earlier: NameChange, removed: frozenset[int]) -> bool:
        """Whether this can only be on the platter when the earlier one is."""
        shared = any(edit[:2] == other[:2] for edit in self.edits for other in earlier.edits)
        return shared or any(folder in removed for folder, _, _ in earlier.edits)


def apply_edits(folders: Folders, edits: Iterable[Edit]) -> None:
    """Do the edits; the inner dictionaries are shared, so they are replaced, never changed."""
    for folder, name, node in edits:
        names = dict(folders[folder])
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node
        folders[folder] = names


class Names:
    """The directory tree as programs see it (``live``) and as the platter has it (``saved``)."""

    def __init__(self, saved: Folders) -> None:
        self.saved = saved
        self.live = dict(saved)
        self.pending: list[NameChange] = []

    def clone(self) -> Names:
        twin = Names(dict(self.saved))
        twin.live = dict(self.live)
        twin.pending = [copy.copy(change) for change in self.pending]
        return twin

    def resolve(self, path: str) -> int:
        """The file or directory that has this path."""
        node: int | None = ROOT
        for part in _parts(path):
            names = self.live.get(node) if node is not None else {}
            if names is None:
                raise failure(errno.ENOTDIR, path)
            node = names.get(part)
        if node is None:
            raise failure(errno.ENOENT, path)
        return node

    def place(self, path: str) -> tuple[int, str]:
        """The directory that holds (or could hold) the path, and the last part of the path."""
        parent, _, name = path.rstrip("/").rpartition("/")
        folder = self.resolve(parent or "/")
        if folder not in self.live:
            raise failure(errno.ENOTDIR, path)
        return folder, name

    def lookup(self, path: str) -> int | None:
        """Like :meth:`resolve`, but None when only the last part is missing."""
        folder, name = self.place(path)
        return self.live[folder].get(name) if name else ROOT

    def add_folder(self, node: int) -> None:
        """Make an empty directory without a name."""
        self.saved[node] = {}
        self.live[node] = {}

    def change(self, change: NameChange, removed: frozenset[int] = frozenset()) -> None:
        """Do it in the cache. ``removed`` are the directories that cease to exist."""
        apply_edits(self.live, change.edits)
        earlier = (each for each in self.pending if change.follows(each, removed))
        change.needs = frozenset(each.tick for each in earlier)
        self.pending.append(change)

    def sync(self, folder: int) -> None:
        """Save the changes that wait for this directory only, and all that they follow."""
        certain: set[int] = set()
        for change in reversed(self.pending):
            if not change.stranded:
                change.unsynced -= {folder}
            if not change.unsynced or change.tick in certain:
                certain.add(change.tick)
                certain |= change.needs
        self._settle(certain)

    def strand(self, folder: int) -> None:
        """A sync failed: what it should have saved is not saved by a later one either."""
        for change in self.pending:
            change.stranded |= folder in change.unsynced

    def force(self, *edits: Edit) -> None:
        """Do the edits in the cache and on the platter at once."""
        apply_edits(self.live, edits)
        apply_edits(self.saved, edits)

    def inside(self, node: int, ancestor: int) -> bool:
        """Whether ``node`` is ``ancestor`` or below it."""
        return node in reachable(self.live, [ancestor])

    def _settle(self, certain: set[int]) -> None:
        for change in self.pending:
            if change.tick in certain:
                apply_edits(self.saved, change.edits)
        self.pending = [change for change in self.pending if change.tick not in certain]


def reachable(folders: Mapping[int, Mapping[str, int]], start: Iterable[int]) -> set[int]:
    """Everything at and below the start."""
    found: set[int] = set()
    stack = list(start)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(folders.get(node, {}).values())
    return found


def failure(code: int, path: str) -> OSError:
    """The error that the system call would give."""
    return OSError(code, os.strerror(code), path)


def _parts(path: str) -> list[str]:
    if not path.startswith("/"):
        raise ValueError(f"paths are absolute, this one is not: {path!r}")
    return [part for part in path.split("/") if part]
