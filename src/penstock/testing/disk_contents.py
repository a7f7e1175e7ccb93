"""The files and names of the simulated disk together, and what system calls do to them."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator

from penstock.testing.disk_crash import Plan, Snapshot
from penstock.testing.disk_names import ROOT, Edit, Folders, NameChange, Names, failure, reachable
from penstock.testing.disk_pages import CachedFile, Operation


class Contents:
    """Everything that is stored; nothing about descriptors, locks or faults.

    A file that nobody touched since the last power cut is plain shared ``bytes``.
    """

    def __init__(self, files: dict[int, bytes], folders: Folders, number: int) -> None:
        self.files: dict[int, CachedFile | bytes] = {**files}
        self.names = Names(folders)
        self._number = number

    def clone(self) -> Contents:
        twin = Contents({}, {}, self._number)
        twin.names = self.names.clone()
        twin.files = {
            node: file.clone() if isinstance(file, CachedFile) else file
            for node, file in self.files.items()
        }
        return twin

    def snapshot(self) -> Snapshot:
        return Snapshot(self.files, self.names.saved, self.names.pending)

    def after(self, snapshot: Snapshot, plan: Plan) -> Contents:
        return Contents(snapshot.files_after(plan), snapshot.folders_after(plan), self._number)

    # Looking

    def file(self, node: int) -> CachedFile:
        file = self.files[node]
        if isinstance(file, bytes):
            file = self.files[node] = CachedFile(file)
        return file

    def regular(self, path: str) -> int:
        """The file of that path; a directory is an error."""
        node = self.names.resolve(path)
        if node in self.names.live:
            raise failure(errno.EISDIR, path)
        return node

    def folder(self, path: str) -> int:
        """The directory of that path; a file is an error."""
        node = self.names.resolve(path)
        if node not in self.names.live:
            raise failure(errno.ENOTDIR, path)
        return node

    def entries(self, path: str) -> list[tuple[str, bool]]:
        folders = self.names.live
        return [(name, node in folders) for name, node in folders[self.folder(path)].items()]

    def walk(self, folder: int = ROOT, path: str = "") -> Iterator[str]:
        for name, node in self.names.live[folder].items():
            if node in self.names.live:
                yield from self.walk(node, f"{path}/{name}")
            else:
                yield f"{path}/{name}"

    def size(self, node: int) -> int:
        file = self.files[node]
        return len(file) if isinstance(file, bytes) else len(file.live)

    def used(self, opened: Iterable[int]) -> int:
        """Bytes in files that have a name or are open."""
        self.collect(opened)
        return sum(map(self.size, self.files))

    # Changing, in the page cache

    def change(self, node: int, path: str, position: int, data: bytes | None) -> None:
        self.file(node).change(Operation(self._next(), path, position, data))

    def create(self, path: str) -> int:
        node = self._next()
        self.files[node] = b""
        self._add_name(f"create {path}", path, node)
        return node

    def make_directory(self, path: str) -> None:
        if self.names.lookup(path) is not None:
            raise failure(errno.EEXIST, path)
        node = self._next()
        self.names.add_folder(node)
        self._add_name(f"make directory {path}", path, node)

    def unlink(self, path: str) -> None:
        self._change_names(f"unlink {path}", [(*self.names.place(path), None)], self.regular(path))

    def remove_directory(self, path: str) -> None:
        node = self.folder(path)
        if self.names.live[node]:
            raise failure(errno.ENOTEMPTY, path)
        self._change_names(f"remove directory {path}", [(*self.names.place(path), None)], node)

    def rename(self, source: str, target: str) -> None:
        old, new = self.names.place(source), self.names.place(target)
        node, replaced = self.names.resolve(source), self.names.lookup(target)
        if node == replaced:
            return
        self._check_rename(node, replaced, new[0], target)
        edits: list[Edit] = [(*old, None), (*new, node)]
        self._change_names(f"rename {source} to {target}", edits, replaced, node)

    # Changing, at once and durably

    def put(self, path: str, content: bytes) -> None:
        if self.names.lookup(path) is None:
            node = self._next()
            self.files[node] = b""
            self.names.force((*self.names.place(path), node))
        self.file(self.regular(path)).reset(content)

    def delete(self, path: str) -> None:
        self.file(self.regular(path)).links = 0
        self.names.force((*self.names.place(path), None))

    def put_directories(self, path: str) -> None:
        parts = [part for part in path.split("/") if part]
        for count in range(1, len(parts) + 1):
            parent = "/" + "/".join(parts[:count])
            if self.names.lookup(parent) is None:
                node = self._next()
                self.names.add_folder(node)
                self.names.force((*self.names.place(parent), node))

    def collect(self, opened: Iterable[int]) -> None:
        """Forget files without a name, pending or not, that nobody has open."""
        start = [ROOT, *opened]
        start += [node for change in self.names.pending for node in change.nodes]
        found = reachable(self.names.saved, start) | reachable(self.names.live, start)
        for node in self.files.keys() - found:
            del self.files[node]

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _add_name(self, label: str, path: str, node: int) -> None:
        edit = (*self.names.place(path), node)
        self.names.change(NameChange(self._next(), label, (edit,), frozenset((node,))))

    def _change_names(
        self, label: str, edits: list[Edit], gone: int | None, moved: int | None = None
    ) -> None:
        nodes = frozenset(node for node in (gone, moved) if node is not None)
        change = NameChange(self._next(), label, tuple(edits), nodes)
        self.names.change(change, removed=nodes - {moved})
        if gone in self.files:
            self.file(gone).links = 0

    def _check_rename(self, node: int, replaced: int | None, folder: int, target: str) -> None:
        folders = self.names.live
        if node in folders and self.names.inside(folder, node):
            raise failure(errno.EINVAL, target)
        if replaced is None:
            return
        if self.names.inside(node, replaced):
            raise failure(errno.ENOTEMPTY, target)
        if node in folders and replaced not in folders:
            raise failure(errno.ENOTDIR, target)
        if node not in folders and replaced in folders:
            raise failure(errno.EISDIR, target)
        if folders.get(replaced):
            raise failure(errno.ENOTEMPTY, target)
