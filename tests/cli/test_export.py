"""``penstock export``: files that other tools read."""

from __future__ import annotations

import base64
import csv
import json
from typing import Any

import pytest

from tests.cli.terminal import Terminal


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> Terminal:
    folder = tmp_path_factory.mktemp("export")
    terminal = Terminal(folder, f"log:{folder / 'data'}")
    terminal("topic", "create", "orders", "-p", 2)
    terminal("topic", "create", "empty")
    lines = b"".join(b"k%d:v%d\n" % (number, number) for number in range(100))
    terminal("produce", "orders", "-K", ":", "-H", "a=1", stdin=lines)
    terminal("produce", "orders", "--whole", stdin=b"\xff\xfe")
    return terminal


def rows_of_arrow(path) -> Any:
    arrow = pytest.importorskip("pyarrow", reason="needs penstock[arrow]")
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return parquet.read_table(path).to_pylist()
    with arrow.ipc.open_file(path) as file:
        return file.read_all().to_pylist()


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_columns(shop, tmp_path, ending):
    target = tmp_path / f"orders.{ending}"
    told = shop("export", "orders", target).errors
    assert told == f"101 records of orders to {target}\n"
    rows = rows_of_arrow(target)
    assert len(rows) == 101
    assert {row["value"] for row in rows} == {b"\xff\xfe", *(b"v%d" % one for one in range(100))}
    assert {row["topic"] for row in rows} == {"orders"}
    assert rows[0]["headers"] == [{"key": "a", "value": b"1"}]
    assert [path.name for path in tmp_path.iterdir() if "part" in path.name] == []


def test_json_lines(shop, tmp_path):
    shop("export", "orders", tmp_path / "x.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert len(rows) == 101
    assert rows[-1]["value"] == {"base64": base64.b64encode(b"\xff\xfe").decode()}


def test_csv(shop, tmp_path):
    shop("export", "orders", tmp_path / "data.txt", "-f", "csv")
    with (tmp_path / "data.txt").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 101
    [first] = [row for row in rows if row["key"] == "k0"]
    assert (first["value"], first["headers"]) == ("v0", "a=1")
    assert (rows[-1]["value"], rows[-1]["encoding"]) == ("//4=", "base64")


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow", "x.jsonl", "x.csv"])
def test_a_part_and_nothing(shop, tmp_path, name):
    shop("export", "orders", tmp_path / name, "-o", "-10", "-p", 0)
    first = (tmp_path / name).stat().st_size
    assert first > 0
    refused = shop("export", "orders", tmp_path / name, code=2).errors
    assert "is there: --yes replaces it" in refused
    shop("export", "empty", tmp_path / name, "--yes")
    if name.endswith(("parquet", "arrow")):
        assert rows_of_arrow(tmp_path / name) == []


def test_an_end_by_time(shop, tmp_path):
    for name in ("x.jsonl", "x.parquet"):
        told = shop("export", "orders", tmp_path / name, "-o", "@1h:2999-01-01").errors
        assert told.startswith("101 records")
        told = shop("export", "orders", tmp_path / name, "-o", "@2h:1h", "--yes").errors
        assert told.startswith("0 records")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["export", "orders", "x.doc"], "does not tell the format: use an ending of .parquet"),
        (["export", "orders", "nowhere/x.csv"], "there is no such folder"),
        (["export", "orders", "."], "does not tell the format"),
        (["export", "orders", "x.csv", "-o", "?"], "is no place to read"),
        (["export", "orders"], "Missing argument 'FILE'"),
    ],
)
def test_what_is_wrong_is_told(shop, words, told):
    assert told in shop(*words, code=2).errors


def test_a_file_that_fails_is_not_left(shop, tmp_path):
    shop("export", "gone", tmp_path / "x.csv", code=2)
    assert list(tmp_path.glob("*.csv*")) == []
    assert list(tmp_path.glob(".x*")) == []
