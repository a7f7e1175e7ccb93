"""A checkpoint survives JSON and bytes, and bytes that changed are told."""

from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DamagedFile, DamageError, InvalidName, InvalidOption, UnsupportedFormat
from penstock.streaming import StreamCheckpoint
from penstock.streaming.checkpoint import decode_checkpoint, encode_checkpoint, utc_of
from tests.streaming.streaming_world import ranges
from tests.streaming.test_ranges import positions

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


def checkpoint(**changes):
    fields = {"group": "g", "topic": "t", "partition": 3, "offset": 7, "committed_at": MOMENT}
    return StreamCheckpoint(**{**fields, **changes})


names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,20}", fullmatch=True)
checkpoints = st.builds(
    lambda position, **fields: StreamCheckpoint(
        offset=position.offset, gaps=position.gaps, **fields
    ),
    positions,
    group=names,
    topic=names,
    partition=st.integers(0, 1 << 20),
    committed_at=st.datetimes(timezones=st.just(UTC)),
    generation=st.integers(0, 1 << 40),
)


@pytest.mark.acceptance(104)
@given(checkpoints)
def test_a_checkpoint_survives_json_and_bytes(one):
    assert StreamCheckpoint.from_json(one.to_json()) == one
    assert decode_checkpoint(encode_checkpoint(one)) == one


@pytest.mark.acceptance(104)
def test_the_json_is_what_people_would_write():
    assert msgspec.json.decode(checkpoint(gaps=ranges((9, 11))).to_json()) == {
        "group": "g",
        "topic": "t",
        "partition": 3,
        "offset": 7,
        "committed_at": "2026-01-02T03:04:05.678000Z",
        "gaps": [[9, 11]],
        "generation": 0,
    }


def test_every_flipped_bit_is_told():
    data = encode_checkpoint(checkpoint(gaps=ranges((9, 11))))
    for place in range(len(data) * 8):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        with pytest.raises(DamagedFile):
            decode_checkpoint(bytes(changed))


def test_every_cut_and_every_addition_is_told():
    data = encode_checkpoint(checkpoint())
    for wrong in [*(data[:length] for length in range(len(data))), data + b" ", bytes(len(data))]:
        with pytest.raises(DamagedFile):
            decode_checkpoint(wrong)


@given(st.binary(max_size=200))
def test_bytes_of_others_are_never_a_checkpoint(data):
    with pytest.raises(DamageError):
        decode_checkpoint(data)


def sealed(version, body):
    from penstock.streaming.checkpoint import _checksum

    number = str(version).encode()
    return b"penstock-checkpoint %b %08x\n%b" % (number, _checksum(number, body), body)


def test_a_newer_version_is_told_apart_from_damage():
    with pytest.raises(UnsupportedFormat) as told:
        decode_checkpoint(sealed(2, b"{}"), "where")
    assert told.value.fields == {"file": "where", "version": 2}


def test_a_sound_checksum_does_not_make_a_checkpoint():
    for body in [b"{}", b"7", b"", checkpoint().to_json().replace(b'"offset":7', b'"offset":-7')]:
        with pytest.raises(DamagedFile) as told:
            decode_checkpoint(sealed(1, body), "where")
        assert told.value.file == "where"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"group": ""}, InvalidName),
        ({"topic": "a/b"}, InvalidName),
        ({"partition": -1}, InvalidOption),
        ({"generation": -1}, InvalidOption),
        ({"offset": -1}, InvalidOption),
        ({"gaps": ranges((7, 9))}, InvalidOption),
        ({"committed_at": MOMENT.replace(tzinfo=None)}, InvalidOption),
        ({"committed_at": MOMENT.astimezone(timezone(timedelta(hours=1)))}, InvalidOption),
    ],
)
def test_a_checkpoint_that_cannot_be_is_refused(change, error):
    with pytest.raises(error):
        checkpoint(**change)


def test_milliseconds_become_utc():
    assert utc_of(1_767_323_045_678) == MOMENT
