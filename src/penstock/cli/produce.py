"""``penstock produce``: records from standard input, from a file or from the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from penstock.cli.options import Topic, Url
from penstock.cli.places import Place, place_of, run
from penstock.cli.table import counted

if TYPE_CHECKING:
    from penstock.transports import Produced, Transport

CHUNK_BYTES = 256 * 1024
LINE_BYTES_MAX = 64 * 1024 * 1024


class Row(NamedTuple):
    """A record to be."""

    key: bytes | None
    value: bytes | None


def produce(
    context: typer.Context,
    topic: Topic,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="[VALUE]...", help="Values; without one, lines of standard input."),
    ] = None,
    url: Url = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of all records.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "--headers", "-H", metavar="NAME=VALUE", help="A header; may come again."
        ),
    ] = None,
    separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", "-K", metavar="TEXT", help="Each line is KEY, this text, VALUE."
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-F", metavar="FILE", help="Lines of this file.")
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="The whole input is one value, with its line ends.")
    ] = False,
    tombstone: Annotated[
        bool, typer.Option("--tombstone", "-Z", help="An empty value means: the key is deleted.")
    ] = False,
    create: Annotated[
        bool, typer.Option("--create", help="Make the topic when it is not there.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Do not tell where they went.")
    ] = False,
) -> None:
    """Produce records; done when all of them are acknowledged."""
    place = place_of(context, url)
    headers = _headers(header or [])
    _check(values, file, key, separator, tombstone)
    with _Input(values, file, whole) as batches:
        rows = ([_row(one, key, separator, tombstone) for one in batch] for batch in batches)
        count, ends = run(_produce(place, topic, rows, headers, create))
    if not quiet:
        _tell(topic, count, ends)


def _check(
    values: list[str] | None,
    file: Path | None,
    key: str | None,
    separator: str | None,
    tombstone: bool,
) -> None:
    from penstock import errors

    if values and file is not None:
        raise errors.InvalidOption("values and --file: use one of them", option="file")
    if key is not None and separator is not None:
        raise errors.InvalidOption("--key and --key-separator: use one of them", option="key")
    if separator == "":
        raise errors.InvalidOption("--key-separator is empty", option="key-separator")
    if tombstone and key is None and separator is None:
        raise errors.InvalidOption("--tombstone needs --key or --key-separator", option="tombstone")


def _headers(words: list[str]) -> dict[str, bytes]:
    from penstock import errors

    found = {}
    for word in words:
        name, equal, value = word.partition("=")
        if not equal:
            name, equal, value = word.partition(":")
        if not equal or not name:
            raise errors.InvalidOption(f"{word!r} is no header: write NAME=VALUE", option="header")
        found[name] = value.encode("utf-8", "surrogateescape")
    return found


class _Input:
    """The values as bytes, in batches: what is there is sent, and nothing waits for more."""

    def __init__(self, values: list[str] | None, file: Path | None, whole: bool) -> None:
        self._values = values
        self._file = file
        self._whole = whole
        self._opened: IO[bytes] | None = None

    def __enter__(self) -> Iterator[list[bytes]]:
        if self._values:
            return iter([[one.encode("utf-8", "surrogateescape") for one in self._values]])
        # Without a buffer: a thread that waits in one would hold up the end of the process.
        source: Any = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
        if self._file is not None:
            source = self._opened = self._file.open("rb", buffering=0)
        return _whole(source) if self._whole else _lines(source)

    def __exit__(self, *exc_info: object) -> None:
        if self._opened is not None:
            self._opened.close()


def _whole(source: Any) -> Iterator[list[bytes]]:
    chunks = []
    while chunk := source.read(CHUNK_BYTES):
        chunks.append(chunk)
    yield [b"".join(chunks)]


def _lines(source: Any) -> Iterator[list[bytes]]:
    """The lines of each portion that comes; one that is not whole waits for its end."""
    from penstock import errors

    rest = b""
    while chunk := source.read(CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise errors.RecordTooLarge(
                f"a line has more than {LINE_BYTES_MAX:,} bytes: use --whole for one large value",
                limit=LINE_BYTES_MAX,
            )
        if lines:
            yield [one.removesuffix(b"\r") for one in lines]
    if rest:
        yield [rest.removesuffix(b"\r")]


def _row(line: bytes, key: str | None, separator: str | None, tombstone: bool) -> Row:
    from penstock import errors

    found = None if key is None else key.encode("utf-8", "surrogateescape")
    if separator is not None:
        mark = separator.encode("utf-8", "surrogateescape").decode("unicode_escape").encode()
        found, there, line = line.partition(mark)
        if not there:
            raise errors.InvalidOption(
                f"a line has no {separator!r} between key and value: {found[:60]!r}",
                option="key-separator",
            )
    return Row(found, None if tombstone and not line else line)


async def _produce(
    place: Place, topic: str, batches: Iterator[list[Row]], headers: dict[str, bytes], create: bool
) -> tuple[int, dict[int, int]]:
    from penstock import errors
    from penstock.cli.output import tell
    from penstock.cli.waiting import Aside

    async with place.writing(make=create) as transport:
        if headers:
            transport.capabilities.require(transport.name, ["headers"])
        await _check_topic(transport, topic, create)
        count, ends = 0, dict[int, int]()
        aside = Aside()
        try:
            while batch := await aside.run(lambda: next(batches, None)):
                done = await _send(transport, topic, batch, headers)
                count += done.count
                ends |= {number: last for number, (_, last) in done.ranges.items()}
        except errors.PenstockError:
            if count:
                tell(f"{counted(count, 'record')} acknowledged before this:")
            raise
        aside.close()
        return count, ends


async def _send(
    transport: Transport, topic: str, batch: list[Row], headers: dict[str, bytes]
) -> Produced:
    return await transport.produce(
        topic,
        [one.value for one in batch],
        keys=[one.key for one in batch],
        headers=[headers] * len(batch) if headers else None,
    )


async def _check_topic(transport: Transport, topic: str, create: bool) -> None:
    from penstock import errors

    if create:
        await transport.create_topic(topic)
        return
    try:
        await transport.partitions(topic)
    except errors.UnknownTopic:
        raise errors.UnknownTopic(
            f"there is no topic {topic!r}: `penstock topic create {topic}` makes it, or --create",
            topic=topic,
        ) from None


def _tell(topic: str, count: int, ends: dict[int, int]) -> None:
    from penstock.cli.output import tell

    where = ", ".join(f"{number} up to offset {end - 1}" for number, end in sorted(ends.items()))
    tell(f"{counted(count, 'record')} to {topic}" + (f": partition {where}" if ends else ""))
