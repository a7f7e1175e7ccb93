"""Calls that are committed together share entries; each hears where its own records are."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Codec, FsyncPolicy, TopicConfig
from penstock.errors import StoreFailed
from penstock.hashing import fnv1a
from penstock.log.batch import Batch, Router
from penstock.log.columns import Columns
from penstock.log.epoch_routing import Routing
from penstock.log.frame import KIND_RECORDS, entries
from penstock.log.receipts import Receipt
from penstock.log.routing import RECORDS_EACH_MIN, SPREAD_MIN, partitions_of, turns
from penstock.log.sharing import Limits, Parcel, Portion, cut, portions_at, shared
from penstock.testing.queue_fixtures import settle
from penstock.testing.worker import simulated_system
from tests.log.test_writer import opened

HELD = {"immediate": False}
WIDE = Limits(1_000, 1 << 20)


def stored(system, partition=0):
    """The values of each entry of a partition on the disk."""
    data = system.files.content(f"/data/log/topics/orders/{partition}/{0:020}.log")
    return [entry.view().values() for entry in entries(data) if entry.header.kind == KIND_RECORDS]


async def together(system, *publishing):
    """What becomes of calls that are committed together."""
    tasks = [asyncio.ensure_future(one) for one in publishing]
    await settle()
    system.workers[0].run()
    return await asyncio.gather(*tasks, return_exceptions=True)


# On the disk


async def test_calls_that_are_committed_together_are_one_entry_and_each_gets_its_own_offsets():
    async with opened(**HELD) as (system, queue, _):
        calls = [[b"a", b"b"], [b"c"], [b"d", b"e", b"f"]]
        heard = await together(system, *(queue.publish_many("orders", call) for call in calls))
        assert stored(system) == [[b"a", b"b", b"c", b"d", b"e", b"f"]]
        assert [one.ranges for one in heard] == [{0: (0, 2)}, {0: (2, 3)}, {0: (3, 6)}]
        assert [one.count for one in heard] == [2, 1, 3]


async def test_records_that_are_waited_for_one_by_one_share_with_calls():
    async with opened(**HELD) as (system, queue, _):
        heard = await together(
            system,
            queue.publish("orders", b"a"),
            queue.publish_many("orders", [b"b", b"c"]),
            queue.publish("orders", b"d"),
        )
        assert stored(system) == [[b"a", b"b", b"c", b"d"]]
        assert (heard[0].offset, heard[1].ranges, heard[2].offset) == (0, {0: (1, 3)}, 3)


async def test_each_partition_gets_one_entry_of_all_calls():
    async with opened(TopicConfig(partitions=3), **HELD) as (system, queue, _):
        keys = [b"key-%d" % number for number in range(30)]
        calls = [keys[:10], keys[10:20], keys[20:]]
        heard = await together(
            system, *(queue.publish_many("orders", call, keys=call) for call in calls)
        )
        for partition in range(3):
            mine = [key for key in keys if fnv1a(key) % 3 == partition]
            assert stored(system, partition) == [mine]
            for call, one in zip(calls, heard, strict=True):
                first, end = one.ranges[partition]
                assert mine[first:end] == [key for key in call if key in mine]


async def test_records_with_other_columns_have_an_entry_of_their_own():
    """A key for one call must not give one to the records of another, nor bytes for none."""
    async with opened(**HELD) as (system, queue, _):
        await together(
            system,
            queue.publish_many("orders", [b"a"]),
            queue.publish_many("orders", [b"b"], keys=[b"key"]),
            queue.publish_many("orders", [b"c"], timestamps=[1]),
            queue.publish_many("orders", [b"d"], headers=[{"name": b"value"}]),
            queue.publish_many("orders", [b"e"]),
            queue.publish_many("orders", [b"f"]),
        )
        assert stored(system) == [[b"a"], [b"b"], [b"c"], [b"d"], [b"e", b"f"]]


@pytest.mark.parametrize(
    "config",
    [TopicConfig(batch_records_max=5), TopicConfig(batch_bytes_max=5 * (64 + 1))],
    ids=["records", "bytes"],
)
async def test_an_entry_has_no_more_than_a_batch_may_have(config):
    async with opened(config, **HELD) as (system, queue, _):
        calls = [[b"a", b"b"], [b"c", b"d"], [b"e", b"f"], [b"g"]]
        heard = await together(system, *(queue.publish_many("orders", call) for call in calls))
        assert stored(system) == [[b"a", b"b", b"c", b"d"], [b"e", b"f", b"g"]]
        assert [one.ranges[0] for one in heard] == [(0, 2), (2, 4), (4, 6), (6, 7)]


async def test_many_records_of_one_key_are_cut_to_the_limits_of_an_entry():
    """What is joined is as much as all partitions may get; here one gets all of it."""
    config = TopicConfig(partitions=4, batch_records_max=4)
    async with opened(config, **HELD) as (system, queue, _):
        calls = [[b"a", b"b", b"c"], [b"d", b"e", b"f"], [b"g"]]
        heard = await together(
            system, *(queue.publish_many("orders", call, keys=[b"k"] * len(call)) for call in calls)
        )
        partition = fnv1a(b"k") % 4
        assert stored(system, partition) == [[b"a", b"b", b"c", b"d"], [b"e", b"f", b"g"]]
        assert [one.ranges for one in heard] == [
            {partition: (0, 3)}, {partition: (3, 6)}, {partition: (6, 7)},
        ]  # fmt: skip


async def test_one_durable_call_makes_the_entry_durable_for_all():
    config = TopicConfig(fsync=FsyncPolicy.TIMED)
    async with opened(config, **HELD) as (system, queue, _):
        heard = await together(
            system,
            queue.publish_many("orders", [b"a"]),
            queue.publish_many("orders", [b"b"], durable=True),
        )
        assert stored(system) == [[b"a", b"b"]]
        assert [one.durable for one in heard] == [True, True]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZLIB])
async def test_a_shared_entry_is_read_from_memory_and_from_the_disk(codec):
    async with opened(TopicConfig(codec=codec), **HELD) as (system, queue, _):
        calls = [[b"a", None], [b"c"]]
        keys = [[None, b"k"], [b"l"]]
        await together(
            system,
            *(queue.publish_many("orders", call, keys=key) for call, key in zip(calls, keys, strict=True)),
        )  # fmt: skip
        expected = [(0, b"a", None), (1, None, b"k"), (2, b"c", b"l")]
        for name in ("memory", "disk"):
            async with queue.subscribe("orders", name) as records:
                read = [await anext(records) for _ in range(3)]
            assert [(one.offset, one.value, one.key) for one in read] == expected
            queue._opened["orders"].caches[0].clear()


# What goes wrong


async def test_an_error_reaches_all_calls_of_an_entry():
    async with opened(TopicConfig(partitions=2), **HELD) as (system, queue, _):
        # The first of the two partitions cannot be synced.
        system.files.fail("sync", path="*/orders/0/*.log")
        keys = sorted((b"%d" % number for number in range(8)), key=lambda key: fnv1a(key) % 2)
        bad = [key for key in keys if fnv1a(key) % 2 == 0][:2]
        good = [key for key in keys if fnv1a(key) % 2 == 1][:1]
        heard = await together(
            system,
            queue.publish_many("orders", bad[:1], keys=bad[:1]),
            queue.publish_many("orders", good, keys=good),
            queue.publish_many("orders", bad[1:], keys=bad[1:]),
            queue.publish("orders", b"x", key=bad[0]),
        )
        assert [type(one) for one in (heard[0], heard[2], heard[3])] == [StoreFailed] * 3
        assert heard[1].ranges == {1: (0, 1)}
        counts = queue.statistics().topics["orders"]
        assert (counts.records_committed, counts.records_failed) == (1, 3)


async def test_a_write_that_fails_is_heard_by_all_and_leaves_nothing_of_any():
    async with opened(**HELD) as (system, queue, _):
        await together(system, queue.publish_many("orders", [b"before"]))
        system.files.fail("write", path="*/orders/0/*.log")
        heard = await together(
            system,
            queue.publish_many("orders", [b"a" * 100]),
            queue.publish_many("orders", [b"b" * 100]),
        )
        assert [type(one) for one in heard] == [StoreFailed, StoreFailed]
        assert stored(system)[:1] == [[b"before"]]
        assert b"b" * 100 not in [value for entry in stored(system) for value in entry]


# Whose records they are

runs = st.lists(
    st.lists(st.tuples(st.none() | st.binary(max_size=2), st.binary(max_size=9)), min_size=1, max_size=9),
    min_size=1, max_size=7,
)  # fmt: skip


def batch(records):
    keys, values = map(list, zip(*records, strict=True))
    columns = Columns(values, keys)
    return Batch(columns, Receipt("orders", None), size=columns.byte_size())


def flat(parcel):
    """For each record of a parcel: its batch, its place there, its key and value."""
    assert parcel.columns.keys is not None
    places = [(batch, place) for batch, places in parcel.portions for place in places]
    assert len(places) == len(parcel.columns)
    return [
        (id(batch), place, key, value)
        for (batch, place), key, value in zip(
            places, parcel.columns.keys, parcel.columns.values, strict=True
        )
    ]


@given(runs, st.integers(1, 5), st.integers(1, 5), st.integers(1, 12), st.integers(70, 900))
def test_every_record_is_sent_once_in_order_and_known_by_its_place(
    given_runs, partitions, later, records_max, bytes_max
):
    """Also after it was sent anew, to the partitions of another epoch."""
    system = simulated_system()
    # A call has no more than an entry may have.
    batches = [batch(one[start : start + records_max])
               for one in given_runs for start in range(0, len(one), records_max)]  # fmt: skip
    expected = {
        (id(one), place, key, value)
        for one in batches
        for place, (key, value) in enumerate(
            zip(one.columns.keys or (), one.columns.values, strict=True)
        )
    }
    order = {id(one): number for number, one in enumerate(batches)}
    limits = Limits(records_max, bytes_max)
    sent = Routing(0, partitions, system).route(batches, limits)
    astray = [parcel for parcels in sent.values() for parcel in parcels]
    again = Routing(1, later, system).route_again(astray, limits)
    for count, routed in ((partitions, sent), (later, again)):
        found = {
            number: [one for parcel in parcels for one in flat(parcel)]
            for number, parcels in routed.items()
        }
        assert sorted(map(repr, (one for each in found.values() for one in each))) == sorted(
            map(repr, expected)
        )
        for number, records in found.items():
            for key in {one[2] for one in records} - {None}:
                assert fnv1a(key) % count == number
                places = [(order[one[0]], one[1]) for one in records if one[2] == key]
                assert places == sorted(places)
        for parcel in (parcel for parcels in routed.values() for parcel in parcels):
            assert len(parcel.columns) <= records_max
            if len(parcel.portions) > 1 and len(parcel.columns) > 1:
                assert parcel.columns.byte_size() <= bytes_max


def test_a_commit_of_one_batch_is_as_it_was():
    one = batch([(b"k", b"v"), (None, b"w")])
    [parcel] = shared([one], WIDE, 1)
    assert parcel.columns is one.columns
    assert list(shared([], WIDE, 1)) == []


def test_joined_columns_know_their_lengths_and_their_size():
    batches = [batch([(b"k", b"abc")]), batch([(None, b""), (b"kk", b"d")])]
    [parcel] = shared(batches, WIDE, 1)
    fresh = Columns(list(parcel.columns.values), list(parcel.columns.keys or ()))
    assert parcel.columns.value_lengths() == fresh.value_lengths()
    assert parcel.columns.byte_size() == fresh.byte_size()
    assert parcel.columns.encode() == fresh.encode()
    taken = parcel.columns.take([2, 0])
    assert taken.value_lengths().tolist() == [1, 3]
    assert taken.encode() == Columns([b"d", b"abc"], [b"kk", b"k"]).encode()


def test_portions_of_places_in_steps_and_of_lists():
    one, other = batch([(None, b"")] * 3), batch([(None, b"")] * 4)
    whole = [Portion(one, range(3)), Portion(other, range(4))]
    parcel = Parcel(Columns([b""] * 7), whole)
    assert portions_at(whole, range(1, 7, 2)) == [(one, range(1, 3, 2)), (other, range(0, 4, 2))]
    assert portions_at(whole, [0, 2, 5]) == [(one, [0, 2]), (other, [2])]
    assert portions_at(whole, [4]) == [(other, [1])]
    assert portions_at([Portion(one, [5, 7, 9])], [0, 2]) == [(one, [5, 9])]
    pieces = list(cut(parcel.columns, whole, Limits(4, 1 << 20)))
    assert [piece.portions for piece in pieces] == [
        [(one, range(3)), (other, range(1))], [(other, range(1, 4))],
    ]  # fmt: skip


# Records without a key


def test_few_partitions_all_take_turns():
    assert turns(8, 3, 7) == (8, 2)
    assert turns(SPREAD_MIN, 1_000, 0) == (SPREAD_MIN, 1_000 % SPREAD_MIN)


def test_a_few_records_for_many_partitions_go_to_the_next_ones_in_turn():
    partitions = SPREAD_MIN * 8
    assert turns(partitions, 1_000, 0) == (SPREAD_MIN, SPREAD_MIN)
    assert turns(partitions, 3, partitions - 1) == (SPREAD_MIN, 2)
    # So many that each partition gets enough of them.
    count = RECORDS_EACH_MIN * partitions
    assert turns(partitions, count, 5) == (partitions, 5)
    assert turns(partitions, count // 2, 5) == (partitions // 2, 5 + partitions // 2)


@pytest.mark.parametrize("partitions", [SPREAD_MIN, 100, 512])
def test_in_the_end_all_partitions_have_got_as_many(partitions):
    router, counts = Router(partitions, 3), [0] * partitions
    keyed, turn = [0] * partitions, 3
    for _ in range(partitions):
        for partition, places, part in router.split(Columns([b"x"] * SPREAD_MIN * 2)):
            assert len(places) == len(part)
            counts[partition] += len(part)
        chosen, turn = partitions_of([None] * SPREAD_MIN * 2, partitions, turn)
        for partition in chosen.tolist():
            keyed[partition] += 1
    assert set(counts) == {SPREAD_MIN * 2}
    assert keyed == counts
