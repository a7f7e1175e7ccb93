"""The sparse index: lookups equal a scan, whatever the layout and whatever is wrong with it."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from penstock.log import open_index
from penstock.log.frame import KIND_RECORDS
from penstock.log.index import INDEX_SPACING_BYTES, ROW_BYTES, Index, IndexBuilder, IndexRow
from penstock.log.open_index import ROWS_TOGETHER
from penstock.log.reader import PartitionReader
from penstock.testing.disk import SimulatedDisk
from tests.log.strategies import FOLDER, Machine, flip, machine, read_records


@st.composite
def layouts(draw: st.DrawFn) -> list[IndexRow]:
    """Entries as rows: offsets and positions rise, time does not fall."""
    steps = draw(
        st.lists(
            st.tuples(st.integers(1, 1_000), st.integers(0, 50), st.integers(80, 200_000)),
            max_size=30,
        )
    )
    rows, offset, time, position = [], 0, 1_000, 0
    for records, later, size in steps:
        rows.append(IndexRow(offset, time, position))
        offset, time, position = offset + records, time + later, position + size
    return rows


@given(layouts(), st.integers(0, 40_000), st.integers(900, 3_000))
def test_lookups_equal_a_scan_of_the_rows(rows, offset, time):
    index = Index(rows)
    assert index.at_offset(offset) == max((r for r in rows if r.offset <= offset), default=None)
    older = [row for row in rows if row.timestamp < time]
    assert index.at_time(time) == (older[-1] if older else None)


@given(layouts())
def test_rows_read_back_and_a_cut_last_row_is_left_out(rows):
    data = Index(rows).pack()
    assert len(data) == ROW_BYTES * len(rows)
    parsed = Index.parse(data)
    assert parsed is not None
    assert parsed.rows == rows
    for cut in {1, 31, 32, 33, len(data) - 1} & set(range(len(data))):
        short = Index.parse(data[:cut])
        assert short is not None
        assert short.rows == rows[: cut // ROW_BYTES]


@given(layouts().filter(bool), st.data())
def test_any_flipped_bit_is_seen(rows, data):
    packed = Index(rows).pack()
    bit = data.draw(st.integers(0, 8 * len(packed) - 1))
    assert Index.parse(flip(packed, bit)) is None


@given(layouts().filter(lambda rows: len(rows) > 1), st.data())
def test_rows_out_of_order_are_seen(rows, data):
    place = data.draw(st.integers(0, len(rows) - 2))
    swapped = [*rows[:place], rows[place + 1], rows[place], *rows[place + 2 :]]
    assert Index.parse(Index(swapped).pack()) is None
    assert Index.parse(Index([rows[0], *rows]).pack()) is None


@given(st.lists(st.integers(80, 150_000), max_size=40), st.integers(0, 10**6))
def test_the_builder_leaves_a_spacing_between_rows(sizes, start):
    builder = IndexBuilder(start)
    position, rows = start, []
    for number, size in enumerate(sizes):
        row = builder.offer(number, number, position)
        if row:
            rows.append(row)
        position += size
    places = [start, *(row.position for row in rows)]
    for before, after in itertools.pairwise(places):
        assert after - before >= INDEX_SPACING_BYTES
    assert ROW_BYTES * len(rows) <= Index.size_max(position)


@given(st.binary(max_size=400))
def test_random_bytes_are_no_index(data):
    parsed = Index.parse(data)
    assert parsed is None or (len(data) < ROW_BYTES and parsed.rows == [])


def filled(sizes: list[int], segment_bytes_max: int = 250_000) -> Machine:
    one = machine(segment_bytes_max=segment_bytes_max)
    for number, size in enumerate(sizes):
        one.append(b"%d:" % number + bytes(size))
    return one


def check_every_offset(reader: PartitionReader, count: int) -> None:
    for offset in range(count):
        source, position, base = reader.locate(offset)
        assert base <= offset
        entries = list(source.entries(position, source.size()))
        first = next(e for e in entries if e.header.kind == KIND_RECORDS)
        assert position == 0 or first.header.base_offset == base
        (entry, *_) = reader.cursor(offset).fetch(1)
        assert entry.header.base_offset == offset


def test_any_state_of_the_index_gives_every_record():
    """Absent, short, of another segment, with rows of entries that are gone."""
    sizes = [50_000, 10, 30_000, 65_000, 100, 70_000, 20_000, 10, 90_000, 5, 66_000, 1]
    one = filled(sizes)
    one.log.close()
    paths = [path for path in one.disk.files() if path.endswith(".index")]
    contents = [one.disk.content(path) for path in paths]
    assert len(paths) == 2
    for change in (
        lambda number: None,
        lambda number: b"",
        lambda number: contents[number][:ROW_BYTES],
        lambda number: contents[number - 1],
        lambda number: contents[number] + IndexRow(999, 1 << 60, 1 << 40).pack(),
        lambda number: contents[number] + IndexRow(11, 1 << 60, 1).pack(),
        lambda number: IndexRow(1, 0, 70_001).pack(),
        lambda number: IndexRow(0, 0, 7).pack() * 4_000,
    ):
        disk = one.disk.kill()
        for number, path in enumerate(paths):
            content = change(number)
            if content is None:
                disk.delete(path)
            else:
                disk.put(path, content)
        two = machine(disk)
        check_every_offset(two.reader, len(sizes))
        assert [len(record.value or b"") for record in read_records(two.reader)] == [
            size + len(b"%d:" % number) for number, size in enumerate(sizes)
        ]


def test_the_index_of_a_sealed_segment_is_completed_on_disk():
    one = filled([40_000] * 12)
    one.log.close()
    path = min(path for path in one.disk.files() if path.endswith(".index"))
    right = one.disk.content(path)
    assert len(right) >= 2 * ROW_BYTES
    for content in (b"", right[:ROW_BYTES], right[: ROW_BYTES + 5], right + b"\0"):
        disk = one.disk.kill()
        disk.put(path, content)
        machine(disk).reader.locate(1)
        assert disk.content(path)[: len(right)] == right
    disk = one.disk.kill()
    disk.delete(path)
    machine(disk).reader.locate(1)
    assert disk.content(path) == right


def index_of(one: Machine) -> bytes:
    """The bytes of the one index; nothing when there is none yet."""
    return b"".join(one.disk.content(path) for path in one.disk.files() if path.endswith(".index"))


def writer(disk: SimulatedDisk | None = None) -> Machine:
    """One with room for all rows of a test in a segment."""
    return machine(disk, segment_bytes_max=1 << 24)


def append_rows(one: Machine, count: int) -> None:
    """Append entries for this many rows to a segment that this writer begins, or goes on with: the first gets none."""
    for _ in range(count + 1):
        one.append(bytes(INDEX_SPACING_BYTES))


def test_rows_are_written_some_at_a_time():
    one = writer()
    append_rows(one, ROWS_TOGETHER - 1)
    assert index_of(one) == b""
    one.append(bytes(INDEX_SPACING_BYTES))
    assert len(index_of(one)) == ROWS_TOGETHER * ROW_BYTES
    check_every_offset(one.reader, ROWS_TOGETHER + 1)


def test_the_rows_that_wait_are_written_when_the_log_is_closed():
    one = writer()
    append_rows(one, 3)
    one.log.close()
    assert len(index_of(one)) == 3 * ROW_BYTES


def test_the_rows_that_wait_are_written_before_a_segment_is_sealed():
    one = writer()
    append_rows(one, 3)
    one.log.segment_bytes_max = 1
    one.append(b"in the next segment")
    assert len(index_of(one)) == 3 * ROW_BYTES


def test_rows_that_wait_are_written_when_another_writer_went_on():
    one = writer()
    append_rows(one, 3)
    writer(one.disk).append(b"of another")
    one.append(b"of this one again")
    assert len(index_of(one)) == 3 * ROW_BYTES


def test_rows_that_somebody_wrote_meanwhile_are_not_written_again():
    """A repair makes the whole index anew, while the writer lives."""
    one = writer()
    append_rows(one, ROWS_TOGETHER - 1)
    other = writer(one.disk.kill())
    kept = one.log._index._rows
    other.disk.put(f"{FOLDER}/{0:020d}.index", Index(kept).pack())
    other.log.attach()
    other.log._index._rows = list(kept)
    other.log.close()
    assert index_of(other) == Index(kept).pack()


def test_rows_that_wait_are_forgotten_when_later_ones_are_there():
    """Rows must rise."""
    one = writer()
    append_rows(one, 3)
    other = writer(one.disk)
    append_rows(other, ROWS_TOGETHER)
    append_rows(one, ROWS_TOGETHER)
    index = Index.parse(index_of(one))
    assert index is not None
    assert len(index.rows) == 2 * ROWS_TOGETHER
    check_every_offset(one.reader, 4 + 2 * (ROWS_TOGETHER + 1))


def test_rows_of_a_tail_that_was_cut_are_dropped(monkeypatch):
    """Given an index that outlived the entries it speaks of, recovery trims it."""
    monkeypatch.setattr(open_index, "ROWS_TOGETHER", 1)
    one = machine()
    one.append(bytes(70_000))
    for _ in range(3):
        one.append(bytes(70_000), sync=False)
    (path,) = [path for path in one.disk.files() if path.endswith(".index")]
    rows = one.disk.content(path)
    segment = path.replace(".index", ".log")
    disk = one.disk.kill()
    disk.truncate_file(segment, 150_000)
    two = machine(disk)
    assert two.log.attach().bytes_cut
    assert disk.content(path) == rows[:ROW_BYTES]
    for _ in range(3):
        two.append(bytes(70_000))
    assert Index.parse(disk.content(path)) is not None
    check_every_offset(two.reader, 5)


def test_an_index_that_cannot_be_written_costs_only_time():
    one = machine()
    one.disk.fail("write", path="*.index", forever=True)
    for _ in range(4):
        one.append(bytes(70_000))
    assert one.log.poison is None
    check_every_offset(one.reader, 4)


def test_a_huge_index_file_is_not_read_into_memory():
    """The limit follows from the size of the segment."""
    assert Index.size_max(0) == ROW_BYTES
    assert Index.size_max(128 << 20) == ROW_BYTES * 2_049
    one = machine(segment_bytes_max=300)
    for number in range(4):
        one.append(b"%d" % number + b"x" * 200)
    path = f"{one.disk.files()[0].rpartition('/')[0]}/{0:020d}.index"
    one.disk.put(path, bytes(1 << 20))
    before = one.store.statistics().bytes_read
    assert one.values(0)
    assert one.store.statistics().bytes_read - before < 100_000
