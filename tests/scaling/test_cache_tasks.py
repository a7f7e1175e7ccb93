"""Many tasks use one cache: order per key, one read for all, and what a cancelled one leaves."""

import asyncio
import threading

import pytest

from penstock.errors import DeadlineExceeded, InvalidOption
from penstock.scaling import BoundedCache, CacheBacking
from penstock.testing.clock import until_idle


async def test_loads_of_one_key_share_one_read(make_cache, store, runner):
    cache = make_cache(runner=runner)
    store.values["c/k"] = b"v"
    gets = [asyncio.create_task(cache.get("k")) for _ in range(50)]
    await until_idle()
    assert len(runner.held) == 1
    runner.let_one_through()
    assert await asyncio.gather(*gets) == ["v"] * 50
    statistics = cache.statistics()
    assert (statistics.loads, statistics.misses, store.counts["read"]) == (1, 50, 1)


async def test_operations_of_one_key_are_done_in_order_and_of_others_side_by_side(
    make_cache, store, runner
):
    cache = make_cache(runner=runner)
    calls = [cache.put("a", "1"), cache.put("a", "2"), cache.delete("a"), cache.put("a", "3")]
    tasks = [asyncio.create_task(call) for call in [*calls, cache.put("b", "x")]]
    await until_idle()
    assert len(runner.held) == 2, "one of each key"
    while runner.held:
        runner.let_one_through()
        await until_idle()
    await asyncio.gather(*tasks)
    of_a = [name for name, key in store.calls if key == "c/a"]
    assert of_a == ["write", "write", "delete", "write"]
    assert store.values == {"c/a": b"3", "c/b": b"x"}
    assert cache.get_nowait("a") == "3"


async def test_a_get_sees_the_value_before_until_the_write_is_done(make_cache, runner):
    cache = make_cache(runner=runner)
    first = asyncio.create_task(cache.put("k", "old"))
    await until_idle()
    runner.let_one_through()
    await first
    second = asyncio.create_task(cache.put("k", "new"))
    await until_idle()
    assert await cache.get("k") == cache.get_nowait("k") == "old"
    runner.let_one_through()
    await second
    assert await cache.get("k") == "new"


async def test_a_get_behind_a_put_finds_its_value_without_a_read(make_cache, store, runner):
    cache = make_cache(runner=runner)
    putting = asyncio.create_task(cache.put("k", "v"))
    await until_idle()
    getting = asyncio.create_task(cache.get("k"))
    await until_idle()
    runner.let_one_through()
    await putting
    assert await getting == "v"
    assert store.counts["read"] == 0


async def test_a_load_never_overwrites_a_later_put(make_cache, store, runner):
    cache = make_cache(runner=runner)
    store.values["c/k"] = b"old"
    getting = asyncio.create_task(cache.get("k"))
    await until_idle()
    putting = asyncio.create_task(cache.put("k", "new"))
    await until_idle()
    runner.let_one_through()
    assert await getting == "old"
    await until_idle()
    runner.let_one_through()
    await putting
    assert cache.get_nowait("k") == "new"


async def test_clear_waits_for_what_came_before_and_holds_what_comes_after(
    make_cache, store, runner
):
    cache = make_cache(runner=runner)
    before = asyncio.create_task(cache.put("a", "1"))
    await until_idle()
    clearing = asyncio.create_task(cache.clear())
    await until_idle()
    after = asyncio.create_task(cache.put("b", "2"))
    await until_idle()
    assert len(runner.held) == 1
    while runner.held:
        runner.let_one_through()
        await until_idle()
    await asyncio.gather(before, clearing, after)
    assert store.values == {"c/b": b"2"}
    assert cache.keys() == ("b",)


async def test_a_cancelled_put_still_happens(make_cache, store, runner):
    cache = make_cache(runner=runner)
    tasks = [asyncio.create_task(cache.put("k", value)) for value in ("1", "2")]
    await until_idle()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    while runner.held:
        runner.let_one_through()
        await until_idle()
    assert (store.values, cache.get_nowait("k")) == ({"c/k": b"2"}, "2")


async def test_one_cancelled_get_does_not_take_the_value_from_the_others(make_cache, store, runner):
    cache = make_cache(runner=runner)
    store.values["c/k"] = b"v"
    first, second = (asyncio.create_task(cache.get("k")) for _ in range(2))
    await until_idle()
    first.cancel()
    await until_idle()
    runner.let_one_through()
    assert await second == "v"
    assert first.cancelled()


async def test_a_wait_ends_at_its_deadline_and_the_write_goes_on(make_cache, store, runner, clock):
    cache = make_cache(runner=runner)
    putting = asyncio.create_task(cache.put("k", "v", timeout=5))
    await until_idle()
    clock.advance(5)
    with pytest.raises(DeadlineExceeded):
        await putting
    runner.let_one_through()
    await until_idle()
    assert (store.values, cache.get_nowait("k")) == ({"c/k": b"v"}, "v")


async def test_when_the_loop_ends_in_the_middle_of_a_write_memory_forgets_the_key(
    make_cache, runner
):
    cache = make_cache(runner=runner)
    first = asyncio.create_task(cache.put("k", "old"))
    await until_idle()
    runner.let_one_through()
    await first
    asyncio.create_task(cache.put("k", "new")).add_done_callback(lambda task: task.cancelled())
    await until_idle()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await until_idle()
    assert "k" not in cache
    assert cache.statistics().operations == 0


async def test_the_store_is_called_off_the_loop(store):
    threads = []
    read = store.read

    def read_and_tell(key):
        threads.append(threading.get_ident())
        return read(key)

    store.read = read_and_tell
    store.values["c/k"] = b"v"
    backing = CacheBacking[str, str](
        store=store, prefix="c/", encode=str.encode, decode=bytes.decode
    )
    async with BoundedCache[str, str](backing=backing) as cache:
        assert await cache.get("k") == "v"
    assert threads
    assert threads[0] != threading.get_ident()


async def test_nothing_is_remembered_of_operations_that_are_done(make_cache, store):
    cache = make_cache(cache_entries_max=1)
    for number in range(30):
        await cache.put(f"k{number}", "v")
        await cache.get(f"k{number // 2}")
        await cache.delete(f"k{number // 3}")
    await cache.clear()
    await until_idle()
    operations = cache._operations
    assert (operations._tasks, operations._newest, operations._alone) == (set(), {}, None)
    assert cache._through is not None
    assert cache._through._loading == {}


async def test_a_timeout_that_cannot_be_begins_nothing(make_cache, store):
    cache = make_cache()
    for call in (cache.put("k", "v", timeout=-1), cache.get("k", timeout=-1)):
        with pytest.raises(InvalidOption):
            await call
    await until_idle()
    assert store.calls == []
