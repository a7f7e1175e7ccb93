"""The hash of a key is the same for ever, and every kind of key has its bytes."""

import datetime as dt
import enum
import subprocess
import sys
import uuid

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidOption
from penstock.hashing import KEPT_KEY_LENGTH_MAX, fnv1a, key_bytes, key_hash
from penstock.log.routing import partitions_of

VECTORS = [
    (b"", 0x811C9DC5),
    (b"a", 0xE40C292C),
    (b"b", 0xE70C2DE5),
    (b"\x00", 0x050C5D1F),
    (b"fo", 0x6222E842),
    (b"foo", 0xA9F37ED7),
    (b"foob", 0x3F5076EF),
    (b"fooba", 0x39AAA18A),
    (b"foobar", 0xBF9CF968),
]


class Colour(enum.Enum):
    RED = "red"


class Shade(enum.StrEnum):
    DARK = "dark"


class Level(enum.IntEnum):
    LOW = 3


class Shout(str):
    __slots__ = ()

    def encode(self, *_: object) -> bytes:
        return b"SHOUT"


class Place(msgspec.Struct, frozen=True):
    street: str
    number: int


# What a key's bytes are may never change: records of it would go to another partition.
BYTES = [
    (b"\xff\x00", b"\xff\x00"),
    (bytearray(b"ab"), b"ab"),
    (memoryview(b"ab"), b"ab"),
    ("Straße", "Straße".encode()),
    (Shade.DARK, b"dark"),
    (Shout("quiet"), b"quiet"),
    (7, b"7"),
    (-(2**80), b"-1208925819614629174706176"),
    (Level.LOW, b"3"),
    (True, b"true"),
    (1.5, b"1.5"),
    (uuid.UUID(int=1), b'"00000000-0000-0000-0000-000000000001"'),
    (dt.date(2026, 1, 2), b'"2026-01-02"'),
    (Colour.RED, b'"red"'),
    (("a", 1), b'["a",1]'),
    ({"b": 1, "a": {3, 2, 1}}, b'{"a":[1,2,3],"b":1}'),
    (Place("Hauptstraße", 3), '{"street":"Hauptstraße","number":3}'.encode()),
]


@pytest.mark.acceptance(23)
@pytest.mark.parametrize(("key", "expected"), VECTORS)
def test_the_golden_vectors(key, expected):
    assert fnv1a(key) == expected
    assert key_hash(key) == expected
    assert key_hash(key.decode()) == expected


@pytest.mark.parametrize(("key", "expected"), BYTES)
def test_every_kind_of_key_has_its_bytes(key, expected):
    assert key_bytes(key) == expected
    assert key_hash(key) == fnv1a(expected)


@pytest.mark.parametrize("key", [object(), "\ud800", Colour, {"a": object()}])
def test_what_has_no_stable_bytes_is_refused(key):
    with pytest.raises(InvalidOption, match="is not a key"):
        key_bytes(key)


def test_equal_keys_of_different_types_are_not_mixed_up():
    """``1 == True == 1.0``: what is remembered of one must not be told of the others."""
    assert [key_hash(key) for key in (1, True, 1.0, (1,), (True,))] == [
        fnv1a(data) for data in (b"1", b"true", b"1.0", b"[1]", b"[true]")
    ]


@given(st.binary(max_size=KEPT_KEY_LENGTH_MAX * 2) | st.text(max_size=40) | st.integers())
def test_what_is_remembered_is_what_is_computed(key):
    assert key_hash(key) == key_hash(key) == fnv1a(key_bytes(key))


@pytest.mark.acceptance(22)
@given(st.lists(st.text(max_size=20), max_size=40), st.integers(1, 64))
def test_the_log_sends_a_key_to_the_same_partition(keys, partitions):
    chosen, _ = partitions_of([key_bytes(key) for key in keys], partitions, 0)
    assert chosen.tolist() == [key_hash(key) % partitions for key in keys]


@pytest.mark.acceptance(22)
def test_another_process_has_the_same_hashes():
    code = (
        "from penstock.hashing import key_hash; print([key_hash(k) for k in ('a', 7, ('x', 1.5))])"
    )
    command = [sys.executable, "-R", "-c", code]
    told = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    assert told.strip() == str([key_hash(key) for key in ("a", 7, ("x", 1.5))])
