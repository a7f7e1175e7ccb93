"""Writers of files: Arrow and Parquet from columns, JSON lines and CSV from records."""

from __future__ import annotations

import base64
import csv
import io
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import IO, Any, ClassVar, Literal

from penstock import Record, errors
from penstock.cli.formats import headers_text, json_line, time_text
from penstock.cli.reading import Part, records
from penstock.transports import EmbeddedTransport, Transport

BATCH_RECORDS = 10_000
Wants = Literal["columns", "records"]


class Writer(ABC):
    """Writes batches to a file."""

    wants: ClassVar[Wants] = "records"

    def begin(self, target: IO[bytes]) -> None:
        """Before the first batch."""
        self.target = target

    @abstractmethod
    def add(self, batch: Any) -> None:
        """Some records."""

    def end(self) -> None:
        """After the last one."""


class JsonLines(Writer):
    """A record a line, as ``consume -f json`` writes them."""

    def add(self, batch: Sequence[Record]) -> None:
        self.target.write(b"".join(map(json_line, batch)))


class CommaSeparated(Writer):
    """A row a record. Keys and values that are no text are base64, and the row says so."""

    TITLES = ("topic", "partition", "offset", "time", "key", "value", "headers", "encoding")

    def begin(self, target: IO[bytes]) -> None:
        super().begin(target)
        self._rows([self.TITLES])

    def add(self, batch: Sequence[Record]) -> None:
        self._rows([_row(one) for one in batch])

    def _rows(self, rows: Sequence[Sequence[object]]) -> None:
        text = io.StringIO(newline="")
        csv.writer(text).writerows(rows)
        self.target.write(text.getvalue().encode())


def _row(record: Record) -> tuple[object, ...]:
    parts = (record.key, record.value, headers_text(record.headers))
    encoding = ""
    try:
        words = ["" if one is None else one.decode() for one in parts]
    except UnicodeDecodeError:
        encoding = "base64"
        words = ["" if one is None else base64.b64encode(one).decode() for one in parts]
    where = (record.topic, record.partition, record.offset, time_text(record.timestamp))
    return (*where, *words, encoding)


class Columns(Writer):
    """What Arrow writes; the first batch tells the columns."""

    wants: ClassVar[Wants] = "columns"

    def begin(self, target: IO[bytes]) -> None:
        super().begin(target)
        self._arrow = _arrow()
        self._open: Any = None

    def add(self, batch: Any) -> None:
        if self._open is None:
            self._open = self._made(batch.schema)
        self._open.write_batch(batch)

    def end(self) -> None:
        if self._open is None:
            # Without records too, it is a file with columns.
            self._open = self._made(schema())
        self._open.close()

    @abstractmethod
    def _made(self, columns: Any) -> Any: ...


class ArrowFile(Columns):
    """The file format of Arrow (IPC), also called Feather."""

    def _made(self, columns: Any) -> Any:
        return self._arrow.ipc.new_file(self.target, columns)


class ParquetFile(Columns):
    """Parquet, compressed."""

    def _made(self, columns: Any) -> Any:
        from pyarrow import parquet

        return parquet.ParquetWriter(self.target, columns, compression="zstd")


def writer_of(kind: str) -> Writer:
    """What writes files of a format; MissingExtra when Arrow is not installed."""
    kinds: dict[str, type[Writer]] = {
        "parquet": ParquetFile,
        "arrow": ArrowFile,
        "jsonl": JsonLines,
        "csv": CommaSeparated,
    }
    if issubclass(kinds[kind], Columns):
        _arrow()
    return kinds[kind]()


def _arrow() -> Any:
    try:
        import pyarrow as pa
    except ImportError as cause:
        raise errors.MissingExtra(
            "Arrow and Parquet need: pip install 'penstock[arrow]'", extra="arrow"
        ) from cause
    return pa


def schema() -> Any:
    """The columns, as the log has them."""
    pa = _arrow()
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return pa.schema(
        [
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            pa.field("topic", pa.dictionary(pa.int8(), pa.string()), nullable=False),
            pa.field("partition", pa.int32(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
            pa.field("headers", pa.list_(header)),
        ]
    )


async def batches(
    transport: Transport, topic: str, parts: Sequence[Part], wants: Wants
) -> AsyncIterator[Any]:
    """The records in portions: Arrow's, or lists."""
    if wants == "columns" and isinstance(transport, EmbeddedTransport):
        for part in parts:
            async for batch in _columns_of_log(transport, topic, part):
                yield batch
        return
    gathered: list[Record] = []
    async for record in records(transport, topic, parts):
        gathered.append(record)
        if len(gathered) >= BATCH_RECORDS:
            yield _as(wants, gathered)
            gathered = []
    if gathered:
        yield _as(wants, gathered)


async def _columns_of_log(
    transport: EmbeddedTransport, topic: str, part: Part
) -> AsyncIterator[Any]:
    """Without a Python object for each record."""
    found = transport.queue.replay_arrow(
        topic, partition=part.partition, start=part.start, end=part.stop
    )
    async for batch in found:
        if part.until_ms is None:
            yield batch
            continue
        pa = _arrow()
        until = datetime.fromtimestamp(part.until_ms / 1_000).astimezone()
        times = batch.column(batch.schema.get_field_index("timestamp"))
        yield batch.filter(pa.compute.less(times, pa.scalar(until, times.type)))


def _as(wants: Wants, gathered: list[Record]) -> Any:
    if wants == "records":
        return gathered
    pa, kinds = _arrow(), schema()
    topic = pa.DictionaryArray.from_arrays(
        pa.array([0] * len(gathered), pa.int8()), pa.array([gathered[0].topic])
    )
    columns: dict[str, list[Any]] = {
        "key": [one.key for one in gathered],
        "value": [one.value for one in gathered],
        "partition": [one.partition for one in gathered],
        "offset": [one.offset for one in gathered],
        "timestamp": [one.timestamp for one in gathered],
        "headers": [_header_list(one) for one in gathered],
    }
    arrays = [
        topic if one.name == "topic" else pa.array(columns[one.name], one.type) for one in kinds
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=kinds)


def _header_list(record: Record) -> list[dict[str, Any]]:
    return [{"key": name, "value": value} for name, value in record.headers.items()]
