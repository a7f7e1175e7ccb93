"""Keys go to partitions by FNV-1a, the same for ever; records without a key go round."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.hashing import fnv1a
from penstock.log.routing import SPREAD_MIN, VECTOR_KEYS_MIN, fnv1a_many, partitions_of

VECTORS = [(b"", 0x811C9DC5), (b"a", 0xE40C292C), (b"foobar", 0xBF9CF968)]
MORE_VECTORS = [
    (b"b", 0xE70C2DE5),
    (b"fo", 0x6222E842),
    (b"foo", 0xA9F37ED7),
    (b"foob", 0x3F5076EF),
    (b"fooba", 0x39AAA18A),
    (b"\x00", 0x050C5D1F),
    (b"\xff\x00\x00\x01", 0xC48FB86D),
]


@pytest.mark.acceptance(23)
@pytest.mark.parametrize(("key", "expected"), VECTORS)
def test_the_golden_vectors(key, expected):
    assert fnv1a(key) == expected
    assert fnv1a_many([key]).tolist() == [expected]
    assert fnv1a_many([key] * 40).tolist() == [expected] * 40


def test_more_vectors_of_the_authors():
    for key, expected in MORE_VECTORS:
        value = 0x811C9DC5
        for byte in key:
            value = ((value ^ byte) * 16_777_619) % (1 << 32)
        assert fnv1a(key) == value
        if key in (b"b", b"fo", b"foo", b"foob", b"fooba", b"\x00"):
            assert value == expected


@pytest.mark.acceptance(23)
@given(st.lists(st.one_of(st.binary(max_size=5), st.binary(max_size=300)), max_size=90))
def test_a_column_at_once_equals_one_by_one(keys):
    assert fnv1a_many(keys).tolist() == [fnv1a(key) for key in keys]
    assert fnv1a_many(keys).dtype == np.uint32


@pytest.mark.parametrize("count", [0, 1, VECTOR_KEYS_MIN - 1, VECTOR_KEYS_MIN, 1_000])
def test_columns_of_empty_keys(count):
    assert fnv1a_many([b""] * count).tolist() == [0x811C9DC5] * count


@given(
    st.lists(st.none() | st.binary(max_size=9), max_size=SPREAD_MIN),
    st.integers(1, 4_096),
    st.integers(0, 5_000),
)
def test_keys_keep_their_partition_and_the_rest_goes_round(keys, partitions, turn):
    turn %= partitions
    chosen, after = partitions_of(keys, partitions, turn)
    for key, partition in zip(keys, chosen.tolist(), strict=True):
        if key is None:
            assert partition == turn
            turn = (turn + 1) % partitions
        else:
            assert partition == fnv1a(key) % partitions
    assert after == turn


@pytest.mark.acceptance(24)
def test_records_without_a_key_are_spread_evenly():
    chosen, _ = partitions_of([None] * 1_000, 8, 3)
    assert set(Counter(chosen.tolist()).values()) == {125}
