"""The keys of groups in a stream of RabbitMQ that strangers write to as well. No server is needed."""

import asyncio
import logging

import msgspec
import pytest

pytest.importorskip("rstream", reason="needs the client of RabbitMQ")

from penstock.errors import BrokerFailed, Closed, LimitReached
from penstock.transports import rabbitmq_key_table as table
from penstock.transports.rabbitmq_key_table import KeyTable, messages_of
from penstock.transports.rabbitmq_keys import RabbitKeys
from penstock.transports.rabbitmq_records import encoded
from penstock.transports.rabbitmq_wire import Chunk
from tests.transports.key_stream import NUMBER, Stream, entry, key_log, packed, put, summary

SECONDS = 20.0
STRANGE = [
    b"", b"no message", encoded(None), encoded(b""), encoded(b"\xc1"), encoded(b"\xff" * 40),
    b"\x00\x53\x72\xc1", b"\x00\x53\x74\xd1\xff\xff\xff\xff\x7f\xff\xff\xff", b"\x00\x53\x74\xc1\x06\x02\xa1\x01\xff\xa0\x00",
    entry(), entry("p"), entry("p", NUMBER), entry("p", NUMBER, ["a"]), entry("p", NUMBER, ["a"], b"x"),
    entry("p", NUMBER, 5, b"x", 0), entry("p", NUMBER, [5], b"x", 0), entry("p", NUMBER, [["a"]], b"x", 0),
    entry("p", [], ["a"], b"x", 0), entry("p", {}, ["a"], b"x", 0), entry("p", NUMBER, ["a"], None, 0),
    entry("p", NUMBER, ["a"], b"x", "0"), entry("d", NUMBER), entry("d", NUMBER, {}), entry("r", NUMBER, [[]]),
    entry("l", [1], ["a"]), entry("s"), entry("s", NUMBER, 0), entry("s", [], 0, 1, b""), entry("s", NUMBER, "0", 1, b""),
    entry("s", NUMBER, 0, None, b""), entry("s", NUMBER, 0, 0, b""), entry("s", NUMBER, 0, 1, "text"),
    entry("s", NUMBER, 0, 1, b"", 6, 7), entry("s", NUMBER, 0, 1 << 62, b"x"), entry(5, 5), entry(None), entry([]),
]  # fmt: skip


@pytest.mark.parametrize("whole", [True, False], ids=["followed", "begun"])
def test_what_is_no_entry_is_passed_over(whole):
    for message in STRANGE:
        keys = KeyTable("stream")
        keys.restart(0 if whole else 5)
        assert all(one.number == NUMBER for one in keys.take(9, 7, message))
        keys.take(10, 7, put("a", b"right", 0, b"12345678"))
        keys.take(11, 7, summary(packed(), 10, number=b"87654321"))
        assert keys.entry(("a",)) == (b"right", 11), message


@pytest.mark.parametrize(
    "bad",
    [b"", b"no zlib", packed()[:-3], packed(("a", b"x", 1))[:-9], summary(b"", 0)],
)
def test_a_summary_that_cannot_be_read_is_passed_over(bad):
    keys = KeyTable("stream")
    keys.restart(5)
    assert keys.take(5, 7, summary(bad, 5)) == []
    keys.take(6, 7, summary(packed(("a", b"right", 3)), 6, number=b"12345678"))
    assert keys.entry(("a",)) == (b"right", 3)


def test_it_is_warned_of_once(caplog):
    keys = KeyTable("stream")
    for offset in range(50):
        keys.take(offset, 7, b"nothing")
    assert [one.levelno for one in caplog.records] == [logging.WARNING]
    assert "no entries" in caplog.text


def test_parts_have_bounds(monkeypatch):
    """Of summaries that never end, and of one that is longer than any can be."""
    monkeypatch.setattr(table, "PARTS_BYTES_MAX", 10_000)
    keys = KeyTable("stream")
    keys.restart(5)
    for number in range(1_000):
        keys.take(5, 7, summary(bytes(100), 5, 1_000, b"%08d" % number))
        assert len(keys._summaries) <= table.SUMMARIES_MAX
    for _ in range(500):
        keys.take(5, 7, summary(bytes(100), 5, 1_000, NUMBER))
    assert keys._parts_bytes <= 10_000
    assert keys._parts_bytes == sum(
        len(one.part) for parts in keys._summaries.values() for one in parts
    )


def test_who_knows_the_keys_keeps_no_parts():
    keys = KeyTable("stream")
    for _ in range(1_000):
        keys.take(5, 7, summary(bytes(1_000), 5, 1_024))
    assert keys._parts_bytes == 0


def test_entries_before_the_first_summary_have_a_bound(monkeypatch):
    monkeypatch.setattr(table, "EARLY_BYTES_MAX", 10_000)
    keys = KeyTable("stream")
    keys.restart(5)
    for offset in range(5, 1_000):
        keys.take(offset, 7, put("a", b"x", 0))
    assert keys._early_bytes <= 10_000
    keys.take(1_000, 7, summary(packed(), 500, number=b"too-late"))
    assert keys.entry(("a",)) is None
    came = keys.take(1_001, 7, summary(packed(), 999, number=b"in-time."))
    assert [one.revision for one in came] == [1_000]


def test_keys_have_a_bound(monkeypatch):
    monkeypatch.setattr(table, "KEYS_MAX", 10)
    monkeypatch.setattr(table, "KEYS_BYTES_MAX", 1_000)
    keys = KeyTable("stream")
    held = [keys.take(at, 7, put(f"k{at}", b"x" * 90, 0))[0].revision for at in range(20)]
    assert [one is not None for one in held] == [True] * 10 + [False] * 10
    keys.take(20, 7, entry("d", NUMBER, ["k0"]))
    assert keys.take(21, 7, put("new", b"x" * 200, 0))[0].revision is None
    assert keys.take(22, 7, put("new", b"x", 0))[0].revision == 23


def test_messages_that_were_packed_together_are_not_unpacked():
    """A client may do that, and name any size. The offsets behind them are right all the same."""
    sub = bytes([0x90]) + (3).to_bytes(2) + (1 << 31).to_bytes(4) + (5).to_bytes(4) + b"12345"
    one = put("a", b"x", 0)
    data = sub + len(one).to_bytes(4) + one
    assert list(messages_of(Chunk(10, 7, 2, 4, data))) == [(13, one)]
    assert list(messages_of(Chunk(10, 7, 9, 9, data[:8]))) == []
    assert len(list(messages_of(Chunk(10, 7, 9, 9, data)))) == 1


# The log that follows the stream


async def test_a_stranger_stops_nobody(monkeypatch):
    stream = Stream()
    log = key_log(stream, monkeypatch)
    for message in STRANGE:
        stream.add(message)
        async with asyncio.timeout(SECONDS):
            await log.write("l", ["a"])
    async with asyncio.timeout(SECONDS):
        assert (await log.write("p", ["b"], b"1", 0)).revision is not None
    await log.close()


async def test_an_error_that_nobody_foresaw_fails_who_waits_and_the_stream_is_read_anew(
    monkeypatch, caplog
):
    stream = Stream()
    log = key_log(stream, monkeypatch)
    async with asyncio.timeout(SECONDS):
        await log.write("p", ["a"], b"1", 0)
        stream.errors.append(ZeroDivisionError())
        # The read that waits has its answer; the one after it fails.
        stream.add(put("b", b"2", 0))
        with monkeypatch.context() as lost:
            lost.setattr(stream, "send", lambda _: asyncio.sleep(0))
            with pytest.raises(BrokerFailed, match="ZeroDivisionError"):
                await log.write("l", ["a"])
        await log.write("l", ["a"])
    assert log.entry(("a",)) == (b"1", 1)
    assert log.entry(("b",)) == (b"2", 2)
    assert "read anew" in caplog.text
    await log.close()


async def test_a_log_whose_follower_died_is_followed_again(monkeypatch):
    stream = Stream()
    log = key_log(stream, monkeypatch)
    async with asyncio.timeout(SECONDS):
        await log.write("p", ["a"], b"1", 0)
        assert log._task is not None
        log._task.cancel()
        await asyncio.gather(log._task, return_exceptions=True)
        await log.write("l", ["a"])
        assert log.entry(("a",)) == (b"1", 1)
    await log.close()


async def test_who_waits_when_it_is_closed_hears_of_it(monkeypatch):
    stream = Stream()
    log = key_log(stream, monkeypatch)
    await log.open()
    monkeypatch.setattr(stream, "send", lambda _: asyncio.sleep(0))
    waiting = asyncio.ensure_future(log.write("l", ["a"]))
    while not log._waiting:
        await asyncio.sleep(0)
    await log.close()
    with pytest.raises(Closed):
        await asyncio.wait_for(waiting, SECONDS)
    with pytest.raises(Closed):
        await log.write("l", ["a"])


async def test_one_key_too_many_is_an_error_that_says_so(monkeypatch):
    monkeypatch.setattr(table, "KEYS_MAX", 1)
    stream = Stream()
    log = key_log(stream, monkeypatch)
    keys = RabbitKeys(stream)  # type: ignore[arg-type]
    keys._logs["penstock.orders.groups"] = log
    key = ("offsets", "orders", "billing", "0")
    assert await keys.put(key, b"x", 0) == 1
    with pytest.raises(LimitReached, match="forget groups"):
        await keys.put((*key[:3], "1"), b"x", 0)
    assert await keys.put(key, b"y", 1) == 3
    await keys.close()


async def test_only_names_are_told(monkeypatch):
    stream = Stream()
    log = key_log(stream, monkeypatch)
    keys = RabbitKeys(stream)  # type: ignore[arg-type]
    keys._logs["penstock.topics"] = log
    for number, name in enumerate(["orders", "<b>", "../x", "a\x1b[2J", "", "é"]):
        stream.add(entry("p", b"%08d" % number, ["topics", name], b"1", 0))
    stream.add(entry("p", NUMBER, ["topics"], b"1", 0))
    assert list(await keys.keys(("topics",))) == [("topics", "orders")]
    await keys.close()


def test_the_entries_of_earlier_versions_are_read():
    """As 0.x wrote them."""
    keys = KeyTable("stream")
    message = encoded(msgspec.msgpack.encode(["p", b"12345678", ["a", "b"], b"x", 0]))
    assert keys.take(0, 7, message) == [(b"12345678", 1, 7)]
    assert keys.entry(("a", "b")) == (b"x", 1)
