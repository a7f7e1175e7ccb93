"""What ``-o`` means, and that nonsense is told."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as some

from penstock.cli.positions import Bound, Range, parse_range, parse_seek, parse_time, seconds_of
from penstock.errors import InvalidOption

NOW = 1_770_000_000_000
HOUR = 3_600_000


def at(milliseconds: int) -> Bound:
    return Bound("time", milliseconds)


def day(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1_000)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("start", Range(Bound("start"))),
        ("end", Range(Bound("end"))),
        ("47", Range(Bound("offset", 47))),
        ("-3", Range(Bound("before_end", 3))),
        ("+2", Range(Bound("after_start", 2))),
        ("40:50", Range(Bound("offset", 40), Bound("offset", 50))),
        (":50", Range(Bound("start"), Bound("offset", 50))),
        ("-10:-5", Range(Bound("before_end", 10), Bound("before_end", 5))),
        ("@1h:", Range(at(NOW - HOUR))),
        ("@1h", Range(at(NOW - HOUR))),
        ("@-1h:", Range(at(NOW - HOUR))),
        ("@1h:30m", Range(at(NOW - HOUR), at(NOW - HOUR // 2))),
        ("@:30m", Range(Bound("start"), at(NOW - HOUR // 2))),
        ("@1h:end", Range(at(NOW - HOUR), at(NOW))),
        ("@1d12h", Range(at(NOW - 36 * HOUR))),
        ("@1767225600000", Range(at(1_767_225_600_000))),
        ("@1767225600", Range(at(1_767_225_600_000))),
        ("@2026-01-01T10:00:00Z", Range(at(day("2026-01-01T10:00:00")))),
        (
            "@2026-01-01T10:00:00Z:2026-01-01T11:30:00Z",
            Range(at(day("2026-01-01T10:00:00")), at(day("2026-01-01T11:30:00"))),
        ),
        (
            "@2026-01-01T10:00:00+00:00:1h",
            Range(at(day("2026-01-01T10:00:00")), at(NOW - HOUR)),
        ),
    ],
)
def test_what_it_means(text, meant):
    assert parse_range(text, NOW) == meant


@pytest.mark.parametrize(
    "text",
    ["", "begin", "4.5", "0x10", "@", "@:", "@soon", "@1h:soon", "1:2:3", "@1y", "९", "1" * 30],
)
def test_nonsense_is_told(text):
    with pytest.raises(InvalidOption, match="is no place to read: use start, end"):
        parse_range(text, NOW)


@given(some.text(max_size=30))
def test_any_text_is_a_place_or_refused(text):
    try:
        found = parse_range(text, NOW)
    except InvalidOption:
        return
    assert found.first.value >= 0
    place = found.first.position(5, 10)
    assert isinstance(place, datetime) or 5 <= place <= 10  # type: ignore[operator]


def test_a_group_goes_on_at_one_place():
    assert parse_seek("@1h", NOW) == at(NOW - HOUR)
    with pytest.raises(InvalidOption, match="is a range"):
        parse_seek("1:2", NOW)


def test_durations_and_times():
    assert seconds_of("1h30m") == 5_400
    assert parse_time("15m", NOW) == NOW - HOUR // 4
    for wrong in ("", "1", "1x", "h"):
        with pytest.raises(InvalidOption):
            seconds_of(wrong)
    with pytest.raises(InvalidOption, match="is no time"):
        parse_time("yesterday", NOW)


def test_what_a_new_group_can_start_at():
    assert parse_range("start", NOW).first.for_new_group() == "earliest"
    assert parse_range("end", NOW).first.for_new_group() == "latest"
    assert parse_range("7", NOW).first.for_new_group() == 7
    with pytest.raises(InvalidOption, match="leave out -g"):
        parse_range("-3", NOW).first.for_new_group()
