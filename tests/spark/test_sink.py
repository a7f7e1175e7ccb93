"""The sink of topics without Spark: options, columns, and each write once whatever fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from penstock.errors import InvalidMessage, InvalidName, InvalidOption, TransactionPending
from penstock.log.transaction_roll import Roller
from penstock.log.transactions import Transactions
from penstock.spark.open_log import open_log
from penstock.spark.sink import PenstockWriter
from penstock.spark.sink_options import SinkOptions, check_columns, read_sink_options
from penstock.spark.sink_rows import split_topics
from tests.spark.spark_world import LogWorld


def columns(**kinds: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


SCHEMA = columns(key=BinaryType(), value=BinaryType())


def rows(*values: bytes) -> Iterator[pa.RecordBatch]:
    both = {"key": pa.array(values, pa.binary()), "value": pa.array(values, pa.binary())}
    return iter([pa.RecordBatch.from_pydict(both)])


def writer(log: LogWorld, **options: Any) -> PenstockWriter:
    return PenstockWriter(SinkOptions(log.path, "sold", **options), SCHEMA)


def sold(log: LogWorld) -> list[bytes]:
    return [row["value"] for row in log.rows(subscribe="sold")]


def staged_files(log: LogWorld) -> list[Path]:
    return [path for path in Path(log.path).rglob("staged/*") if path.is_file()]


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({}, InvalidOption, "needs a log"),
        ({"path": "x", "topc": "a"}, InvalidOption, "did you mean topic"),
        ({"path": "x", "topic": "a b"}, InvalidName, "not a topic name"),
        ({"path": "x", "partitions": "0"}, InvalidOption, "1 or more"),
        ({"path": "x", "txnAppId": "a"}, InvalidOption, "give both"),
        ({"path": "x", "txnAppId": "a", "txnVersion": "x"}, InvalidOption, "0 or more"),
    ],
)
def test_a_wrong_option_says_what_would_be_right(given, error, said) -> None:
    with pytest.raises(error, match=said):
        read_sink_options(given)


def test_options_in_any_case() -> None:
    given = {
        "PATH": "x",
        "Topic": "a",
        "checkpointLocation": "c",
        "txnappid": "n",
        "TXNVERSION": "7",
    }
    assert read_sink_options(given) == SinkOptions("x", "a", 1, "n", 7)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (columns(key=BinaryType()), "need a column 'value'"),
        (columns(value=IntegerType()), "use string or binary"),
        (columns(value=BinaryType(), amount=DoubleType()), "to_json"),
        (columns(value=BinaryType(), headers=MapType(StringType(), BinaryType())), "array<struct"),
    ],
)
def test_columns_that_are_no_records_are_told(schema: StructType, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        check_columns(schema, SinkOptions("x", "a"))


def test_somebody_has_to_say_which_topic() -> None:
    with pytest.raises(InvalidOption, match="where the records go"):
        check_columns(columns(value=BinaryType()), SinkOptions("x"))
    batch = pa.RecordBatch.from_pydict({"value": [b"a", b"b"], "topic": ["one", None]})
    with pytest.raises(InvalidMessage, match="has no topic"):
        list(split_topics(batch, None))


def test_records_are_seen_when_they_are_committed_and_not_before(log) -> None:
    write = writer(log)
    staged = write.write(rows(b"a", b"b"))
    assert sold(log) == []
    write.commit([staged, None])
    assert sold(log) == [b"a", b"b"]
    assert staged_files(log) == []


def test_a_write_that_is_done_again_adds_nothing(log) -> None:
    for _ in range(2):
        write = writer(log, application="nightly", version=3)
        write.commit([write.write(rows(b"a"))])
    assert sold(log) == [b"a"]
    assert staged_files(log) == []


def test_a_write_that_is_aborted_leaves_nothing(log) -> None:
    write = writer(log)
    write.abort([write.write(rows(b"a")), None])
    assert sold(log) == []
    assert staged_files(log) == []


@pytest.mark.parametrize("options", [{}, {"application": "nightly", "version": 3}])
def test_an_abort_does_not_take_back_what_is_decided(log, monkeypatch, options) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("the disk is full")

    write = writer(log, **options)
    staged = write.write(rows(b"a", b"b"))
    with monkeypatch.context() as patch:
        patch.setattr(Roller, "append", full)
        with pytest.raises(TransactionPending):
            write.commit([staged])
        write.abort([staged])
    assert sold(log) == []
    transactions = Transactions(open_log(log.path).store)
    transactions.finish(staged.producer)
    transactions.close()
    assert sold(log) == [b"a", b"b"]
