"""The adaptive cache does what the paper says, and beats LRU where the paper says so."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.scaling import BoundedCache, ScalingLimits
from penstock.scaling.cache_arc import AdaptiveReplacement
from penstock.scaling.cache_policies import Entry
from tests.scaling.cache_models import ArcModel

KEYS = st.integers(0, 30)
SIZES = st.integers(1, 8)


def request(arc, key):
    """What the paper calls a request: a hit, or the key comes in."""
    if arc.find(key) is None:
        arc.put(key, Entry(key, 1))


def lists_of(arc):
    return [list(one) for one in (arc.recent, arc.frequent, arc.recent_ghosts, arc.frequent_ghosts)]


def check_always(arc):
    """What holds whatever was done."""
    recent, frequent, recent_ghosts, frequent_ghosts = map(len, lists_of(arc))
    assert recent + frequent <= arc.entries_max
    assert recent + recent_ghosts <= arc.entries_max
    assert recent + frequent + recent_ghosts + frequent_ghosts <= 2 * arc.entries_max
    assert 0 <= arc.target <= arc.entries_max
    keys = [key for one in lists_of(arc) for key in one]
    assert len(keys) == len(set(keys))


def check_requests_only(arc):
    """What the paper proves besides, of requests alone (I1 to I3 and the fourth)."""
    recent, frequent, recent_ghosts, frequent_ghosts = map(len, lists_of(arc))
    total = recent + frequent + recent_ghosts + frequent_ghosts
    if total < arc.entries_max:
        assert recent_ghosts == frequent_ghosts == 0
    else:
        assert recent + frequent == arc.entries_max


@pytest.mark.acceptance(106)
@given(SIZES, st.lists(KEYS, max_size=300))
@example(3, [1, 4, 2, 1, 3, 4, 2, 1])  # one comes back from the frequent ones, at the target
def test_requests_keep_the_invariants_and_the_lists_of_the_paper(size, keys):
    arc: AdaptiveReplacement[int, int] = AdaptiveReplacement(size)
    model = ArcModel(size)
    for key in keys:
        request(arc, key)
        model.put(key)
        check_always(arc)
        check_requests_only(arc)
        assert lists_of(arc) == [model.t1, model.t2, model.b1, model.b2]
        assert arc.target == model.p


@pytest.mark.acceptance(106)
@given(
    SIZES,
    st.lists(
        st.one_of(
            st.tuples(st.just("request"), KEYS),
            st.tuples(st.just("remove"), KEYS),
            st.tuples(st.just("resize"), SIZES),
            st.tuples(st.just("evict"), st.none()),
        ),
        max_size=200,
    ),
)
def test_removal_eviction_and_resizing_keep_the_bounds(size, steps):
    arc: AdaptiveReplacement[int, int] = AdaptiveReplacement(size)
    for step, argument in steps:
        if step == "request":
            request(arc, argument)
            assert argument in set(arc)
        elif step == "remove":
            arc.remove(argument)
            assert argument not in {key for one in lists_of(arc) for key in one}
        elif step == "resize":
            before = len(arc)
            gone = arc.resize(argument)
            assert before - len(arc) == len(gone)
        else:
            arc.evict()
        check_always(arc)


def test_a_key_that_left_and_comes_back_moves_the_target():
    arc: AdaptiveReplacement[str, int] = AdaptiveReplacement(2)
    for key in ("a", "a", "b", "c"):
        request(arc, key)
    assert lists_of(arc) == [["c"], ["a"], ["b"], []]
    request(arc, "b")
    assert arc.target == 1
    assert lists_of(arc) == [["c"], ["b"], [], ["a"]]
    request(arc, "a")
    assert arc.target == 0
    assert lists_of(arc) == [[], ["b", "a"], ["c"], []]


def test_a_removed_key_is_no_ghost():
    arc: AdaptiveReplacement[str, int] = AdaptiveReplacement(2)
    for key in ("a", "a", "b", "c"):
        request(arc, key)
    assert lists_of(arc) == [["c"], ["a"], ["b"], []]
    arc.remove("b")
    assert lists_of(arc) == [["c"], ["a"], [], []]
    arc.target = 1.0
    request(arc, "d")
    assert lists_of(arc) == [["c", "d"], [], [], ["a"]]
    arc.remove("a")
    assert lists_of(arc) == [["c", "d"], [], [], []]


def test_a_smaller_cache_has_fewer_ghosts_and_a_lower_target():
    arc: AdaptiveReplacement[int, int] = AdaptiveReplacement(4)
    arc.recent |= {key: Entry(key, 1) for key in (1, 2)}
    arc.frequent |= {key: Entry(key, 1) for key in (3, 4)}
    arc.recent_ghosts |= {5: None, 6: None}
    arc.frequent_ghosts |= {7: None, 8: None}
    arc.target = 3.0
    assert [entry.value for entry in arc.resize(1)] == [1, 3, 4]
    assert arc.target == 1
    assert lists_of(arc) == [[2], [], [], [4]]


def trace():
    """A hot set that is used again and again, with scans over keys that never come back."""
    fresh = iter(range(1_000, 10**9))
    for _ in range(60):
        for _ in range(5):
            yield from (f"hot-{number}" for number in range(50))
        yield from (f"scan-{next(fresh)}" for _ in range(200))


def hits_of(policy, entries):
    cache = BoundedCache[str, int](
        ScalingLimits(cache_entries_max=entries), policy=policy, sizer=lambda key, value: 1
    )
    for key in trace():
        if cache.get_nowait(key) is None:
            cache.put_nowait(key, 1)
    return cache.statistics()


@pytest.mark.acceptance(106)
def test_it_keeps_what_is_hot_through_a_scan_where_lru_does_not():
    lru, arc = hits_of("lru", 100), hits_of("arc", 100)
    assert lru.hits + lru.misses == arc.hits + arc.misses == 60 * 450
    # LRU loses the 50 hot keys in every scan, ARC after the first ones does not.
    assert lru.hits == 60 * 200
    assert arc.hits >= 59 * 250
    assert arc.hit_rate > lru.hit_rate + 0.1


def test_a_cache_of_one_entry_works():
    arc: AdaptiveReplacement[str, int] = AdaptiveReplacement(1)
    for key in "abacabadabacaba":
        request(arc, key)
        assert set(arc) == {key}
