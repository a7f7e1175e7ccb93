"""The limits of a cache are kept, and change while it runs."""

import asyncio

import pytest

from penstock.errors import (
    BufferFull,
    InvalidOption,
)
from penstock.pressure.states import BackpressureState
from penstock.scaling import BoundedCache, CacheBacking, EvictionPolicy, ScalingLimits
from penstock.testing.clock import until_idle
from tests.scaling.cache_world import inline

POLICIES = list(EvictionPolicy)


@pytest.mark.acceptance(3)
async def test_at_most_so_many_operations_run_and_at_most_so_many_wait(make_cache, runner):
    cache = make_cache(runner=runner, concurrent_operations_max=2, queue_depth_max=5)
    tasks = [asyncio.create_task(cache.put(f"k{number}", "v")) for number in range(5)]
    await until_idle()
    assert len(runner.held) == cache.statistics().operations_running == 2
    assert cache.statistics().operations == 5
    for call in (cache.put("more", "v"), cache.get("more"), cache.delete("more"), cache.clear()):
        with pytest.raises(BufferFull):
            await call
    while runner.held:
        runner.let_one_through()
        await until_idle()
    await asyncio.gather(*tasks)
    assert cache.statistics().writes == 5


@pytest.mark.acceptance(3, 6)
async def test_operation_limits_change_while_operations_run(make_cache, runner):
    cache = make_cache(runner=runner, concurrent_operations_max=2, queue_depth_max=5)
    tasks = [asyncio.create_task(cache.put(f"k{number}", "v")) for number in range(5)]
    await until_idle()
    cache.reconfigure_limits(
        cache.current_limits.with_(concurrent_operations_max=4, queue_depth_max=6)
    )
    tasks.append(asyncio.create_task(cache.put("more", "v")))
    await until_idle()
    assert len(runner.held) == 4
    cache.reconfigure_limits(cache.current_limits.with_(concurrent_operations_max=1))
    for left in (3, 2, 1, 1, 1, 0):
        runner.let_one_through()
        await until_idle()
        assert len(runner.held) == left
    await asyncio.gather(*tasks)
    assert cache.statistics().writes == 6


@pytest.mark.acceptance(1)
async def test_the_pressure_is_that_of_the_operations_that_wait(make_cache, runner):
    cache = make_cache(runner=runner, queue_depth_max=20)
    states = []
    tasks = []
    for number in range(20):
        tasks.append(asyncio.create_task(cache.put(f"k{number}", "v")))
        await until_idle()
        states.append(cache.current_backpressure_state)
    normal, warning, critical, shedding = BackpressureState
    assert states == [normal] * 13 + [warning] * 3 + [critical] * 2 + [shedding] * 2
    while runner.held:
        runner.let_one_through()
        await until_idle()
    await asyncio.gather(*tasks)
    assert cache.current_backpressure_state is normal


@pytest.mark.acceptance(3, 106)
@pytest.mark.parametrize("policy", POLICIES)
async def test_the_bytes_are_bounded(make_cache, store, policy):
    cache = make_cache(policy, memory_bytes_max=10)
    for number in range(9):
        await cache.put(f"k{number}", "four")
        assert cache.statistics().bytes <= 10
    assert len(cache) == 2
    await cache.put("k8", "nine chars"[:9])
    assert cache.keys() == ("k8",)
    assert len(store.values) == 9


@pytest.mark.parametrize("policy", POLICIES)
async def test_what_is_larger_than_the_memory_is_in_the_store_alone(make_cache, store, policy):
    cache = make_cache(policy, memory_bytes_max=10)
    await cache.put("small", "s")
    await cache.put("k", "old")
    await cache.put("k", "far too long")
    assert store.values["c/k"] == b"far too long"
    assert set(cache.keys()) == {"small"}
    assert await cache.get("k") == "far too long"
    assert cache.statistics().oversized == 2


@pytest.mark.acceptance(6, 106)
@pytest.mark.parametrize("policy", POLICIES)
async def test_a_lower_limit_evicts_at_once_and_loses_nothing(make_cache, policy):
    cache = make_cache(policy)
    for number in range(100):
        await cache.put(f"k{number}", "four")
    cache.reconfigure_limits(cache.current_limits.with_(cache_entries_max=7))
    assert len(cache) == 7
    cache.reconfigure_limits(cache.current_limits.with_(memory_bytes_max=13))
    assert (len(cache), cache.statistics().bytes) == (3, 12)
    assert cache.statistics().evictions == 97
    cache.reconfigure_limits(ScalingLimits())
    assert [await cache.get(f"k{number}") for number in range(100)] == ["four"] * 100
    assert len(cache) == 100


async def test_without_a_sizer_the_encoded_length_counts(store):
    backing = CacheBacking[str, str](
        store=store, prefix="c/", encode=str.encode, decode=bytes.decode
    )
    cache = BoundedCache[str, str](backing=backing, runner=inline)
    await cache.put("k", "x" * 5_000)
    first = cache.statistics().bytes
    assert 5_000 < first < 5_500
    cache.reconfigure_limits(cache.current_limits.with_(memory_bytes_max=1))
    cache.reconfigure_limits(ScalingLimits())
    await cache.get("k")
    assert cache.statistics().bytes == first


async def test_a_sizer_that_says_nonsense_is_refused(make_cache):
    cache = make_cache(sizer=lambda key, value: -1)
    with pytest.raises(InvalidOption):
        await cache.put("k", "v")
