"""Tells subscriptions that there is something new, from this process or another.

Commits of this process ring the bell directly. Those of other processes are seen through a watch
on the heads (inotify on Linux), which costs nothing while nothing happens and tells which heads to
look at. Stores without a watch are asked now and then for all who wait, less often the longer they
are quiet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from penstock.errors import PenstockError, StorageError
from penstock.log.open_topic import OpenTopic
from penstock.stores.base import PersistentBackingStore
from penstock.system import Watch

POLL_SECONDS_MIN = 0.002
POLL_SECONDS_MAX = 0.05


class Changes:
    """Bells for the topics of a queue. Lives on the queue's event loop."""

    def __init__(self, store: PersistentBackingStore, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._watch: Watch | None = None
        self._topics: dict[str, OpenTopic] = {}
        self._heads: dict[str, tuple[OpenTopic, int]] = {}
        """Key of a watched head → its topic and partition."""
        self._poller: asyncio.Task[None] | None = None
        self._pause = POLL_SECONDS_MIN
        self._tickets: dict[str, int] = {}
        self._told: dict[str, list[int]] = {}
        """The durable offsets of a topic when its bell rang last."""
        self._unread: set[str] = set()
        """Topics whose heads could not be read when they changed."""
        self._waiters: dict[str, set[asyncio.Future[None]]] = {}
        self._refusal: PenstockError | None = None

    def follow(self, topic: OpenTopic) -> None:
        """Notice what other processes append to the topic."""
        if topic.name in self._topics:
            return
        self._topics[topic.name] = topic
        if self._watch is None and len(self._topics) == 1:
            self._watch = self._store.watch()
            if self._watch is not None:
                self._loop.add_reader(self._watch.fileno(), self._on_change)
        self._watch_heads(topic)

    def _watch_heads(self, topic: OpenTopic) -> list[int]:
        """Watch the heads that are not watched yet, and tell which."""
        new: list[int] = []
        if self._watch is not None:
            try:
                for number, log in enumerate(topic.logs):
                    if log.keys.head not in self._heads:
                        new.append(number)
                        self._heads[log.keys.head] = (topic, number)
                        self._store.watch_key(self._watch, log.keys.head)
            except StorageError:
                # No more watches on this machine, or no head yet: ask now and then instead.
                self._stop_watching()
        return new

    def ticket(self, topic: str) -> int:
        """How often the bell of the topic rang so far."""
        return self._tickets.get(topic, 0)

    async def wait(self, topic: str, ticket: int) -> None:
        """Return when the bell has rung since the ticket was drawn.

        Raises when the heads of the topic cannot be read: nobody knows then what there is.
        """
        if topic in self._unread:
            await asyncio.to_thread(self._topics[topic].refresh)
            self._unread.discard(topic)
            self.wake(topic)
        if new := self._watch_heads(self._topics[topic]):
            # The topic was repartitioned; something may have come before the watch.
            await asyncio.to_thread(self._topics[topic].refresh, new)
            self.wake(topic)
        self._pause = POLL_SECONDS_MIN
        while self.ticket(topic) == ticket:
            if self._refusal is not None:
                raise self._refusal.again()
            if self._watch is None and (self._poller is None or self._poller.done()):
                self._poller = self._loop.create_task(self._poll())
            await self._bell(topic)

    async def _bell(self, topic: str) -> None:
        """Wait for a ring of the bell."""
        waiter = self._loop.create_future()
        waiters = self._waiters.setdefault(topic, set())
        waiters.add(waiter)
        try:
            await waiter
        finally:
            # Waits that are given up again and again must not pile up.
            waiters.discard(waiter)

    async def _poll(self) -> None:
        """Ask for all who wait, while somebody does."""
        while self._watch is None and any(self._waiters.values()):
            await asyncio.sleep(self._pause)
            self._pause = min(self._pause * 1.3, POLL_SECONDS_MAX)
            waited_for = [name for name, waiters in self._waiters.items() if waiters]
            await asyncio.gather(*map(self._ask, waited_for))

    async def _ask(self, topic: str) -> None:
        try:
            moved = await asyncio.to_thread(self._topics[topic].refresh)
        except Exception:
            # Whoever waits looks again, and raises if it is still so.
            self._unread.add(topic)
            moved = True
        self._wake_if(moved, topic)

    def _wake_if(self, moved: bool, topic: str) -> None:
        """Ring if it moved, also when somebody else has looked in between, and rang no bell."""
        if moved or self._topics[topic].durable != self._told.get(topic):
            self.wake(topic)

    def wake(self, topic: str) -> None:
        """Ring the bell."""
        if topic in self._topics:
            self._told[topic] = self._topics[topic].durable
        self._tickets[topic] = self.ticket(topic) + 1
        for waiter in self._waiters.pop(topic, ()):
            _set(waiter)

    def close(self, refusal: PenstockError) -> None:
        """Stop watching and let all waits end with this error."""
        self._refusal = refusal
        if self._poller is not None:
            self._poller.cancel()
        self._stop_watching()

    def _stop_watching(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            with suppress(OSError, ValueError):
                self._loop.remove_reader(watch.fileno())
            watch.close()
        # Those who relied on the watch look again: they poll from now on, or are refused.
        for waiters in self._waiters.values():
            for waiter in waiters:
                _set(waiter)

    def _on_change(self) -> None:
        if self._watch is None:
            return
        for topic, partitions in self._changed(self._watch.drain()):
            # A local store's heads are in the page cache: a few microseconds each.
            try:
                moved = topic.refresh(partitions)
            except PenstockError:
                # The subscriptions look again, and raise if it is still so.
                self._unread.add(topic.name)
                moved = True
            self._wake_if(moved, topic.name)

    def _changed(self, keys: set[str] | None) -> Iterable[tuple[OpenTopic, list[int] | None]]:
        """The topics of these heads, each with its partitions; all when the keys are not known."""
        if keys is None:
            return [(topic, None) for topic in self._topics.values()]
        changed: dict[str, list[int]] = {}
        for key in keys:
            topic, number = self._heads[key]
            changed.setdefault(topic.name, []).append(number)
        return [(self._topics[name], numbers) for name, numbers in changed.items()]


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
