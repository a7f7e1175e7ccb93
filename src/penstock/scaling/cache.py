"""A cache with bounds in front of a store that has everything."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, Generic, Self, TypeVar, overload

from penstock.bus.timers import Timers
from penstock.errors import Closed, InvalidOption, NotSupported, RecordTooLarge
from penstock.pressure.states import BackpressureState, BackpressureThresholds
from penstock.scaling.cache_backing import CacheBacking
from penstock.scaling.cache_memory import CacheMemory, EvictionPolicy
from penstock.scaling.cache_operations import KeyedOperations
from penstock.scaling.cache_policies import Key, Value
from penstock.scaling.cache_statistics import CacheStatistics
from penstock.scaling.cache_through import Runner, WriteThrough
from penstock.scaling.limits import ScalingLimits, checked_limits
from penstock.system import System

TIMEOUT_SECONDS = 30.0
ENTRY_BYTES = 200
"""What an entry takes beside its key and its value, roughly."""
SWEPT_AT_ONCE = 1_000

Default = TypeVar("Default")
Result = TypeVar("Result")


class BoundedCache(Generic[Key, Value]):
    """Holds the values that are needed most, within bounds of entries and bytes.

    **With a backing store** it writes through. ``put`` and ``delete`` change the store first and
    memory after, and return when both are done, so whatever leaves memory (by eviction, expiry, a
    lower limit or a crash) is in the store, and the next ``get`` loads it again. TTL is then how
    long memory may lag behind a store that others write to. **Without** one, what leaves is gone.

    Operations on one key are done in the order of the calls. While a put or delete is on its way, a
    get sees the value before it. Gets of one key that have to load share one read. At most
    ``concurrent_operations_max`` operations use the store at the same time; when
    ``queue_depth_max`` wait or run, another raises BufferFull and does nothing.

    *Cancelled* or after its deadline (DeadlineExceeded), a caller stops waiting; what it began
    goes on and memory follows it. *When the store fails*, the caller gets the error, and memory
    forgets the key, as nobody knows which value the store has; the next get asks it. *After a
    crash* the store has every put that returned, and any of those that did not.

    The size of an entry is what ``sizer(key, value)`` says. Without a sizer it is the length of the
    encoded value when there is a store, else ``sys.getsizeof`` of key and value, which does not see
    what a container refers to; and 200 bytes for the entry itself.

    It belongs to one event loop. Keys and values are not copied.
    """

    def __init__(
        self,
        limits: ScalingLimits | None = None,
        *,
        policy: EvictionPolicy | str = EvictionPolicy.LRU,
        ttl_seconds: float | None = None,
        backing: CacheBacking[Key, Value] | None = None,
        sizer: Callable[[Key, Value], int] | None = None,
        runner: Runner = asyncio.to_thread,
        system: System | None = None,
    ) -> None:
        clock = (system or System()).clock
        self._limits = checked_limits(ScalingLimits() if limits is None else limits, ScalingLimits)
        self._memory: CacheMemory[Key, Value] = CacheMemory(
            self._limits, _policy_named(policy), ttl_seconds, clock.monotonic
        )
        self._operations: KeyedOperations[Key] = KeyedOperations(
            self._limits.concurrent_operations_max, self._limits.queue_depth_max
        )
        self._sizer = sizer
        self._through: WriteThrough[Key, Value] | None = None
        if backing is not None:
            self._through = WriteThrough(
                backing, self._memory, self._operations, self._size, runner
            )
        self._timers = Timers(clock)
        self._writes = 0
        self._deletes = 0
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def __len__(self) -> int:
        return len(self._memory)

    def __contains__(self, key: Key) -> bool:
        """Whether memory has the value; does not count as a use."""
        return self._memory.peek(key) is not None

    def keys(self) -> tuple[Key, ...]:
        """The keys of the entries in memory."""
        return self._memory.keys()

    # Memory alone

    @overload
    def get_nowait(self, key: Key) -> Value | None: ...
    @overload
    def get_nowait(self, key: Key, default: Default) -> Value | Default: ...
    def get_nowait(self, key: Key, default: Any = None) -> Any:
        """The value when memory has it, else the default; the store is not asked."""
        entry = self._memory.find(key)
        return default if entry is None else entry.value

    def put_nowait(self, key: Key, value: Value) -> None:
        """Set a value, in a cache without a store. Raises RecordTooLarge; nothing changed then."""
        self._check_memory_only("put")
        size = self._size(key, value)
        if not self._memory.fits(size):
            raise RecordTooLarge(
                f"a value of {size} bytes does not fit into a cache of "
                f"{self._limits.memory_bytes_max}",
                size=size,
            )
        self._memory.keep(key, value, size)
        self._writes += 1

    def delete_nowait(self, key: Key) -> None:
        """Remove a key, in a cache without a store. One that is not there is no error."""
        self._check_memory_only("delete")
        self._memory.drop(key)
        self._deletes += 1

    def clear_nowait(self) -> None:
        """Remove everything, in a cache without a store."""
        self._check_memory_only("clear")
        self._memory.clear()

    def sweep(self, entries_max: int = SWEPT_AT_ONCE) -> int:
        """Clear away entries whose time is over, at most so many; returns how many there were.

        A get does not return them in any case, and every put clears away a few.
        """
        return self._memory.sweep(entries_max)

    # Memory and the store

    @overload
    async def get(self, key: Key, *, timeout: float = ...) -> Value | None: ...
    @overload
    async def get(self, key: Key, default: Default, *, timeout: float = ...) -> Value | Default: ...
    async def get(self, key: Key, default: Any = None, *, timeout: float = TIMEOUT_SECONDS) -> Any:
        """The value, from memory or from the store; the default when neither has it."""
        self._check_open()
        entry = self._memory.find(key)
        if entry is not None:
            return entry.value
        if self._through is None:
            return default
        found = await self._finished(partial(self._through.load, key), timeout, "load a value")
        return default if found is None else found.value

    async def refresh(self, key: Key, *, timeout: float = TIMEOUT_SECONDS) -> Value | None:
        """The value as the store has it now, for when others may have written; memory follows."""
        if self._through is None:
            raise NotSupported("a cache without a backing store cannot refresh")
        self._check_open()
        found = await self._finished(partial(self._through.reload, key), timeout, "load a value")
        return None if found is None else found.value

    async def put(self, key: Key, value: Value, *, timeout: float = TIMEOUT_SECONDS) -> None:
        """Set the value of a key; it is in the store when this returns."""
        if self._through is None:
            self.put_nowait(key, value)
            return
        self._check_open()
        await self._finished(partial(self._through.write, key, value), timeout, "write a value")

    async def delete(self, key: Key, *, timeout: float = TIMEOUT_SECONDS) -> None:
        """Remove a key, from the store too. One that is not there is no error."""
        if self._through is None:
            self.delete_nowait(key)
            return
        self._check_open()
        await self._finished(partial(self._through.delete, key), timeout, "delete a value")

    async def clear(self, *, timeout: float = TIMEOUT_SECONDS) -> None:
        """Remove everything, from the store too: all that begins with the prefix of the backing.

        It waits for what was begun before, and what comes later waits for it. If it fails, some
        values are deleted, and memory has none.
        """
        if self._through is None:
            self.clear_nowait()
            return
        self._check_open()
        await self._finished(self._through.clear, timeout, "clear a cache")

    async def warm_start(
        self,
        entries_max: int | None = None,
        *,
        newest: Callable[[Key, Value], Any] | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> int:
        """Load the newest values from the store, at most so many; returns how many memory took.

        The newest are those with the largest ``newest(key, value)``, which reads all values;
        without it those with the last names, which reads no other. Nothing leaves memory for
        them: it ends at the bounds. Values that do not decode are counted as failures and left
        where they are; a get of one raises. Operations on the store wait until it is done.
        """
        self._check_open()
        most = self._limits.cache_entries_max if entries_max is None else entries_max
        if self._through is None:
            raise NotSupported("a cache without a backing store cannot warm_start")
        if most < 1:
            raise InvalidOption(f"entries_max {most}: use 1 or more", option="entries_max")
        most = min(most, self._limits.cache_entries_max)
        warm = partial(self._through.warm, most, newest, lambda: self._limits)
        return await self._finished(warm, timeout, "warm a cache")

    async def close(self, *, timeout: float = TIMEOUT_SECONDS) -> None:
        """Take no more calls, and return when all that was begun is done. The store stays open."""
        self._closed = True
        async with self._timers.deadline(timeout, "close a cache"):
            await self._operations.drain()

    # What every subsystem that scales has

    @property
    def current_limits(self) -> ScalingLimits:
        """The limits that are in force."""
        return self._limits

    @property
    def current_backpressure_state(self) -> BackpressureState:
        """By the operations that wait for the store. A cache that is full is as it should be."""
        return BackpressureThresholds().level(self._operations.utilisation)

    def reconfigure_limits(self, limits: ScalingLimits) -> None:
        """Put other limits in force. Entries above them leave memory now, and are in the store."""
        self._limits = checked_limits(limits, ScalingLimits)
        self._memory.resize(limits)
        self._operations.resize(limits.concurrent_operations_max, limits.queue_depth_max)

    def get_scaling_metrics(self) -> Mapping[str, Any]:
        """The statistics by name, and the hit rate."""
        statistics = self.statistics()
        return {**asdict(statistics), "hit_rate": statistics.hit_rate}

    def statistics(self) -> CacheStatistics:
        """The figures of this moment."""
        memory, through = self._memory, self._through
        return CacheStatistics(
            hits=memory.hits,
            misses=memory.misses,
            loads=through.loads if through else 0,
            writes=through.writes if through else self._writes,
            deletes=through.deletes if through else self._deletes,
            failures=through.failures if through else 0,
            evictions=memory.evictions,
            expirations=memory.expirations,
            oversized=memory.oversized,
            entries=len(memory),
            bytes=memory.bytes,
            operations=self._operations.depth,
            operations_running=self._operations.running,
        )

    async def _finished(
        self, begin: Callable[[], asyncio.Task[Result]], timeout: float, action: str
    ) -> Result:
        async with self._timers.deadline(timeout, action):
            task = begin()
            await asyncio.wait({task})  # which leaves the task alone when it is cancelled
        return task.result()

    def _size(self, key: Key, value: Value, encoded: int | None = None) -> int:
        if self._sizer is None:
            payload = sys.getsizeof(value) if encoded is None else encoded
            return payload + sys.getsizeof(key) + ENTRY_BYTES
        size = self._sizer(key, value)
        if size < 0:
            raise InvalidOption(f"the sizer says {size} bytes: use 0 or more", option="sizer")
        return size

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the cache was closed")

    def _check_memory_only(self, action: str) -> None:
        self._check_open()
        if self._through is not None:
            raise NotSupported(
                f"a cache with a backing store cannot {action} without waiting for it: use "
                f"await {action}()",
                operation=action,
            )


def _policy_named(policy: EvictionPolicy | str) -> EvictionPolicy:
    try:
        return EvictionPolicy(policy)
    except ValueError:
        known = ", ".join(EvictionPolicy)
        raise InvalidOption(
            f"there is no policy {policy!r}: use one of {known}", option="policy"
        ) from None
