"""What other clients of RabbitMQ write: taken apart within bounds, or kept as it is."""

import gzip
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("rstream", reason="needs the client of RabbitMQ")

from rstream import AMQPMessage

from penstock.errors import BrokerFailed
from penstock.transports import rabbitmq_foreign
from penstock.transports.rabbitmq_foreign import Unsound, data_of, unpacked
from penstock.transports.rabbitmq_records import decoded, encoded, entries_of
from penstock.transports.rabbitmq_wire import Chunk

MEBIBYTE = 1 << 20
NOTHINGS = b"\x00\x53\x77\xf0" + struct.pack(">II", 5, 1 << 30) + b"\x40"
"""A message of a billion nulls, in thirteen bytes."""


def packed(messages, codec=0, told=None, body=None):
    """A batch as clients pack it."""
    whole = b"".join(struct.pack(">I", len(one)) + one for one in messages)
    data = (gzip.compress(whole) if codec == 1 else whole) if body is None else body
    size = len(whole) if told is None else told
    return bytes([0x80 | codec << 4]) + struct.pack(">HII", len(messages), size, len(data)) + data


def record_of(message):
    return decoded(message, "orders", 0, 7, 1)


@pytest.mark.parametrize("codec", [0, 1], ids=["plain", "gzip"])
def test_a_batch_of_another_client_is_unpacked(codec):
    messages = [b"one", b"", b"three" * 100]
    batch = packed(messages, codec)
    assert unpacked(b"before" + batch + b"behind", 6) == (messages, 6 + len(batch))
    chunk = Chunk(0, 1, 2, 4, batch + struct.pack(">I", 4) + b"last")
    assert list(entries_of(chunk)) == [*messages, b"last"]


@pytest.mark.parametrize(
    "batch",
    [
        packed([b"x"], codec=2),
        packed([b"x"], told=4_000_000_000),
        packed([b"x"], 1, told=6),
        packed([b"x"], 1, told=5, body=b"no gzip"),
        packed([b"x"] * 3, body=b"\0\0\0\1x", told=5),
        packed([b"x"], body=b"\0\0\1\0x", told=5),
        packed([b"x"])[:6],
    ],
    ids=["snappy", "4 GB", "another size", "no gzip", "too few", "cut off", "half a head"],
)
def test_a_batch_that_cannot_be_read_says_what_to_do(batch):
    with pytest.raises(BrokerFailed, match="seek behind them"):
        unpacked(batch, 0)


def test_a_packed_batch_takes_no_more_memory_than_it_says(monkeypatch):
    monkeypatch.setattr(rabbitmq_foreign, "UNPACKED_BYTES_MAX", MEBIBYTE)
    bomb = gzip.compress(bytes(256 * MEBIBYTE))
    tracemalloc.start()
    try:
        for told in (MEBIBYTE, 256 * MEBIBYTE):
            with pytest.raises(BrokerFailed):
                unpacked(packed([b"x"], 1, told=told, body=bomb), 0)
        assert tracemalloc.get_traced_memory()[1] < 8 * MEBIBYTE
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "message",
    [
        NOTHINGS,
        b"\x00\x53\x77\xf0" + struct.pack(">II", 5, 0xFFFFFFFF) + b"\x43",
        b"\x00\x53\x77\xd0" + struct.pack(">II", 4, 1 << 30),
        b"\x00\x53\x77" + b"\xf0\x00\x00\x00\x06\x00\x00\x00\x01" * 40,
        b"\x00" * 10_000,
        b"\x00\x53\x77\xb0\xff\xff\xff\xff",
        b"\x00\x53\x77\x3f",
    ],
    ids=["nulls", "zeros", "a list", "nested", "described", "cut off", "no such kind"],
)
def test_a_message_that_claims_too_much_is_a_value(message):
    with pytest.raises(Unsound):
        data_of(message)
    tracemalloc.start()
    try:
        assert record_of(message).value == message
        assert tracemalloc.get_traced_memory()[1] < MEBIBYTE
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("section", "value"),
    [
        (b"\x76\xc0\x06\x01\x70\x7f\xff\xff\xff", b"[[2147483647]]"),
        (b"\x77\xc0\x06\x01\x70\x7f\xff\xff\xff", b"[2147483647]"),
        (b"\x77\x70\x7f\xff\xff\xff", b"2147483647"),
        (b"\x77\xa1\x02hi", b"hi"),
        (b"\x75\xa0\x02hi\x00\x53\x75\xa0\x02ho", b"hiho"),
        (b"\x77\x40", None),
    ],
    ids=["a sequence", "a list", "a number", "text", "two parts", "nothing"],
)
def test_bodies_of_every_kind(section, value):
    """A number is no size: ``bytes(number)`` would be so many zeros."""
    properties = b"\x00\x53\x74\xc1\x06\x02\xa1\x01a\x50\x05"  # as nothing here writes them
    record = record_of(properties + b"\x00\x53" + section)
    assert record.value == value
    assert dict(record.headers) == {"a": b"5"}


def test_messages_of_the_client_are_sound():
    message = AMQPMessage(
        body=b"two teapots",
        application_properties={"shop": "north", "pieces": 2, "gifts": ["a", True, None, 1.5]},
        message_annotations={"x-opt-other": "text", "x-many": [[1, 2], {"deep": [b"x" * 300]}]},
    )
    data_of(bytes(message))
    record = record_of(bytes(message))
    assert record.value == b"two teapots"
    assert record.headers["shop"] == b"north"


@given(st.binary(max_size=64))
def test_whatever_comes_is_a_record(message):
    assert record_of(message).offset == 7
    assert record_of(b"\x00\x53\x77" + message).offset == 7


@given(
    st.binary(),
    st.binary() | st.none(),
    st.dictionaries(st.text(max_size=5), st.binary(max_size=300)),
)
def test_what_is_written_here_is_sound(value, key, headers):
    message = encoded(value, key, headers, 1)
    data_of(message)
    assert record_of(message).value == value
