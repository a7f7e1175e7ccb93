"""Update mode: changed rows take the place of those with the same key, each micro-batch once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import count
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis.strategies import (
    booleans,
    dictionaries,
    integers,
    lists,
    none,
    sampled_from,
    tuples,
)

from penstock.errors import InvalidOption
from penstock.spark import table_merge
from penstock.spark.steps import window
from penstock.spark.table_commit import replace_files
from penstock.spark.table_merge import merge_rows
from penstock.spark.table_options import TableOptions
from penstock.spark.tables import WarehouseTable
from penstock.system import OsFiles
from tests.spark.shop_world import OrderPlaced, order, shop_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.spark.table_files import WrittenFile

KEYED = pa.schema({"x": pa.int64(), "y": pa.string(), "z": pa.bool_(), "v": pa.int64()})


def revenue_of(orders) -> DataFrame:
    groups = window(orders.frame(), "country", time="placed_at", size="1 minute", late="1 hour")
    return groups.agg({"total": "sum"}).selectExpr(
        "country", "window.start AS minute", "`sum(total)` AS total"
    )


def forget_last_commit(checkpoint) -> None:
    """As if the driver had been killed after the micro-batch and before Spark's note of it."""
    numbers = [int(one.name) for one in (checkpoint / "commits").iterdir() if one.name.isdigit()]
    (checkpoint / "commits" / str(max(numbers))).unlink()
    (checkpoint / "commits" / f".{max(numbers)}.crc").unlink(missing_ok=True)


def test_changed_rows_go_to_a_topic_and_to_a_table(spark, log, tmp_path) -> None:
    shop = shop_in(log, tmp_path)
    orders = shop.source(OrderPlaced)

    @shop.topic("revenue", key="country", mode="update")
    def live() -> DataFrame:
        return revenue_of(orders)

    @shop.table("revenue", mode="update", key=["country", "minute"])
    def kept() -> DataFrame:
        return revenue_of(orders)

    def table() -> dict[str, float]:
        found = WarehouseTable(f"{shop.folder}/revenue").arrow().to_pylist()
        return {row["country"]: row["total"] for row in found}

    def told() -> list[tuple[bytes, float]]:
        rows = log.rows(subscribe="revenue")
        return sorted((row["key"], msgspec.json.decode(row["value"])["total"]) for row in rows)

    log.publish("orders", [order(1), order(2, "fr", total=5.0)])
    shop.run(spark)
    log.publish("orders", [order(3, total=2.0)])
    shop.run(spark)
    for again in (False, True):
        assert told() == [(b"de", 1.0), (b"de", 3.0), (b"fr", 5.0)], again
        assert table() == {"de": 3.0, "fr": 5.0}
        assert WarehouseTable(f"{shop.folder}/revenue").count() == 2
        if not again:
            for name in ("live", "kept"):
                forget_last_commit(tmp_path / "warehouse" / "checkpoints" / name)
            shop.run(spark)


def test_rows_of_update_mode_need_their_key(spark, log, tmp_path) -> None:
    shop = shop_in(log, tmp_path)
    orders = shop.source(OrderPlaced)
    with pytest.raises(InvalidOption, match="key and mode='update' go together"):
        shop.table("x", mode="update")
    with pytest.raises(InvalidOption, match="key and mode='update' go together"):
        shop.table("x", key=["country"])

    @shop.topic("revenue", mode="update")
    def keyless() -> DataFrame:
        return revenue_of(orders)

    with pytest.raises(InvalidOption, match="mode update needs the column 'key'"):
        shop.run(spark)


def rows(**columns) -> pa.Table:
    return pa.table(columns)


def test_rows_are_merged_once_for_each_transaction(tmp_path) -> None:
    options = TableOptions(path=str(tmp_path / "table"))
    table = WarehouseTable(options.path)

    def merge(number: int, **columns) -> bool:
        return merge_rows(options, rows(**columns), ["k"], transaction=("q", number))

    assert merge(0, k=["a", None], v=[1, 2])
    assert merge(1, k=["a", None, "b"], v=[10, 20, 30])
    assert not merge(1, k=["a"], v=[99])
    assert not merge(0, k=["a"], v=[99])
    found = {row["k"]: row["v"] for row in table.arrow().to_pylist()}
    assert found == {"a": 10, None: 20, "b": 30}
    with pytest.raises(InvalidOption, match="several rows of a micro-batch have the same k"):
        merge(2, k=["c", "c"], v=[1, 2])


def test_a_column_that_does_not_fit_is_refused_before_anything_is_written(tmp_path) -> None:
    options = TableOptions(path=str(tmp_path / "table"))
    merge_rows(options, rows(k=["a"], v=[1]), ["k"], transaction=("q", 0))
    with pytest.raises(InvalidOption, match="column 'v'"):
        merge_rows(options, rows(k=["a"], v=["text"]), ["k"], transaction=("q", 1))
    assert WarehouseTable(options.path).version == 0


def merged(options: TableOptions, *keys: str) -> Callable[..., bool]:
    """Merges with numbers that go up."""
    numbers = count()

    def merge(**columns: list[object]) -> bool:
        return merge_rows(options, rows(**columns), keys, transaction=("q", next(numbers)))

    return merge


def test_files_without_a_row_that_changes_stay_and_folders_may_have_any_name(tmp_path) -> None:
    options = TableOptions(path=str(tmp_path / "table"), partition_by=("c",))
    table = WarehouseTable(options.path)
    merge = merged(options, "c", "n")
    names = ["a b/ü%20", "x=1", None]
    merge(c=names, n=[1, 1, None], v=[1.0, 2.0, 3.0])
    before = set(table.files())
    merge(c=names[:1], n=[1], v=[10.0])
    assert len(before & set(table.files())) == 2, "one of three was written anew"
    assert len(table.files()) == 3
    merge(c=[None, None, "x=1"], n=[None, 7, 2], v=[30.0, 70.0, 20.0])
    found = {(row["c"], row["n"]): row["v"] for row in table.arrow().to_pylist()}
    assert found == {
        (names[0], 1): 10.0, ("x=1", 1): 2.0, (None, None): 30.0, (None, 7): 70.0, ("x=1", 2): 20.0,
    }  # fmt: skip


@settings(max_examples=25)
@given(
    batches=lists(
        dictionaries(
            tuples(integers(0, 3) | none(), sampled_from(["a", "b"]) | none(), booleans()),
            integers(-9, 9),
            max_size=12,
        ),
        max_size=5,
    )
)
def test_any_merges_give_what_a_dictionary_gives(batches) -> None:
    expected: dict[tuple[int | None, str | None, bool], int] = {}
    with TemporaryDirectory() as folder:
        options = TableOptions(path=f"{folder}/table")
        for number, batch in enumerate([{(0, "a", True): 0}, *batches]):
            expected |= batch
            names = [dict(zip("xyzv", (*key, value), strict=True)) for key, value in batch.items()]
            given = pa.Table.from_pylist(names, schema=KEYED)
            merge_rows(options, given, ["x", "y", "z"], transaction=("q", number))
        found = WarehouseTable(options.path).arrow().to_pylist()
    assert {(row["x"], row["y"], row["z"]): row["v"] for row in found} == expected
    assert len(found) == len(expected)


def test_new_files_are_on_the_disk_before_the_table_has_them(tmp_path, monkeypatch) -> None:
    synced: list[str] = []
    sync = OsFiles.sync

    def noted(self: OsFiles, descriptor: int) -> None:
        sync(self, descriptor)
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    def commit(*given: object) -> None:
        files = cast("Sequence[WrittenFile]", given[3])
        assert files
        assert {str(tmp_path / "table" / one.path) for one in files} <= set(synced)
        replace_files(*given)  # type: ignore[arg-type]
        assert synced[-1].endswith("1.json"), "and the commit itself afterwards"

    monkeypatch.setattr(OsFiles, "sync", noted)
    monkeypatch.setattr(table_merge, "replace_files", commit)
    merge = merged(TableOptions(path=str(tmp_path / "table")), "k")
    merge(k=["a", "b"], v=[1, 2])
    assert merge(k=["a"], v=[10])


def test_two_at_the_same_time_are_one_after_the_other(tmp_path, monkeypatch) -> None:
    options = TableOptions(path=str(tmp_path / "table"))
    merge = merged(options, "k")
    merge(k=["a", "b"], v=[1, 2])
    other = iter([lambda: merge_rows(options, rows(k=["b"], v=[20]), ["k"], transaction=("r", 0))])

    def commit(*given: object) -> None:
        for meanwhile in other:
            meanwhile()
        replace_files(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(table_merge, "replace_files", commit)
    assert merge(k=["a"], v=[10])
    assert sorted(WarehouseTable(options.path).arrow()["v"].to_pylist()) == [10, 20]
    written = list((tmp_path / "table").glob("*.parquet"))
    assert len(written) == 3, "what the first attempt wrote is removed"


def test_a_column_that_is_new_is_null_in_the_rows_before(tmp_path) -> None:
    options = TableOptions(path=str(tmp_path / "table"), merge_schema=True)
    merge = merged(options, "k")
    merge(k=["a", "b"], v=[1, 2])
    merge(k=["b"], v=[20], w=["new"])
    merge(k=["c"], v=[3])
    found = {
        row["k"]: (row["v"], row["w"]) for row in WarehouseTable(options.path).arrow().to_pylist()
    }
    assert found == {"a": (1, None), "b": (20, "new"), "c": (3, None)}


def test_files_are_skipped_by_what_the_table_tells_of_them(tmp_path, monkeypatch) -> None:
    options = TableOptions(path=str(tmp_path / "table"))
    merge = merged(options, "day", "name")
    merge(day=[1, 1], name=["a", "b"], v=[1, 2])
    merge(day=[2, 2], name=["a", "b"], v=[3, 4])
    looked_into: list[str] = []
    any_in = table_merge._Keys.any_in

    def noted(self: Any, fragment: Any, schema: pa.Schema) -> bool:
        looked_into.append(fragment.path)
        return any_in(self, fragment, schema)

    monkeypatch.setattr(table_merge._Keys, "any_in", noted)
    merge(day=[2], name=["b"], v=[40])
    assert len(looked_into) == 1
    merge(day=[9], name=["b"], v=[90])
    assert len(looked_into) == 1, "none can have it"
    found = WarehouseTable(options.path).arrow()["v"].to_pylist()
    assert sorted(found) == [1, 2, 3, 40, 90]
