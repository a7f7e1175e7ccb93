"""Epochs and the barrier between them, as plain values."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.log.batch import Batch
from penstock.log.columns import Columns
from penstock.log.epoch import (
    Epoch,
    Epochs,
    are_sound,
    first_offset,
    followed_by,
    partitions_of_all,
    without_forgotten,
)
from penstock.log.epoch_barrier import EpochBarrier
from penstock.log.epoch_routing import Routing
from penstock.log.receipts import Receipt
from penstock.log.sharing import Limits, Parcel
from penstock.system import System

FIRST = (Epoch(0, 2, 100),)
GROWN = (*FIRST, Epoch(1, 3, 200, (5, 7, 0)))
SHRUNK = (*GROWN, Epoch(2, 1, 300, (9, 8, 4)))
LIMITS = Limits(1_000, 1 << 20)


def test_an_epoch_begins_where_the_partitions_end():
    assert followed_by(FIRST, 3, [5, 7, 0], 200) == GROWN
    assert followed_by(GROWN, 1, [9, 8, 4], 300) == SHRUNK


def test_an_epoch_without_records_is_replaced():
    assert followed_by(GROWN, 1, [5, 7, 0], 300) == (*FIRST, Epoch(2, 1, 300, (5, 7, 0)))
    assert followed_by(FIRST, 4, [0, 0, 0, 0], 300) == (Epoch(1, 4, 300, (0, 0, 0, 0)),)


def test_partitions_that_get_no_more_records_still_count():
    assert [partitions_of_all(one) for one in (FIRST, GROWN, SHRUNK)] == [2, 3, 3]
    assert partitions_of_all(SHRUNK[2:]) == 3


def test_the_first_offset_is_that_of_the_first_epoch_with_the_partition():
    later = (Epoch(4, 1, 0, (9, 8, 4)), Epoch(5, 3, 0, (12, 8, 4)))
    assert [first_offset(later, number) for number in range(4)] == [9, 8, 4, 0]
    assert [first_offset(SHRUNK, number) for number in range(3)] == [0, 0, 0]
    assert [first_offset(SHRUNK[2:], number) for number in range(3)] == [9, 8, 4]


def test_epochs_are_forgotten_when_all_their_records_are_gone():
    earliest = [5, 7, 0]
    assert without_forgotten(SHRUNK, earliest.__getitem__) == SHRUNK[1:]
    assert without_forgotten(SHRUNK, [5, 6, 4].__getitem__) == SHRUNK
    assert without_forgotten(SHRUNK, [99, 99, 99].__getitem__) == SHRUNK[2:]


def test_what_cannot_be_the_epochs_of_a_topic_is_told():
    assert are_sound(SHRUNK, 3)
    assert not are_sound((), 3)
    assert not are_sound(SHRUNK, 2)
    assert not are_sound((GROWN[1], GROWN[0]), 3)
    assert not are_sound((*GROWN, Epoch(2, 1, 300, (4, 8, 4))), 3)


def barrier(epochs: Epochs) -> EpochBarrier:
    made = EpochBarrier()
    made.follow(epochs)
    return made


def test_the_next_epoch_opens_when_every_partition_is_consumed():
    shut = barrier(SHRUNK)
    consumed = [5, 6, 0]
    assert not shut.advance(range(3), consumed.__getitem__)
    assert [shut.end(number) for number in range(3)] == [5, 7, 0]
    assert shut.left(range(3), consumed.__getitem__) == [1]
    consumed[1] = 7
    assert shut.advance(range(3), consumed.__getitem__)
    assert [shut.end(number) for number in range(3)] == [9, 8, 4]
    assert not shut.is_last
    assert shut.advance(range(3), [9, 8, 4].__getitem__)
    assert shut.is_last
    assert shut.end(0) is None


def test_who_goes_back_begins_with_the_first_epoch_again():
    shut = barrier(SHRUNK)
    assert shut.advance(range(3), [9, 9, 9].__getitem__)
    shut.reset()
    assert not shut.advance(range(3), [2, 9, 9].__getitem__)
    assert shut.end(0) == 5


def test_a_topic_without_other_epochs_is_never_shut():
    assert barrier(FIRST).is_last
    assert barrier(FIRST).left(range(2), lambda number: 0) == []


@given(
    keys=st.lists(st.none() | st.binary(max_size=2), max_size=40),
    before=st.integers(1, 5),
    after=st.integers(1, 5),
)
def test_records_that_are_routed_again_keep_their_places_and_their_order(keys, before, after):
    values = [b"%d" % number for number in range(len(keys))]
    batch = Batch(Columns(values, keys), Receipt("orders", None), size=0)
    astray = [
        parcel
        for one in Routing(0, before, System()).route([batch], LIMITS).values()
        for parcel in one
    ]
    found: list[Parcel] = []
    partition_of: dict[bytes, int] = {}
    for partition, parcels in Routing(1, after, System()).route_again(astray, LIMITS).items():
        assert partition < after
        found += parcels
        for parcel in parcels:
            for key in filter(None, parcel.columns.keys or ()):
                assert partition_of.setdefault(key, partition) == partition
    for parcel in found:
        [(_, mine)] = parcel.portions
        assert [values[place] for place in mine] == list(parcel.columns.values)
    places = [place for parcel in found for place in parcel.portions[0].places]
    assert sorted(places) == list(range(len(keys)))
    for key in {key for key in keys if key is not None}:
        mine = [place for place in places if keys[place] == key]
        assert mine == sorted(mine)
