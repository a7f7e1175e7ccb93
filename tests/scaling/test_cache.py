"""Writes go through to the store, errors reach the caller, nothing is lost silently."""

import asyncio
import gc

import pytest

from penstock.errors import (
    StoreFailed,
)
from penstock.scaling import BoundedCache, CacheBacking, EvictionPolicy
from penstock.testing import ScalableSubsystemConformance
from penstock.testing.clock import until_idle
from tests.scaling.cache_world import FailingStore, inline

POLICIES = list(EvictionPolicy)


@pytest.mark.acceptance(1)
class TestContract(ScalableSubsystemConformance):
    @pytest.fixture
    async def subsystem(self, make_cache):
        cache = make_cache()
        for number in range(20):
            await cache.put(f"k{number}", "value")
        return cache


@pytest.mark.acceptance(106)
@pytest.mark.parametrize("policy", POLICIES)
async def test_what_is_evicted_is_in_the_store_and_comes_back(make_cache, store, policy):
    cache = make_cache(policy, cache_entries_max=3)
    for number in range(10):
        await cache.put(f"k{number}", f"v{number}")
    assert len(cache) == 3
    assert store.values == {f"c/k{number}": f"v{number}".encode() for number in range(10)}
    assert cache.statistics().evictions == 7
    assert [await cache.get(f"k{number}") for number in range(10)] == [
        f"v{number}" for number in range(10)
    ]


@pytest.mark.acceptance(106)
@pytest.mark.parametrize("fails_first", [False, True])
async def test_the_adaptive_policy_learns_from_a_key_that_is_loaded_again(
    make_cache, store, fails_first
):
    cache = make_cache("arc", cache_entries_max=2)
    await cache.put("often", "v")
    assert await cache.get("often") == "v"
    await cache.put("back soon", "v")
    await cache.put("new", "v")
    assert set(cache.keys()) == {"often", "new"}
    if fails_first:
        store.fail_next()
        with pytest.raises(StoreFailed):
            await cache.get("back soon")
    assert await cache.get("back soon") == "v"
    assert set(cache.keys()) == {"back soon", "new"}, "what is recent has too little room"


@pytest.mark.acceptance(93)
async def test_the_10001st_entry_evicts_the_one_that_was_used_longest_ago(store):
    cache = BoundedCache[str, str](
        backing=CacheBacking(store=store, prefix="c/", encode=str.encode, decode=bytes.decode),
        runner=inline,
    )
    for number in range(10_000):
        await cache.put(f"k{number}", "v")
    assert await cache.get("k0") == "v"
    await cache.put("k10000", "v")
    assert "k0" in cache
    assert "k1" not in cache
    assert len(cache) == 10_000
    assert len(store.values) == 10_001
    assert await cache.get("k1") == "v"
    statistics = cache.statistics()
    assert (statistics.evictions, statistics.writes, statistics.loads) == (2, 10_001, 1)


@pytest.mark.acceptance(106)
@pytest.mark.parametrize("policy", POLICIES)
async def test_a_delete_reaches_the_store_also_for_what_is_not_in_memory(make_cache, store, policy):
    cache = make_cache(policy, cache_entries_max=1)
    await cache.put("a", "1")
    await cache.put("b", "2")
    await cache.delete("a")
    await cache.delete("b")
    await cache.delete("never")
    assert store.values == {}
    assert len(cache) == 0
    assert await cache.get("a") is None
    assert await cache.get("b", "nothing") == "nothing"
    assert cache.statistics().deletes == 3


@pytest.mark.parametrize("policy", POLICIES)
async def test_clear_empties_the_store_below_the_prefix_and_nothing_else(make_cache, store, policy):
    cache = make_cache(policy, cache_entries_max=2)
    store.values["cc/other"] = store.values["c"] = b"not ours"
    for key in "abc":
        await cache.put(key, key)
    await cache.clear()
    assert store.values == {"cc/other": b"not ours", "c": b"not ours"}
    assert (len(cache), cache.statistics().bytes) == (0, 0)


async def test_a_value_is_stored_as_it_was_when_put_was_called(store, runner):
    cache = BoundedCache[str, list[str]](
        backing=CacheBacking(
            store=store,
            prefix="c/",
            encode=lambda value: ",".join(value).encode(),
            decode=lambda data: data.decode().split(","),
        ),
        runner=runner,
    )
    value = ["a"]
    writing = asyncio.create_task(cache.put("k", value))
    await until_idle()
    value.append("b")
    runner.let_one_through()
    await writing
    assert store.values == {"c/k": b"a"}


async def test_a_value_that_does_not_encode_changes_nothing(make_cache, store):
    cache = make_cache()
    with pytest.raises(TypeError):
        await cache.put("k", 7)
    assert (store.calls, len(cache), cache.statistics().writes) == ([], 0, 0)


@pytest.mark.parametrize("too_late", [False, True])
async def test_after_a_failed_write_the_store_decides_what_the_value_is(
    make_cache, store, too_late
):
    cache = make_cache()
    await cache.put("k", "old")
    store.fail_next(too_late=too_late)
    with pytest.raises(StoreFailed):
        await cache.put("k", "new")
    assert "k" not in cache
    assert await cache.get("k") == ("new" if too_late else "old")
    statistics = cache.statistics()
    assert (statistics.failures, statistics.writes) == (1, 1)


async def test_a_failed_load_reaches_all_who_wait_and_the_next_one_tries_again(
    make_cache, store, runner
):
    cache = make_cache(runner=runner)
    store.values["c/k"] = b"v"
    store.fail_next()
    gets = [asyncio.create_task(cache.get("k")) for _ in range(3)]
    await until_idle()
    runner.let_one_through()
    outcomes = await asyncio.gather(*gets, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StoreFailed] * 3
    again = asyncio.create_task(cache.get("k"))
    await until_idle()
    runner.let_one_through()
    assert await again == "v"


async def test_a_value_that_does_not_decode_raises_and_is_not_kept(make_cache, store):
    cache = make_cache()
    store.values["c/k"] = b"\xff"
    for _ in range(2):
        with pytest.raises(UnicodeDecodeError):
            await cache.get("k")
    assert "k" not in cache
    assert cache.statistics().failures == 2


async def test_a_clear_that_fails_half_way_leaves_what_the_store_has(make_cache, store):
    cache = make_cache()
    for key in "abc":
        await cache.put(key, key)

    def delete(key, delete=store.delete):
        delete(key)
        store.fail_next()

    store.delete = delete
    with pytest.raises(StoreFailed):
        await cache.clear()
    store.delete = FailingStore.delete.__get__(store)
    assert [await cache.get(key) for key in "abc"] == [None, "b", "c"]


async def test_an_error_that_nobody_waits_for_is_counted_and_not_complained_of(
    make_cache, store, runner
):
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about))
    cache = make_cache(runner=runner)
    writing = asyncio.create_task(cache.put("k", "v"))
    await until_idle()
    writing.cancel()
    await until_idle()
    store.fail_next()
    runner.let_one_through()
    await until_idle()
    del writing
    gc.collect()
    assert (cache.statistics().failures, complaints) == (1, [])
