"""Names of topics and groups: no traversal, no odd characters, no two meanings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidName, InvalidOption
from penstock.log.names import (
    NAME_LENGTH_MAX,
    PartitionKeys,
    SegmentName,
    check_case,
    check_name,
    offset_key,
    place_in,
    topic_key,
)
from penstock.stores.base import check_key

NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,30}", fullmatch=True)


@given(NAMES, st.integers(0, 4_095), st.integers(0, 10**19), st.integers(0, 10**9 - 1))
def test_every_key_of_a_good_name_is_a_good_key(name, partition, base, rewrite):
    assert check_name("topic", name) == name
    keys = PartitionKeys(name, partition)
    segment = SegmentName(base, rewrite)
    for key in (keys.head, keys.log(segment), keys.index(segment), topic_key(name)):
        assert check_key(key) == key
    assert check_key(offset_key(name, name, partition))


def test_the_longest_name_fits():
    name = "x" * NAME_LENGTH_MAX
    check_key(offset_key(name, name, 4_095))
    check_key(topic_key(name))


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/b", "/a", "a\\b", "a b", "a\n", "a\0", "é", "-a", ".a", "a:b", "*",
     "x" * (NAME_LENGTH_MAX + 1), "٣", "a\u202e", None, 5, b"bytes", "con\u0000"],
)  # fmt: skip
def test_a_bad_name_is_refused_with_what_is_allowed(name):
    with pytest.raises(InvalidName, match="letters, digits") as caught:
        check_name("topic", name)
    assert caught.value.kind == "topic"


@given(st.text(max_size=30))
def test_any_text_is_taken_or_refused_and_what_is_taken_is_safe(name):
    try:
        check_name("group", name)
    except InvalidName:
        return
    assert check_key(f"groups/{name}/x")
    assert "/" not in name
    assert not name.startswith(".")
    assert name.isascii()


@given(st.integers(0, 10**20 - 1), st.integers(0, 10**9 - 1))
def test_a_segment_name_reads_back(base, rewrite):
    name = SegmentName(base, rewrite)
    assert SegmentName.parse(f"{name.stem}.log") == name


@given(st.lists(st.integers(0, 10**20 - 1), min_size=2, unique=True))
def test_segments_sort_by_their_first_offset(bases):
    stems = [SegmentName(base).stem for base in bases]
    assert [int(stem) for stem in sorted(stems)] == sorted(bases)


@pytest.mark.parametrize(
    "name",
    ["", ".log", "1.log", "0" * 19 + ".log", "0" * 21 + ".log", "0" * 20, "0" * 20 + ".index",
     "0" * 20 + "-.log", "0" * 20 + "-1234567890.log", "x" + "0" * 20 + ".log",
     "0" * 20 + ".log.tmp", "." + "0" * 20 + ".log-abc.tmp", "-" + "0" * 19 + ".log"],
)  # fmt: skip
def test_other_files_are_not_taken_for_segments(name):
    assert SegmentName.parse(name) is None


def test_offset_files_of_different_partitions_never_meet():
    names = ["a", "a-1", "a-1-1", "a-11", "a.1"]
    keys = {offset_key("g", name, number) for name in names for number in (0, 1, 11, 111)}
    assert len(keys) == 20


@given(NAMES, st.lists(NAMES, max_size=20))
def test_a_name_that_differs_from_another_by_case_alone_is_refused(name, others):
    alike = [one for one in others if one.lower() == name.lower() and one != name]
    if not alike:
        check_case("subscriber", name, iter(others))
    for other in {name.swapcase(), name.upper()} - {name}:
        with pytest.raises(InvalidName, match=f"differs from {other!r} only by case"):
            check_case("subscriber", name, [*(set(others) - set(alike)), name, other])


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("log:./data", "./data"),
        ("log:data", "data"),
        ("log:/srv/data", "/srv/data"),
        ("log:///srv/data", "/srv/data"),
        ("log:s3://bucket/data?region=eu", "s3://bucket/data?region=eu"),
    ],
)
def test_a_url_names_a_place_and_the_options_of_a_store_stay_with_it(url, place):
    assert place_in(url) == place


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("log:", "names no directory"),
        ("log://", "names no directory"),
        ("log:./data?fsync=timed", "has options"),
    ],
)
def test_a_url_of_no_place_or_with_options_is_refused(url, what):
    with pytest.raises(InvalidOption, match=what) as caught:
        place_in(url)
    assert caught.value.option == "url"
