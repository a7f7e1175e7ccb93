"""Commits of many batches: written piece by piece, one head and one sync for all of them."""

import pytest

from penstock.errors import RecordTooLarge, StoreFailed
from penstock.log import appending
from penstock.log.appending import drafts_of
from penstock.log.codec import Codec
from penstock.log.columns import Columns
from tests.log.strategies import machine, segment_paths, values_draft


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Every entry is worth a write of its own."""
    monkeypatch.setattr(appending, "WRITE_BYTES", 1)


def counting(batches, made):
    """The batches; each is noted when it is asked for its bytes."""
    return [_Counted([b"%d" % number], made) for number in range(batches)]


class _Counted(Columns):
    def __init__(self, values, made):
        super().__init__(values)
        self.made = made

    def encode(self):
        self.made.append(self.values[0])
        return super().encode()


def test_each_entry_is_made_when_the_one_before_was_written():
    one = machine()
    sizes = []

    def drafts():
        for value in (b"first", b"second", b"third"):
            sizes.append(sum(len(one.disk.content(path)) for path in segment_paths(one.disk)))
            yield values_draft(value)

    one.log.attach()
    one.log.append(drafts(), sync=True)
    assert sizes == sorted(set(sizes)), "the file has grown before each"
    assert one.values() == [b"first", b"second", b"third"]


def test_several_batches_are_made_one_by_one_and_a_single_one_at_once():
    made: list[bytes] = []
    drafts = iter(drafts_of(counting(3, made), Codec.NONE))
    assert made == []
    next(drafts)
    assert made == [b"0"]
    drafts_of(counting(1, made), Codec.NONE)
    assert made == [b"0", b"0"]


def test_compressed_batches_are_made_before_the_lock():
    made: list[bytes] = []
    drafts_of(counting(3, made), Codec.ZLIB)
    assert made == [b"0", b"1", b"2"]


def test_a_large_commit_has_one_head_and_one_sync():
    one = machine()
    one.append(b"before")
    heads, syncs = one.log.head.generation, one.store.statistics().syncs
    one.log.append(map(values_draft, (b"a", b"b", b"c")), sync=True)
    assert one.log.head.generation == heads + 1
    assert one.store.statistics().syncs == syncs + 1


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_piece_that_cannot_be_written_poisons_and_a_leading_part_may_be_there(number):
    """What was written before it lies behind the head; whoever goes on cuts it, or keeps what is whole."""
    one = machine()
    one.append(b"before")
    one.disk.fail("write", at=number, path="*.log")
    with pytest.raises(StoreFailed):
        one.log.append(map(values_draft, (b"a", b"b", b"c")), sync=True)
    assert one.log.poison is not None
    two = machine(one.disk.kill())
    two.append(b"after")
    values = [b"before", *[b"a", b"b"][: number - 1], b"after"]
    assert two.values() in (values, [b"before", b"after"])


def failing_after(*values):
    """Drafts of the values, and then one for which there is no memory."""
    yield from map(values_draft, values)
    raise MemoryError


def test_a_draft_that_cannot_be_made_does_no_harm_while_nothing_is_written():
    one = machine()
    one.append(b"before")
    with pytest.raises(MemoryError):
        one.log.append(failing_after(), sync=True)
    assert one.log.poison is None
    one.append(b"after")
    assert one.values() == [b"before", b"after"]


def test_a_draft_that_cannot_be_made_poisons_when_others_were_written():
    one = machine()
    one.append(b"before")
    with pytest.raises(MemoryError):
        one.log.append(failing_after(b"a"), sync=True)
    assert isinstance(one.log.poison, MemoryError)
    assert machine(one.disk.kill()).append(b"after") in (1, 2)


def test_an_entry_that_no_reader_would_take_is_refused_before_it_is_written(monkeypatch):
    one = machine()
    one.append(b"before")
    monkeypatch.setattr(appending, "ENTRY_BYTES_MAX", 100)
    with pytest.raises(RecordTooLarge):
        one.log.append(map(values_draft, (bytes(1_000), b"b")), sync=True)
    assert one.log.poison is None
