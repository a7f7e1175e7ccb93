"""Warehouse tables without Spark: files, commits that happen once, schema rules, maintenance."""

import json
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import repeat
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from penstock.errors import InvalidOption, KeyNotFound
from penstock.spark import table_commit, table_files
from penstock.spark.table_commit import check_schema, commit_files, is_committed
from penstock.spark.table_files import WrittenFile, remove_files, write_files
from penstock.spark.table_options import TableOptions, read_table_options
from penstock.spark.tables import WarehouseTable
from penstock.system import OsFiles

SCHEMA = pa.schema([("id", pa.int64()), ("country", pa.string()), ("amount", pa.float64())])


def rows(*values: tuple[int, str | None, float]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array(column, field.type)
            for column, field in zip(zip(*values, strict=True), SCHEMA, strict=True)
        ],
        schema=SCHEMA,
    )


Write = Callable[..., Sequence[WrittenFile]]


@pytest.fixture
def options(tmp_path: Path) -> TableOptions:
    return TableOptions(str(tmp_path / "orders"))


def stage(options: TableOptions, *batches: pa.RecordBatch) -> tuple[WrittenFile, ...]:
    schema = batches[0].schema if batches else SCHEMA
    return write_files(options.path, batches, schema, options.partition_by, options.file_rows_max)


def add(
    options: TableOptions, batch: pa.RecordBatch, number: int, *, overwrite: bool = False
) -> bool:
    staged = stage(options, batch)
    return commit_files(
        options, batch.schema, staged, transaction=("query", number), overwrite=overwrite
    )


def parquet_files(options: TableOptions) -> set[str]:
    return {str(path.relative_to(options.path)) for path in Path(options.path).rglob("*.parquet")}


def test_what_was_committed_is_in_the_table(options: TableOptions) -> None:
    assert add(options, rows((1, "de", 2.5), (2, None, 0.0)), 0)
    assert add(options, rows((3, "fr", 1.0)), 1)
    table = WarehouseTable(options.path)
    assert sorted(table.arrow()["id"].to_pylist()) == [1, 2, 3]
    assert table.count() == 3
    assert table.version == 1


def test_a_batch_that_is_done_again_is_not_added_again_and_leaves_no_files(
    options: TableOptions,
) -> None:
    assert add(options, rows((1, "de", 2.5)), 7)
    before = parquet_files(options)
    assert not add(options, rows((1, "de", 2.5)), 7)
    assert not add(options, rows((1, "de", 2.5)), 3)
    assert parquet_files(options) == before
    assert WarehouseTable(options.path).count() == 1


def test_another_query_may_write_the_same_number(options: TableOptions) -> None:
    add(options, rows((1, "de", 2.5)), 0)
    staged = stage(options, rows((2, "de", 2.5)))
    assert commit_files(options, SCHEMA, staged, transaction=("other", 0))
    assert is_committed(options.path, "other", 0)
    assert not is_committed(options.path, "other", 1)


def test_what_is_staged_is_not_in_the_table(options: TableOptions) -> None:
    add(options, rows((1, "de", 2.5)), 0)
    stage(options, rows((2, "de", 2.5)))
    assert WarehouseTable(options.path).count() == 1


def test_an_empty_batch_is_noted_and_adds_nothing(options: TableOptions) -> None:
    add(options, rows((1, "de", 2.5)), 0)
    assert stage(options) == ()
    assert stage(options, rows((2, "de", 1.0)).slice(0, 0)) == ()
    assert commit_files(options, SCHEMA, (), transaction=("query", 1))
    assert is_committed(options.path, "query", 1)


def test_complete_mode_replaces_what_was_there(options: TableOptions) -> None:
    add(options, rows((1, "de", 2.5)), 0, overwrite=True)
    add(options, rows((2, "fr", 2.5)), 1, overwrite=True)
    assert WarehouseTable(options.path).arrow()["id"].to_pylist() == [2]


@pytest.mark.parametrize("country", ["de", "a/b", "c d", "ü%20", None, "x=y"])
def test_partition_values_come_back_as_they_were(tmp_path: Path, country: str | None) -> None:
    options = TableOptions(str(tmp_path / "orders"), ("country",))
    add(options, rows((1, country, 2.5), (2, "other", 2.5)), 0)
    found = WarehouseTable(options.path).arrow().to_pylist()
    assert {row["country"] for row in found} == {country, "other"}


def test_a_file_has_no_more_rows_than_asked_for(tmp_path: Path) -> None:
    options = TableOptions(str(tmp_path / "orders"), file_rows_max=10)
    batch = rows(*((number, "de", 1.0) for number in range(25)))
    assert sorted(json.loads(one.statistics)["numRecords"] for one in stage(options, batch)) == [
        5,
        10,
        10,
    ]


def test_files_tell_their_bounds(options: TableOptions) -> None:
    (file,) = stage(options, rows((3, "de", 2.5), (1, "x" * 40, -1.0)))
    told = json.loads(file.statistics)
    assert told["minValues"] == {"id": 1, "amount": -1.0, "country": "de"}
    # A long text is cut, to one that comes after all that begin so.
    assert told["maxValues"] == {"id": 3, "amount": 2.5, "country": "x" * 31 + "y"}


OF_ALL_KINDS = pa.table(
    {
        "id": pa.array([1, 2], pa.int32()),
        "text": ["x" * 99 + "a", "x" * 99 + "b"],
        "flag": [True, False],
        "at": pa.array([datetime(2026, 1, 1, 0, 0, 0, 999, UTC), None], pa.timestamp("us", "UTC")),
        "day": [date(2026, 1, 1), None],
        "price": [Decimal("1.5"), Decimal("2.25")],
        "never": pa.array([None, None], pa.int64()),
        "bytes": [b"a", b"b"],
        "many": [[1], [2]],
    }
)


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("name", [one for one in OF_ALL_KINDS.column_names if one != "many"])
def test_readers_that_skip_files_find_values_of_every_kind(
    options: TableOptions, name: str, row: int
) -> None:
    add(options, OF_ALL_KINDS.to_batches()[0], 0)
    value = OF_ALL_KINDS[name][row]
    if value.is_valid:
        table = DeltaTable(options.path).to_pyarrow_dataset()
        found = table.to_table(filter=ds.field(name) == value)
        assert found["id"].to_pylist() == [row + 1]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), Decimal("0.1234567890123456789")])
def test_a_file_with_a_value_that_has_no_bound_is_never_skipped(
    options: TableOptions, value: object
) -> None:
    add(options, pa.table({"id": [1], "odd": [value]}).to_batches()[0], 0)
    table = DeltaTable(options.path).to_pyarrow_dataset()
    assert table.to_table(filter=ds.field("id") == 1).num_rows == 1
    (file,) = stage(options, *pa.table({"id": [2], "odd": [value]}).to_batches())
    told = json.loads(file.statistics)
    assert "minValues" not in told
    assert told["nullCount"] == {"id": 0, "odd": 0}


def test_a_new_column_needs_leave(options: TableOptions) -> None:
    add(options, rows((1, "de", 2.5)), 0)
    wider = rows((2, "fr", 1.0)).append_column("device", pa.array(["phone"]))
    with pytest.raises(InvalidOption, match=r"no column device.*mergeSchema"):
        check_schema(options, wider.schema)
    merging = TableOptions(options.path, merge_schema=True)
    check_schema(merging, wider.schema)
    assert add(merging, wider, 1)
    found = {row["id"]: row["device"] for row in WarehouseTable(options.path).arrow().to_pylist()}
    assert found == {1: None, 2: "phone"}


def test_a_column_that_is_missing_is_null(options: TableOptions) -> None:
    add(options, rows((1, "de", 2.5)), 0)
    narrow = rows((2, "fr", 1.0)).select(["id"])
    check_schema(options, narrow.schema)
    add(options, narrow, 1)
    found = {row["id"]: row["amount"] for row in WarehouseTable(options.path).arrow().to_pylist()}
    assert found == {1: 2.5, 2: None}


def test_a_column_of_another_type_never_fits(options: TableOptions) -> None:
    add(options, rows((1, "de", 2.5)), 0)
    other = pa.schema([("id", pa.string())])
    with pytest.raises(InvalidOption, match=r"'id'.*cast it"):
        check_schema(TableOptions(options.path, merge_schema=True), other)


def test_the_partitions_of_a_table_stay(tmp_path: Path) -> None:
    options = TableOptions(str(tmp_path / "orders"), ("country",))
    add(options, rows((1, "de", 2.5)), 0)
    with pytest.raises(InvalidOption, match="partitioned by country"):
        check_schema(TableOptions(options.path), SCHEMA)
    with pytest.raises(InvalidOption, match="'city', which is no column"):
        check_schema(TableOptions(options.path, ("city",)), SCHEMA)


def test_compaction_and_vacuum_keep_the_rows(options: TableOptions) -> None:
    for number in range(5):
        add(options, rows((number, "de", 1.0)), number)
    orphan = stage(options, rows((9, "de", 1.0)))[0].path
    table = WarehouseTable(options.path)
    table.compact()
    assert len(table.files()) == 1
    named = table.vacuum(older_than_hours=0)
    assert len(parquet_files(options)) == 7
    assert orphan in named
    table.vacuum(older_than_hours=0, dry_run=False)
    assert len(parquet_files(options)) == 1
    assert sorted(table.arrow()["id"].to_pylist()) == list(range(5))


def test_others_can_read_it(options: TableOptions) -> None:
    add(options, rows((1, "de", 2.5), (2, "de", 1.5)), 0)
    table = WarehouseTable(options.path)
    assert duckdb.read_parquet(table.files()).aggregate("sum(amount)").fetchall() == [(4.0,)]
    assert DeltaTable(options.path).to_pyarrow_table().num_rows == 2


def test_no_thread_of_arrow_holds_what_is_python(options: TableOptions) -> None:
    """A program that had read a table and ended was aborted at times: 2 of 60 runs on a busy machine."""
    add(options, rows((1, "de", 1.0)), 1)
    table = table_commit.open_table(options.path)
    assert table is not None
    files = table_commit.rows_of(table, f"file://{options.path}").filesystem
    assert isinstance(files, SubTreeFileSystem)
    assert isinstance(files.base_fs, LocalFileSystem)
    source = Path(table_commit.__file__).parent
    callers = {one.name for one in source.glob("*.py") if "to_pyarrow" in one.read_text("utf-8")}
    assert callers == {"table_commit.py"}


def test_a_folder_without_a_table_says_so(tmp_path: Path) -> None:
    with pytest.raises(KeyNotFound, match="nothing was written"):
        WarehouseTable(str(tmp_path)).count()


def test_files_are_on_the_disk_before_the_commit_and_the_commit_before_its_return(
    options: TableOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    class Counting(OsFiles):
        def open(self, path: str, *, create: bool = False, write: bool = True) -> int:
            synced.append(path)
            return super().open(path, create=create, write=write)

        def sync_directory(self, path: str) -> None:
            synced.append(path)
            super().sync_directory(path)

    monkeypatch.setattr(table_files, "OsFiles", Counting)
    monkeypatch.setattr(table_commit, "OsFiles", Counting)
    (file,) = stage(options, rows((1, "de", 2.5)))
    assert synced == [f"{options.path}/{file.path}", options.path]
    commit_files(options, SCHEMA, [file], transaction=("query", 0))
    assert synced[2:] == [
        f"{options.path}/_delta_log/00000000000000000000.json",
        f"{options.path}/_delta_log",
        options.path,
    ]


def test_a_write_that_fails_leaves_nothing(options: TableOptions) -> None:
    def failing() -> object:
        yield from repeat(rows(*((number, "de", 2.5) for number in range(10_000))), 5)
        pause = threading.Event()
        for _ in range(1_000):  # until something is on the disk
            if list(Path(options.path).rglob("*.parquet")):
                break
            pause.wait(0.01)
        raise OSError("the disk is full")

    for partition_by, rows_max in (((), 7_000), ((), 1_000_000), (("country",), 1_000_000)):
        with pytest.raises(OSError, match="disk is full"):
            write_files(options.path, failing(), SCHEMA, partition_by, rows_max)  # type: ignore[arg-type]
        assert not list(Path(options.path).rglob("*.parquet"))


def test_removing_what_is_gone_is_fine(options: TableOptions) -> None:
    (file,) = stage(options, rows((1, "de", 2.5)))
    remove_files(options.path, [file.path, file.path])
    assert parquet_files(options) == set()


class TestOptions:
    def test_names_in_any_case(self) -> None:
        found = read_table_options({"PATH": "t", "partitionby": "a, b", "mergeSchema": "TRUE"})
        assert found == TableOptions("t", ("a", "b"), merge_schema=True)

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({}, "needs a folder"),
            ({"path": "s3://bucket/t"}, "lives in a folder"),
            ({"path": "t", "partitonBy": "a"}, "did you mean partitionBy"),
            ({"path": "t", "mergeSchema": "yes"}, "use true or false"),
            ({"path": "t", "maxRowsPerFile": "0"}, "1 or more"),
            ({"path": "t", "txnAppId": "a"}, "give both"),
            ({"path": "t", "txnAppId": "a", "txnVersion": "-1"}, "0 or more"),
        ],
    )
    def test_a_wrong_option_says_what_would_be_right(
        self, given: dict[str, str], said: str
    ) -> None:
        with pytest.raises(InvalidOption, match=said):
            read_table_options(given)
