"""Format strings and JSON lines."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as some

from penstock import Record
from penstock.cli.formats import json_line, renderer, short_text, time_text
from penstock.errors import InvalidOption

RECORD = Record("orders", 2, 17, 1_770_000_000_123, b"k\xff", b"value", {"a": b"1", "b": b"2"})
BARE = Record("orders", 0, 0, 0, None, None)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (r"%v\n", b"value\n"),
        (r"%t/%p/%o\t%k=%s", b"orders/2/17\tk\xff=value"),
        ("%T %d", b"1770000000123 2026-02-02T02:40:00.123Z"),
        ("%h", b"a=1,b=2"),
        ("%K %V %S", b"2 5 5"),
        (r"100%% \x41\\\0\e", b"100% A\\\0\x1b"),
        ("ü%o", "ü17".encode()),
        ("", b""),
    ],
)
def test_what_is_written(text, written):
    assert renderer(text)(RECORD) == written


def test_a_record_without_key_and_value():
    assert renderer("[%k|%v|%K|%V|%h]")(BARE) == b"[||-1|-1|]"


@pytest.mark.parametrize(
    ("text", "told"), [("%x", "no %x"), ("%", "no %:"), ("\\q", r"no \\q"), ("\\", "no ")]
)
def test_what_it_does_not_know_is_told(text, told):
    with pytest.raises(InvalidOption, match=told):
        renderer(text)


@given(some.text(max_size=20))
def test_any_text_is_a_format_or_refused(text):
    try:
        write = renderer(text)
    except InvalidOption:
        return
    assert isinstance(write(RECORD), bytes)


def test_json_has_all_of_a_record():
    line = json_line(RECORD)
    assert line.endswith(b"}\n")
    assert json.loads(line) == {
        "topic": "orders",
        "partition": 2,
        "offset": 17,
        "timestamp": 1_770_000_000_123,
        "time": "2026-02-02T02:40:00.123Z",
        "key": {"base64": base64.b64encode(b"k\xff").decode()},
        "value": "value",
        "headers": {"a": "1", "b": "2"},
    }


@given(some.binary(max_size=50), some.none() | some.binary(max_size=20))
def test_any_bytes_come_back_from_json(value, key):
    found = json.loads(json_line(Record("t", 0, 0, 0, key, value)))
    for name, data in (("key", key), ("value", value)):
        told = found[name]
        back = base64.b64decode(told["base64"]) if isinstance(told, dict) else told
        assert (back.encode() if isinstance(back, str) else back) == data


def test_texts_for_people():
    assert short_text(b"x" * 100, 10) == "x" * 9 + "…"
    assert short_text(None) == "-"
    assert time_text(1 << 62) == str(1 << 62)
