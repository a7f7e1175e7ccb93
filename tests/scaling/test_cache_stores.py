"""The cache in front of the real stores, with real threads and a real crash."""

import asyncio
import random
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from penstock.scaling import BoundedCache, CacheBacking, EvictionPolicy, ScalingLimits
from penstock.stores import DirectoryStore, MemoryStore, SqliteStore

ROOT = Path(__file__).parent.parent.parent
POLICIES = list(EvictionPolicy)
STORES = ["memory", "directory", "sqlite"]

WRITER = """
import asyncio, sys
from penstock.scaling import BoundedCache, CacheBacking, ScalingLimits
from penstock.stores import DirectoryStore

async def main():
    backing = CacheBacking(
        store=DirectoryStore(sys.argv[1]), prefix="c/", encode=str.encode, decode=bytes.decode
    )
    cache = BoundedCache(ScalingLimits(cache_entries_max=3), backing=backing)
    for number in range(10**9):
        await cache.put(f"k{number % 50}", str(number))
        print(number, flush=True)

asyncio.run(main())
"""


@pytest.fixture(params=STORES)
def open_store(request, tmp_path):
    """Opens one place again and again; the memory store is its own place."""
    if request.param == "memory":
        store = MemoryStore()
        return lambda: store
    kind = {"directory": DirectoryStore, "sqlite": SqliteStore}[request.param]
    return partial(kind, tmp_path / "store")


def cache_on(store, policy="lru", **limits):
    backing = CacheBacking[str, str](
        store=store, prefix="cache/", encode=str.encode, decode=bytes.decode
    )
    ttl = 3_600 if policy == "ttl" else None
    return BoundedCache[str, str](
        ScalingLimits(**limits), policy=policy, ttl_seconds=ttl, backing=backing
    )


@pytest.mark.acceptance(93, 106)
@pytest.mark.parametrize("policy", POLICIES)
async def test_everything_is_there_after_a_restart(open_store, policy):
    store = open_store()
    async with cache_on(store, policy, cache_entries_max=4) as cache:
        await asyncio.gather(
            *(cache.put(f"group/p{number:02}", str(number)) for number in range(20))
        )
        await cache.delete("group/p03")
        assert cache.statistics().evictions == 16
    if not isinstance(store, MemoryStore):
        store.close()
    store = open_store()
    async with cache_on(store, policy, cache_entries_max=4) as cache:
        assert await cache.warm_start() == 4
        assert set(cache.keys()) == {f"group/p{number}" for number in (16, 17, 18, 19)}
        values = [await cache.get(f"group/p{number:02}") for number in range(20)]
        assert values == [None if number == 3 else str(number) for number in range(20)]
        await cache.clear()
        assert store.list("cache/") == []
    store.close()


@pytest.mark.acceptance(106)
@pytest.mark.parametrize("policy", POLICIES)
async def test_many_tasks_and_threads_leave_memory_and_store_alike(open_store, policy):
    store = open_store()
    chance = random.Random(policy)
    expected: dict[str, str | None] = {}

    async def work(cache, number):
        for step in range(15):
            key = f"k{chance.randrange(12)}"
            choice = chance.random()
            if choice < 0.5:
                # The calls of one key are done in their order, so the last one counts.
                expected[key] = f"{number}-{step}"
                await cache.put(key, f"{number}-{step}")
            elif choice < 0.6:
                expected[key] = None
                await cache.delete(key)
            else:
                await cache.get(key)

    async with cache_on(store, policy, cache_entries_max=5, concurrent_operations_max=4) as cache:
        await asyncio.gather(*(work(cache, number) for number in range(20)))
        statistics = cache.statistics()
        assert statistics.failures == statistics.operations == 0
        held = cache.keys()
        assert [cache.get_nowait(key) for key in held] == [expected[key] for key in held]
        for key, value in expected.items():
            assert await cache.get(key) == value
    stored = {key: store.read(f"cache/{key}").decode() for key, value in expected.items() if value}
    assert stored == {key: value for key, value in expected.items() if value}
    assert len(store.list("cache/")) == len(stored)
    store.close()


async def test_after_a_crash_every_put_that_returned_is_there(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path / "store")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as writer:
        assert writer.stdout is not None
        told = [int(writer.stdout.readline()) for _ in range(200)]
        writer.send_signal(signal.SIGKILL)
        told += [int(line) for line in writer.stdout if line.endswith("\n")]
    last = told[-1]
    with DirectoryStore(tmp_path / "store") as store:
        backing = CacheBacking[str, str](
            store=store, prefix="c/", encode=str.encode, decode=bytes.decode
        )
        async with BoundedCache[str, str](backing=backing) as cache:
            for number in range(last - 48, last + 1):
                value = await cache.get(f"k{number % 50}")
                assert value in {str(number), str(number + 50)}
