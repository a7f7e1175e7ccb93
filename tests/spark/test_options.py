"""Options: what is right is understood, what is wrong is an error that says what would be right."""

import json
from pathlib import Path

import pytest

from penstock.errors import InvalidName, InvalidOption
from penstock.spark.options import OPTIONS, option_table, read_options, with_headers

PAGE = Path(__file__).parent.parent.parent / "docs" / "spark.md"
NEEDED = {"path": "/data", "subscribe": "orders"}


def read(stream=True, **given):
    return read_options(NEEDED | given, stream=stream)


def test_what_is_not_given_is_as_in_sparks_kafka_source():
    stream, batch = read(), read(stream=False)
    assert (stream.starting, batch.starting, batch.ending) == ("latest", "earliest", "latest")
    assert stream.fail_on_loss
    assert not stream.headers
    assert stream.delay_ms_max == 15 * 60_000
    nothing = (stream.records_max, stream.bytes_max, stream.records_min, stream.tasks_min)
    assert nothing == (None, None, None, None)
    assert stream.group is None
    assert stream.tier is None


def test_names_are_taken_in_any_case():
    assert read(STARTINGOFFSETS="Earliest", maxoffsetspertrigger="7").records_max == 7
    assert with_headers({"INCLUDEHEADERS": "TRUE"})


def test_topics_are_named_listed_or_matched():
    assert read(subscribe=" b, a ,a").topics == ("a", "b")
    found = read_options({"path": "x", "subscribePattern": "or.*"}, stream=True)
    assert (found.pattern, found.topics) == ("or.*", ())
    assigned = read_options({"path": "x", "assign": '{"a": [1, 0, 1]}'}, stream=True)
    assert assigned.partitions == {"a": (0, 1)}


@pytest.mark.parametrize("given", [{}, {"subscribe": "a", "assign": '{"a": [0]}'}])
def test_there_is_one_way_to_name_the_topics(given):
    with pytest.raises(InvalidOption, match="subscribe or subscribePattern or assign"):
        read_options({"path": "x", **given}, stream=True)


def test_offsets_are_json_with_marks_for_the_ends():
    found = read(startingOffsets='{"orders": {"0": 23, "1": -1, "2": -2}}').starting
    assert found == {"orders": {0: 23, 1: -1, 2: -2}}


@pytest.mark.parametrize(
    "text",
    [
        "first",
        "[]",
        '{"orders": 3}',
        '{"orders": {"x": 3}}',
        '{"orders": {"0": -3}}',
        '{"orders": {"0": true}}',
        '{"orders": {"0": 1.5}}',
        '{"no/name": {"0": 1}}',
    ],
)
def test_offsets_that_are_none_are_refused_with_an_example(text):
    with pytest.raises((InvalidOption, InvalidName), match=r'"orders": \{"0": 23|not a topic name'):
        read(startingOffsets=text)


@pytest.mark.parametrize("text", ["", "{", "[0]", '{"a": 1}', '{"a": [-1]}', '{"a": ["0"]}', "{}"])
def test_assignments_that_are_none_are_refused(text):
    with pytest.raises(InvalidOption):
        read_options({"path": "x", "assign": text}, stream=True)


def test_a_batch_query_does_not_start_at_the_end_nor_end_at_the_start():
    for text in ("latest", '{"orders": {"0": -1}}'):
        with pytest.raises(InvalidOption, match="cannot be latest"):
            read(stream=False, startingOffsets=text)
    for text in ("earliest", '{"orders": {"0": -2}}'):
        with pytest.raises(InvalidOption, match="cannot be earliest"):
            read(stream=False, endingOffsets=text)


def test_a_time_goes_before_times_by_partition():
    each = json.dumps({"orders": {"0": 5}})
    assert read(startingTimestamp="7", startingOffsetsByTimestamp=each).starting_ms == 7
    assert read(startingOffsetsByTimestamp=each).starting_ms == {"orders": {0: 5}}
    assert read(startingOffsetsByTimestampStrategy="LATEST").late_start == "latest"
    with pytest.raises(InvalidOption, match="use error or latest"):
        read(startingOffsetsByTimestampStrategy="never")


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("500ms", 500), ("30s", 30_000), ("15m", 900_000), ("1 h", 3_600_000), ("9", 9)],
)
def test_durations_have_units(text, milliseconds):
    assert read(maxTriggerDelay=text).delay_ms_max == milliseconds


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("maxOffsetsPerTrigger", "0", "1 or more"),
        ("maxOffsetsPerTrigger", "many", "whole number"),
        ("minPartitions", "-1", "1 or more"),
        ("maxTriggerDelay", "soon", "500ms, 30s"),
        ("failOnDataLoss", "maybe", "true or false"),
        ("includeHeaders", "1", "true or false"),
        ("longPollMs", "1001", "0 to 1000"),
        ("subscribePattern", "(", "regular expression"),
        ("startingTimestamp", "now", "whole number"),
    ],
)
def test_a_wrong_value_is_told_with_what_is_right(name, value, hint):
    given = {"path": "x", name: value}
    if name != "subscribePattern":
        given["subscribe"] = "orders"
    with pytest.raises(InvalidOption, match=f"{name}.*{hint}") as caught:
        read_options(given, stream=True)
    assert caught.value.option == name


def test_an_unknown_option_is_refused_with_the_one_that_was_meant():
    with pytest.raises(InvalidOption, match="Did you mean startingOffsets") as caught:
        read(startingOffset="earliest")
    assert all(option.name in str(caught.value) for option in OPTIONS)
    with pytest.raises(InvalidOption, match="Did you mean path"):
        read(**{"kafka.bootstrap.servers": "localhost:9092"})
    with pytest.raises(InvalidOption, match="Did you mean groupId"):
        read(**{"kafka.group.id": "g"})


@pytest.mark.parametrize(
    "option", [one for one in OPTIONS if one.where != "both"], ids=lambda one: one.name
)
def test_an_option_of_the_other_kind_of_query_is_refused(option):
    with pytest.raises(InvalidOption, match=f"{option.name} is an option of"):
        read(stream=option.where == "batch", **{option.name: "1"})


def test_a_log_has_to_be_named():
    with pytest.raises(InvalidOption, match="path"):
        read_options({"subscribe": "orders"}, stream=True)


@pytest.mark.parametrize("name", ["subscribe", "groupId"])
def test_names_follow_the_rules_of_names(name):
    with pytest.raises(InvalidName):
        read(**{name: "../etc"})


def test_the_page_shows_the_options_as_they_are():
    """The table between the marks is `penstock.spark.options.option_table()`."""
    text = PAGE.read_text(encoding="utf-8")
    shown = text.partition("<!-- options -->\n")[2].partition("<!-- end of options -->")[0]
    assert shown.strip() == option_table().strip(), f"paste this:\n{option_table()}"
