"""Searching, following and seeking, on a real log and on a transport."""

import asyncio

import pytest

from penstock import Record, TopicConfig, WalMessageQueue
from penstock.dashboard import matching, moves
from penstock.dashboard.broker import READERS_MAX, BrokerSource
from penstock.dashboard.matching import Wanted
from penstock.dashboard.moves import END, OFFSET, START, TIME, Target
from penstock.dashboard.search import Place, Search, Tail
from penstock.dashboard.sources import NOBODY, LogSource
from penstock.errors import InvalidOption, SubscriberBusy, UnknownPartition
from penstock.observe import Observer
from penstock.transports import EmbeddedTransport

RECORDS = 5_000
BEGIN_MS = 1_772_366_400_000


@pytest.fixture
async def queue(tmp_path):
    """Records in two partitions, one a second."""
    async with WalMessageQueue(tmp_path, defaults=TopicConfig(partitions=2)) as queue:
        numbers = range(RECORDS)
        await queue.publish_many(
            "orders",
            [b'{"order":%d}' % number for number in numbers],
            keys=[b"k%d" % (number % 50) for number in numbers],
            headers=[{"trace": b"t-%d" % number} for number in numbers],
            timestamps=[BEGIN_MS + number * 1_000 for number in numbers],
        )
        yield queue


async def at_home(work):
    return await work


@pytest.fixture(params=["log", "log without Arrow", "broker"])
async def source(request, queue):
    if request.param == "broker":
        transport = EmbeddedTransport(queue.store, maintenance_interval=None)
        await transport.open()
        made = BrokerSource("broker", transport, at_home)
        yield made
        await made.close()
        assert not [one for one in await transport.groups("orders") if one.startswith(NOBODY)]
        await transport.close()
        return
    found = LogSource("log", queue)
    found._arrow = found._arrow and request.param == "log"
    yield found
    await found.close()


async def whole(search: Search) -> list[Record]:
    while await search.step():
        pass
    assert search.done
    return search.found


async def test_content_is_found_in_values_and_headers_newest_first(source):
    search = Search(source, "orders", Wanted(text=b"4999"), step_records=1_500)
    [only] = await whole(search)
    assert only.value == b'{"order":4999}'
    assert only.headers["trace"] == b"t-4999"
    by_header = Search(source, "orders", Wanted(text=b"t-17"), found_max=1_000)
    assert len(await whole(by_header)) == 1 + 10 + 100
    assert search.looked_at == search.total == RECORDS


async def test_a_key_is_found_as_a_whole(source):
    found = await whole(Search(source, "orders", Wanted(key=b"k1")))
    assert len(found) == RECORDS // 50
    assert {one.key for one in found} == {b"k1"}
    offsets = [one.offset for one in found]
    assert offsets == sorted(offsets, reverse=True)


async def test_a_step_reads_a_bounded_part(source):
    asked: list[int] = []
    read = source.read

    async def count(topic, partition, first, stop, wanted):
        asked.append(stop - first)
        return await read(topic, partition, first, stop, wanted)

    source.read = count
    search = Search(source, "orders", Wanted(text=b"no such thing"), step_records=700)
    await whole(search)
    assert max(asked) == 700
    assert sum(asked) == RECORDS
    assert not search.found


async def test_when_enough_is_found_the_search_waits_and_then_goes_on_without_a_gap(source):
    search = Search(source, "orders", Wanted(), found_max=30, step_records=100)
    seen: list[Record] = []
    while True:
        while not search.full and await search.step():
            pass
        assert len(search.found) <= 30 + 1
        seen += search.found
        if search.done:
            break
        search.more()
        if len(seen) > 200:
            break
    places = [(one.partition, one.offset) for one in seen]
    assert len(places) == len(set(places))
    for number in (0, 1):
        offsets = [offset for partition, offset in places if partition == number]
        assert offsets == list(range(offsets[0], offsets[0] - len(offsets), -1))


async def test_offsets_and_partitions_narrow_a_search(source):
    place = Place(partition=1, first=10, stop=20)
    found = await whole(Search(source, "orders", Wanted(), place))
    assert [(one.partition, one.offset) for one in found] == [
        (1, offset) for offset in range(19, 9, -1)
    ]
    with pytest.raises(UnknownPartition, match="0 to 1"):
        await Search(source, "orders", Wanted(), Place(partition=7)).step()


async def test_the_time_of_appending_narrows_a_search(source):
    old = Search(source, "orders", Wanted(), Place(until_ms=BEGIN_MS))
    assert await whole(old) == []
    new = Search(source, "orders", Wanted(text=b":4999"), Place(since_ms=BEGIN_MS))
    assert len(await whole(new)) == 1


async def test_the_tail_has_the_newest_and_then_what_comes(source, queue):
    tail = Tail(source, "orders", records_max=10)
    assert await tail.look() == 10
    assert await tail.look() == 0
    await queue.publish("orders", b"new", key=b"k1")
    assert await tail.look() == 1
    assert tail.records[0].value == b"new"
    assert len(tail.records) == 10


async def test_a_broker_is_read_by_few_groups_that_are_kept_for_the_next_look(queue):
    async with EmbeddedTransport(queue.store, maintenance_interval=None) as transport:
        source = BrokerSource("broker", transport, at_home)
        for _ in range(3):
            assert len(await source.read("orders", 0, 5, 9, Wanted())) == 4
        [own] = await transport.groups("orders")
        assert own.startswith(NOBODY)
        for number in range(READERS_MAX):
            place = await queue.publish(f"other-{number}", b"x")
            assert await source.read(place.topic, place.partition, 0, 1, Wanted())
        assert await transport.groups("orders") == []
        await source.close()
        assert await transport.groups("other-0") == []


def test_arrow_and_python_choose_the_same():
    import pyarrow as pa

    rows = [
        Record("t", 0, 0, 5, b"k", b"abc"),
        Record("t", 0, 1, 6, None, None, {"h": b"xabcx"}),
        Record("t", 0, 2, 7, b"k", b"zzz", {"h": b"q"}),
    ]
    batch = pa.RecordBatch.from_pylist(
        [
            {
                "key": one.key,
                "value": one.value,
                "offset": one.offset,
                "timestamp": one.timestamp,
                "headers": [{"key": k, "value": v} for k, v in one.headers.items()] or None,
            }
            for one in rows
        ],
        schema=pa.schema(
            [
                ("key", pa.binary()),
                ("value", pa.binary()),
                ("offset", pa.int64()),
                ("timestamp", pa.timestamp("ms", "UTC")),
                ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
            ]
        ),
    )
    for wanted in (Wanted(), Wanted(b"k"), Wanted(None, b"abc"), Wanted(b"k", b"q")):
        assert matching.chosen_of_arrow(batch, "t", 0, wanted) == matching.chosen(rows, wanted)


# Seeking


async def seen(queue, name="orders"):
    observer = Observer()
    observer.watch(queue, name="log")
    snapshot = await observer.look()
    return next(one for one in snapshot.groups if one.topic == name)


async def test_a_seek_says_first_what_it_does_and_then_does_it(source, queue):
    async with queue.subscribe("orders", "billing") as records:
        await records.seek(100, partition=0)
    group = await seen(queue)
    foreseen = await moves.preview(source, group, Target(START))
    assert [(one.partition, one.before, one.after) for one in foreseen] == [(0, 100, 0), (1, 0, 0)]
    assert foreseen[0].text() == "100 records come again."
    assert foreseen[1].text() == "Nothing changes."
    assert (await seen(queue)).lag_records == group.lag_records, "a preview changes nothing"
    await moves.move(source, group, foreseen)
    assert (await seen(queue)).lag_records == RECORDS
    to_the_end = await moves.preview(source, await seen(queue), Target(END))
    assert "are passed over" in to_the_end[0].text()
    await moves.move(source, group, to_the_end)
    assert (await seen(queue)).lag_records == 0


async def test_an_offset_outside_of_the_topic_is_brought_inside(source, queue):
    async with queue.subscribe("orders", "billing"):
        pass
    found = await moves.preview(source, await seen(queue), Target(OFFSET, 10**9))
    ends = {one.partition: one.end for one in await source.bounds("orders")}
    assert {one.partition: one.after for one in found} == ends


async def test_a_group_with_a_member_is_not_moved(queue):
    source = LogSource("log", queue)
    async with queue.subscribe("orders", "billing"):
        group = await seen(queue)
        foreseen = await moves.preview(source, group, Target(END))
        with pytest.raises(SubscriberBusy):
            await moves.move(source, group, foreseen)
    await source.close()


async def test_a_seek_by_time_finds_the_offset(source, queue):
    async with queue.subscribe("orders", "billing"):
        pass
    group = await seen(queue)
    found = await moves.preview(source, group, Target(TIME, BEGIN_MS))
    assert [one.after for one in found] == [0, 0]


def test_what_is_typed_wrong_is_explained():
    with pytest.raises(InvalidOption, match="a number"):
        moves.target_of(OFFSET, "x")
    with pytest.raises(InvalidOption, match="2026-03-01"):
        moves.target_of(TIME, "soon")
    assert moves.target_of(TIME, "2026-03-01 12:00") == Target(TIME, BEGIN_MS)
    assert moves.target_of(START, "") == Target(START)


async def test_reading_does_not_disturb_what_the_program_does(queue):
    """Retention may be faster than a search, and a topic may go on growing."""
    source = LogSource("log", queue)
    assert await source.read("orders", 0, 10**6, 10**6 + 5, Wanted()) == []
    await asyncio.gather(
        queue.publish_many("orders", [b"x"] * 100),
        whole(Search(source, "orders", Wanted(text=b"x"), found_max=1_000)),
    )
    await source.close()
