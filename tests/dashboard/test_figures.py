"""What the numbers say, without a browser."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import MessageBus, ScalableMessageBus
from penstock.dashboard import figures, style, texts
from penstock.dashboard.figures import BAD, GOOD, NOTICE, LagPoint
from penstock.dashboard.sampler import GROUPS_MAX, POINTS_MAX, Sampler
from penstock.observe import (
    Cause,
    GroupActivity,
    GroupKind,
    GroupPartition,
    GroupSnapshot,
    LogPartition,
    Observer,
    Snapshot,
    Stall,
    TopicSnapshot,
)

EMPTY = Snapshot(time_ms=1_000, looked_ms=1_000)


def group(committed: int = 0, end: int = 0, **fields: Any) -> GroupSnapshot:
    part = GroupPartition(
        partition=0,
        committed=committed,
        end=end,
        lag_records=end - committed,
        lag_seconds=0.0,
        progress_seconds=0.0,
        state=GroupActivity.RUNNING,
    )
    given: dict[str, Any] = {
        "kind": GroupKind.LOG,
        "source": "log",
        "group": "billing",
        "topic": "orders",
        "state": GroupActivity.RUNNING,
        "cause": None,
        "lag_records": end - committed,
        "lag_seconds": 0.0,
        "rate": 0.0,
        "drain_seconds": None,
        "members": (),
        "generation": None,
        "partitions": (part,),
        "local": True,
    }
    return GroupSnapshot(**{**given, **fields})


def topic(end: int) -> TopicSnapshot:
    part = LogPartition(
        partition=0,
        next_offset=end,
        durable_offset=end,
        earliest_offset=0,
        bytes=0,
        segments=1,
        oldest_ms=None,
        full=False,
        poisoned=None,
    )
    return TopicSnapshot(source="log", topic="orders", partitions=(part,))


def stall(**fields: Any) -> Stall:
    given: dict[str, Any] = {
        "source": "log",
        "group": "billing",
        "topic": "orders",
        "partition": 0,
        "offset": 17,
        "since_ms": 0,
        "seconds": 42.0,
        "cause": Cause.HANDLER,
        "detail": "a handler runs for 42 s",
    }
    return Stall(**{**given, **fields})


def test_rates_are_what_happened_between_two_snapshots():
    before = replace(EMPTY, topics=(topic(100),), groups=(group(50, 100),))
    after = replace(EMPTY, time_ms=3_000, topics=(topic(300),), groups=(group(110, 300),))
    found = figures.rates(before, after)
    assert (found.appended, found.committed) == (100.0, 30.0)


def test_what_became_less_is_no_rate():
    before = replace(EMPTY, topics=(topic(100),))
    after = replace(EMPTY, time_ms=3_000)
    assert figures.rates(before, after).appended == 0.0
    assert figures.rates(after, after).appended == 0.0


def test_a_stall_is_the_worst_finding():
    behind = group(0, 10_000, rate=10.0, drain_seconds=1_000.0)
    first, second = figures.findings(replace(EMPTY, stalls=(stall(),), groups=(behind,)))
    assert (first.mood, first.path) == (BAD, "/stalls")
    assert first.title == "billing on orders stands still: handler running"
    assert first.detail == "a handler runs for 42 s"
    assert (second.mood, second.path) == (NOTICE, "/groups")
    assert "10.0 k" in second.detail


def test_when_nothing_is_wrong_that_is_said():
    [only] = figures.findings(EMPTY)
    assert only.mood == GOOD


async def test_the_pressure_is_that_of_the_fullest_part():
    async with ScalableMessageBus(MessageBus(name="shop")) as bus:
        observer = Observer()
        observer.watch(bus)
        found = figures.pressure(observer.snapshot())
    assert found is not None
    assert found.level.name == "NORMAL"
    assert figures.pressure(EMPTY) is None


def points(*pairs: tuple[int, int]) -> list[LagPoint]:
    return [
        LagPoint(time_ms=place * 1_000, records=end - done, seconds=0, committed=done, end=end)
        for place, (done, end) in enumerate(pairs)
    ]


@pytest.mark.parametrize(
    ("history", "told"),
    [
        (points(), "Caught up."),
        (points((5, 5)), "Caught up."),
        (points((0, 5)), "Not known yet"),
        (points((0, 50), (0, 60)), "It does not move."),
        (points((0, 50), (10, 70)), "Never at this pace: 20/s come in, 10/s are read."),
        (points((0, 100), (30, 110)), "In about 4.0 s: 30/s are read, 10/s come in."),
    ],
)
def test_the_drain_estimate_counts_what_comes_in(history, told):
    assert figures.drain(history).startswith(told)


def test_the_history_is_bounded():
    sampler = Sampler(SimpleNamespace())  # type: ignore[arg-type]
    for number in range(POINTS_MAX + 10):
        sampler.add(replace(EMPTY, time_ms=number * 1_000, groups=(group(number, number),)))
    assert len(sampler.points) == POINTS_MAX
    assert len(sampler.lags(("log", "orders", "billing"))) == POINTS_MAX
    assert sampler.latest.time_ms == (POINTS_MAX + 9) * 1_000


def test_groups_that_are_gone_are_forgotten_and_their_number_is_bounded():
    sampler = Sampler(SimpleNamespace())  # type: ignore[arg-type]
    many = tuple(group(group=f"g{number}") for number in range(GROUPS_MAX + 5))
    sampler.add(replace(EMPTY, groups=many))
    assert len(sampler._lags) == GROUPS_MAX
    sampler.add(EMPTY)
    assert not sampler._lags


def test_the_dashboards_own_groups_are_left_out():
    sampler = Sampler(SimpleNamespace())  # type: ignore[arg-type]
    own = "penstock-dashboard-0a"
    groups = (group(group=own), group())
    sampler.add(replace(EMPTY, groups=groups, stalls=(stall(group=own),)))
    assert [one.group for one in sampler.latest.groups] == ["billing"]
    assert not sampler.latest.stalls


@pytest.mark.parametrize(
    ("number", "told"),
    [(0.25, "250 ms"), (3.21, "3.2 s"), (90, "90 s"), (750, "12 min"), (18_600, "5 h 10 min")],
)
def test_durations_are_as_exact_as_is_useful(number, told):
    assert texts.seconds(number) == told


def test_a_payload_is_laid_out_when_it_is_json_and_never_longer_than_can_be_shown():
    assert texts.payload(b'{"a":1}') == '{\n  "a": 1\n}'
    assert texts.payload(b"\xff\x00") == "ff00"
    assert texts.payload(None) == "(none)"
    assert "bytes more" in texts.payload(b"x" * (texts.SHOWN_BYTES_MAX + 1))
    assert len(texts.line(b"y" * 10_000)) == texts.LINE_MAX


def test_times_are_utc_unless_they_say_otherwise():
    assert texts.parse_time("2026-03-01 12:00") == 1_772_366_400_000
    assert texts.parse_time("2026-03-01T12:00:00+01:00") == 1_772_362_800_000
    assert texts.parse_time("yesterday") is None


# Colours


def channel(value: int) -> float:
    share = value / 255
    return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4


def luminance(colour: str) -> float:
    red, green, blue = (channel(int(colour[place : place + 2], 16)) for place in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [":root", "body.body--dark"])
def test_text_can_be_read_on_its_ground_light_and_dark(theme):
    block = style.CSS.partition(f"{theme} {{")[2].partition("}")[0]
    colours = dict(re.findall(r"(--ps-[\w-]+): (#\w{6})", block))
    for text in ("text", "dim", "accent"):
        for ground in ("bg", "card", "code"):
            assert contrast(colours[f"--ps-{text}"], colours[f"--ps-{ground}"]) >= 4.5
    for mood in ("good", "notice", "bad"):
        assert contrast(colours[f"--ps-{mood}"], colours[f"--ps-{mood}-soft"]) >= 4.5
    assert contrast(colours["--ps-accent"], colours["--ps-soft"]) >= 4.5
