"""The way from a cache to its store and back: writes go through, misses are loaded.

Each operation is a task of its own, behind the earlier ones of its key. It changes the store first and
memory after, in one step of the event loop with the news of how the store's call ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from penstock.scaling.cache_backing import CacheBacking, Loaded, Preview
from penstock.scaling.cache_memory import CacheMemory
from penstock.scaling.cache_operations import KeyedOperations
from penstock.scaling.cache_policies import Key, Value
from penstock.scaling.limits import ScalingLimits

Result = TypeVar("Result")

Size = Callable[[Any, Any, int], int]
"""The size of a key and a value of which the length in the store is known."""


class Runner(Protocol):
    """Runs a blocking call off the event loop, as ``asyncio.to_thread`` does."""

    def __call__(self, call: Callable[[], Result], /) -> Awaitable[Result]: ...


class WriteThrough(Generic[Key, Value]):
    """Begins operations on the store; the tasks that they return may be waited for or not."""

    def __init__(
        self,
        backing: CacheBacking[Key, Value],
        memory: CacheMemory[Key, Value],
        operations: KeyedOperations[Key],
        size: Size,
        runner: Runner,
    ) -> None:
        self._backing = backing
        self._memory = memory
        self._operations = operations
        self._size = size
        self._runner = runner
        self._loading: dict[Key, asyncio.Task[Loaded[Key, Value] | None]] = {}
        self.loads = 0
        self.writes = 0
        self.deletes = 0
        self.failures = 0

    def load(self, key: Key) -> asyncio.Task[Loaded[Key, Value] | None]:
        """Read a value into memory; all who ask while it is read share the task."""
        task = self._loading.get(key)
        if task is None or task.done():
            task = self._operations.start(key, partial(self._load, key))
            self._loading[key] = task
            task.add_done_callback(partial(self._forget_load, key))
        return task

    def reload(self, key: Key) -> asyncio.Task[Loaded[Key, Value] | None]:
        """Read a value into memory in place of what memory has."""
        return self._operations.start(key, partial(self._reload, key))

    def write(self, key: Key, value: Value) -> asyncio.Task[None]:
        """Write a value, as it is now."""
        data = self._backing.encode(value)
        write = partial(self._backing.store.write, self._backing.name_of(key), data)
        size = self._size(key, value, len(data))
        return self._operations.start(key, partial(self._write, key, value, size, write))

    def delete(self, key: Key) -> asyncio.Task[None]:
        """Delete a value."""
        delete = partial(self._backing.store.delete, self._backing.name_of(key))
        return self._operations.start(key, partial(self._delete, key, delete))

    def clear(self) -> asyncio.Task[None]:
        """Delete all values."""
        return self._operations.start_alone(self._clear)

    def warm(
        self,
        entries_max: int,
        newest: Callable[[Key, Value], Any] | None,
        limits: Callable[[], ScalingLimits],
    ) -> asyncio.Task[int]:
        """Read the newest values into memory, as far as there is room."""
        preview = partial(self._backing.preview, entries_max, newest)
        return self._operations.start_alone(partial(self._warm, preview, limits))

    async def _load(self, key: Key) -> Loaded[Key, Value] | None:
        entry = self._memory.peek(key)
        if entry is not None:  # a put came in between
            return Loaded(key, entry.value, entry.size)
        return await self._read(key)

    async def _reload(self, key: Key) -> Loaded[Key, Value] | None:
        try:
            return await self._read(key)
        except BaseException:
            self._memory.drop(key)
            raise

    async def _read(self, key: Key) -> Loaded[Key, Value] | None:
        found = await self._run(partial(self._backing.read, key))
        if found is None:
            self._memory.drop(key)
        else:
            # Not dropped before: a policy may remember the key, and learn from its coming back.
            self.loads += 1
            self._memory.keep(key, found.value, self._size(*found))
        return found

    def _forget_load(self, key: Key, task: asyncio.Task[Any]) -> None:
        if self._loading.get(key) is task:
            del self._loading[key]

    async def _write(self, key: Key, value: Value, size: int, write: Callable[[], None]) -> None:
        try:
            await self._run(write)
        except BaseException:
            # Nobody knows which value the store has now. The next get asks it.
            self._memory.drop(key)
            raise
        self.writes += 1
        self._memory.keep(key, value, size)

    async def _delete(self, key: Key, delete: Callable[[], None]) -> None:
        try:
            await self._run(delete)
        finally:
            self._memory.drop(key)
        self.deletes += 1

    async def _clear(self) -> None:
        try:
            await self._run(self._backing.clear)
        finally:
            self._memory.clear()

    async def _warm(
        self, preview: Callable[[], Preview[Key, Value]], limits: Callable[[], ScalingLimits]
    ) -> int:
        loaded, unreadable = await self._run(preview)
        self.failures += unreadable
        self.loads += len(loaded)
        chosen = self._that_fit(loaded, limits())
        for one, size in reversed(chosen):  # the newest is the last one, as if it was used last
            self._memory.keep(one.key, one.value, size)
        return len(chosen)

    def _that_fit(
        self, loaded: list[Loaded[Key, Value]], limits: ScalingLimits
    ) -> list[tuple[Loaded[Key, Value], int]]:
        """The newest ones, which stand in front, as far as there is room for them."""
        entries = limits.cache_entries_max - len(self._memory)
        room = limits.memory_bytes_max - self._memory.bytes
        chosen: list[tuple[Loaded[Key, Value], int]] = []
        for one in loaded:
            size = self._size(*one)
            if len(chosen) >= entries or size > room:
                break
            if self._memory.peek(one.key) is None:
                chosen.append((one, size))
                room -= size
        return chosen

    async def _run(self, call: Callable[[], Result]) -> Result:
        try:
            return await self._runner(call)
        except Exception:
            self.failures += 1
            raise
