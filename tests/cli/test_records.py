"""``penstock produce`` and ``penstock consume``."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from tests.cli.terminal import Terminal


@pytest.fixture(scope="module")
def ten(tmp_path_factory) -> Terminal:
    """A log with ten records, which no test changes."""
    folder = tmp_path_factory.mktemp("ten")
    terminal = Terminal(folder, f"log:{folder / 'data'}")
    lines = b"".join(b"k%d:v%d\n" % (number, number) for number in range(10))
    terminal("produce", "orders", "--create", "-K", ":", "-H", "from=test", stdin=lines)
    return terminal


def test_lines_become_records(ten):
    shown = ten("consume", "orders", "-f", r"%p %o %k=%v %h\n").lines
    assert shown == [f"0 {number} k{number}=v{number} from=test" for number in range(10)]


@pytest.mark.parametrize(
    ("place", "offsets"),
    [
        ("start", range(10)),
        ("end", []),
        ("7", [7, 8, 9]),
        ("-3", [7, 8, 9]),
        ("+8", [8, 9]),
        ("3:5", [3, 4]),
        ("-3:-1", [7, 8]),
        (":2", [0, 1]),
        ("99", []),
        ("@1h:", range(10)),
        ("@1h:30m", []),
        ("@2w:1w", []),
        ("@2000-01-01", range(10)),
        ("@2999-01-01", []),
    ],
)
def test_where_reading_begins_and_ends(ten, place, offsets):
    shown = ten("consume", "orders", "-o", place, "-f", r"%o\n").lines
    assert [int(line) for line in shown] == list(offsets)


def test_so_many_and_no_more(ten):
    assert ten("consume", "orders", "-n", 3, "-f", "%o ").text == "0 1 2 "
    assert ten("consume", "orders", "-n", 0).text == ""


def test_json_lines(ten):
    found = ten("consume", "orders", "-f", "json", "-o", "-2").json_lines
    assert [(one["offset"], one["key"], one["headers"]) for one in found] == [
        (8, "k8", {"from": "test"}),
        (9, "k9", {"from": "test"}),
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["consume", "orders", "-o", "soon"], "'soon' is no place to read: use start, end"),
        (["consume", "orders", "-f", "%x"], "a format has no %x"),
        (["consume", "orders", "-n", "-1"], "Invalid value for '--number'"),
        (["consume", "orders", "-p", "7"], "has partitions 0 to 0, not 7"),
        (["consume", "orders", "-g", "g", "-p", "0"], "leave out --partition"),
        (["consume", "orders", "-g", "g", "-o", "1:2"], "leave out --partition and the end"),
        (["consume", "orders", "-g", "a b"], "is not a group name"),
        (["consume", "orders", "--follow", "-o", "1:2"], "leave out --follow"),
        (["consume"], "Missing argument 'TOPIC'"),
        (["consume", "orders", "extra"], "unexpected extra argument"),
        (["consume", "orders", "--oops"], "No such option: --oops"),
        (["produce", "orders", "x", "--file", "y"], "values and --file"),
        (["produce", "orders", "x", "-k", "a", "-K", ":"], "--key and --key-separator"),
        (["produce", "orders", "x", "-K", ""], "--key-separator is empty"),
        (["produce", "orders", "x", "-K", ":"], "a line has no ':' between key and value"),
        (["produce", "orders", "x", "-H", "oops"], "'oops' is no header: write NAME=VALUE"),
        (["produce", "orders", "x", "-Z"], "--tombstone needs --key"),
        (["produce", "orders", "--file", "gone.txt"], "gone.txt: No such file"),
        (["--url", "gopher://x", "topic", "list"], "no transport for 'gopher:'"),
        (["--url", "log:", "topic", "list"], "names no directory"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(ten, words, told):
    done = ten(*words, code=None)
    assert done.code in (1, 2)
    assert re.search(re.escape(told), done.errors), done.errors
    assert done.errors.startswith("penstock: ")
    assert done.errors.count("\n") <= 3
    assert done.text == ""


WORDS = some.sampled_from(
    [
        "topic",
        "list",
        "consume",
        "orders",
        "produce",
        "group",
        "dlq",
        "show",
        "-o",
        "json",
        "-n",
        "-1",
        "--url",
        "memory:",
        "--yes",
        "-f",
        "%",
        "export",
        "x.csv",
        "doctor",
        "--",
        "-g",
        "\x00",
        "ü",
        "log",
        "stats",
        "seek",
        "--to",
    ]
)


@settings(max_examples=60)
@given(some.lists(WORDS, max_size=6))
def test_any_words_end_with_a_known_code(words):
    if "doctor" in words or "bench" in words:
        return
    from pathlib import Path
    from tempfile import mkdtemp

    terminal = Terminal(Path(), f"log:{mkdtemp()}/none")
    done = terminal(*words, code=None)
    assert done.code in (0, 1, 2, 4, 5)
    assert "should not happen" not in done.errors, (words, done.errors)


def test_values_on_the_command_line_keys_and_tombstones(penstock):
    penstock("produce", "t", "one", "two", "--create", "-k", "key")
    penstock("produce", "t", "-k", "key", "-Z", stdin=b"\n")
    found = penstock("consume", "t", "-f", "json").json_lines
    assert [(one["key"], one["value"]) for one in found] == [
        ("key", "one"),
        ("key", "two"),
        ("key", None),
    ]


def test_a_file_and_a_whole_input(penstock, tmp_path):
    (tmp_path / "lines").write_bytes(b"a\r\nb\n\nc")
    told = penstock("produce", "t", "--file", tmp_path / "lines", "--create").errors
    assert told == "4 records to t: partition 0 up to offset 3\n"
    assert penstock("produce", "t", "--whole", "-q", stdin=b"x\ny\n\xff").errors == ""
    values = [one["value"] for one in penstock("consume", "t", "-f", "json").json_lines]
    assert values == ["a", "b", "", "c", {"base64": "eAp5Cv8="}]


def test_a_separator_may_be_a_tab(penstock):
    penstock("produce", "t", "--create", "-K", r"\t", stdin=b"k\tv\tw\n")
    assert penstock("consume", "t", "-f", "%k|%v").text == "k|v\tw"


def test_many_lines_come_back_as_they_were(penstock):
    lines = [b"%d " % number + b"x" * (number % 700) for number in range(3_000)]
    penstock("produce", "t", "--create", "-q", stdin=b"\n".join(lines) + b"\n")
    assert penstock("consume", "t").data.split(b"\n")[:-1] == lines


def test_partitions_are_merged_by_time(penstock):
    penstock("topic", "create", "t", "-p", 4)
    for number in range(12):
        penstock("produce", "t", "-q", "-k", f"key {number}", str(number))
    assert penstock("consume", "t", "-f", "%v ").text.split() == [str(one) for one in range(12)]
    of_two = penstock("consume", "t", "-p", 1, "-p", 2, "-f", r"%p\n").lines
    assert set(of_two) <= {"1", "2"}


def test_a_group_goes_on_where_it_was(penstock):
    penstock("produce", "t", "--create", "-q", "a", "b", "c", "d", "e")
    assert penstock("consume", "t", "-g", "billing", "-n", 2, "-f", "%v").text == "ab"
    assert penstock("consume", "t", "-g", "billing", "-n", 2, "-f", "%v").text == "cd"
    assert penstock("consume", "t", "-g", "billing", "-f", "%v").text == "e"
    assert penstock("consume", "t", "-g", "billing", "-f", "%v").text == ""
    assert penstock("consume", "t", "-g", "late", "-o", "end", "-f", "%v").text == ""
    assert penstock("consume", "t", "-g", "from", "-o", "3", "-f", "%v").text == "de"
    groups = penstock("group", "list", "-o", "json").json
    assert {one["group"]: one["lag_records"] for one in groups} == {
        "billing": 0,
        "from": 0,
        "late": 0,
    }


def test_reading_without_a_group_leaves_no_trace(penstock, tmp_path):
    penstock("produce", "t", "--create", "-q", "a")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")}
    penstock("consume", "t")
    penstock("topic", "describe", "t")
    penstock("group", "list")
    penstock("log", "stats")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")} == before
