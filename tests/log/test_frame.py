"""The entry: every field round trips, every limit holds, the plain frame is readable."""

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DamagedEntry, DamageError, UnsupportedFormat
from penstock.log import frame
from penstock.log.codec import Codec
from penstock.log.columns import Columns
from tests.log.plain_frame import plain_entries
from tests.log.strategies import columns, draft_of, records_of, values_draft

U32 = st.integers(0, (1 << 32) - 1)
U64 = st.integers(0, (1 << 64) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)


def sealed(*values: bytes, base: int = 0, previous: int = 0, timestamp: int = 1) -> bytes:
    return b"".join(frame.seal(values_draft(*values), base, 0, previous, timestamp)[0])


def forged(**fields: int) -> bytes:
    """An entry of one value whose header says something else, with checksums that fit."""
    names = [
        "length",
        "magic",
        "version",
        "kind",
        "codec",
        "flags",
        "base_offset",
        "record_count",
        "offset_span",
        "durable",
        "producer",
        "epoch",
        "sequence",
        "mark",
        "reserved",
        "body_length",
        "previous",
        "body_checksum",
    ]
    data = sealed(b"value")
    values = dict(zip(names, frame._HEAD.unpack_from(data), strict=True)) | fields
    head = frame._HEAD.pack(*values.values())
    return head + struct.pack("<I", crc32c(head)) + data[frame.HEADER_BYTES :]


@given(columns(), U64, U64, U32, I64, st.sampled_from(Codec))
def test_any_batch_sealed_reads_back(batch, base, durable, previous, timestamp, codec):
    base = min(base, frame.OFFSET_MAX - len(batch))
    buffers, size, checksum = frame.seal(draft_of(batch, codec), base, durable, previous, timestamp)
    data = b"".join(buffers)
    assert len(data) == size
    (entry,) = frame.entries(data, 1_000)
    header = entry.header
    assert (entry.position, entry.timestamp, header.checksum) == (1_000, timestamp, checksum)
    assert (header.base_offset, header.durable_offset, header.previous) == (base, durable, previous)
    assert (header.record_count, header.offset_span) == (len(batch), len(batch))
    assert header.next_offset == base + len(batch)
    assert header.entry_bytes == size
    assert entry.view().records("orders", 0) == records_of(batch, base, timestamp)


@given(columns(1), st.sampled_from(Codec), I64)
def test_an_entry_packed_again_is_the_same_entry(batch, codec, timestamp):
    data = b"".join(frame.seal(draft_of(batch, codec), 5, 3, 77, timestamp)[0])
    (entry,) = frame.entries(data)
    buffers, size, checksum = frame.repack(entry.header, [entry.body], timestamp)
    assert b"".join(buffers) == data
    assert (size, checksum) == (len(data), entry.header.checksum)


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=6), st.data())
def test_entries_stop_before_one_that_is_cut_off(values, data):
    whole = [sealed(value, base=number) for number, value in enumerate(values)]
    stream = b"".join(whole)
    cut = data.draw(st.integers(0, len(stream)))
    found = [entry.view().values()[0] for entry in frame.entries(stream[:cut])]
    ends = [sum(map(len, whole[: number + 1])) for number in range(len(whole))]
    assert found == values[: sum(end <= cut for end in ends)]


def test_a_cut_header_and_a_cut_body_are_named():
    data = sealed(b"value")
    with pytest.raises(DamagedEntry) as caught:
        frame.parse_header(data[: frame.HEADER_BYTES - 1])
    assert caught.value.reason == "header cut off"
    with pytest.raises(DamagedEntry) as caught:
        frame.parse_body(data[:-1], 0, frame.parse_header(data))
    assert caught.value.reason == "body cut off"


HUGE = [1 << 31, (1 << 32) - 1]


@pytest.mark.parametrize("field", ["length", "body_length", "record_count", "offset_span"])
@pytest.mark.parametrize("value", HUGE)
def test_a_huge_length_or_count_is_refused_before_anything_is_allocated(field, value):
    data = forged(**{field: value})
    if field == "offset_span":  # a span costs nothing: gaps of compacted segments are long
        assert frame.parse_header(data).offset_span == value
        return
    with pytest.raises(DamagedEntry, match="out of bounds"):
        frame.parse_header(data)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"kind": 4}, "header"),
        ({"kind": 255}, "header"),
        ({"record_count": 2, "offset_span": 1}, "header"),
        ({"base_offset": 1 << 63}, "offsets"),
        ({"base_offset": frame.OFFSET_MAX}, "offsets"),
        ({"length": 0}, "length"),
        ({"length": frame.HEADER_BYTES - 5}, "length"),
        ({"length": frame.ENTRY_BYTES_MAX - 11}, "length"),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(fields, reason):
    with pytest.raises(DamagedEntry) as caught:
        frame.parse_header(forged(**fields))
    assert caught.value.reason == reason


@pytest.mark.parametrize("version", [0, 2, 255])
def test_an_entry_of_another_version_is_refused_with_its_number(version):
    with pytest.raises(UnsupportedFormat, match=f"version {version}") as caught:
        frame.parse_header(forged(version=version))
    assert caught.value.version == version


@pytest.mark.parametrize(("field", "value"), [("codec", 9), ("flags", 16), ("flags", 255)])
def test_an_unknown_codec_or_column_is_damage(field, value):
    (entry,) = frame.entries(forged(**{field: value}))
    with pytest.raises(DamageError):
        entry.view()


def test_the_chain_is_the_header_checksum_of_the_entry_before():
    first, _, checksum = frame.seal(values_draft(b"a"), 0, 0, 0, 1)
    second, _, _ = frame.seal(values_draft(b"b"), 1, 0, checksum, 1)
    one, two = frame.entries(b"".join([*first, *second]))
    assert two.header.previous == one.header.checksum == checksum


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_the_next_sound_header_is_found_behind_damage(garbage, tail):
    data = garbage + sealed(b"value") + tail
    (found,) = frame.find_headers(data)
    assert found == (len(garbage), frame.parse_header(data, len(garbage)))
    assert found[1].record_count == 1


def test_magic_bytes_without_a_sound_header_are_passed_over():
    data = b"PNSK" * 50 + sealed(b"PNSK")
    assert [place for place, _ in frame.find_headers(data)] == [200]
    assert not list(frame.find_headers(forged(version=9)))


PLAIN = bytes.fromhex(
    "05000000" "68656c6c6f" "00a8da769b010000"  # 5, "hello", 1 January 2026
    "00000000" "" "01a8da769b010000"
    "03000000" "000102" "ffffffffffffffff"
)  # fmt: skip


@pytest.mark.acceptance(44)
def test_a_plain_file_of_length_payload_timestamp_is_read_byte_for_byte():
    assert list(plain_entries(PLAIN)) == [
        (b"hello", 1_767_225_600_000),
        (b"", 1_767_225_600_001),
        (b"\x00\x01\x02", -1),
    ]
    rebuilt = b"".join(
        struct.pack("<I", len(payload)) + payload + struct.pack("<q", timestamp)
        for payload, timestamp in plain_entries(PLAIN)
    )
    assert rebuilt == PLAIN


@pytest.mark.acceptance(44)
@given(st.lists(st.binary(max_size=60), max_size=5))
def test_penstocks_own_entries_are_such_a_plain_file(values):
    data = b"".join(sealed(value, timestamp=7) for value in values)
    plain = list(plain_entries(data))
    assert [timestamp for _, timestamp in plain] == [7] * len(values)
    assert [payload[:4] for payload, _ in plain] == [b"PNSK"] * len(values)
    assert [payload[68:] for payload, _ in plain] == [
        b"".join(Columns([value]).encode()[1]) for value in values
    ]


@pytest.mark.parametrize("cut", range(len(PLAIN)))
def test_a_plain_file_cut_anywhere_gives_the_whole_entries(cut):
    found = list(plain_entries(PLAIN[:cut]))
    assert found == list(plain_entries(PLAIN))[: (cut >= 17) + (cut >= 29)]


def test_a_plain_length_of_two_gigabytes_ends_the_file():
    assert list(plain_entries(struct.pack("<I", 1 << 31) + bytes(100))) == []
