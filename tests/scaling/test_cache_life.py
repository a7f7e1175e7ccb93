"""Expiry, a warm start, a cache without a store, and the end."""

import asyncio

import pytest

from penstock.errors import (
    Closed,
    InvalidOption,
    KeyNotFound,
    NotSupported,
    RecordTooLarge,
    StoreFailed,
)
from penstock.scaling import BoundedCache, CacheBacking, EvictionPolicy
from penstock.testing.clock import until_idle
from tests.scaling.cache_world import TTL, inline

POLICIES = list(EvictionPolicy)


@pytest.mark.acceptance(106)
async def test_an_entry_expires_and_the_store_is_asked_again(make_cache, store, clock):
    cache = make_cache("ttl")
    await cache.put("k", "v")
    clock.advance(TTL - 1)
    assert await cache.get("k") == "v"
    store.values["c/k"] = b"changed by somebody else"
    clock.advance(1)
    assert "k" not in cache
    assert await cache.get("k") == "changed by somebody else"
    clock.advance(TTL - 1)
    assert "k" in cache
    statistics = cache.statistics()
    assert (statistics.expirations, statistics.evictions, statistics.loads) == (1, 0, 1)


def test_without_a_store_what_expired_is_gone(make_cache, clock):
    cache = make_cache("ttl", memory_only=True)
    cache.put_nowait("k", "v")
    clock.advance(TTL)
    assert cache.get_nowait("k", "nothing") == "nothing"
    assert len(cache) == 0


def test_a_sweep_is_bounded_and_a_put_clears_some_away(make_cache, clock):
    cache = make_cache("ttl", memory_only=True)
    for number in range(100):
        cache.put_nowait(f"k{number}", "v")
    clock.advance(TTL - 1)
    cache.put_nowait("k0", "again")
    clock.advance(1)
    assert cache.sweep(30) == 30
    assert len(cache) == 70
    cache.put_nowait("new", "v")
    assert len(cache) == 70 - 16 + 1
    assert cache.sweep() == 53
    assert set(cache.keys()) == {"k0", "new"}
    assert (cache.sweep(), cache.statistics().expirations) == (0, 99)


def test_what_leaves_a_full_cache_when_its_time_is_over_has_expired(make_cache, clock):
    cache = make_cache("ttl", memory_only=True, cache_entries_max=2)
    for key in "abc":
        cache.put_nowait(key, "v")
    clock.advance(TTL)
    cache.put_nowait("d", "v")
    statistics = cache.statistics()
    assert (statistics.evictions, statistics.expirations) == (1, 2)


def test_what_a_lower_limit_removes_when_its_time_is_over_has_expired(make_cache, clock):
    cache = make_cache("ttl", memory_only=True)
    for number in range(40):
        cache.put_nowait(f"k{number}", "v")
    clock.advance(TTL)
    cache.reconfigure_limits(cache.current_limits.with_(cache_entries_max=1))
    statistics = cache.statistics()
    assert (statistics.evictions, statistics.expirations) == (0, 39)


@pytest.mark.parametrize(
    ("policy", "ttl"), [("lru", 1), ("arc", 1), ("ttl", None), ("ttl", 0), ("ttl", float("nan"))]
)
def test_a_time_belongs_to_the_policy_that_needs_it(policy, ttl):
    with pytest.raises(InvalidOption):
        BoundedCache[str, str](policy=policy, ttl_seconds=ttl)


@pytest.mark.acceptance(106)
@pytest.mark.parametrize("policy", POLICIES)
async def test_a_warm_start_loads_the_newest_and_the_newest_leaves_last(make_cache, store, policy):
    for number in range(9):
        store.values[f"c/k{number}"] = b"%d" % ((number * 5) % 9)  # ages 0 5 1 6 2 7 3 8 4
    cache = make_cache(policy, cache_entries_max=4)
    assert await cache.warm_start(3, newest=lambda key, value: int(value)) == 3
    assert [cache.get_nowait(key) for key in ("k7", "k5", "k3")] == ["8", "7", "6"]
    assert store.counts["read"] == 9
    statistics = cache.statistics()
    assert (statistics.loads, statistics.evictions, statistics.entries) == (3, 0, 3)
    fresh = make_cache("lru", cache_entries_max=4)
    assert await fresh.warm_start(newest=lambda key, value: int(value)) == 4
    await fresh.put("new", "v")
    assert set(fresh.keys()) == {"k7", "k5", "k3", "new"}


async def test_without_an_order_a_warm_start_reads_the_last_names_alone(make_cache, store):
    store.values |= {f"c/k{number}": b"v" for number in range(9)}
    cache = make_cache(cache_entries_max=3)
    assert await cache.warm_start() == 3
    assert set(cache.keys()) == {"k6", "k7", "k8"}
    assert store.counts["read"] == 3


async def test_a_warm_start_ends_at_the_bounds_and_moves_nobody(make_cache, store):
    store.values |= {f"c/k{number}": b"four" for number in range(9)}
    cache = make_cache(memory_bytes_max=14, cache_entries_max=9)
    await cache.put("k8", "new")
    assert await cache.warm_start() == 2
    assert set(cache.keys()) == {"k6", "k7", "k8"}
    assert cache.get_nowait("k8") == "new"
    assert cache.statistics().evictions == 0


async def test_a_warm_start_passes_over_what_does_not_decode_and_a_get_tells(make_cache, store):
    store.values |= {"c/a": b"fine", "c/b": b"\xff"}
    cache = make_cache()
    assert await cache.warm_start() == 1
    assert cache.statistics().failures == 1
    with pytest.raises(UnicodeDecodeError):
        await cache.get("b")


async def test_a_warm_start_on_a_broken_store_raises(make_cache, store):
    cache = make_cache()
    store.fail_next()
    with pytest.raises(StoreFailed):
        await cache.warm_start()
    with pytest.raises(InvalidOption):
        await cache.warm_start(0)


async def test_keys_that_are_not_text_say_how_they_are_named(store):
    plain = CacheBacking[int, str](store=store, prefix="n/", encode=str.encode, decode=bytes.decode)
    with pytest.raises(InvalidOption, match="key_name"):
        await BoundedCache[int, str](backing=plain, runner=inline).put(1, "x")
    named = CacheBacking[int, str](
        store=store,
        prefix="n/",
        encode=str.encode,
        decode=bytes.decode,
        key_name=str,
        key_parse=int,
    )
    await BoundedCache[int, str](backing=named, runner=inline).put(1, "x")
    again = BoundedCache[int, str](backing=named, runner=inline)
    assert await again.warm_start() == 1
    assert again.get_nowait(1) == "x"


@pytest.mark.parametrize("prefix", ["", "/", "c"])
def test_a_prefix_is_a_name_with_a_slash(store, prefix):
    with pytest.raises(InvalidOption, match="prefix"):
        CacheBacking[str, str](store=store, prefix=prefix, encode=str.encode, decode=bytes.decode)


@pytest.mark.parametrize("policy", POLICIES)
async def test_without_a_store_both_ways_of_calling_do_the_same(make_cache, policy):
    cache = make_cache(policy, memory_only=True, cache_entries_max=2)
    cache.put_nowait("a", "1")
    await cache.put("b", "2")
    assert await cache.get("a") == cache.get_nowait("a") == "1"
    cache.put_nowait("c", "3")
    await cache.delete("c")
    cache.delete_nowait("never")
    assert await cache.get("c") is None
    await cache.clear()
    cache.clear_nowait()
    statistics = cache.statistics()
    assert (statistics.writes, statistics.deletes, statistics.evictions) == (3, 2, 1)
    assert (statistics.hits, statistics.misses, statistics.entries) == (2, 1, 0)
    with pytest.raises(NotSupported):
        await cache.warm_start()


def test_without_a_store_a_value_that_does_not_fit_is_refused(make_cache):
    cache = make_cache(memory_only=True, memory_bytes_max=3)
    cache.put_nowait("k", "old")
    with pytest.raises(RecordTooLarge):
        cache.put_nowait("k", "long")
    assert cache.get_nowait("k") == "old"


def test_with_a_store_nothing_is_written_behind_its_back(make_cache):
    cache = make_cache()
    for call in (lambda: cache.put_nowait("k", "v"), lambda: cache.delete_nowait("k")):
        with pytest.raises(NotSupported, match="await"):
            call()
    with pytest.raises(NotSupported):
        cache.clear_nowait()


async def test_close_waits_for_what_was_begun_and_takes_no_more(make_cache, store, runner):
    cache = make_cache(runner=runner)
    putting = asyncio.create_task(cache.put("k", "v"))
    await until_idle()
    closing = asyncio.create_task(cache.close())
    await until_idle()
    assert not closing.done()
    for call in (cache.put("k", "v"), cache.get("k"), cache.delete("k"), cache.clear()):
        with pytest.raises(Closed):
            await call
    runner.let_one_through()
    await asyncio.gather(closing, putting)
    assert store.values == {"c/k": b"v"}
    await cache.close()


def test_a_policy_has_a_name():
    with pytest.raises(InvalidOption, match="lru, ttl, arc"):
        BoundedCache[str, str](policy="fifo")
    with pytest.raises(InvalidOption):
        BoundedCache[str, str](7)  # type: ignore[arg-type]


def test_the_store_of_the_tests_is_a_store(store):
    with pytest.raises(KeyNotFound):
        store.read("c/never")


async def test_a_refresh_asks_the_store_and_memory_follows(make_cache, store):
    cache = make_cache()
    await cache.put("k", "v")
    store.values["c/k"] = b"changed by somebody else"
    assert await cache.get("k") == "v"
    assert await cache.refresh("k") == "changed by somebody else"
    assert cache.get_nowait("k") == "changed by somebody else"
    del store.values["c/k"]
    assert await cache.refresh("k") is None
    assert "k" not in cache


async def test_a_refresh_that_fails_leaves_nothing_stale(make_cache, store):
    cache = make_cache()
    await cache.put("k", "v")
    store.fail_next()
    with pytest.raises(StoreFailed):
        await cache.refresh("k")
    assert "k" not in cache
    assert await cache.get("k") == "v"


async def test_without_a_store_there_is_nothing_to_refresh_from(make_cache):
    with pytest.raises(NotSupported):
        await make_cache(memory_only=True).refresh("k")
