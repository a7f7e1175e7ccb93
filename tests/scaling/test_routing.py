"""A key has its partition; messages without one go round."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidOption
from penstock.hashing import key_bytes
from penstock.log.routing import partitions_of
from penstock.scaling.routing import Router, route

KEYS = st.binary(max_size=90) | st.text(max_size=20) | st.integers() | st.booleans()


@pytest.mark.acceptance(22)
@given(st.lists(st.none() | KEYS, max_size=60), st.integers(1, 64), st.integers(0, 99))
def test_the_bus_routes_as_the_log_does(keys, partitions, turn):
    router = Router(partitions, turn)
    chosen, after = partitions_of(
        [None if key is None else key_bytes(key) for key in keys], partitions, turn % partitions
    )
    assert [router.partition_of(key) for key in keys] == chosen.tolist()
    assert router.turn == after


@pytest.mark.acceptance(22)
def test_a_key_has_its_partition_for_ever():
    assert [route(key, 8) for key in ("", "a", "foobar", b"a", 7)] == [5, 4, 0, 4, 6]


@pytest.mark.acceptance(24)
def test_messages_without_a_key_are_spread_evenly():
    router = Router(4)
    counts = Counter(router.partition_of() for _ in range(10_000))
    assert counts == {0: 2_500, 1: 2_500, 2: 2_500, 3: 2_500}


def test_a_topic_has_a_partition():
    with pytest.raises(InvalidOption):
        Router(0)
