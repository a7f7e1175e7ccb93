"""Tells the members of groups, at once, that partitions have moved; by whatever process.

Changes of this process ring the bell directly. Those of others are seen through a watch on the
groups' bells (inotify on Linux). Stores without a watch are asked now and then while somebody
listens. Who misses a ring learns of the change with its next heartbeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from penstock.errors import PenstockError, StorageError
from penstock.log.group_file import rings
from penstock.log.names import group_bell_key
from penstock.log.waiting import call_soon
from penstock.stores.base import PersistentBackingStore
from penstock.system import Watch

POLL_SECONDS = 0.05
Listener = Callable[[], None]


class GroupBells:
    """The bells of the groups that this process has members of. Lives on one event loop."""

    def __init__(self, store: PersistentBackingStore) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._listeners: dict[str, set[Listener]] = {}
        self._watched: set[str] = set()
        self._watch: Watch | None = None
        self._poller: asyncio.Task[None] | None = None

    def follow(self, group: str, listener: Listener) -> None:
        """Call the listener, on the loop, when the bell of a group rings. Somebody has joined it."""
        self._listeners.setdefault(group, set()).add(listener)
        if not self._watch_for(group) and self._poller is None:
            self._poller = self._loop.create_task(self._poll())

    def forget(self, group: str, listener: Listener) -> None:
        """Call it no longer."""
        listeners = self._listeners.get(group, set())
        listeners.discard(listener)
        if not listeners:
            self._listeners.pop(group, None)

    def ring(self, group: str) -> None:
        """From any thread: something has changed in a group."""
        call_soon(self._loop, lambda: self._call(group))

    def close(self) -> None:
        """Stop watching; nobody is called any more."""
        self._listeners.clear()
        if self._poller is not None:
            self._poller.cancel()
        watch, self._watch = self._watch, None
        if watch is not None:
            with suppress(OSError, ValueError):
                self._loop.remove_reader(watch.fileno())
            watch.close()

    def _call(self, group: str) -> None:
        for listener in list(self._listeners.get(group, ())):
            listener()

    def _watch_for(self, group: str) -> bool:
        if group in self._watched:
            return True
        if self._watch is None:
            self._watch = self._store.watch()
            if self._watch is None:
                return False
            self._loop.add_reader(self._watch.fileno(), self._on_change)
        try:
            self._store.watch_key(self._watch, group_bell_key(group))
        except StorageError:
            # No more watches on this machine: ask now and then instead.
            return False
        self._watched.add(group)
        return True

    def _on_change(self) -> None:
        if self._watch is None:
            return
        keys = self._watch.drain()
        for group in list(self._listeners):
            if keys is None or group_bell_key(group) in keys:
                self._call(group)

    async def _poll(self) -> None:
        """Ask for all groups that are not watched, while somebody listens to one."""
        heard: dict[str, int] = {}
        while asked := self._listeners.keys() - self._watched:
            for group in sorted(asked):
                # A store that does not answer shows in the heartbeats.
                with suppress(PenstockError):
                    count = await asyncio.to_thread(rings, self._store, group)
                    if heard.setdefault(group, count) != count:
                        heard[group] = count
                        self._call(group)
            await asyncio.sleep(POLL_SECONDS)
        self._poller = None
